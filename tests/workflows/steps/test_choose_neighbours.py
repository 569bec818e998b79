"""Numbers of a reranking chosen by what they do: on other queries alone, and the best of what was tried."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import RANKING, check
from sparring.components.evaluation.measures import by_measure, per_query
from sparring.components.neighbours.reranking import NeighboursRerankConfig, best
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.choose_neighbours import ChooseConfig, _folds, _judged, chosen
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from tests.support import toy

SMALL = {"trials": 6, "k": (2, 5), "k_exp": (1, 3), "context": [6, 9], "measure": "nDCG@5"}


@pytest.fixture(scope="module")
def vectors(toys: Path, data: Path) -> Path:
    (folder := toys / "choose-vectors").mkdir()
    rng = np.random.default_rng(5)
    toy.write_document_vectors(folder, [rng.standard_normal((40, 6)).astype(np.float32)])
    queries = pq.read_table(data / "queries.parquet")["query_id"].to_pylist()
    np.save(folder / "queries.npy", rng.standard_normal((24, 6)).astype(np.float32))
    (folder / "queries.json").write_text(json.dumps(queries))
    return folder


@pytest.fixture(scope="module")
def ranking(toys: Path, vectors: Path) -> Path:
    """What the vectors find."""
    documents, queries = np.load(vectors / "documents-00000.npy"), np.load(vectors / "queries.npy")
    best = np.argsort(-(queries @ documents.T), axis=1)[:, :12]
    return toy.write_ranking(toys / "choose-ranking", {f"q{i}": [f"d{d}" for d in row] for i, row in enumerate(best)})


@pytest.fixture
def choose(tmp_path: Path, data: Path, vectors: Path, ranking: Path) -> Any:
    def run(
        name: str = "out",
        *,
        machine: Machine = toy.INLINE,
        split: str = "train",
        by: str | None = "dev",
        data: Path = data,
        ranking: Path = ranking,
        **config: Any,
    ) -> Path:
        (out := tmp_path / name).mkdir(exist_ok=True)
        run.summary = chosen(  # type: ignore[attr-defined]
            out,
            machine,
            data=data,
            vectors=vectors,
            queries=[vectors],
            rankings=[ranking],
            split=split,
            config=ChooseConfig(**{**SMALL, **config, "split": by}),
        )
        return out

    return run


def reranked(out: Path, data: Path, vectors: Path, ranking: Path, split: str, trial: dict[str, Any]) -> Any:
    """The split's ranking by the numbers of a trial; as it was where neighbours have no say."""
    query_ids = pq.read_table(data / "queries.parquet", filters=[("split", "=", split)])["query_id"].to_pylist()
    if trial["mix"] == 1.0:
        return pq.read_table(ranking / "ranking.parquet", filters=[("query_id", "in", query_ids)])
    out.mkdir()
    numbers = {key: value for key, value in trial.items() if key not in ("value", "queries")}
    rerank_by_neighbours(
        out,
        toy.INLINE,
        data=data,
        vectors=vectors,
        queries=vectors,
        ranking=ranking,
        config=NeighboursRerankConfig(**numbers),
    )
    return pq.read_table(out / "ranking.parquet", filters=[("query_id", "in", query_ids)])


def measured(data: Path, table: Any, split: str) -> dict[str, float]:
    qrels = pq.read_table(data / "qrels.parquet", filters=[("split", "=", split)])
    queries, values = by_measure(per_query(table, qrels, ["nDCG@5"]))["nDCG@5"]
    return dict(zip(queries, values.tolist(), strict=True))


