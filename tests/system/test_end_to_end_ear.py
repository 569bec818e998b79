"""Whole runs of EAR on a toy collection: with and without language models, in one process and through Ray."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.config import UserError
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.training.schedule import noam_peak
from sparring.workflows.command_line import main
from sparring.workflows.experiments import loading
from sparring.workflows.report.sections.costs import costs
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from tests.support import recipes, searching, tiny
from tests.support.asking import asked
from tests.support.tiny import Place
from tests.support.writers import write_generator
from tests.system.test_end_to_end import UNTRAINED


def systems(place: Place) -> list[str]:
    """Those that a run measured, in order."""
    return list(dict.fromkeys(row["system"] for row in place.metrics()["rows"]))


def values(place: Place) -> dict[tuple[str, str], float]:
    """Every measure of every system."""
    return {(row["system"], row["measure"]): row["value"] for row in place.metrics()["rows"]}


@pytest.fixture(scope="module")
def eared(tmp_path_factory: pytest.TempPathFactory, played: Place, beir: Path, encoder: Path) -> Place:
    """A finished run; its index is that of another run of the same collection."""
    place = tiny.place(tmp_path_factory.mktemp("ear") / "place", tiny.ear(beir, encoder))
    for label in ("data", "bm25 index", "start retriever", "tokens"):
        shutil.copytree(played.artifact(label), place.store / played.artifact(label).name)
    assert place("run") == 0
    return place


def test_every_artifact_of_the_plan_is_there(eared: Place) -> None:
    wanted = loading.read(eared.config, [], eared.runs).wanted
    assert {path.name for path in eared.store.iterdir()} == {node.name for node in graph(wanted)}
    for folder in [path for node in ("expand", "choose", "fuse", "predict") for path in eared.store.glob(f"{node}*")]:
        assert not [path for path in folder.iterdir() if path.name.startswith((".", "part-", "feedback", "freq"))]


def test_what_the_paper_compares_is_measured(eared: Place) -> None:
    assert systems(eared) == [
        "BM25",
        *UNTRAINED,
        "first expansion",
        "concat",
        "best query",
        "BM25 + dense",
        "EAR-RI",
        "EAR-RI + dense",
        "EAR-RI N=2",
        "EAR-RD",
        "EAR-RD + dense",
        "EAR-RD N=2",
        "first expansion + passages",
        "first expansion + passages k=4",
        "EAR-RI + passages",
        "EAR-RI + passages k=4",
        "EAR-RD + passages",
        "EAR-RD + passages k=4",
        "EAR-RI top 2 + passages",
        "EAR-RI top 2 + passages k=4",
        "EAR-RD top 2 + passages",
        "EAR-RD top 2 + passages k=4",
    ]
    compared = [(comparison["system"], comparison["baseline"]) for comparison in eared.metrics()["comparisons"]]
    lead = eared.metrics()["leading"]
    assert compared[0] == (lead["system"], lead["baseline"])
    assert lead["selected_on"] == "dev"
    assert {
        ("EAR-RD", "first expansion"),
        ("EAR-RD", "EAR-RI"),
        ("best query", "EAR-RD"),
        ("EAR-RD + dense", "BM25 + dense"),
        ("EAR-RD + passages", "EAR-RD"),
        ("EAR-RD top 2 + passages", "EAR-RD + passages"),
        ("EAR-RD", "first expansion + passages k=4"),
    } <= set(compared)


def test_the_oracle_of_each_generator_is_as_good_as_any_choice(eared: Place) -> None:
    """By the rank of the first relevant document, query by query."""
    relevant: dict[str, set[str]] = {}
    for row in pq.read_table(eared.artifact("data") / "qrels.parquet", filters=[("relevance", ">", 0)]).to_pylist():
        relevant.setdefault(row["query_id"], set()).add(row["doc_id"])

    def first(label: str) -> dict[str, int]:
        ranks = dict.fromkeys(relevant, 10_000)
        for row in pq.read_table(eared.artifact(label) / "ranking.parquet").to_pylist():
            if row["doc_id"] in relevant[row["query_id"]]:
                ranks[row["query_id"]] = min(ranks[row["query_id"]], row["rank"])
        return ranks

    for name in ("sentence", "terms"):
        best = first(f"{name} best ranking")
        for system in ("first", "EAR-RI", "EAR-RD"):
            assert all(best[query] <= rank for query, rank in first(f"{name} {system} ranking").items())


def test_rankings_are_cut_and_fused(eared: Place) -> None:
    """Of the measured queries alone."""
    ranking = pq.read_table(eared.artifact("terms EAR-RD ranking") / "ranking.parquet")
    assert set(ranking["query_id"].to_pylist()) == {"q0", "q6", "q12", "q18"}
    table = pq.read_table(eared.artifact("EAR-RD fused") / "ranking.parquet").to_pydict()
    assert set(table["query_id"]) == {"q0", "q6", "q12", "q18"}
    assert max(table["rank"]) <= 40


def test_passages_of_the_first_queries_of_a_reranker(eared: Place) -> None:
    """By hand: the two expansions of the lowest predicted ranks, their rankings in turn, the better one's first."""
    fused = {}
    for name in ("sentence", "terms"):
        predicted = pq.read_table(eared.artifact(f"{name} rd predicted") / "predicted.parquet").to_pylist()
        ranking: dict[str, list[str]] = {}
        for row in pq.read_table(eared.artifact(f"{name} (test) found") / "ranking.parquet").to_pylist():
            ranking.setdefault(row["query_id"], []).append(row["doc_id"])
        best: dict[str, list[str]] = {}
        for row in sorted(predicted, key=lambda row: row["score"]):
            best.setdefault(row["doc_id"].partition("#")[0], []).append(row["doc_id"])
        fused[name] = {
            query: _in_turn([ranking.get(expansion, []) for expansion in expansions[:2]])
            for query, expansions in best.items()
        }
        whole = eared.artifact(f"{name} EAR-RD top 2 ranking")
        assert _lists(whole) == fused[name]
    both = {query: _in_turn([fused["sentence"][query], fused["terms"][query]]) for query in fused["terms"]}
    assert _lists(eared.artifact("EAR-RD top 2 fused")) == both
    reranked = _lists(eared.artifact("EAR-RD top 2 + passages"))
    assert {query: set(documents[:12]) for query, documents in reranked.items()} == {
        q: set(documents[:12]) for q, documents in both.items()
    }


