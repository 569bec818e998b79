"""Contenders as teachers and start models, and a smaller retriever that learns in the game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from sparring.components.data.tables import document_text
from sparring.components.files import read_json
from sparring.components.models.endpoints import Endpoint
from sparring.workflows.experiments import loading
from sparring.workflows.steps.endpoints import rerank_at, score_groups_at
from sparring.workflows.steps.score import rerank, score_groups
from sparring.workflows.steps.train import train
from sparring.workflows.store.dag import Step, graph
from tests.support import tiny, toy
from tests.support.endpoint import Endpoint as Server
from tests.support.endpoint import every_third_fails, score
from tests.support.errors import refused

VENDOR = {"rerank_url": "http://localhost:9000/v1/rerank", "key_from": "RERANK_KEY", "model": "rerank-2"}
LOCAL = {"embedder": "BAAI/bge-small-en-v1.5", "reranker": {"model": "BAAI/bge-reranker-base", "pair_tokens": 300}}
CHAT = {"chat_url": "http://localhost:9000/v1/chat/completions"}
CONTENDERS = {"vendor": VENDOR, "local": LOCAL, "embedder": {"embedder": "a/b"}, "chat": CHAT}
DISTILLED = {"function": tiny.DISTILLATION, "over": "group"}


def steps(folder: Path, tree: dict[str, Any], *assignments: str) -> dict[str, Step]:
    """The steps of a config by their labels."""
    outcome = loading.read(tiny.write(folder / "tiny.yaml", tree), list(assignments), folder).outcome
    return {node.label: node for node in graph([outcome.results])}


def same(first: Step, second: Step) -> bool:
    return first.fingerprint == second.fingerprint


def ar2(beir: Path, encoder: Path, **keys: Any) -> dict[str, Any]:
    return {**tiny.ar2(beir, encoder), "contenders": CONTENDERS, **keys}


def test_a_contender_teaches_in_place_of_the_ranker(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """The gate compares the contender's order with the retriever's, and its scores are the game's teacher."""
    tree = ar2(beir, encoder, teacher="local", gate={"level": 1.0})
    built = steps(tmp_path, tree)
    reranker = built["local reranker"]
    judged = built["retriever 1"].inputs["rows"]
    assert (judged.function, judged.inputs["ranker"]) == (score_groups, reranker)
    order = built["local over warm retriever gate"].inputs["reranked"]
    assert (order.function, order.inputs["ranker"]) == (rerank, reranker)
    assert same(order.inputs["ranking"], built["warm retriever ranking (dev)"])
    assert built["warm ranker"].inputs["rows"].description.makes == "groups"  # no loss of the ranker's reads a teacher


