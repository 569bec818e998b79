"""What `adapt` fills in for a collection, and what it refuses."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.evaluation.selection import cheapest_of_the_best, selected
from sparring.components.sources.survey import Survey
from sparring.components.yaml_files import yaml_text
from sparring.workflows.command_line import main
from sparring.workflows.experiments import loading
from sparring.workflows.recipes.adapt import Config, build, resolve
from sparring.workflows.recipes.adapt.defaults import _found
from sparring.workflows.stages.config import Default
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from tests.support import hub, tiny, toy
from tests.support.errors import refused
from tests.support.tiny import Said


@pytest.fixture
def own(beir: Path, tmp_path: Path) -> Path:
    """The toy collection, to do something to."""
    return shutil.copytree(beir, tmp_path / "own")


@pytest.fixture
def tree(own: Path, encoder: Path) -> dict[str, Any]:
    """The two lines, and a start model."""
    return {"recipe": "adapt", "data": {"format": "beir", "path": str(own)}, "model": str(encoder)}


def read(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> loading.Experiment:
    return loading.read(tiny.write(tmp_path / "own.yaml", tree), list(assignments), tmp_path / "runs")


def of(tree: dict[str, Any], **found: Any) -> Config:
    """The config resolved for a collection of which this was found."""
    return filled_in(tree, **found)[0]


def filled_in(tree: dict[str, Any], **found: Any) -> tuple[Config, list[Default]]:
    """The same, with what was filled in."""
    config = Config(**tree)
    seen = _found(config, None)
    assert seen is not None
    details = {
        "documents": 1000,
        "asked": 10**6,
        "queries": {},
        "relevant": 1.0,
        "graded": False,
        "document_tokens": 20,
        **found,
    }
    return resolve(config.model_copy(update={"survey": Survey(of=seen.of, **details)}), None)


def test_lengths_are_those_of_the_collection(tmp_path: Path, tree: dict[str, Any]) -> None:
    config = read(tmp_path, tree).config
    for side in ("query_tokens", "document_tokens"):
        result, length = getattr(config.survey, side), getattr(config.model, side)
        assert length % 8 == 0
        assert result <= length < result + 8 or length == 64
    assert config.pair_tokens == min(64, config.model.query_tokens + config.model.document_tokens)
    assert config.k == 40  # all documents
    tree["model"] = {"model": tree["model"]}
    assert read(tmp_path, tree, "model.query_tokens=5").config.model.query_tokens == 5


def test_a_causal_language_model_is_read_by_its_last_token(tmp_path: Path, tree: dict[str, Any]) -> None:
    tree["model"] = str(toy.write_encoder(tmp_path / "qwen3", "qwen3"))
    output = read(tmp_path, tree)
    config = output.config
    model = next(node for node in graph(output.wanted) if node.label == "start ranker").inputs["config"]
    assert (config.model.pooling, config.ranker_pooling) == ("last", "cls")
    assert config.ranker_template == model.template == "query: {query} document: {document}"


def test_a_resolved_config_is_resolved_to_itself(tmp_path: Path, tree: dict[str, Any]) -> None:
    output = read(tmp_path, tree)
    assert {default.key for default in output.defaults} >= {"model.query_tokens", "train.warm.updates", "pair_tokens"}
    again = read(tmp_path, output.config.model_dump(mode="json"))
    assert again.config == output.config
    assert again.defaults == []
    assert again.outcome.results.fingerprint == output.outcome.results.fingerprint


def test_an_earlier_run_is_remembered_and_another_source_is_not(
    tmp_path: Path, tree: dict[str, Any], own: Path
) -> None:
    output = read(tmp_path, tree)
    output.run.mkdir(parents=True)
    (output.run / "config.yaml").write_text(yaml_text(output.config.model_dump(mode="json")))
    own.rename(tmp_path / "away")
    assert read(tmp_path, tree).config == output.config
    (tmp_path / "away").rename(tmp_path / "other")
    (tmp_path / "other" / "qrels" / "train.tsv").unlink()
    assert read(tmp_path, {**tree, "data": {**tree["data"], "path": str(tmp_path / "other")}}).config.train is False


def test_a_machine_without_the_data_has_what_a_run_of_it_chose(tmp_path: Path, tree: dict[str, Any], own: Path) -> None:
    """As a job did, whose report is asked for elsewhere: the store keeps the numbers."""
    path, store = tiny.write(tmp_path / "own.yaml", tree), tmp_path / "store"
    output = loading.read(path, ["k=20"], tmp_path / "there", str(store))
    Store(store).keep_config(output.run.name, output.config.model_dump(mode="json"))
    own.rename(tmp_path / "away")
    place = loading.read(path, ["k=20"], tmp_path / "here", str(store))
    assert place.config == output.config
    assert place.outcome.results.fingerprint == output.outcome.results.fingerprint
    assert not any(default.guessed for default in place.defaults)
    without = loading.read(path, ["k=20"], tmp_path / "here", str(tmp_path / "other"))
    assert without.config != output.config
    assert any(default.guessed for default in without.defaults)


def test_without_data_and_numbers_a_report_says_why_it_finds_nothing(
    tmp_path: Path, tree: dict[str, Any], own: Path, said: Said
) -> None:
    path = tiny.write(tmp_path / "own.yaml", tree)
    shutil.rmtree(own)
    places = ["--store", str(tmp_path / "store"), "--runs", str(tmp_path / "runs")]
    assert main([*places, "report", str(path)]) == 2
    assert f"{own}/corpus.jsonl is not here, by which numbers of this config are chosen" in said()[1]


def test_a_model_that_came_later_has_its_tokens_counted(
    tmp_path: Path, tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the numbers of a run that began without it would hold for good."""
    hub.look_in_cache_alone(tmp_path / "cache", monkeypatch)
    model, tree["model"] = Path(tree["model"]), "someone/a-model"
    output = read(tmp_path, tree)
    assert (output.config.model.document_tokens, output.config.ranker_pooling) == (256, "cls")
    text = {default.key: default.reason for default in output.defaults}
    assert text["model.document_tokens"] == "the model's tokenizer cannot be read here"
    assert text["ranker_pooling"] == "loads in other servers too"
    output.run.mkdir(parents=True)
    (output.run / "config.yaml").write_text(yaml_text(output.config.model_dump(mode="json")))
    assert read(tmp_path, tree).config == output.config
    hub.put_in_cache(tmp_path / "cache", "someone/a-model", model)
    config = read(tmp_path, tree).config
    assert config.model.document_tokens <= 64
    assert config.ranker_pooling == "cls"