def _lists(folder: Path) -> dict[str, list[str]]:
    ranking: dict[str, list[str]] = {}
    for row in pq.read_table(folder / "ranking.parquet").to_pylist():
        ranking.setdefault(row["query_id"], []).append(row["doc_id"])
    return ranking


def _in_turn(lists: list[list[str]]) -> list[str]:
    turns = [documents[place] for place in range(max(map(len, lists))) for documents in lists if place < len(documents)]
    return list(dict.fromkeys(turns))


def test_two_trainings_choose_from_the_same_expansions(eared: Place, tmp_path: Path) -> None:
    """A second seed trains anew and draws nothing anew, and the first one's models stay what they were."""
    place = eared.copy(tmp_path / "seeds")
    assert place("run", "--set", "seeds=[1,2]", "--set", "fewer_expansions=[]", "--set", "passages=null") == 0
    run = next(path.name for path in place.runs.iterdir() if path.name != "tiny")
    executed = {step["label"] for step in place.metrics(run)["steps"] if step["executed"]}
    assert {"terms rd reranker (seed 2)", "sentence ri reranker (seed 2)"} <= executed
    assert all("(seed 2)" in label or label in ("selection", "results", "lengths and examples") for label in executed)


def test_with_language_models(eared: Place, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """One asked as it is, with a prompt; one that learnt, in two folds; the first learns from the second's."""
    tree: dict[str, Any] = tiny.ear(beir, encoder)
    model = {"model": str(write_generator(tmp_path / "t5", words=True)), "query_tokens": 32, "target_tokens": 16}
    generate = {"number": 4, "new_tokens": 12, "precision": "fp32"}
    learn = {
        "targets": {"kind": "sentence", "documents": "judged"},
        "folds": 2,
        "train": tiny.training("components.losses.likelihood.negative_log_likelihood", updates=2),
    }
    tree["generators"] = {
        "asked": {
            "writer": {"model": model, "generate": {**generate, "prompt": "{query} ? We need"}},
            "learn_from": "taught",
        },
        "taught": {"writer": {"model": model, "generate": generate, "learn": learn}},
    }
    tree |= {"fewer_expansions": [], "passages": None, "rerankers": {"rd": tree["rerankers"]["rd"]}}
    place = tiny.place(tmp_path / "place", tree)
    for label in (
        "data",
        "bm25 index",
        "bm25 ranking (train)",
        "bm25 ranking (test)",
        "start retriever",
        "tokens",
        "start vectors",
        "start queries (test)",
        "start ranking (test)",
    ):
        shutil.copytree(eared.artifact(label), place.store / eared.artifact(label).name)
    assert place("run") == 0
    assert systems(place)[-2:] == ["EAR-RD", "EAR-RD + dense"]
    check_live(place, ["first expansion", "EAR-RD"], "test", 10)
    assert place("export", str(tmp_path / "out"), "--system", "EAR-RD") == 0
    wanted = [(tmp_path / "out" / "system", list(queries(place, "test").values())[:2], 10)]
    (lists,) = searching.by_systems(wanted)
    assert searching.by_examples(wanted) == [[[hit["doc_id"] for hit in hits] for hits in lists]]
    labels = [step["label"] for step in place.metrics()["steps"]]
    assert {"taught fold 1 generator", "taught fold 2 generator", "taught generator"} <= set(labels)
    assert "asked expansions (train)" not in labels


LIVE = ["first expansion", "concat", "EAR-RI", "EAR-RI N=2", "EAR-RD", "EAR-RD + dense", "EAR-RI top 2 + passages"]


def queries(place: Place, split: str) -> dict[str, str]:
    """The queries of a split, by id."""
    rows = pq.read_table(place.artifact("data") / "queries.parquet", filters=[("split", "=", split)]).to_pylist()
    return {row["query_id"]: row["text"] for row in rows}


def check_live(place: Place, names: list[str], split: str, k: int) -> None:
    """Search for a split's queries, and compare with the run's rankings."""
    outcome, store, texts = (
        loading.read(place.config, [], place.runs).outcome,
        Store(place.store),
        queries(place, split),
    )
    answers = searching.by_runs(place, names, list(texts.values()), k)
    for name in names:
        wanted: dict[str, list[tuple[str, float]]] = {}
        system = outcome.ranked[name].system
        assert system is not None
        for row in pq.read_table(store.path(system.ranking(split)) / "ranking.parquet").to_pylist():
            wanted.setdefault(row["query_id"], []).append((row["doc_id"], row["score"]))
        for query, (_, hits) in zip(texts, answers[name], strict=True):
            ranking = wanted.get(query, [])[:k]
            assert [doc_id for doc_id, _ in hits] == [doc_id for doc_id, _ in ranking], (name, query)
            assert [score for _, score in hits] == pytest.approx([score for _, score in ranking], abs=1e-4)


@pytest.mark.parametrize("split", ["dev", "test"])
def test_search_expands_as_the_run_did(eared: Place, split: str) -> None:
    check_live(eared, LIVE, split, 10)


def test_search_finds_something_for_new_queries(eared: Place) -> None:
    texts = ["barami comi", "zzzz"]
    for known_hits, unknown in searching.by_runs(eared, LIVE[:5], texts, 5).values():
        assert len(known_hits[1]) == 5
        assert unknown == [None, []]


def test_an_exported_system_expands(eared: Place, tmp_path: Path) -> None:
    """Its program does the same without this project."""
    folders = []
    for name in ("EAR-RI", "EAR-RD", "concat", "EAR-RD + dense", "EAR-RI top 2 + passages"):
        assert eared("export", str(tmp_path / name), "--system", name) == 0
        folders.append(tmp_path / name / "system")
    wanted = [(folder, list(queries(eared, "test").values())[:3], 10) for folder in folders]
    lists = [[[hit["doc_id"] for hit in hits] for hits in lists] for lists in searching.by_systems(wanted)]
    assert searching.by_examples(wanted) == lists
    card = (folders[1] / "README.md").read_text()
    assert "`expansion`: the first 4 documents of `lexical` expand the query, and `lexical` searches for the " in card
    assert "| `query-reranker-2` | the query reranker, for `CrossEncoder`" in card


def taught(beir: Path, encoder: Path, *names: str) -> dict[str, Any]:
    """Generators that learn in two folds, and one reranker that is validated."""
    tree: dict[str, Any] = tiny.ear(beir, encoder)
    learn = {"folds": 2, "train": tiny.training("components.losses.likelihood.negative_log_likelihood")}
    writer = {"model": {"model": str(encoder), "query_tokens": 32}, "learn": learn}
    tree["generators"] = {name: {"writer": writer} for name in names}
    tree["rerankers"] = {"rd": tree["rerankers"]["rd"]}
    tree["rerankers"]["rd"]["train"]["validate_on_dev"] = {"every": 2, "measure": "accuracy"}
    return tree


def nodes(place: Place) -> dict[str, Step]:
    """The steps of a plan by their labels."""
    return {node.label: node for node in graph(loading.read(place.config, [], place.runs).wanted)}


@pytest.mark.parametrize("learn_from", [None, "other"])
def test_folds_write_training_examples_alone(beir: Path, encoder: Path, tmp_path: Path, learn_from: str | None) -> None:
    """What a checkpoint is chosen on is written, as what is measured, by the generator that has learnt from all."""
    tree = taught(beir, encoder, "one", "other")
    tree["generators"]["one"]["learn_from"] = learn_from
    steps = nodes(tiny.place(tmp_path, tree))
    whose = learn_from or "one"
    writers = {
        label: [model.label for model in node.inputs["models"]]
        for label, node in steps.items()
        if label.startswith((f"{whose} expansions", "one expansions"))
    }
    assert writers[f"{whose} expansions (train)"] == [f"{whose} fold 1 generator", f"{whose} fold 2 generator"]
    assert writers["one expansions (dev)"] == writers["one expansions (test)"] == ["one generator"]
    both = "one after other" if learn_from else "one (train and dev)"
    assert [node.label for node in steps[f"{both} joined"].inputs["expanded"]] == [
        f"{whose} expansions (train)",
        "one expansions (dev)",
    ]
    for split in ("train, max rank 101", "dev"):
        assert steps[f"one groups ({split})"].inputs["ranks"].label == f"{both} joined"


def test_generators_are_fused_in_the_order_that_is_said(beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree = {**taught(beir, encoder, "title", "answer", "sentence", "t0"), "all_expansions": {"how": "reciprocal"}}
    tree["generators"]["t0"]["measured"] = False
    for order in (None, ["sentence", "answer", "title"]):
        steps = nodes(tiny.place(tmp_path / str(order), {**tree, "order": order}))
        for system, label in (("first expansion", "first"), ("EAR-RD", "EAR-RD")):
            assert [node.label for node in steps[f"{system} fused"].inputs["rankings"]] == [
                f"{name} {label} ranking" for name in order or ("title", "answer", "sentence")
            ]


def test_all_expansions_are_those_of_the_generators_that_are_named(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Beams that are no candidates, beside the draws that are."""
    tree = taught(beir, encoder, "drawn", "beams")
    tree["generators"]["beams"] = {
        "writer": {"model": {"model": str(encoder)}, "generate": {"method": "beam"}},
        "measured": False,
    }
    wanted = {None: ["drawn"], ("beams",): ["beams"], ("drawn", "beams"): ["drawn", "beams"]}
    for generators, names in wanted.items():
        fused = {"how": "reciprocal", "generators": generators and list(generators)}
        steps = nodes(tiny.place(tmp_path / "-".join(generators or ["all"]), {**tree, "all_expansions": fused}))
        fused = [label.partition(" ")[0] for label in steps if label.endswith("all fused")]
        assert fused == names
        for name in fused:
            assert steps[f"{name} all fused"].inputs["expanded"].label == f"{name} expansions (test)"
        measured = steps["all expansions measures"].inputs["ranking"].label
        assert measured == ("all expansions fused" if len(names) > 1 else f"{names[0]} all fused")
    chosen = {label.partition(" ")[0] for label in steps if label.endswith("EAR-RD ranking")}
    assert chosen == {"drawn"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"all_expansions": {"generators": ["terms", "beams"]}},
            "all_expansions: generators: 'beams'; accepted: sentence, terms",
        ),
        ({"order": ["terms"]}, "order: terms; accepted: each of sentence, terms once"),
        ({"order": ["terms", "sentence", "terms"]}, "accepted: each of sentence, terms once"),
    ],
)
def test_what_does_not_fit_together_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, change: dict[str, Any], message: str
) -> None:
    place = tiny.place(tmp_path, {**tiny.ear(beir, encoder), **change})
    assert place("plan") == 2
    assert message in said()[1]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("rd.max_rank", "20", "rerankers: rd: max_rank: 20: an expansion that finds nothing"),
        ("by_generator.terms.ri.max_rank", "20", "rerankers: ri: max_rank: 20: an expansion that finds nothing"),
        ("by_generator.title.ri.max_rank", "250", "rerankers: by_generator: title; accepted: sentence, terms"),
        ("by_generator.terms.rd", "null", "rerankers: by_generator: terms: ri; accepted: ri, rd"),
        ("by_generator.terms.ri.train.batch", "0", "rerankers.by_generator.terms.ri.train.batch: "),
        ("by_generator.terms.ri.maxrank", "1", "rerankers.by_generator.terms.ri.maxrank: unknown key; accepted: model"),
        (
            "ri.train.validate_on_dev",
            "{every: 1, measure: RR}",
            "rerankers.ri.train.validate_on_dev.measure: got 'RR'; accepted: 'rank' or 'accuracy'",
        ),
    ],
)
def test_what_a_reranker_cannot_be_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, path: str, value: str, message: str
) -> None:
    place = tiny.place(tmp_path, tiny.ear(beir, encoder))
    assert place("plan", "--set", f"rerankers.{path}={value}") == 2
    assert message in said()[1]


def test_a_generators_rerankers_differ_in_what_is_said_of_them(beir: Path, encoder: Path, tmp_path: Path) -> None:
    """The rest is that of all generators, and steps are theirs alone only where something differs."""
    tree = tiny.ear(beir, encoder)
    reranker = {
        "model": {"model": str(encoder), "pair_tokens": 24},
        "train": {**tree["rerankers"]["ri"]["train"], "validate_on_dev": {"every": 2}},
    }
    tree["rerankers"] = {"ri": reranker, "rd": reranker}
    tree["rerankers"]["by_generator"] = {
        "terms": {"ri": {"max_rank": 250, "train": {"batch": 2}}, "rd": {"model": {"pair_tokens": 12}}}
    }
    steps = nodes(tiny.place(tmp_path, tree))
    assert steps["terms ri reranker"].inputs["config"].batch == 2
    assert steps["sentence ri reranker"].inputs["config"].batch == 4
    rows = {label: steps[f"{label} reranker"].inputs["rows"] for label in ("terms ri", "terms rd", "sentence ri")}
    assert {label: step.inputs["max_rank"] for label, step in rows.items()} == {
        "terms ri": 250,
        "terms rd": 101,
        "sentence ri": 101,
    }
    assert steps["terms ri reranker"].inputs["dev"].fingerprint == steps["terms rd reranker"].inputs["dev"].fingerprint
    assert steps["terms groups (dev)"].inputs["max_rank"] == 21  # k + 1
    for label in (*rows, "sentence rd"):
        inputs = steps[f"{label} reranker"].inputs
        whose, length = ("terms rd", 12) if label == "terms rd" else (label.rpartition(" ")[2], 24)
        assert inputs["start"].label == f"start {whose} reranker"
        assert inputs["start"].inputs["config"].pooling == "first"
        assert inputs["start"].inputs["config"].pair_tokens == length
        assert inputs["tokens"].inputs["model"].fingerprint == inputs["start"].fingerprint
        assert inputs["config"].validate_on_dev.measure == "rank"


def test_the_papers_numbers_of_natural_questions() -> None:
    """Tables B.1 and B.2 of Chuang et al. (2023), with Noam's multiplier for the learning rate."""
    config = loading.read_config(tiny.ROOT / "configs/ear/nq.yaml", [])
    wanted = {
        ("ri", "answer"): (101, 8, 5e-3),
        ("ri", "sentence"): (250, 8, 2e-3),
        ("ri", "title"): (101, 4, 2e-3),
        ("rd", "answer"): (101, 4, 2e-3),
        ("rd", "sentence"): (101, 4, 2e-3),
        ("rd", "title"): (250, 8, 2e-3),
    }
    assert {name for _, name in wanted} == set(config.measured())
    for (kind, name), numbers in wanted.items():
        reranker = config.rerankers.of(name)[kind]
        training = reranker.train
        multiplier = noam_peak(training, 0, 1)["noam_multiplier"]
        assert (reranker.max_rank, training.batch, pytest.approx(multiplier)) == numbers
        assert training.warmup * training.updates == pytest.approx(10_000, abs=0.01)
        assert training.updates * training.batch == {"ri": 2, "rd": 3}[kind] * 58_880
        assert training.validate_on_dev.every * training.batch * 10 == 58_880
        assert training.validate_on_dev.measure == "rank"
        assert (reranker.model.pooling, reranker.model.pair_tokens) == ("first", {"ri": 64, "rd": 256}[kind])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms": {}}, "a generator is one of relevance, writer, file; given: none"),
        ({"terms": {"relevance": {}, "learn_from": "nobody"}}, "learn_from: 'nobody'; accepted: terms"),
        ({"terms": {"writer": {"model": {"model": "x", "layers": 2}}}}, "a generator always keeps all its layers"),
        (
            {
                "terms": {
                    "writer": {
                        "model": {"model": "x"},
                        "learn": {"train": tiny.training()},
                        "generate": {"prompt": "{query} ? We need"},
                    }
                }
            },
            "generate: prompt: '{query} ? We need'; accepted with learn: '{query}'",
        ),
    ],
)
def test_a_mistake_in_a_config_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, change: dict[str, Any], message: str
) -> None:
    place = tiny.place(tmp_path, {**tiny.ear(beir, encoder), "generators": change})
    assert place("plan") == 2
    assert message in said()[1]


