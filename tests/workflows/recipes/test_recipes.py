"""Reading an experiment: the recipe found by name, `--set` paths, the run's place, and which numbers move what."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sparring.components.config import UserError
from sparring.components.training.terms import LossTerm
from sparring.workflows.experiments import loading
from sparring.workflows.report.run_folder import RunFolder
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import gathered
from tests.support import tiny
from tests.support.errors import refused
from tests.support.tiny import ROOT

BEIR, ENCODER = Path("data/toy"), Path("models/toy")


def read(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> loading.Experiment:
    return loading.read(tiny.write(tmp_path / "tiny.yaml", tree), list(assignments), Path("runs"))


@pytest.fixture
def ar2() -> dict[str, Any]:
    return tiny.ar2(BEIR, ENCODER)


def test_recipes_are_found_by_name() -> None:
    assert {"ar2", "dpr"} <= set(loading.recipe_names())
    assert not {"dag", "parts", "commands", "cluster", "recipes"} & set(loading.recipe_names())


def test_an_unknown_recipe_names_those_there_are(tmp_path: Path) -> None:
    with refused("recipe", "unknown-recipe", "'dprr'"):
        read(tmp_path, {"recipe": "dprr"})
    with refused("recipe", "unknown-recipe", "'dpr'"):
        read(tmp_path, {"recipe": ["dpr"]})


@pytest.mark.parametrize(
    "key",
    [
        "retriver",
        "retriever.modl",
        "retriever.model.model_name",
        "controls.steps",
        "bm25.index.stemer",
        "evaluate.entropy.k",
    ],
)
def test_an_unknown_key_is_refused_with_its_place(tmp_path: Path, ar2: dict[str, Any], key: str) -> None:
    with refused(key, "unknown-key"):
        read(tmp_path, ar2, f"{key}=1")


def test_a_recipes_config_is_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "recipe.py").write_text("class Config: pass\ndef build(config): return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    with refused("recipe", "unsupported-recipe"):
        read(tmp_path, {"recipe": "own.recipe"})


def test_a_missing_key_is_named(tmp_path: Path, ar2: dict[str, Any]) -> None:
    del ar2["retriever"]["warm"]["train"]["updates"]
    with refused("retriever.warm.train.updates", "missing-key"):
        read(tmp_path, ar2)


def test_set_follows_paths_through_keys_and_lists(tmp_path: Path, ar2: dict[str, Any]) -> None:
    config = read(
        tmp_path,
        ar2,
        "rounds=2",
        "retriever.game.train.losses.0.weight=0.5",
        "search.index=Flat",
        "seeds=[3, 4]",
        "bm25.search.k1=1.2",
        "k=7",
        "k=8",
    ).config
    assert config.rounds == 2
    assert config.retriever.game.train.losses[0].weight == 0.5
    assert config.search.index == "Flat"  # a key that the file does not have
    assert config.seeds == [3, 4]
    assert config.bm25.search.k1 == 1.2
    assert config.k == 8  # the last word


def test_set_changes_no_file(tmp_path: Path, ar2: dict[str, Any]) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", ar2)
    before = path.read_text()
    loading.read(path, ["rounds=2"], Path("runs"))
    assert path.read_text() == before


def test_a_set_value_is_the_same_as_one_in_the_file(tmp_path: Path, ar2: dict[str, Any]) -> None:
    actual = read(tmp_path, ar2, "retriever.game.train.learning_rate=2e-4").outcome.results
    ar2["retriever"]["game"]["train"]["learning_rate"] = 0.0002
    assert actual.fingerprint == read(tmp_path, ar2).outcome.results.fingerprint


def test_the_runs_place(tmp_path: Path, ar2: dict[str, Any]) -> None:
    assert read(tmp_path, ar2).run == Path("runs/tiny")
    assert read(tmp_path, ar2).name == "tiny"
    first, two = read(tmp_path, ar2, "k=7", "rounds=2").run, read(tmp_path, ar2, "rounds=2", "k=7").run
    assert re.fullmatch(r"runs/tiny-[0-9a-f]{6}", str(first))
    assert first == two
    assert first != read(tmp_path, ar2, "k=7").run


def test_what_a_recipe_refuses_is_the_users_mistake(tmp_path: Path, ar2: dict[str, Any]) -> None:
    ar2["controls"]["in_batch"] = []
    with pytest.raises(UserError, match=r"tiny\.yaml: controls: in-batch is included, and in_batch names no"):
        read(tmp_path, ar2)


# What a number moves


def steps(experiment: loading.Experiment) -> dict[str, Step]:
    return {node.label: node for node in graph(experiment.wanted)}


def ranking_of(node: Step) -> str:
    """The label of the ranking that a step takes."""
    label: str = node.inputs["ranking"].label
    return label


def moved(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> set[str]:
    """Labels of the steps that lie elsewhere now."""
    before, after = steps(read(tmp_path, tree)), steps(read(tmp_path, tree, *assignments))
    assert before.keys() == after.keys()
    return {label for label in before if before[label].fingerprint != after[label].fingerprint}


def downstream(nodes: dict[str, Step], *labels: str) -> set[str]:
    """The steps that stand on some, and those themselves."""
    result = {nodes[label].fingerprint for label in labels}
    for node in nodes.values():  # inputs come first
        if any(before.fingerprint in result for before in node.upstream):
            result.add(node.fingerprint)
    return {label for label, node in nodes.items() if node.fingerprint in result}


@pytest.mark.parametrize(
    ("assignment", "first"),
    [
        ("data.path=data/other", ["data"]),
        ("tokens.max_tokens=100", ["tokens"]),
        ("bm25.index.stemmer=none", ["bm25 index"]),
        ("bm25.search.b=0.5", ["bm25 ranking (test)", "bm25 ranking (dev)"]),
        (
            "encode.precision=bf16",
            [
                f"{label} {side}"
                for side in ("vectors", "queries (test)", "queries (dev)")
                for label in ("start", "warm retriever", "retriever 1", "control in-batch 1", "control ance 1")
            ]
            + ["warm retriever queries (train)"],
        ),
        ("retriever.model.query_tokens=16", ["start retriever"]),
        ("ranker.model.seed=1", ["start ranker"]),
        ("retriever.warm.train.learning_rate=0.5", ["warm retriever"]),
        ("ranker.warm.mine.depth=9", ["warm ranker groups"]),
        ("retriever.game.mine.depth=9", ["retriever 1 groups"]),
        ("retriever.game.train.learning_rate=0.5", ["retriever 1", "control in-batch 1", "control ance 1"]),
        ("score.precision=bf16", ["judged 1"]),
        (
            "rerank.depth=5",
            [
                f"{system} ({split})"
                for split in ("test", "dev")
                for system in (
                    "warm ranker over warm retriever",
                    "warm ranker over BM25 + warm retriever",
                    "ranker over retriever 1",
                    "ranker over BM25 + retriever 1",
                )
            ],
        ),
        ("controls.ance=[{function: components.losses.listwise.cross_entropy, weight: 2.0}]", ["control ance 1"]),
    ],
)
def test_a_number_moves_exactly_what_stands_on_it(
    tmp_path: Path, ar2: dict[str, Any], assignment: str, first: list[str]
) -> None:
    expected = downstream(steps(read(tmp_path, ar2)), *first)
    assert "results" in expected
    assert moved(tmp_path, ar2, assignment) == expected


@pytest.mark.parametrize(
    "assignment",
    [
        "retriever.model.model=models/other",
        "retriever.model.revision=v2",
        "retriever.model.layers=1",
        "retriever.model.pooling=cls",
        "retriever.model.similarity=dot",
        "retriever.model.query_tokens=16",
        "retriever.model.document_tokens=100",
        "retriever.model.projection=8",
        "retriever.model.query_prompt=question",
        "retriever.model.document_prompt=text",
        "tokens.max_tokens=100",
        "encode.precision=bf16",
        "retriever.warm.train.learning_rate=0.5",
        "data.on_bad=drop",
    ],
)
def test_what_moves_a_vector_moves_what_is_mined_with_it(tmp_path: Path, ar2: dict[str, Any], assignment: str) -> None:
    """No vector, ranking or negative of another model, length or precision is ever taken up."""
    before, after = (steps(read(tmp_path, ar2, *more)) for more in ([], [assignment]))
    for label in ("warm retriever vectors", "warm retriever ranking (train)", "retriever 1 groups", "ranker 1 groups"):
        assert before[label].fingerprint != after[label].fingerprint, label


@pytest.mark.parametrize("assignment", ["ranker.model.model=models/other", "retriever.model.query_prompt=question"])
def test_players_that_read_differently_have_tokens_of_their_own(
    tmp_path: Path, ar2: dict[str, Any], assignment: str
) -> None:
    shared, apart = (steps(read(tmp_path, ar2, *more)) for more in ([], [assignment]))
    assert "ranker tokens" not in shared
    for label in ("warm ranker", "judged 1", "ranker 1", "ranker over retriever 1 (test)"):
        assert shared[label].inputs["tokens"] is shared["tokens"]
        assert apart[label].inputs["tokens"] is apart["ranker tokens"]
    for label in ("warm retriever", "retriever 1 groups", "retriever 1", "retriever 1 vectors", "control ance 1"):
        assert apart[label].inputs["tokens"] is apart["tokens"]


@pytest.mark.parametrize("key", ["retriever.model.document_tokens", "ranker.model.pair_tokens"])
def test_a_model_that_reads_more_than_is_kept_is_refused(tmp_path: Path, ar2: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"{key.split('.')[-1]}: 600: only 512 tokens of a text are kept"):
        steps(read(tmp_path, ar2, f"{key}=600"))


def test_more_steps_of_training_take_more_groups(tmp_path: Path, ar2: dict[str, Any]) -> None:
    before, after = (steps(read(tmp_path, ar2, *more)) for more in ([], ["retriever.game.train.updates=4"]))
    for label in ("retriever 1 groups", "retriever 1"):
        assert before[label].fingerprint != after[label].fingerprint
    assert (before["retriever 1 groups"].inputs["groups"], after["retriever 1 groups"].inputs["groups"]) == (12, 16)


def test_more_rounds_keep_what_was_played(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """The first round is the same game, whether or not another follows."""
    first, two = read(tmp_path, ar2), read(tmp_path, ar2, "rounds=2")
    kept = {node.fingerprint for node in graph(two.wanted)}
    ranked = r"ranker over (BM25 \+ )?retriever 1|BM25 \+ retriever 1, interp"
    last = rf"{ranked}|control in-batch 1|control: (in-batch|ance) measures"
    moved = {label for label, node in steps(first).items() if node.fingerprint not in kept} - {"selection", "results"}
    assert [label for label in moved if not re.match(last, label)] == []
    assert not {"retriever 1", "ranker 1", "control in-batch 1", "control ance 1"} & moved


@pytest.mark.parametrize("config", ["demo.yaml", "coder/docstrings.yaml", "dpr/scifact.yaml", "ear/squad-gar.yaml"])
def test_another_test_set_trains_nothing_anew(config: str) -> None:
    """Nor does it encode a document again."""
    before, after = (
        graph(loading.read(ROOT / "configs" / config, more, Path("runs")).wanted)
        for more in ([], ["evaluate.split=other"])
    )
    kept = {node.fingerprint for node in before}
    anew = {node.function.__name__ for node in after if node.fingerprint not in kept}
    assert {"evaluate", "encode_queries", "search"} <= anew
    assert not anew & {"train", "encode_documents", "build_index", "mine", "contexts", "smooth", "pictures"}


def test_another_seed_moves_no_beginning(tmp_path: Path, ar2: dict[str, Any]) -> None:
    same = steps(read(tmp_path, ar2)).keys() - moved(tmp_path, ar2, "seeds=[2]")
    assert {"data", "tokens", "bm25 ranking (test)", "BM25 measures", "start vectors", "start model measures"} <= same
    assert "warm retriever" not in same


def test_every_artifact_is_called_what_it_is(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """No two steps of a plan have one label."""
    reranked = ["rounds=2", "other_rerankings=[rounds,grid,fused]"]
    for assignments in ([], ["rounds=3"], ["seeds=[1,2]"], ["order=paper"], reranked):
        nodes = graph(read(tmp_path, ar2, *assignments).wanted)
        labels = [node.label for node in nodes]
        assert sorted(labels) == sorted(set(labels))


# Configs that stand on others


def test_a_config_is_laid_over_its_base(tmp_path: Path, ar2: dict[str, Any]) -> None:
    tiny.write(tmp_path / "whole.yaml", ar2)
    second = {"base": "whole.yaml", "rounds": 2, "retriever": {"game": {"mine": {"negatives": 1}}}}
    tiny.write(tmp_path / "more.yaml", second)
    tiny.write(tmp_path / "most.yaml", {"base": "more.yaml", "k": 9})
    base, config = (loading.read(tmp_path / f"{name}.yaml", [], Path("runs")).config for name in ("whole", "most"))
    assert (config.rounds, config.k, config.retriever.game.mine.negatives) == (2, 9, 1)
    assert config.retriever.game.mine.depth == base.retriever.game.mine.depth
    assert config.ranker == base.ranker
    assert loading.read(tmp_path / "most.yaml", ["k=8"], Path("runs")).config.k == 8


def test_bases_that_are_none(tmp_path: Path) -> None:
    for base, says in (
        ("tiny.yaml", "is its own base"),
        (3, r"base: got 3\. Use the path of a file"),
    ):
        with pytest.raises(UserError, match=says):
            read(tmp_path, {"base": base})
    with refused("base", "missing-file"):
        read(tmp_path, {"base": "nowhere.yaml"})


# AR2's cycle


def test_refreshes_can_be_rarer_than_rounds(tmp_path: Path, ar2: dict[str, Any]) -> None:
    result = steps(read(tmp_path, ar2, "rounds=3", "refresh_every=2"))
    assert not [label for label in result if label.startswith("retriever 1 ranking")]
    assert ranking_of(result["ranker 2 groups"]) == "warm retriever ranking (train)"
    assert ranking_of(result["ranker 3 groups"]) == "retriever 2 ranking (train)"
    for control, ranking in (
        ("control ance 2", "warm retriever ranking (train)"),
        ("control ance 3", "control ance 2 ranking (train)"),
    ):
        assert ranking_of(result[control].inputs["rows"]) == ranking
    assert result["retriever 3"].inputs["start"] is result["retriever 2"]
    assert "retriever 3 ranking (test)" in result  # whatever the config says


def test_the_papers_order_begins_a_round_with_the_retriever(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """Algorithm 1: retriever, refresh, ranker; the released code: ranker, retriever, refresh."""
    paper, released = (steps(read(tmp_path, ar2, "rounds=2", f"order={order}")) for order in ("paper", "released"))
    for round, ranker in ((1, "warm ranker"), (2, "ranker 1")):
        assert paper[f"judged {round}"].inputs["ranker"] is paper[ranker]
        assert ranking_of(paper[f"ranker {round} groups"]) == f"retriever {round} ranking (train)"
    for round, retriever in ((1, "warm retriever"), (2, "retriever 1")):
        assert released[f"judged {round}"].inputs["ranker"] is released[f"ranker {round}"]
        assert ranking_of(released[f"ranker {round} groups"]) == f"{retriever} ranking (train)"
    assert paper["ranker over retriever 2 (test)"].inputs["ranker"] is paper["ranker 2"]


def test_rounds_that_carry_all_share_one_schedule(tmp_path: Path, ar2: dict[str, Any]) -> None:
    nodes = steps(read(tmp_path, ar2, "rounds=3", "retriever.game.train.carry=all"))
    trained = [nodes[f"retriever {round}"].inputs["config"] for round in (1, 2, 3)]
    assert [item.carry for item in trained] == ["weights", "all", "all"]
    assert {item.schedule_updates for item in trained} == {3 * trained[0].updates}
    assert nodes["ranker 2"].inputs["config"].schedule_updates is None
    with pytest.raises(UserError, match=r"retriever 2: schedule_updates: 4 is less than the 6 updates of this"):
        read(tmp_path, ar2, "rounds=3", "retriever.game.train.carry=all", "retriever.game.train.schedule_updates=4")
    falls = "retriever.game.train.schedule=constant"  # never
    read(tmp_path, ar2, "rounds=3", "retriever.game.train.carry=all", "retriever.game.train.schedule_updates=4", falls)


def test_a_control_is_trained_as_the_game_but_for_the_loss(tmp_path: Path, ar2: dict[str, Any]) -> None:
    nodes = steps(read(tmp_path, ar2, "retriever.game.train.updates=7", "retriever.game.train.batch=5"))
    game = nodes["retriever 1"].inputs["config"].model_dump()
    for control in ("control in-batch 1", "control ance 1"):
        actual = nodes[control].inputs["config"].model_dump()
        assert {key for key in game if game[key] != actual[key]} == {"losses"}


def test_table_3_measures_both_rankers_over_both_retrievers(tmp_path: Path, ar2: dict[str, Any]) -> None:
    nodes = steps(read(tmp_path, ar2, "rounds=2", "other_rerankings=[grid]"))
    for label, ranker, ranking in (
        ("warm ranker over warm retriever", "warm ranker", "warm retriever ranking (test)"),
        ("last ranker over warm retriever", "ranker 2", "warm retriever ranking (test)"),
        ("warm ranker over retriever 2", "warm ranker", "retriever 2 ranking (test)"),
        ("ranker over retriever 2", "ranker 2", "retriever 2 ranking (test)"),
    ):
        assert nodes[f"{label} (test)"].inputs["ranker"] is nodes[ranker]
        assert ranking_of(nodes[f"{label} (test)"]) == ranking
    compared = nodes["results"].inputs["comparisons"]
    assert {"system": "ranker over retriever 2", "baseline": "warm ranker over retriever 2"} in compared


def test_the_last_rounds_systems_are_compared_with_those_before_the_game(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """How much of a gain precedes the game is in every table, and tested."""
    experiment = read(tmp_path, ar2, "rounds=2")
    nodes, names = steps(experiment), [system.name for system in experiment.outcome.rows]
    pairs = {
        "retriever 2": "warm retriever",
        "ranker over retriever 2": "warm ranker over warm retriever",
        "ranker over BM25 + retriever 2": "warm ranker over BM25 + warm retriever",
    }
    compared = nodes["results"].inputs["comparisons"]
    assert {*pairs, *pairs.values(), "BM25 + warm retriever, interpolated"} <= {*names}
    assert all({"system": item, "baseline": second} in compared for item, second in pairs.items())
    fused = nodes["warm ranker over BM25 + warm retriever (test)"]
    assert (fused.inputs["ranker"], ranking_of(fused)) == (
        nodes["warm ranker"],
        "BM25 + warm retriever, interpolated (test)",
    )
    without = read(tmp_path, ar2, "rounds=2", "other_rerankings=[]")
    assert not [row.name for row in without.outcome.rows if "ranker over BM25" in row.name]
    compared = steps(without)["results"].inputs["comparisons"]
    assert {"system": "ranker over retriever 2", "baseline": "warm ranker over warm retriever"} in compared


def test_answers_are_looked_for_where_they_are_asked_for(tmp_path: Path, ar2: dict[str, Any]) -> None:
    assert not [label for label in steps(read(tmp_path, ar2)) if "answers" in label]
    nodes = steps(
        read(
            tmp_path, ar2, "retriever.game.screen.answering=true", "evaluate.measures=[Answer@5]", "answers.mode=regex"
        )
    )
    mined = nodes["retriever 1 groups"].inputs["ranking"].inputs["ranking"]
    assert (mined.label, mined.inputs["splits"]) == ("warm retriever ranking (train) answers", ["train"])
    measured = nodes["retriever 1 measures"].inputs["ranking"]
    assert (measured.inputs["ranking"].label, measured.inputs["splits"]) == ("retriever 1 ranking (test)", ["test"])
    assert measured.inputs["config"].mode == "regex"
    with pytest.raises(UserError, match="found in a ranking, and there is none here"):
        read(tmp_path, ar2, "retriever.warm.screen.answering=true")


def test_candidates_are_screened_with_what_is_at_hand(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """By the ranker of the moment and the vectors behind the ranking; a margin changes no ranking and no vectors."""
    requests = ["retriever.game.screen.vote.above=0.9", "ranker.game.screen.reciprocal=3"]
    nodes = steps(read(tmp_path, ar2, *requests))
    screened = nodes["retriever 1 groups"].inputs["ranking"]
    assert (screened.label, ranking_of(screened)) == ("retriever 1 groups screened", "warm retriever ranking (train)")
    assert screened.inputs["votes"].inputs["ranker"] is nodes["ranker 1"]
    assert (screened.inputs["votes"].inputs["split"], screened.inputs["vectors"]) == ("train", None)
    assert nodes["ranker 1 groups screened"].inputs["vectors"] is nodes["warm retriever vectors"]
    second = steps(
        read(tmp_path, ar2, *requests, "retriever.game.screen.relative=0.95", "retriever.game.screen.vote.above=0.8")
    )
    same = ("retriever 1 groups votes", "warm retriever ranking (train)", "warm retriever vectors", "ranker 1 groups")
    assert all(second[label].fingerprint == nodes[label].fingerprint for label in same)
    assert second["retriever 1 groups"].fingerprint != nodes["retriever 1 groups"].fingerprint
    for mistake, says in (
        ("ranker.warm.screen.vote.above=0.9", "there is no ranker yet"),
        ("retriever.warm.screen.relative=0.9", "candidates are screened in a ranking, and there is none here"),
    ):
        with pytest.raises(UserError, match=says):
            read(tmp_path, ar2, mistake)


# Experiments side by side


def side_by_side(tmp_path: Path, ar2: dict[str, Any], **more: Any) -> dict[str, Any]:
    paths = {"AR2": tmp_path / "one.yaml", "fewer": tmp_path / "other.yaml"}
    tiny.write(paths["AR2"], ar2)
    tiny.write(paths["fewer"], {"base": "one.yaml", "retriever": {"game": {"mine": {"negatives": 1}}}})
    return {
        "recipe": "compare",
        "experiments": {name: str(path) for name, path in paths.items()},
        "baseline": "AR2",
        "systems": ["retriever 1"],
        "other_systems": ["BM25", "warm retriever"],
        **more,
    }


def test_experiments_share_what_they_have_in_common(tmp_path: Path, ar2: dict[str, Any]) -> None:
    nodes = steps(read(tmp_path, side_by_side(tmp_path, ar2)))
    systems = [entry["system"] for entry in nodes["results"].inputs["systems"]]
    assert systems == ["BM25", "warm retriever", "AR2: retriever 1", "fewer: retriever 1"]
    compared = [(item["system"], item["baseline"]) for item in nodes["results"].inputs["comparisons"]]
    actual = "AR2: retriever 1"
    assert compared == [("fewer: retriever 1", actual), (actual, "BM25"), (actual, "warm retriever")]
    alone = graph(loading.read(tmp_path / "one.yaml", [], Path("runs")).wanted)
    both = {node.fingerprint for node in graph(read(tmp_path, side_by_side(tmp_path, ar2)).wanted)}
    warm = {node.fingerprint for node in alone if re.match(r"warm retriever(?!.*\(dev\))", node.label)}
    assert warm <= both
    assert (
        len([n for n in graph(read(tmp_path, side_by_side(tmp_path, ar2)).wanted) if n.label == "warm retriever"]) == 1
    )


def test_a_note_on_a_start_model_names_whose_it_is(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """Once where it is the same of all."""
    tree = side_by_side(tmp_path, ar2)
    assert read(tmp_path, tree).outcome.note == loading.read(tmp_path / "one.yaml", [], Path("runs")).outcome.note
    fewer = {"file": str(tmp_path / "other.yaml"), "sets": ["retriever.model.model=models/another"]}
    note = read(tmp_path, {**tree, "experiments": {**tree["experiments"], "fewer": fewer}}).outcome.note
    assert note.startswith("AR2: The start model is ")
    assert " fewer: The start model is models/another." in note


def test_an_experiment_may_be_compared_with_another_than_the_baseline(tmp_path: Path, ar2: dict[str, Any]) -> None:
    tree = side_by_side(tmp_path, ar2)
    tree["experiments"]["again"] = str(tiny.write(tmp_path / "third.yaml", {"base": "other.yaml", "k": 19}))
    nodes = steps(read(tmp_path, {**tree, "against": {"again": "fewer"}}))
    compared = [(item["system"], item["baseline"]) for item in nodes["results"].inputs["comparisons"]]
    assert compared[:2] == [("fewer: retriever 1", "AR2: retriever 1"), ("again: retriever 1", "fewer: retriever 1")]
    nodes = steps(read(tmp_path, {**tree, "against": {"again": ["AR2", "fewer"]}}))
    compared = [(item["system"], item["baseline"]) for item in nodes["results"].inputs["comparisons"]]
    assert compared[1:3] == [("again: retriever 1", "AR2: retriever 1"), ("again: retriever 1", "fewer: retriever 1")]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"against": {"AR2": "fewer"}}, "against: 'AR2' is the baseline"),
        ({"against": {"fewer": ["AR2", "fewer"]}}, "against: 'fewer' is compared with itself"),
        ({"seeds": [7]}, "fewer: retriever 1 and AR2: retriever 1 have no seed in common"),
    ],
)
def test_what_would_not_be_compared_is_refused(
    tmp_path: Path, ar2: dict[str, Any], more: dict[str, Any], says: str
) -> None:
    tree = side_by_side(tmp_path, ar2)
    if "seeds" in more:
        tree["experiments"]["fewer"] = {"file": tree["experiments"]["fewer"], "sets": [f"seeds={more['seeds']}"]}
    else:
        tree |= more
    with pytest.raises(UserError, match=says):
        read(tmp_path, tree)


def test_steps_say_whose_they_are(tmp_path: Path, ar2: dict[str, Any]) -> None:
    labels = [node.label for node in graph(read(tmp_path, side_by_side(tmp_path, ar2)).wanted)]
    assert len(set(labels)) == len(labels)
    assert {"data", "warm ranker", "AR2: retriever 1 groups", "fewer: retriever 1 groups"} <= set(labels)


def test_settings_for_all_experiments(tmp_path: Path, ar2: dict[str, Any]) -> None:
    nodes = steps(read(tmp_path, side_by_side(tmp_path, ar2, sets=["seeds=[1, 2]"])))
    assert {entry["seed"] for entry in nodes["results"].inputs["systems"]} == {1, 2}


def test_a_grid_is_one_experiment_with_other_numbers(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """Beside what is set for all, and with a chart by the number where that is asked for."""
    tree = side_by_side(tmp_path, ar2, sets=["seeds=[1, 2]"])
    single = tree["experiments"]["AR2"]
    tree["experiments"] |= {f"k {k}": {"file": single, "sets": [f"k={k}"]} for k in (18, 19)}
    tree |= {"axis": "k", "curves": {"AR2": {20: "AR2", 18: "k 18", 19: "k 19"}}}
    experiment = read(tmp_path, tree)
    nodes = steps(experiment)
    assert {nodes[f"k {k}: retriever 1 (seed 2) ranking (test)"].inputs["k"] for k in (18, 19)} == {18, 19}
    drawn = experiment.outcome.pictures[0]
    assert drawn in experiment.wanted
    assert (drawn.inputs["results"], drawn.inputs["axis"]) == (nodes["results"], "k")
    assert drawn.inputs["curves"] == {"AR2": {"AR2: retriever 1": 20, "k 18: retriever 1": 18, "k 19: retriever 1": 19}}
    assert not read(tmp_path, {**tree, "curves": {}}).outcome.pictures


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"curves": {"a": {1: "AR2", 2: "nothing"}}}, "curves: 'nothing' is none of the experiments: AR2, fewer"),
        ({"baseline": "none"}, "'none' is none of the experiments: AR2, fewer"),
        ({"against": {"fewer": "nothing"}}, "against: 'nothing' is none of the experiments: AR2, fewer"),
        ({"against": {"fewer": ["AR2", "none"]}}, "against: 'none' is none of the experiments: AR2, fewer"),
        (
            {"systems": ["retriever 7"]},
            r"'AR2' \(.*one\.yaml\) has no 'retriever 7'; it has 'BM25', 'start model', 'BM25 \+ ",
        ),
        ({"other_systems": ["retriever 7"]}, r"'AR2' \(.*one\.yaml\) has no 'retriever 7'"),
        ({"sets": ["k=3", "k=4"]}, r"tiny\.yaml: sets: k is set twice, to 3 and to 4\. Use one value"),
    ],
)
def test_what_there_is_not_cannot_be_compared(tmp_path: Path, ar2: dict[str, Any], more: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, side_by_side(tmp_path, ar2, **more))


def test_a_system_is_compared_once(tmp_path: Path, ar2: dict[str, Any]) -> None:
    with refused("systems", "duplicate"):
        read(tmp_path, side_by_side(tmp_path, ar2, systems=["retriever 1", "retriever 1"]))
    with refused("against.fewer", "too-short"):
        read(tmp_path, side_by_side(tmp_path, ar2, against={"fewer": []}))


def test_an_experiment_is_found_beside_the_config_that_names_it(
    tmp_path: Path, ar2: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the folder where the user is comes first."""
    for folder in ("story", "elsewhere"):
        (tmp_path / folder).mkdir()
    tree = side_by_side(tmp_path / "story", ar2)
    forward = [node.fingerprint for node in read(tmp_path / "story", tree).wanted]
    tree["experiments"] = {"AR2": "one.yaml", "fewer": "other.yaml"}
    file = tiny.write(tmp_path / "story" / "both.yaml", tree)
    monkeypatch.chdir(tmp_path / "elsewhere")
    neighbour = loading.read(Path("../story/both.yaml"), [], Path("runs"))
    assert [node.fingerprint for node in neighbour.wanted] == forward
    RunFolder(neighbour, Store(tmp_path / "store")).write_plan()
    run = loading.read(Path("runs/both"), [], Path("runs"))
    assert [node.fingerprint for node in run.wanted] == forward
    assert (run.name, run.file) == ("both", file)
    tiny.write(Path("other.yaml"), {"recipe": "here"})
    with refused("recipe", "unknown-recipe", "'here'"):
        loading.read(Path("../story/both.yaml"), [], Path("runs"))
    Path("other.yaml").unlink()
    file.with_name("other.yaml").rename("away")
    looked = r"other\.yaml: there is no such file, here or beside \.\./story/both\.yaml"
    with pytest.raises(UserError, match=rf"both\.yaml: experiments\.fewer: {looked}"):
        loading.read(Path("../story/both.yaml"), [], Path("runs"))


