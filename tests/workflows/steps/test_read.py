"""Reading a ranking and measuring the answers: in one process and on Ray."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import QUERIES, write
from sparring.components.models.reader_configs import ReadConfig, ReaderConfig
from sparring.components.systems.reading import AnswerWriter
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.read import ANSWERS, WRITTEN, Answerer, evaluate_answers, read_answers, reading_groups
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.support import tiny, toy
from tests.support.power_cut import PowerCut, cut_power
from tests.support.writers import write_generator


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("read")
    write_generator(folder / "pretrained", seed=1, words=True)
    start = toy.started(folder / "start", ReaderConfig(model=str(folder / "pretrained"), passage_tokens=24))
    dataset = toy.with_answers(folder / "data", data)
    ranking = toy.write_ranking(
        folder / "ranking", {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(6)] for i in range(24) if i != 6}
    )
    (folder / "tokens").mkdir()
    tokenize(folder / "tokens", toy.INLINE, data=dataset, model=start, config=TokenizeConfig())
    return {"data": dataset, "tokens": folder / "tokens", "ranking": ranking, "reader": start}


def said(out: Path, machine: Machine, places: dict[str, Path], **config: Any) -> dict[str, str]:
    out.mkdir(exist_ok=True)
    options = ReadConfig(**{"precision": "fp32", "new_tokens": 6, "shard": 2, "passages": 3, **config})
    summary = read_answers(out, machine, **places, split="test", config=options)
    assert tiny.kept(out).keys() == {ANSWERS}
    rows = pq.read_table(out / ANSWERS).to_pylist()
    assert summary["queries"] == len(rows)
    return {row["query_id"]: row["answer"] for row in rows}


def test_answers_in_one_process_and_on_ray(places: dict[str, Path], tmp_path: Path, ray: Machine) -> None:
    answers = said(tmp_path / "inline", toy.INLINE, places)
    assert list(answers) == ["q0", "q6", "q12", "q18"]
    assert answers["q6"] == ""  # it found nothing to read
    assert said(tmp_path / "ray", ray, places) == answers
    assert said(tmp_path / "six", toy.INLINE, places, passages=6) != answers
    deeper = said(tmp_path / "hundred", toy.INLINE, places, passages=100)
    assert deeper == said(tmp_path / "all", toy.INLINE, places, passages=6)
    assert len(said(tmp_path / "two", toy.INLINE, places, queries=2)) == 2


def test_a_loaded_reader_answers_as_the_step_does(places: dict[str, Path], tmp_path: Path) -> None:
    writer = AnswerWriter(
        places["reader"] / "model", precision="fp32", new_tokens=6, threads=1, batch_tokens=4096, cuda=False
    )
    wanted = said(tmp_path / "out", toy.INLINE, places)
    rows = pq.read_table(places["data"] / "documents.parquet").to_pylist()
    contents = {row["doc_id"]: (row["title"], row["text"]) for row in rows}
    texts = {row["query_id"]: row["text"] for row in pq.read_table(places["data"] / "queries.parquet").to_pylist()}
    lists: dict[str, list[str]] = {query: [] for query in wanted}
    for row in pq.read_table(places["ranking"] / "ranking.parquet", filters=[("rank", "<=", 3)]).to_pylist():
        lists.get(row["query_id"], []).append(row["doc_id"])
    documents = [{doc_id: contents[doc_id] for doc_id in ids} for ids in lists.values()]
    answers = writer([texts[query] for query in lists], documents)
    assert {query: answer.text for query, answer in zip(lists, answers, strict=True)} == wanted
    assert any(wanted.values())


def test_a_sample_is_drawn_from_the_queries_with_answers(places: dict[str, Path], tmp_path: Path) -> None:
    """Others may be judged."""
    folder = tmp_path / "data"
    shutil.copytree(places["data"], folder)
    questions = [
        {**row, "answers": row["answers"] if row["query_id"] == "q18" else []}
        for row in pq.read_table(folder / "queries.parquet").to_pylist()
    ]
    write(folder / "queries.parquet", pa.Table.from_pylist(questions, schema=QUERIES), QUERIES)
    assert list(said(tmp_path / "out", toy.INLINE, {**places, "data": folder}, queries=1)) == ["q18"]


def test_an_interrupted_reader_answers_only_what_is_left(
    places: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = said(tmp_path / "wanted", toy.INLINE, places)
    with monkeypatch.context() as power:
        cut_power(power, Answerer, "__call__", after=1)
        with pytest.raises(PowerCut):
            said(tmp_path / "out", toy.INLINE, places)
    filled = cut_power(monkeypatch, Answerer, "__call__", after=None)
    assert said(tmp_path / "out", toy.INLINE, places) == wanted
    assert len(filled) == 1


def test_groups_to_learn_from(places: dict[str, Path], tmp_path: Path) -> None:
    summary = reading_groups(
        tmp_path,
        toy.INLINE,
        data=places["data"],
        ranking=places["ranking"],
        split="train",
        passages=4,
        visits=3,
        seed=[1],
    )
    groups = pq.read_table(tmp_path / "groups.parquet").to_pylist()
    answers = pq.read_table(tmp_path / "documents.parquet").to_pylist()
    answers_of = {
        row["query_id"]: row["answers"] for row in pq.read_table(places["data"] / "queries.parquet").to_pylist()
    }
    assert summary == {"groups": 36, "questions": 12, "of": 16}
    drawn = set()
    for group, answer in zip(groups, answers, strict=True):
        query = group["query_id"]
        assert answer["doc_id"] == f"{query}#{group['visit']}"
        assert answer["text"] in answers_of[query]
        drawn.add(answers_of[query].index(answer["text"]))
        assert group["doc_ids"] == [f"d{(int(query[1:]) + 3 * k) % 40}" for k in range(4)]
    assert drawn == {0, 1}


def test_exact_match_and_f1_of_what_was_written(places: dict[str, Path], tmp_path: Path) -> None:
    answers_of = {
        row["query_id"]: row["answers"] for row in pq.read_table(places["data"] / "queries.parquet").to_pylist()
    }
    (first, *_), (second, *_) = answers_of["q0"], answers_of["q12"]
    rows = [("q0", f"The {first}!"), ("q12", f"{second.split()[0]} zz"), ("q18", "")]
    (tmp_path / "answers").mkdir()
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=WRITTEN)
    pq.write_table(table, tmp_path / "answers" / ANSWERS)
    (tmp_path / "out").mkdir()
    summary = evaluate_answers(tmp_path / "out", toy.INLINE, data=places["data"], answers=tmp_path / "answers")
    values = {
        (row["query_id"], row["measure"]): row["value"]
        for row in pq.read_table(tmp_path / "out" / "per_query.parquet").to_pylist()
    }
    assert values["q0", "EM"] == values["q0", "F1"] == 1
    assert values["q12", "EM"] == 0
    assert values["q12", "F1"] == pytest.approx(2 / 3)  # one word of two, all of the second answer's
    assert values["q18", "F1"] == 0
    assert summary["measures"] == {"EM": pytest.approx(1 / 3), "F1": pytest.approx((1 + 2 / 3) / 3)}


def test_without_answers_nothing_is_read(places: dict[str, Path], data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split 'test': no query has an answer"):
        said(tmp_path / "out", toy.INLINE, {**places, "data": data})