def test_a_model_without_a_classifier_is_read_by_the_mean(tmp_path: Path, tree: dict[str, Any]) -> None:
    """T5's classifier in transformers has a decoder too, which a ranker here does not."""
    tree["model"] = str(toy.write_encoder(tmp_path / "t5", "t5"))
    config = read(tmp_path, tree).config
    assert config.ranker_pooling == "mean"
    assert config.ranker_template is None
    tree["model"] = str(toy.write_encoder(tmp_path / "roberta", "roberta"))
    assert read(tmp_path, tree).config.ranker_pooling == "cls"


def test_without_files_a_plan_has_generic_numbers(tmp_path: Path, tree: dict[str, Any], own: Path) -> None:
    shutil.rmtree(own)
    output = read(tmp_path, tree)
    assert output.config.train.warm.updates > 1
    assert {default.reason for default in output.defaults if default.key.startswith("train.")} == {
        "source missing: not yet that of the collection"
    }


def test_one_split_of_any_name_is_held_out_of(tree: dict[str, Any]) -> None:
    """`all` is a natural name; it made dev be drawn of a split that is drawn itself."""
    output, _ = filled_in(tree, queries={"all": 800})
    assert output.train is False
    assert {split: mode.of for split, mode in output.data.hold_out.items()} == {"test": "all", "dev": "all"}


def test_a_split_drawn_of_none_is_refused(tree: dict[str, Any]) -> None:
    """It was replaced by the one that is drawn where nothing is asked for."""
    tree["data"] = {**tree["data"], "hold_out": {"dev": {"of": "trian", "share": 0.1}}}
    with pytest.raises(UserError, match=r"hold_out\.dev\.of: no split 'trian'; accepted: .*; did you mean train\?"):
        of(tree, queries={"train": 800})


def test_splits_without_a_relevant_document_are_not_measured(tree: dict[str, Any]) -> None:
    """Others are held out, and go by another name: a split of the collection has the old one."""
    output, defaults = filled_in(tree, queries={"train": 800}, unjudged=["dev", "test"])
    assert (output.evaluate.split, output.evaluate.select) == ("held-out test", "chosen by")
    assert set(output.data.hold_out) == {"held-out test", "chosen by"}
    report = {default.key: default.reason for default in defaults}
    for key, split in {"evaluate.split": "test", "evaluate.select": "dev"}.items():
        assert report[key] == f"no query of the collection's {split} has a relevant document"
    for queries in ({"train": 800, "dev": 90}, {"train": 800, "test": 90}):
        output, _ = filled_in(tree, queries=queries, unjudged=sorted({"dev", "test"} - queries.keys()))
        assert {output.evaluate.split, output.evaluate.select} == {
            *(queries.keys() - {"train"}),
            "chosen by" if "test" in queries else "held-out test",
        }