def test_a_mistake_in_what_is_set_names_the_experiment_that_sets_it(tmp_path: Path, ar2: dict[str, Any]) -> None:
    tree = side_by_side(tmp_path, ar2)
    tree["experiments"]["fewer"] = {"file": tree["experiments"]["fewer"], "sets": ["seed=[1, 2]"]}
    says = r"tiny\.yaml: experiments\.fewer: .*other\.yaml: seed: unknown key; .*; did you mean seeds\?$"
    with pytest.raises(UserError, match=says):
        read(tmp_path, tree)


def test_two_systems_of_one_name_are_refused_before_anything_runs(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """As where other judgements have the name of the collection itself."""
    system = next(row for row in read(tmp_path, ar2).outcome.rows if row.name == "BM25")
    assert gathered([system, replace(system, seed=2), replace(system, collection="other")], [])
    with pytest.raises(ValueError, match=r"^two systems are called 'BM25' on toy \(test, seed 1\); rename one"):
        gathered([system, replace(system, seed=2), system], [])
    with pytest.raises(ValueError, match=r"^a comparison names 'RM3'; the systems are BM25$"):
        gathered([system], [("BM25", "RM3")])
    with pytest.raises(UserError, match=r"two systems are called 'BM25' on toy"):
        read(tmp_path, {**ar2, "evaluate": {"other_qrels": {"toy": ar2["data"]}}})


@pytest.mark.parametrize(
    ("mistake", "key", "code"),
    [
        ("fewer_expansions=[5, 3, 5]", "fewer_expansions", "duplicate"),
        ("fewer_expansions=[0]", "fewer_expansions.0", "too-small"),
        ("seeds=[2, 2]", "seeds", "duplicate"),
    ],
)
def test_a_number_that_names_a_system_stands_once(tmp_path: Path, mistake: str, key: str, code: str) -> None:
    with refused(key, code):
        read(tmp_path, tiny.ear(BEIR, ENCODER), mistake)


@pytest.mark.parametrize(
    ("config", "key"),
    [("zeroshot", "measures.0"), ("coder/cranfield", "rerank_chosen.measure"), ("demo", "evaluate.measures.0")],
)
def test_a_measure_that_is_none_is_told_with_its_key(config: str, key: str) -> None:
    requests = f"{key.removesuffix('.0')}={'[BLEU@4]' if key.endswith('.0') else 'BLEU@4'}"
    with refused(key, "unknown-measure"):
        loading.read_config(ROOT / "configs" / f"{config}.yaml", [requests])


@pytest.mark.parametrize("by_way", [False, True])
def test_an_experiment_does_not_build_on_itself(tmp_path: Path, ar2: dict[str, Any], by_way: bool) -> None:
    tree = side_by_side(tmp_path, ar2)
    itself = tmp_path / "itself.yaml"
    tree["experiments"]["itself"] = str(itself)
    if by_way:
        second = {**tree, "experiments": {**tree["experiments"], "itself": str(itself)}}
        tree["experiments"]["itself"] = str(tiny.write(tmp_path / "between.yaml", second))
    tiny.write(itself, tree)
    with refused("itself.yaml", "circular"):
        loading.read(itself, [], Path("runs"))


@pytest.mark.parametrize("by_way", [False, True])
def test_an_absurd_number_of_rounds_is_refused(
    tmp_path: Path, ar2: dict[str, Any], monkeypatch: pytest.MonkeyPatch, by_way: bool
) -> None:
    """Steps of the experiments that one compares count as its own."""
    monkeypatch.setattr("sparring.workflows.store.dag.MOST_STEPS", 400)
    if by_way:
        config = tiny.write(tmp_path / "many.yaml", side_by_side(tmp_path, {**ar2, "rounds": 8}))
    else:
        config = tiny.write(tmp_path / "many.yaml", {**ar2, "rounds": 10**400})
    with pytest.raises(UserError, match=r"many\.yaml: (.*: )?it makes more than 400 steps; accepted: fewer"):
        loading.read(config, [], Path("runs"))


def test_masking_copies_is_all_that_two_of_the_samtone_experiments_differ_in() -> None:
    masked, counted = (
        loading.read(ROOT / f"configs/samtone/{name}.yaml", [], Path("runs")).config.model_dump()
        for name in ("spl-both-masked", "spl-both")
    )
    (single,), (second,) = masked["train"].pop("losses"), counted["train"].pop("losses")
    assert (single.pop("duplicates"), second.pop("duplicates")) == ("mask", "count")
    assert single == second
    assert masked == counted


def losses_of(value: Any) -> Iterator[LossTerm]:
    """Every loss of a config, however deep it stands."""
    if isinstance(value, LossTerm):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from losses_of(item)
    elif isinstance(value, dict):
        yield from losses_of(list(value.values()))
    elif isinstance(value, BaseModel):
        yield from losses_of([getattr(value, key) for key in type(value).model_fields])


@pytest.mark.parametrize("path", sorted(ROOT.glob("configs/**/samtone/*.yaml")), ids=lambda path: path.stem)
def test_copies_count_as_negatives_in_samtones_experiments(path: Path) -> None:
    """Eq. 1 to 3 of Moiseev et al. (2023) mask no text; only systems whose names say so do."""
    seen = set()
    for system in loading.read(path, [], Path("runs")).outcome.rows:
        trainings = [node for node in graph(system.steps) if node.function is train]
        result = {term.duplicates for node in trainings for term in losses_of(node.inputs["config"])}
        masked = "masked" in system.name or "masked" in path.stem
        assert result <= {"mask" if masked else "count"}
        seen |= result
    assert seen