def test_an_address_teaches_both_models_and_is_asked_once_for_a_pair(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """Each step knows the pairs that earlier steps of its seed have paid for. Other seeds do not depend on them."""
    tree = ar2(beir, encoder, teacher="vendor", rounds=2)
    tree["ranker"]["warm"]["train"]["losses"] = [DISTILLED]
    built = steps(tmp_path, tree, "seeds=[1, 2]")
    for seed in (1, 2):
        scored = [
            built[f"{name} (seed {seed})"].inputs["rows"] for name in ("warm ranker", "retriever 1", "retriever 2")
        ]
        assert {node.function for node in scored} == {score_groups_at}
        assert [node.inputs["before"] for node in scored] == [[], scored[:1], scored[:2]]


def test_rerankings_that_decide_on_rounds_are_asked_once_for_a_pair(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """Each knows what the contender's own row and the rounds before it have paid for."""
    built = steps(tmp_path, ar2(beir, encoder, teacher="vendor", rounds=2, gate={"level": 1.0}))
    names = ("warm retriever", "retriever 1")
    first, second = (built[f"vendor over {name} gate"].inputs["reranked"] for name in names)
    (row,) = first.inputs["before"]
    assert same(row, built["vendor (dev)"])
    assert all(map(same, second.inputs["before"], [row, first]))
    assert len(second.inputs["before"]) == 2


def test_scores_of_a_contender_are_weighted_with_the_priors(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = ar2(beir, encoder, teacher="vendor")
    tree["ranker"]["prior"] = {"scores": ["retriever"]}
    built = steps(tmp_path, tree)
    weighted = built["retriever 1"].inputs["rows"]
    assert weighted.inputs["groups"].function is score_groups_at
    order = weighted.inputs["weights"].inputs["reranked"]
    assert (order.function, order.inputs["endpoint"]) == (
        rerank_at,
        Endpoint(url=VENDOR["rerank_url"], model="rerank-2", key_from="RERANK_KEY"),
    )


def test_dpr_distils_a_contender(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = {**tiny.dpr(beir, encoder), "contenders": CONTENDERS, "teacher": "vendor"}
    tree["train"] = {**tree["train"], "losses": [DISTILLED]}
    tree["second_stage"] = tree["train"]
    built = steps(tmp_path, tree)
    first, second = (built[name].inputs["rows"] for name in ("retriever", "retriever, second stage"))
    assert (first.function, second.inputs["before"]) == (score_groups_at, [first])


@pytest.mark.parametrize("ranker", [True, False])
def test_simlm_distils_a_contender(tmp_path: Path, beir: Path, encoder: Path, *, ranker: bool) -> None:
    """It needs no ranker then."""
    tree = {**tiny.simlm(beir, encoder), "contenders": CONTENDERS, "teacher": "vendor"}
    built = steps(tmp_path, tree if ranker else {**tree, "ranker": None})
    assert built["distilled retriever"].inputs["rows"].function is score_groups_at
    assert ("ranker" in built) == ranker


def test_adapts_models_both_learn_from_the_teacher(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = {**tiny.adapt(beir, encoder), "contenders": CONTENDERS}
    tree["train"] = {**tree["train"], "teacher": "vendor"}
    built = steps(tmp_path, tree)
    for name in ("warm ranker", "ranker 1", "retriever 1"):
        groups = built[name].inputs["rows"].inputs["groups"]  # below the priors
        assert groups.function is score_groups_at


@pytest.mark.parametrize(
    ("teacher", "code"),
    [("nobody", "unknown-name"), ("embedder", "no-teacher"), ("chat", "no-teacher"), ("vendor", "unused")],
)
def test_a_teacher_that_cannot_teach_is_refused(
    tmp_path: Path, beir: Path, encoder: Path, teacher: str, code: str
) -> None:
    tree = {**tiny.dpr(beir, encoder), "contenders": CONTENDERS, "teacher": teacher}
    with refused("teacher", code):
        steps(tmp_path, tree)
    if code != "unused":
        tree = {**tiny.adapt(beir, encoder), "contenders": CONTENDERS}
        with refused("train.teacher", code):
            steps(tmp_path, {**tree, "train": {**tree["train"], "teacher": teacher}})


def test_adapt_begins_from_contenders(tmp_path: Path, beir: Path, encoder: Path) -> None:
    contenders = {"ours": {"embedder": {"model": str(encoder), "layers": 1}, "reranker": LOCAL["reranker"]}}
    built = steps(tmp_path, {**tiny.adapt(beir, encoder), "contenders": contenders, "model": "ours"})
    assert built["start retriever"].inputs["config"].layers == 1
    assert built["start ranker"].inputs["encoder"] is built["warm retriever"]
    begun = steps(tmp_path, {**tiny.adapt(beir, encoder), "contenders": contenders, "ranker_model": "ours"})
    config = begun["start ranker"].inputs["config"]
    assert (config.model, config.pair_tokens, config.dropout, config.pooling) == (
        "BAAI/bge-reranker-base",
        300,
        0,
        None,
    )
    assert begun["start ranker"].inputs["encoder"] is None
    named = steps(tmp_path, {**tiny.adapt(beir, encoder), "ranker_model": "c/d"})
    assert named["start ranker"].inputs["config"].model == "c/d"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("model", "vendor", "no-start-model"),
        ("ranker_model", "vendor", "no-start-model"),
        ("ranker_model", "embedder", "no-start-model"),
        ("ranker_pooling", "mean", "unused"),
        ("ranker_template", "{query} {document}", "unused"),
    ],
)
def test_a_start_model_that_cannot_be_is_refused(
    tmp_path: Path, beir: Path, encoder: Path, key: str, value: str, code: str
) -> None:
    tree = {**tiny.adapt(beir, encoder), "contenders": CONTENDERS}
    more = {"ranker_model": "local"} if code == "unused" else {}
    with refused(key, code):
        steps(tmp_path, {**tree, **more, key: value})


def test_a_fast_student_learns_in_the_same_phases(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """It begins with the first layers of the start model. Its first ranker is the last one of the game, which goes on
    learning from what the student retrieves."""
    tree = tiny.adapt(beir, encoder)
    before = {node.fingerprint for node in steps(tmp_path, tree).values()}
    built = steps(tmp_path, {**tree, "fast": {"layers": 1}})
    assert len(before - {node.fingerprint for node in built.values()}) == 2  # the selection and the results
    begun = built["fast start retriever"]
    assert begun.inputs["config"] == built["start retriever"].inputs["config"].model_copy(update={"layers": 1})
    assert built["fast warm retriever"].inputs["start"] is begun
    assert built["fast warm retriever"].inputs["config"] == built["warm retriever"].inputs["config"]
    assert built["fast ranker 1"].inputs["start"] is built["ranker 1"]
    assert built["fast retriever 1"].inputs["start"] is built["fast warm retriever"]
    assert built["fast retriever 1"].inputs["config"] == built["retriever 1"].inputs["config"]
    outcome = loading.read(tmp_path / "tiny.yaml", [], tmp_path).outcome
    fast = {"fast warm retriever", "fast retriever 1", "BM25 + fast retriever 1, interpolated"}
    assert {row.name for row in outcome.rows if "fast" in row.name} == fast
    entries = {entry["system"]: entry["cost"] for entry in outcome.results.inputs["selection"].inputs["systems"]}
    assert fast <= entries.keys()
    assert entries["BM25"] < entries["start model"] < entries["fast retriever 1"] < entries["retriever 1"]
    toy.started(tmp_path / "start", begun.inputs["config"])
    assert read_json(tmp_path / "start" / "model" / "config.json")["num_hidden_layers"] == 1


def test_no_pair_is_paid_for_that_nothing_learns_from(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """A contender teaches the student, whose ranker is not measured."""
    tree = {**tiny.adapt(beir, encoder), "contenders": CONTENDERS, "fast": {"layers": 1}}
    tree["train"] = {**tree["train"], "teacher": "vendor"}
    nodes = steps(tmp_path, tree).values()
    taught = [node for node in nodes if node.function is score_groups_at]
    learnt = {before.fingerprint for node in nodes if node.function is not score_groups_at for before in node.upstream}
    assert len(taught) > 3
    assert {node.fingerprint for node in taught} <= learnt


def test_no_student_without_training(tmp_path: Path, beir: Path, encoder: Path) -> None:
    experiment = loading.read(
        tiny.write(tmp_path / "tiny.yaml", {**tiny.adapt(beir, encoder), "train": False, "fast": {"layers": 1}}),
        [],
        tmp_path,
    )
    assert ("fast", False) in [(default.key, default.value) for default in experiment.defaults]
    assert not [row for row in experiment.outcome.rows if "fast" in row.name]


def test_a_student_has_fewer_layers_than_the_retriever(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = ar2(beir, encoder, fast={"layers": 1})
    tree["retriever"]["model"]["layers"] = 1
    with refused("fast.layers", "out-of-range"):
        steps(tmp_path, tree)


def test_distillation_is_the_game_with_a_frozen_ranker(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """Its ranking is refreshed as in the game, and the warm ranker scores its groups in all rounds."""
    tree = ar2(beir, encoder, rounds=2, gate={"level": 1.0})
    tree["controls"]["include"] = ["distillation"]
    built = steps(tmp_path, tree)
    for i in (1, 2):
        game, frozen = built[f"retriever {i}"], built[f"control distillation: retriever {i}"]
        assert (game.inputs["config"], game.inputs["seed"]) == (frozen.inputs["config"], frozen.inputs["seed"])
        assert frozen.inputs["rows"].inputs["ranker"] is built["warm ranker"]
        assert game.inputs["rows"].inputs["ranker"] is built[f"ranker {i}"]
    groups = built["control distillation: retriever 2"].inputs["rows"].inputs["groups"]
    assert groups.inputs["ranking"] is built["control distillation 1 ranking (train)"]
    assert groups.inputs["gate"].inputs["reranked"].inputs["ranker"] is built["warm ranker"]
    assert built["control distillation: retriever 1"].part == "training of controls"


@pytest.mark.parametrize("keys", [{"order": "paper"}, {"teacher": "local"}])
def test_a_control_that_equals_the_game_is_refused(
    tmp_path: Path, beir: Path, encoder: Path, keys: dict[str, Any]
) -> None:
    tree = ar2(beir, encoder, **keys)
    tree["controls"]["include"] = ["distillation"]
    with refused("controls.include", "duplicate"):
        steps(tmp_path, tree)


def test_a_run_learns_from_an_address_that_fails(tmp_path: Path, beir: Path, encoder: Path, endpoint: Server) -> None:
    """The address fails a third of its calls. The trained retriever equals one that learns from a table with the
    scores."""
    endpoint.fails = every_third_fails
    tree = {**tiny.dpr(beir, encoder), "teacher": "vendor"}
    tree["contenders"] = {"vendor": {**VENDOR, "rerank_url": f"{endpoint.url}/rerank", "depth": 2}}
    tree["train"] = {**tree["train"], "losses": [DISTILLED]}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    assert endpoint.asked_twice == []
    data, judged = place.artifact("data"), place.artifact("retriever scored groups")
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    by_id = {row["doc_id"]: document_text(row["title"], row["text"]) for row in documents}
    queries = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    rows = pq.read_table(judged / "groups.parquet").to_pylist()
    for row in rows:
        row["teacher"] = [score(queries[row["query_id"]], by_id[name]) for name in row["doc_ids"]]
    (tmp_path / "again").mkdir()
    trained = steps(tmp_path, tree)["retriever"]
    train(
        tmp_path / "again",
        toy.INLINE,
        objective="retriever",
        rows=toy.write_groups(tmp_path / "groups", rows),
        dev=None,
        data=data,
        tokens=place.artifact("tokens"),
        start=place.artifact("start retriever"),
        seed=trained.inputs["seed"],
        config=trained.inputs["config"],
    )
    weights = [
        next(folder.rglob("model/**/*.safetensors")) for folder in (place.artifact("retriever"), tmp_path / "again")
    ]
    first, second = map(load_file, weights)
    assert all(first[name].equal(second[name]) for name in first)