@pytest.mark.parametrize(
    ("queries", "dev"),
    [(100_000, 1_000), (5_000, 500), (800, 200), (60, 20)],
)
def test_dev_queries_are_held_out_of_the_training_queries(tree: dict[str, Any], queries: int, dev: int) -> None:
    config = of(tree, queries={"train": queries, "test": 50})
    assert config.evaluate.select == "dev"
    assert config.data.hold_out["dev"].of == "train"
    assert config.data.hold_out["dev"].share * queries == pytest.approx(dev, rel=0.01)


@pytest.mark.parametrize("split", ["test", "dev"])
def test_some_queries_are_left_to_train_on(tree: dict[str, Any], split: str) -> None:
    """Of few that are all in one split, whatever is measured, and whatever else is held out."""
    config = of({**tree, "evaluate": {"split": split}} if split == "dev" else tree, queries={"train": 150})
    assert config.train
    assert config.data.counts({"train": 150})["train"] >= 50
    inputs = {"test": {"of": "train", "share": 0.3}, "dev": {"of": "train", "share": 0.2}}
    data = {**tree["data"], "hold_out": inputs}
    config = of({**tree, "data": data, "evaluate": {"split": split}}, queries={"train": 150})
    assert config.train
    assert config.data.counts({"train": 150})["train"] >= 50


def test_the_reason_is_said_where_none_is_left(tree: dict[str, Any]) -> None:
    inputs = {split: {"of": "train", "share": 0.5, "start": start} for split, start in {"test": 0, "dev": 0.5}.items()}
    output, defaults = filled_in({**tree, "data": {**tree["data"], "hold_out": inputs}}, queries={"train": 150})
    assert output.train is False
    assert "all 150 judged queries of `train` are held out" in {default.reason for default in defaults}


@pytest.mark.parametrize(
    ("queries", "says"),
    [
        ({"train": 1}, "to hold out 'test' of them (1 of train would be left)"),
        ({"train": 2}, "to hold out 'dev' of them (1 of train, 1 of test would be left)"),
    ],
)
def test_too_few_queries_to_hold_some_out_are_named(tree: dict[str, Any], queries: dict[str, int], says: str) -> None:
    """And no key that nobody has written."""
    with pytest.raises(UserError, match=re.escape(f"data: too few queries have a relevant document {says}")):
        of(tree, queries=queries)


def test_what_is_learnt_from_is_not_measured(tree: dict[str, Any]) -> None:
    requests = {**tree, "evaluate": {"split": "train"}}
    with pytest.raises(ValueError, match=r"evaluate\.split: systems learn from 'train'; accepted: another split"):
        of(requests, queries={"train": 500})
    assert of({**requests, "train": False}, queries={"train": 500}).evaluate.split == "train"


def test_a_dev_split_by_another_name_is_taken(tree: dict[str, Any]) -> None:
    config = of(tree, queries={"train": 500, "validation": 40, "test": 50})
    assert config.evaluate.select == "validation"
    assert not config.data.hold_out


@pytest.mark.parametrize(
    ("split", "second"),
    [
        ("TEST", ", or `evaluate: {split: TEST}` in the config"),
        ("Train", ""),
        ("Validation", ", or `evaluate: {select: Validation}` in the config"),
    ],
)
def test_a_split_whose_name_differs_in_case_is_not_passed_over(tree: dict[str, Any], split: str, second: str) -> None:
    """Test and dev queries were cut from the training queries instead."""
    says = f"the split '{split}' would not be taken for '{split.lower()}', as names are compared with case; accepted: "
    queries = {"train": 500, split: 80} if split != "Train" else {split: 500}
    with pytest.raises(UserError, match=re.escape(f"{says}'{split.lower()}' in the files{second}")):
        of(tree, queries=queries)
    if split == "TEST":
        assert of({**tree, "evaluate": {"split": split}}, queries=queries).evaluate.split == split
    if split == "Validation":
        assert of(tree, queries={**queries, "dev": 40}).evaluate.select == "dev"
        assert of({**tree, "evaluate": {"select": split}}, queries=queries).evaluate.select == split