@pytest.mark.slow  # each step by itself through Ray: tests/workflows/steps; a whole run: test_end_to_end.py
@pytest.mark.usefixtures("ray")
def test_through_ray_it_is_the_same(
    eared: Place, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers expand, retrieve and predict, one trains: the same rankings as in one process."""
    monkeypatch.setattr(
        "sparring.workflows.commands.shared_arguments.leave", lambda: None
    )  # the session serves other tests too
    tree = tiny.ear(beir, encoder)
    tree["generators"].pop("sentence")
    tree["rerankers"].pop("ri")
    tree["passages"] = None
    profile = {"mode": "ray", "retries": 0, "map": {"workers": 2, "threads": 1}, "java": {"workers": 2, "threads": 1}}
    places = [tiny.place(tmp_path / "inline", tree), tiny.place(tmp_path / "ray", tree, **profile)]
    for place in places:
        for label in (
            "data",
            "bm25 index",
            "start retriever",
            "tokens",
            "start vectors",
            "start queries (test)",
            "start ranking (test)",
        ):
            shutil.copytree(eared.artifact(label), place.store / eared.artifact(label).name)
        assert place("run") == 0
    assert tiny.results(places[0].store) == tiny.results(places[1].store)


# All that is more than the plain chain, and the models of one collection on another


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Place:
    """A finished run with every option, on a collection with answers."""
    folder = tmp_path_factory.mktemp("whole")
    place = tiny.place(folder / "place", recipes.ear_of_words(folder, encoder))
    assert place("run") == 0
    return place


def test_all_systems_are_measured(whole: Place) -> None:
    ears = ["EAR-RI", "EAR-RD"]
    read = [f"{system} + reader k={k}" for system in ("BM25", "start model", "first expansion", *ears) for k in (2, 4)]
    assert systems(whole) == [
        "BM25",
        *UNTRAINED,
        "RM3",
        "first expansion",
        "concat",
        "best query",
        "all expansions",
        "start model (HNSW4)",
        "BM25 + dense",
        "first expansion issued to dense",
        *(f"{ear}{more}" for ear in ears for more in ("", " + dense", " issued to dense")),
        *read,
    ]
    scores = values(whole)
    assert {measure for system, measure in scores if "reader" in system} == {"EM", "F1"}
    assert scores["start model (HNSW4)", "RR@10"] == pytest.approx(scores["start model", "RR@10"], abs=0.3)
    best = scores["best query", "Answer@5"]
    assert best >= max(scores["BM25", "Answer@5"], scores["first expansion", "Answer@5"])  # the question is among them
    compared = {(comparison["system"], comparison["baseline"]) for comparison in whole.metrics()["comparisons"]}
    assert {
        ("EAR-RD", "RM3"),
        ("EAR-RD", "all expansions"),
        ("EAR-RD issued to dense", "EAR-RD"),
        ("EAR-RD + reader k=2", "BM25 + reader k=2"),
        ("BM25 + reader k=4", "BM25 + reader k=2"),
        ("EAR-RD + reader k=2", "start model + reader k=2"),
    } <= compared


def test_words_and_costs_stand_beside_a_papers(whole: Place, tmp_path: Path) -> None:
    """As the report's sections have them, in their own unit (Chuang et al., 2023, Tables 3.9 and 3.11)."""
    columns: list[dict[str, Any]] = [
        {"measure": "words", "values": {"question": 9.2}},
        {"measure": "words", "collection": "sentence", "values": {"first expansion": 38.8, "EAR-RI": 36.2}},
        {"measure": "GB of index", "values": {"BM25": 2.4, "start model (HNSW4)": 142}},
        {"measure": "hours to index", "values": {"BM25": 0.5}},
        {"measure": "seconds to expand", "values": {"EAR-RD": 1.29, "BM25": 0.0}},
        {"measure": "seconds to rerank", "values": {"EAR-RD": 0.84}},
        {"measure": "seconds to retrieve", "values": {"start model (flat)": 22.4}, "not_comparable": "other machines"},
    ]
    place = whole.copy(tmp_path / "told")
    expected = {"source": "Chuang et al. (2023), Table 3.11", "unit": "number", "of": columns}
    tiny.write(place.config, {**yaml.safe_load(place.config.read_text()), "expected": expected})
    assert place("run") == 0
    rows = {(row["measure"], row["collection"], row["system"]): row for row in place.metrics()["expected"]["rows"]}
    study = json.loads((whole.artifact("lengths and examples") / "study.json").read_text())
    words = next(entry["words"] for entry in study["lengths"] if entry["generator"] == "sentence")
    assert rows["words", None, "question"]["value"] == study["question"]
    for system in ("first expansion", "EAR-RI"):
        assert rows["words", "sentence", system]["value"] == words[system]
    (of_bm25,) = (path for path in whole.store.glob("lucene_index-*") if path == whole.artifact("bm25 index"))
    files = sum(path.stat().st_size for path in (of_bm25 / "index").rglob("*") if path.is_file())
    assert rows["GB of index", None, "BM25"]["value"] == pytest.approx(files / 1e9)
    assert rows["GB of index", None, "start model (HNSW4)"]["lies"] == "above"
    assert rows["hours to index", None, "BM25"]["value"] < 1
    assert rows["seconds to expand", None, "BM25"]["lies"] == "not measured"  # it expands nothing
    for phase in ("expand", "rerank"):
        assert rows[f"seconds to {phase}", None, "EAR-RD"]["value"] > 0
    assert rows["seconds to retrieve", None, "start model (flat)"]["lies"] == "not comparable"


def test_passages_are_learnt_from_as_bm25_ranks_them(eared: Place) -> None:
    """The first ten of each training question, a pair a row, relevant or not (Appendix B.2)."""
    groups = pq.read_table(eared.artifact("passage reranker groups") / "groups.parquet").to_pylist()
    ranked = _lists(eared.artifact("bm25 ranking (train)"))
    assert all(document in ranked[row["query_id"]][:10] for row in groups for document in row["doc_ids"])
    assert {len(row["doc_ids"]) for row in groups} == {1}
    assert {row["targets"][0] for row in groups} == {0.0, 1.0}


def test_what_has_a_gpu(eared: Place, whole: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert asked("ear/squad.yaml", monkeypatch, tmp_path, eared, whole, elsewhere=("mine",)) == {
        "tokenize": ("map", False),
        "tokenize_queries": ("map", False),
        "answering": ("map", False),
        "lucene_index": ("its own", False),
        "lucene_search": ("java", False),
        "lucene_feedback": ("java", False),
        "build_index": ("its own", False),
        "expand_by_relevance": ("map", False),
        "encode_documents": ("map", True),
        "encode_queries": ("map", True),
        "search": ("map", True),
        "search (HNSW4)": ("map", False),
        "read_answers": ("map", True),
        "predict": ("score", True),
        "rerank": ("score", True),
        "train": ("train", True),
    }


def test_one_reranker_for_each_generator_is_chosen_on_that_generators_dev(whole: Place) -> None:
    """It learns from the other's expansions and is validated on its own; both stand in one view."""
    rows = pq.read_table(whole.artifact("terms after sentence joined") / "expansions.parquet").to_pylist()
    split = {
        row["query_id"]: row["split"] for row in pq.read_table(whole.artifact("data") / "queries.parquet").to_pylist()
    }
    by_split: dict[str, set[str]] = {}
    for row in rows:
        by_split.setdefault(split[row["query_id"]], set()).add(row["doc_id"])
    learnt = pq.read_table(whole.artifact("sentence expansions (train) and the question") / "expansions.parquet")
    dev = pq.read_table(whole.artifact("terms expansions (dev) and the question") / "expansions.parquet")
    assert by_split == {"train": set(learnt["doc_id"].to_pylist()), "dev": set(dev["doc_id"].to_pylist())}
    labels = [step["label"] for step in whole.metrics()["steps"]]
    assert "terms expansions (train)" not in labels
    assert {"terms groups (dev)", "terms groups (train, max rank 101)", "sentence groups (dev)"} <= set(labels)


def test_readers_answer_as_the_step_did(whole: Place, tmp_path: Path, said: tiny.Said) -> None:
    names = ["BM25 + reader k=4", "EAR-RI + reader k=2", "EAR-RD + reader k=4"]
    texts = queries(whole, "test")
    answers = searching.by_runs(whole, names, list(texts.values()), 3)
    contents = {row["doc_id"]: row for row in pq.read_table(whole.artifact("data") / "documents.parquet").to_pylist()}
    for name in names:
        step = pq.read_table(whole.artifact(f"{name} answers") / "answers.parquet").to_pylist()
        wanted = {row["query_id"]: row["answer"] for row in step}
        assert wanted
        for query, (answer, hits) in zip(texts, answers[name], strict=True):
            text, doc_id = answer
            assert text == wanted.get(query, text)
            assert len(hits) == 3
            assert doc_id is None or text.split()[0].lower() in str(contents[doc_id]).lower()
    assert whole("export", str(tmp_path / "out"), "--system", names[1]) == 0
    folder, query = tmp_path / "out" / "system", next(iter(texts.values()))
    said()
    words = ["search", str(folder), query, "-k", "3", "--cluster", str(whole.folder / "inline.yaml")]
    done = subprocess.run(
        [sys.executable, "-m", "workflows", *words], cwd=tiny.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ((text, _), _), *_ = answers[names[1]]
    line = done.stdout.splitlines()[0]
    assert line.startswith(f"answer: {text}  (in " if text else "answer: none")
    program = subprocess.run(
        [sys.executable, str(folder / "example.py"), query, "3"], cwd="/", capture_output=True, text=True, check=False
    )
    assert program.returncode == 0, program.stderr
    assert program.stdout.splitlines()[0].startswith("answer:")
    description = json.loads((folder / "system.json").read_text())
    assert description["stages"]["reader"]["passages"] == 2
    with pytest.raises(UserError, match=r"template: released, which `example\.py` does not read"):
        deployable.of_folder(loading.read(whole.config, [], whole.runs).outcome.ranked[names[2]])


def test_search_expands_with_every_option(whole: Place) -> None:
    check_live(whole, ["first expansion", "concat", "all expansions", "EAR-RI", "EAR-RD", "EAR-RD + dense"], "test", 10)


def test_the_report_has_costs_lengths_and_examples(whole: Place) -> None:
    page = (whole.runs / "tiny" / "report.html").read_text()
    assert "What a query costs" in page
    assert "Chosen expansions" in page
    study = json.loads((whole.artifact("lengths and examples") / "study.json").read_text())
    assert [row["generator"] for row in study["lengths"]] == ["sentence", "terms"]
    queries = pq.read_table(whole.artifact("data") / "queries.parquet", filters=[("split", "=", "test")])
    assert study["question"] == pytest.approx(
        sum(len(text.split()) for text in queries["text"].to_pylist()) / len(queries)
    )
    for row in study["lengths"]:
        assert list(row["words"]) == ["first expansion", "EAR-RI", "EAR-RD"]
        choices = pq.read_table(whole.artifact(f"{row['generator']} first ranking") / "choices.parquet").to_pylist()
        texts = {query["query_id"]: query["text"] for query in queries.to_pylist()}
        wanted = [len(f"{texts[c['query_id']].rstrip(' ?')} ? {c['text']}".split()) for c in choices]
        assert row["words"]["first expansion"] == pytest.approx(sum(wanted) / len(wanted))
    for case in study["cases"]:
        first, last = (case["rows"][place]["rank"] or 1000 for place in (1, -1))
        assert first != last
        assert case["passage"]["text"]


def test_costs_are_the_records(whole: Place) -> None:
    """A query's share of the steps that answer it, from `artifact.json`."""
    experiment = loading.read(whole.config, [], whole.runs)
    store = Store(whole.store)
    rows = {row["system"]: row for row in costs(experiment.outcome.costs, store, whole.metrics()["rows"])}
    assert list(rows) == [
        "start model (flat)",
        "start model (HNSW4)",
        "BM25",
        "RM3",
        "first expansion",
        "EAR-RI",
        "EAR-RD",
    ]

    def took(label: str) -> tuple[float, dict[str, Any]]:
        record = json.loads((whole.artifact(label) / "artifact.json").read_text())
        return record["time"]["compute"] + record["time"]["files"], record["summary"]

    seconds, summary = took("bm25 ranking (test)")
    assert rows["BM25"]["retrieve"] == pytest.approx(seconds / summary["queries"])
    assert rows["BM25"]["expand"] is None
    assert rows["BM25"]["build"] == pytest.approx(took("bm25 index")[0])
    drawn = {name: took(f"{name} expansions (test)") for name in ("sentence", "terms")}
    expand = sum(s / record["queries"] for s, record in drawn.values()) + seconds / summary["queries"]
    assert rows["EAR-RI"]["expand"] == rows["first expansion"]["expand"] == pytest.approx(expand)
    searched = [*(f"{name} (test) found" for name in drawn), "first expansion fused"]
    assert rows["first expansion"]["retrieve"] == pytest.approx(
        sum(s / record["queries"] for s, record in map(took, searched))
    )
    assert rows["start model (flat)"]["build"] == pytest.approx(took("start vectors")[0])
    asking, summary = took("start queries (test)")
    asking /= summary["queries"]
    searched, exact = took("start ranking (test)")
    assert rows["start model (flat)"]["retrieve"] == pytest.approx(asking + searched / exact["queries"])
    searched, record = took("HNSW4 ranking (test)")
    assert 0 < record["index_seconds"] < record["search_seconds"]
    searched *= record["index_seconds"] / record["search_seconds"]
    assert rows["start model (HNSW4)"]["retrieve"] == pytest.approx(asking + searched / record["queries"])
    extra = sum(took(f"{name} (test) found")[0] / record["queries"] for name, (_, record) in drawn.items())
    models = {
        kind: sum(
            (took(f"{name} {kind} predicted")[0] + took(f"{name} (test) {kind} tokens")[0]) / record["queries"]
            for name, (_, record) in drawn.items()
        )
        for kind in ("ri", "rd")
    }
    assert rows["EAR-RI"]["rerank"] == pytest.approx(models["ri"])
    assert rows["EAR-RD"]["rerank"] == pytest.approx(models["rd"] + extra)
    scores = values(whole)
    assert rows["EAR-RD"]["value"] == scores["EAR-RD", "Answer@5"]
    assert rows["start model (flat)"]["value"] == scores["start model", "Answer@5"]
    for row in rows.values():
        assert row["query"] == pytest.approx(sum(row[name] or 0 for name in ("expand", "rerank", "retrieve")))
    assert rows["start model (HNSW4)"]["bytes"] == next(whole.artifact("HNSW4 index").glob("*.faiss")).stat().st_size


def test_models_of_one_collection_on_another(whole: Place, beir: Path, tmp_path: Path) -> None:
    """Nothing is trained: each model is the one that the other experiment has."""
    place = whole.copy(tmp_path / "place")
    tree = yaml.safe_load(place.config.read_text())
    names = {path.name for path in place.store.iterdir()}
    config = {
        **tree,
        "data": {"format": "beir", "path": str(beir)},
        "relevant_by": "qrels",
        "reader": None,
        "models_from": str(place.config),
        "evaluate": {"measures": ["RR@10"]},
    }
    for option in ("rm3", "all_expansions", "hnsw", "to_dense"):
        config.pop(option)
    source = yaml.safe_load(place.config.read_text())
    source["reader"] = None
    tiny.write(place.config, source)
    moved = tiny.Place(place.folder)
    tiny.write(place.folder / "other.yaml", config)
    where = ["--store", str(place.store), "--runs", str(place.runs)]
    assert main([*where, "run", str(place.folder / "other.yaml"), "--cluster", str(place.folder / "inline.yaml")]) == 0
    additions = {path.name for path in place.store.iterdir()} - names
    assert {name.rpartition("-")[0] for name in additions} >= {"expand_by_relevance", "predict", "choose"}
    assert not [name for name in additions if name.startswith(("train", "rank_groups", "start"))]
    steps = {step["label"] for step in moved.metrics("other")["steps"]}
    assert {"tiny: terms ri reranker", "tiny: data", "terms expansions (test)"} <= steps
    assert {row["collection"] for row in moved.metrics("other")["rows"]} == {"toy"}


READER = {"model": {"model": "x"}, "depths": [4]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"all_expansions": {"how": "reciprocal", "weight": 0.3}},
            "all_expansions: weight: 0.3 is that of the second of two lists, and a query has as many as it has ",
        ),
        (
            {"fusion": {"how": "reciprocal", "weight": 0.3}, "generators": {"a": {"relevance": {}}}},
            "fusion: weight: 0.3 is that of the second of two lists, and 1 generators are measured; accepted: 0.5",
        ),
        ({"reader": {**READER, "depths": [4, 100]}}, "reader: depths: 100 passages, and k: 20 documents are retrieved"),
        ({"reader": {**READER, "passages": 30, "train": tiny.training()}}, "reader: passages: 30 passages, and k: 20"),
        (
            {"generators": {"a": {"relevance": {"number": 1}}}},
            "generators: a: number: 1: a reranker learns nothing from one expansion",
        ),
        (
            {"generators": {"a": {"file": {"path": "x", "field": "y", "number": 1}}}},
            "generators: a: number: 1: a reranker learns nothing from one expansion",
        ),
        (
            {"rerankers.ri.train.losses": [{"function": tiny.CROSS_ENTROPY}]},
            "losses: components.losses.listwise.cross_entropy reads scores of candidates, but `over: group` of the "
            "objective query_reranker has scores of query ranks. Use a loss for these, such as components.losses.",
        ),
        ({"rerankers.ri.train.losses.0.over": "batch"}, "over: got 'batch', but the objective query_reranker"),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said, change: dict[str, Any], message: str
) -> None:
    tree = tiny.ear(beir, encoder)
    sets = [f"{key}={json.dumps(value)}" for key, value in change.items() if "." in key]
    place = tiny.place(tmp_path / "place", {**tree, **{key: value for key, value in change.items() if "." not in key}})
    assert place("plan", *(word for assignment in sets for word in ("--set", assignment))) == 2
    assert message in said()[1]


def test_one_expansion_is_enough_where_nothing_chooses(beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree = {**tiny.ear(beir, encoder), "generators": {"a": {"relevance": {"number": 1}}}, "rerankers": {}}
    tree["passages"].pop("top_queries")
    place = tiny.place(tmp_path, {**tree, "fewer_expansions": []})
    assert place("plan") == 0


def test_no_fusion_cuts_rankings_that_are_deeper(beir: Path, encoder: Path, tmp_path: Path) -> None:
    tree = {**tiny.ear(beir, encoder), "k": 200, "all_expansions": {}}
    for reranker in tree["rerankers"].values():
        reranker["max_rank"] = 250
    place = tiny.place(tmp_path, tree)
    nodes = graph([loading.read(place.config, [], place.runs).outcome.results])
    depths = {
        node.label: node.inputs["config"].depth
        for node in nodes
        if "fuse" in node.function.__name__ and isinstance(node.inputs["config"], FusionConfig)
    }
    assert {label for label in depths if label.startswith(("first expansion", "all expansions", "EAR-RI"))}
    assert set(depths.values()) == {200}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"models_from": "dpr.yaml"}, "models_from: dpr.yaml: recipe: 'dpr'; accepted: ear"),
        ({"models_from": "again.yaml"}, "models_from: again.yaml: its models are another's; name plain.yaml"),
        ({"models_from": "nowhere.yaml"}, "nowhere.yaml"),
        (
            {"reader": {"model": {"model": "x", "passage_tokens": 4096}, "depths": [4]}},
            "passage_tokens: 4096: only 512 tokens of a text are kept",
        ),
    ],
)
def test_where_models_cannot_be_had(
    beir: Path,
    encoder: Path,
    tmp_path: Path,
    said: tiny.Said,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = tiny.ear(beir, encoder)
    tiny.write(tmp_path / "plain.yaml", tree)
    tiny.write(tmp_path / "dpr.yaml", tiny.dpr(beir, encoder))
    tiny.write(tmp_path / "again.yaml", {**tree, "models_from": "plain.yaml"})
    place = tiny.place(tmp_path / "place", {**tree, **change})
    assert place("plan") == 2
    assert message in said()[1]