@pytest.mark.parametrize("rows", [3, 1_000_000])
def test_on_a_split_the_best_of_what_was_tried_is_applied_to_another(
    choose: Any, tmp_path: Path, data: Path, vectors: Path, ranking: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Whatever pieces the ranking is read in."""
    monkeypatch.setattr("sparring.components.data.tables.by_query.__kwdefaults__", {"rows": rows})
    out = choose()
    trials, (choice,) = json.loads((out / "trials.json").read_text()), json.loads((out / "chosen.json").read_text())
    assert len(trials) == 6
    assert trials[0]["mix"] == 1.0
    for number, trial in enumerate(trials):
        values = measured(data, reranked(tmp_path / str(number), data, vectors, ranking, "dev", trial), "dev")
        assert trial["value"] == pytest.approx(np.mean(list(values.values())))
    highest = max(trials, key=lambda trial: trial["value"])
    assert {key: choice[key] for key in choice if key != "queries"} == {k: highest[k] for k in highest if k != "value"}
    wanted = reranked(tmp_path / "best", data, vectors, ranking, "train", highest)
    assert check(pq.read_table(out / "ranking.parquet"), RANKING, source="found").equals(wanted)
    (applied := tmp_path / "applied").mkdir()  # as a later step does it
    rerank_by_neighbours(applied, toy.INLINE, data=data, vectors=vectors, queries=vectors, ranking=ranking, config=out)
    whole = pq.read_table(applied / "ranking.parquet")
    part = whole.filter(pc.is_in(whole["query_id"], value_set=pc.unique(wanted["query_id"])))
    order = ["query_id", "doc_id", "rank"]
    assert part.select(order).equals(wanted.select(order))
    assert highest["mix"] == 1.0 or part.equals(wanted)


def test_where_neighbours_have_no_say_a_ranking_by_other_vectors_stays(
    choose: Any, ranking: Path, tmp_path: Path
) -> None:
    """As of shorter ones: the queries' and documents' here are whole."""
    table = pq.read_table(ranking / "ranking.parquet")
    places = np.arange(len(table)).reshape(-1, 12)[:, ::-1].reshape(-1)  # each query's last comes first
    table = table.set_column(1, "doc_id", table["doc_id"].take(pa.array(places)))
    (folder := tmp_path / "other").mkdir()
    pq.write_table(table, folder / "ranking.parquet")
    out = choose(ranking=folder, mix=(1.0, 1.0), tau=(0.0, 0.0))
    output = pq.read_table(out / "ranking.parquet")
    assert output.equals(table.filter(pc.is_in(table["query_id"], value_set=pc.unique(output["query_id"]))))


@pytest.mark.parametrize("tau", [(0.5, 3.0), (-0.1, 0.5)])
def test_a_tau_that_no_neighbours_have_is_refused(tau: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"accepted: within 0 to 1"):
        ChooseConfig(tau=tau)


def test_no_query_has_a_part_in_its_own_choice(
    choose: Any, tmp_path: Path, data: Path, vectors: Path, ranking: Path
) -> None:
    """Each fold's choice is the best of the trials over the other folds' queries, and nothing else."""
    config = ChooseConfig(**{**SMALL, "split": None, "folds": 3})
    out = choose(split="train", folds=3, by=None)
    tables = [
        reranked(tmp_path / str(i), data, vectors, ranking, "train", trial) for i, trial in enumerate(config.drawn())
    ]
    values = [measured(data, table, "train") for table in tables]
    queries = pq.read_table(data / "queries.parquet", filters=[("split", "=", "train")])["query_id"].to_pylist()
    judged = _judged(data, config, "train")
    folds = _folds(queries, judged, config)
    assert sorted(query for fold, _ in folds for query in fold) == sorted(queries)
    assert max(len(fold) for fold, _ in folds) - min(len(fold) for fold, _ in folds) <= 1
    rows = pq.read_table(out / "ranking.parquet").to_pylist()
    assert list(dict.fromkeys(row["query_id"] for row in rows)) == queries
    for (fold, rest), choice in zip(folds, json.loads((out / "chosen.json").read_text()), strict=True):
        elsewhere = [judged[row] for row in rest]
        assert set(elsewhere) == set(judged) - set(fold)
        highest = int(np.argmax([np.mean([scores[query] for query in elsewhere]) for scores in values]))
        assert {key: choice[key] for key in choice if key != "queries"} == config.drawn()[highest]
        wanted = [row for row in tables[highest].to_pylist() if row["query_id"] in fold]
        assert [row for row in rows if row["query_id"] in fold] == wanted


def test_a_trial_is_its_number_and_stays_in_its_ranges() -> None:
    many, few = (
        ChooseConfig(trials=200, weight=["linear", "expm1"]),
        ChooseConfig(trials=20, weight=["linear", "expm1"]),
    )
    assert many.drawn()[:20] == few.drawn()
    for trial in many.drawn():
        assert trial["context"] in many.context
        assert 3 <= trial["k"] <= 30
        assert 1 <= trial["k_exp"] <= min(20, trial["k"])
        assert 0 <= trial["tau"] <= 0.8
        assert 0.1 <= trial["mix"] <= 1
        assert trial["geometric"] == "max-min"
    assert {trial["weight"] for trial in many.drawn()} == {"linear", "expm1"}
    assert many.model_copy(update={"seed": 1}).drawn()[1:] != many.drawn()[1:]


@pytest.mark.parametrize(("split", "missing"), [("test", False), ("dev", True)])
def test_where_there_is_nothing_to_choose_by_rankings_stay_as_they_are(
    choose: Any, tmp_path: Path, data: Path, ranking: Path, split: str, missing: bool
) -> None:
    """Four queries are too few for five folds. A collection may also lack the split that systems are selected on."""
    if missing:
        data = shutil.copytree(data, tmp_path / "data")
        queries = pq.read_table(data / "queries.parquet")
        pq.write_table(queries.filter(pc.not_equal(queries["split"], split)), data / "queries.parquet")
    out = choose(split=split, by=None, folds=5, data=data)
    queries = pq.read_table(data / "queries.parquet", filters=[("split", "=", split)])["query_id"].to_pylist()
    before = pq.read_table(ranking / "ranking.parquet")
    wanted = before.filter(pc.is_in(before["query_id"], value_set=pa.array(queries, pa.large_string())))
    assert check(pq.read_table(out / "ranking.parquet"), RANKING, source="found").equals(wanted)
    assert choose.summary == {"trials": 0, "queries": 0 if missing else 4}
    assert best(out).mix == 1.0


def test_a_sample_of_the_queries_chooses_for_all(choose: Any, data: Path) -> None:
    """By cross-validation too: those that are not in the sample have no part in any choice."""
    out = choose(split="train", by=None, folds=2, queries=6)
    values = json.loads((out / "chosen.json").read_text())
    assert [entry["queries"] for entry in values] == [13, 3]
    assert len(_judged(data, ChooseConfig(**{**SMALL, "split": None, "folds": 2, "queries": 6}), "train")) == 6


def test_a_split_to_choose_by_without_judgements_is_an_error(choose: Any) -> None:
    with pytest.raises(UserError, match="rerank_chosen: no query of the split 'validation' has a relevant document"):
        choose(by="validation")


def test_two_workers_choose_as_one(choose: Any, ray: Machine) -> None:
    inline, two = choose("one"), choose("two", machine=ray)
    assert pq.read_table(inline / "ranking.parquet").equals(pq.read_table(two / "ranking.parquet"))
    assert json.loads((inline / "trials.json").read_text()) == json.loads((two / "trials.json").read_text())