def test_what_is_missing_is_drawn_from_what_there_is(tree: dict[str, Any]) -> None:
    alone = of(tree, queries={"train": 5_000})
    assert {split: item.of for split, item in alone.data.hold_out.items()} == {"test": "train", "dev": "train"}
    judged = of(tree, queries={"test": 300})
    assert judged.train is False
    assert {split: (item.of, item.share) for split, item in judged.data.hold_out.items()} == {"dev": ("test", 0.5)}
    measured = of({**tree, "evaluate": {"split": "dev"}}, queries={"train": 5_000, "dev": 200})
    assert measured.evaluate.select not in ("dev", "train")
    assert measured.data.hold_out[measured.evaluate.select].of == "train"


def test_trainings_are_one_pass_within_bounds(tree: dict[str, Any]) -> None:
    def updates(train: dict[str, Any], queries: int) -> int:
        output = of({**tree, "train": {"warm": train}}, queries={"train": queries, "dev": 300, "test": 300}).train
        assert output
        return int(output.warm.updates or 0)

    assert updates({}, 6_400) == 200
    assert updates({}, 60) == 150
    assert updates({}, 10**6) == 600
    assert updates({"epochs": 3}, 10**6) == 93_750
    assert updates({"updates": 7}, 3_200) == 7


def test_measures_are_those_of_the_judgements(tree: dict[str, Any]) -> None:
    splits = {"queries": {"train": 500, "dev": 300, "test": 300}}
    assert of(tree, **splits).evaluate.measures == ["RR@10", "Success@5", "R@100"]
    assert of(tree, **splits, graded=True).evaluate.measures == ["nDCG@10", "R@100"]
    assert of(tree, **splits, relevant=3.2).evaluate.measures == ["nDCG@10", "R@100"]


@pytest.mark.parametrize(
    ("relevant", "measure", "reason"),
    [
        (1.47, "RR@10", "1.47 relevant documents a query, not graded"),
        (1.5, "nDCG@10", "1.5 relevant documents a query"),
    ],
)
def test_the_number_that_chose_the_measures_is_printed(
    tree: dict[str, Any], relevant: float, measure: str, reason: str
) -> None:
    """1.465 was printed as 1.5, from which on the guide promises nDCG, beside RR@10."""
    config, defaults = filled_in(tree, queries={"train": 500, "dev": 300, "test": 300}, relevant=relevant)
    assert config.evaluate.measures[0] == measure
    assert next(default.reason for default in defaults if default.key == "evaluate.measures") == reason


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        (
            "train.warm={epochs: 2, updates: 3}",
            r"own\.yaml: train\..*epochs and updates both set the length of the training",
        ),
        ("evaluate.split=tset", r"own\.yaml: evaluate\.split: no query of 'tset' has a relevant document; splits that"),
        ("evaluate.select=validation", r"own\.yaml: evaluate\.select: no query of 'validation'"),
        ("evaluate.select=null", r"own\.yaml: .*evaluate: a system is chosen by queries that are neither"),
        ("model=/nowhere", r"own\.yaml: model: /nowhere: there is no such directory"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, tree: dict[str, Any], assignment: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, tree, assignment)


@pytest.mark.parametrize(
    ("assignment", "key", "code"),
    [
        ("train.game.updates=0", "train.game.updates", "too-small"),
        ("train.wram={updates: 3}", "train.wram", "unknown-key"),
        ("train=much", "train", "wrong-type"),
    ],
)
def test_a_wrong_key_of_train(tmp_path: Path, tree: dict[str, Any], assignment: str, key: str, code: str) -> None:
    with refused(key, code):
        read(tmp_path, tree, assignment)


def test_without_queries_or_judgements_it_must_be_allowed_to_learn_from_documents(
    tmp_path: Path, tree: dict[str, Any], own: Path
) -> None:
    for path in (own / "qrels").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"own\.yaml: data: none of the 24 queries has a relevant document"):
        read(tmp_path, tree, "pretrain=false")
    (own / "queries.jsonl").write_text("")
    with pytest.raises(UserError, match=r"own\.yaml: data: the collection has no queries"):
        read(tmp_path, tree, "pretrain=false")
    experiment = read(tmp_path, tree)
    assert experiment.config.pretrain.pairs == "sentences"
    assert (experiment.outcome.rows, experiment.config.train) == ([], False)


@pytest.mark.parametrize(
    ("documents", "queries", "on"),
    [(9_999, 100, False), (10_000, 999, True), (10_000, 1_100, False), (50_000, 0, True)],
)
def test_documents_alone_are_learnt_from_where_they_are_many_and_queries_few(
    tree: dict[str, Any], documents: int, queries: int, on: bool
) -> None:
    splits = {"dev": 50, "test": 50} | ({"train": queries} if queries else {})
    result = of(tree, documents=documents, queries=splits)
    assert bool(result.pretrain) == on
    if result.pretrain:
        assert (result.pretrain.updates, result.pretrain.epochs) == (min(600, -(-documents // 32)), None)
    assert of({**tree, "pretrain": {"pairs": "crops", "epochs": 2}}, documents=64).pretrain.updates == 4


def test_a_retriever_of_documents_alone_is_a_candidate(tmp_path: Path, tree: dict[str, Any]) -> None:
    names = {row.name for row in read(tmp_path, tree, "pretrain={updates: 2}").outcome.rows}
    assert {"pre-trained", "BM25 + pre-trained, interpolated", "retriever 1"} <= names
    assert "pre-trained" not in {row.name for row in read(tmp_path, tree).outcome.rows}


def test_averages_with_the_start_model_are_candidates(tmp_path: Path, tree: dict[str, Any]) -> None:
    before = {node.fingerprint for node in graph(read(tmp_path, tree).wanted)}
    output = read(tmp_path, tree, "average=[0.25, 0.5]", "seeds=[1, 2]")
    names = [f"retriever 1 and start model, averaged at {share}" for share in (0.25, 0.5)]
    rows = [row for row in output.outcome.rows if row.name in names]
    assert [(row.name, row.seed, row.trained) for row in rows] == [
        (name, seed, True) for seed in (1, 2) for name in names
    ]
    models = [row.retriever.retriever for row in rows if row.retriever is not None]
    assert len({model.fingerprint for model in models}) == 4
    assert {model.inputs["start"].label for model in models} == {"start retriever"}
    assert {entry["system"] for entry in output.outcome.results.inputs["selection"].inputs["systems"]} >= {*names}
    assert before == {node.fingerprint for node in graph(read(tmp_path, tree, "average=[]").wanted)}
    for assignments in (["average=[1.5]"], ["average=[0.5, 0.5]"], ["average=[0.5]", "train=false"]):
        with pytest.raises(UserError) as caught:
            read(tmp_path, tree, *assignments)
        assert caught.value.key.startswith("average")


def test_the_cheaper_of_two_within_one_standard_error_is_chosen() -> None:
    """Planted: one is behind the best by half a standard error of their differences, another by two."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    best = rng.random(400)
    means = {"far": best - 2 / 20 + noise, "near": best - 0.5 / 20 + noise, "best": best}  # 1 / 20 is the error
    assert cheapest_of_the_best(means, {"far": 0, "near": 1, "best": 2}) == "near"
    assert cheapest_of_the_best(means, {"far": 0, "best": 1, "near": 2}) == "best"
    assert cheapest_of_the_best(means, {"far": 0, "near": 1, "best": 1}) == "best"  # for the same cost the better one
    values = {name: [item] for name, item in means.items()}
    output = selected(values, {"far": False, "near": False, "best": True}, {"far": 0, "near": 1, "best": 2})
    assert (output["deploy"], output["system"], output["baseline"]) == ("near", "best", "near")
    output = selected(values, {"far": False, "near": True, "best": True}, {"far": 0, "near": 1, "best": 2})
    assert (output["deploy"], output["system"], output["baseline"]) == ("near", "near", "far")
    output = selected(values, dict.fromkeys(values, False), {"far": 0, "near": 1, "best": 2})  # nothing was trained
    assert (output["deploy"], output["system"], output["baseline"]) == ("near", "near", "far")
    output = selected(values, dict.fromkeys(values, False), {"near": 0, "far": 1, "best": 2})
    assert (output["deploy"], output["system"], output["baseline"]) == ("near", "best", "near")


def test_another_systems_ranking_is_measured_but_never_chosen(tmp_path: Path, tree: dict[str, Any]) -> None:
    """What it would take to deploy it, its file does not say."""
    (tmp_path / "other.trec").write_text("q0 Q0 d0 1 1.0 other\n")
    of_others = f"{{other_rankings: {{other: {{path: {tmp_path / 'other.trec'}}}}}}}"
    outcome = read(tmp_path, tree, f"evaluate={of_others}").outcome
    assert "other" in {row.name for row in outcome.rows}
    assert "other" not in outcome.levels
    assert "other" not in {cost.system for cost in outcome.costs}
    assert outcome.results.inputs["comparisons"][-1] == {"system": None, "baseline": "other"}


def test_no_system_is_chosen_that_a_cheaper_one_is_better_than() -> None:
    """Planted: the dearer one is further behind, by less than its own larger error."""
    rng = np.random.default_rng(1)
    noise = rng.normal(size=400)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    best = rng.random(400)
    means = {"cheap": best - 0.5 / 20 + noise / 10, "dear": best - 0.9 / 20 + noise, "best": best}
    assert cheapest_of_the_best(means, {"dear": 0, "best": 1}) == "dear"
    assert cheapest_of_the_best(means, {"cheap": 0, "dear": 1, "best": 2}) == "cheap"


def test_what_needs_no_training_is_cheaper(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Then come BM25; its feedback; a retriever, whether or not BM25 is beside it; its neighbours; a ranker."""
    outcome = read(tmp_path, tree).outcome
    trained = {system.name: system.trained for system in outcome.rows}
    assert max(outcome.levels[name] for name in trained if not trained[name]) < min(
        outcome.levels[name] for name in trained if trained[name]
    )
    for level in (
        [{"BM25"}, {"BM25 with RM3"}, {"start model", "BM25 + start model, reciprocal"}, {"start model by neighbours"}],
        [
            {"retriever 1", "BM25 + retriever 1, interpolated"},
            {"retriever 1 by neighbours"},
            {"ranker over retriever 1", "ranker over BM25 + retriever 1"},
        ],
    ):
        result = [{outcome.levels[name] for name in names} for names in level]
        assert all(len(item) == 1 for item in result)
        assert result == sorted(result, key=min)
        assert len(set(map(min, result))) == len(result)


def test_a_querys_cost_is_that_of_the_steps_it_needs(tmp_path: Path, tree: dict[str, Any]) -> None:
    costs = {cost.system: cost for cost in read(tmp_path, tree).outcome.costs}
    ranker = costs["ranker over retriever 1"]
    assert [node.step.function.__name__ for node in ranker.retrieve] == ["encode_queries", "search", "lucene_search"]
    assert [node.step.function.__name__ for node in ranker.rerank] == ["rerank", "add_prior"]
    assert {node.label for node in ranker.index} == {"bm25 index", "retriever 1 vectors"}
    assert [node.label for node in ranker.models] == ["retriever 1", "ranker 1"]
    fusion = costs["BM25 + start model, reciprocal"]
    assert [node.step.function.__name__ for node in fusion.retrieve][-1] == "fuse"
    assert not fusion.rerank
    near = costs["retriever 1 by neighbours"]
    assert [node.step.label for node in near.rerank] == ["retriever 1 by neighbours (test)"]
    assert [node.label for node in (*near.index, *near.models)] == ["retriever 1 vectors", "retriever 1"]
    assert [node.step.function.__name__ for node in near.retrieve] == ["encode_queries", "search"]


def test_neighbours_can_be_left_out_and_every_seed_has_its_own(tmp_path: Path, tree: dict[str, Any]) -> None:
    assert not any("neighbours" in row.name for row in read(tmp_path, tree, "neighbours=null").outcome.rows)
    config = read(tmp_path, tree, "neighbours.trials=7", "seeds=[1, 2]").config
    assert (config.neighbours.trials, config.neighbours.tau) == (7, (0.0, 0.0))
    itself = [row for row in build(config).rows if "neighbours" in row.name]
    assert [(item.name, item.seed) for item in itself] == [
        (f"{name} by neighbours", seed) for seed in (1, 2) for name in ("start model", "retriever 1")
    ]
    assert len({item.metrics.fingerprint for item in itself}) == 3  # the start model's are every seed's


def test_a_limit_on_latency_adds_a_smaller_retriever_unless_the_user_refuses(tree: dict[str, Any]) -> None:
    survey = {"queries": {"train": 1000, "dev": 100, "test": 100}}
    fast = of({**tree, "budget": {"p95_ms": 50}}, **survey).fast
    assert fast
    assert fast.layers == 1
    assert of({**tree, "budget": {"memory_gb": 4}}, **survey).fast is None
    assert of({**tree, "budget": {"p95_ms": 50}, "fast": False}, **survey).fast is False
    assert of({**tree, "budget": {"p95_ms": 50}, "train": False}, **survey).fast is None
