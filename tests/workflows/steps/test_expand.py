"""Expansions of queries: drawn, written by models, read from a file, joined, and the queries made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import EXPANSIONS, QUERIES, check
from sparring.components.expansion import expansions, feedback
from sparring.components.models.generator_configs import GenerateConfig, GeneratorConfig
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps import choose, expand
from sparring.workflows.steps.expand import FileConfig, expand_by_model, expand_from_file
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize, tokenize_queries
from sparring.workflows.store import attempts
from tests.support import tiny, toy
from tests.support.expanded import by_relevance, place
from tests.support.power_cut import PowerCut, cut_power
from tests.support.writers import write_generator


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """Every query but q2 finds its own document and four others."""
    rows = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(5)] for i in range(24) if i != 2}
    return toy.write_ranking(tmp_path / "found", rows)


def test_from_what_queries_find(tmp_path: Path, data: Path, found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train", "test"])
    assert tiny.kept(tmp_path / "out").keys() == {
        "expansions.parquet",
        "queries.parquet",
        "qrels.parquet",
        "documents.parquet",
    }
    rows = check(pq.read_table(tmp_path / "out" / expansions.FILE), EXPANSIONS, source="out").to_pylist()
    texts = {
        row["doc_id"]: f"{row['title']} {row['text']}" for row in pq.read_table(data / "documents.parquet").to_pylist()
    }
    questions = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    for row in rows:
        whole = " ".join(texts[f"d{(int(row['query_id'][1:]) + 3 * k) % 40}"] for k in range(5)).split()
        assert set(row["text"].split()) <= set(whole)
        assert not set(row["text"].split()) & set(questions[row["query_id"]].split())
    assert {row["query_id"] for row in rows} == {f"q{i}" for i in range(24) if i % 3 or not i % 2} - {"q2"}
    assert summary["not_expanded"] == 1
    # Neither the size of a piece nor the splits asked for with it change what is drawn.
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    by_relevance(tmp_path / "again", toy.INLINE, data, found, ["test"])
    again = pq.read_table(tmp_path / "again" / expansions.FILE).to_pylist()
    assert again == [row for row in rows if int(row["query_id"][1:]) % 3 == 0]


def test_nothing_to_expand_from_is_an_error(tmp_path: Path, data: Path) -> None:
    nothing = toy.write_ranking(tmp_path / "nothing", {})
    with pytest.raises(UserError, match="none of 16 queries has an expansion"):
        by_relevance(tmp_path / "out", toy.INLINE, data, nothing, ["train"])


def test_an_interrupted_expansion_draws_only_what_is_left(
    tmp_path: Path, data: Path, found: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    by_relevance(tmp_path / "wanted", toy.INLINE, data, found, ["train"])
    with monkeypatch.context() as power:
        cut_power(power, feedback.Sampler, "__call__", after=1)
        with pytest.raises(PowerCut):
            by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train"])
    filled = cut_power(monkeypatch, feedback.Sampler, "__call__", after=None)
    by_relevance(tmp_path / "out", toy.INLINE, data, found, ["train"])
    assert len(filled) == 3  # of four
    assert tiny.kept(tmp_path / "out") == tiny.kept(tmp_path / "wanted")


def test_through_ray_it_is_the_same(
    tmp_path: Path, data: Path, found: Path, ray: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 4)
    by_relevance(tmp_path / "inline", toy.INLINE, data, found, ["train"], draws="sentence")
    by_relevance(tmp_path / "ray", ray, data, found, ["train"], draws="sentence")
    assert tiny.kept(tmp_path / "ray") == tiny.kept(tmp_path / "inline")


def test_from_a_file(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "some.jsonl"
    rows = [{"_id": f"q{i}", "expansions": {"titles": f"ba *** co {i} *** ba"}} for i in (0, 6, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = FileConfig(path=str(path), field="titles", separator=" *** ")
    summary = expand_from_file(place(tmp_path / "out"), toy.INLINE, data=data, splits=["test"], config=config)
    queries = check(pq.read_table(tmp_path / "out" / "queries.parquet"), QUERIES, source="out")
    assert queries["query_id"].to_pylist() == ["q0#1", "q0#2", "q6#1", "q6#2"]
    note = "The file has no expansion for 2 of the 4 queries, which stay as they are."
    assert summary == {"expansions": 4, "queries": 2, "a_query": 2.0, "not_expanded": 2, "note": note}
    with pytest.raises(UserError, match="no expansion of any query of dev"):
        expand_from_file(place(tmp_path / "dev"), toy.INLINE, data=data, splits=["dev"], config=config)


def test_several_models_write_for_what_each_has_not_seen(
    tmp_path: Path, data: Path, ray: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []
    for seed in (0, 1):
        config = GeneratorConfig(model=str(write_generator(tmp_path / f"pretrained {seed}", seed=seed)))
        starts.append(toy.started(tmp_path / f"start {seed}", config))
    config = GenerateConfig(number=3, new_tokens=5, precision="fp32")

    def write(name: str, machine: Machine, models: list[Path]) -> dict[str, list[str]]:
        out = place(tmp_path / name)
        summary = expand_by_model(
            out, machine, data=data, models=models, splits=["train", "test"], seed=[1], config=config
        )
        assert summary["generated"] == 3 * 20
        assert 0 < summary["tokens"] <= 3 * 20 * 6
        texts: dict[str, list[str]] = {}
        for row in pq.read_table(out / expansions.FILE).to_pylist():
            texts.setdefault(row["query_id"], []).append(row["text"])
        return texts

    first, second, both = (write(n, toy.INLINE, m) for n, m in (("a", starts[:1]), ("b", starts[1:]), ("c", starts)))
    assert first != second
    for query, texts in both.items():
        assert texts == (first, second)[expansions.fold_of(query, 2)][query]
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    assert write("ray", ray, starts) == both


def test_a_killed_attempts_tokens_are_counted(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it said nothing before it was killed: its shards do."""
    start = toy.started(tmp_path / "start", GeneratorConfig(model=str(write_generator(tmp_path / "pretrained"))))
    monkeypatch.setattr(expand, "QUERIES_A_SHARD", 5)
    monkeypatch.setattr(attempts, "keep", lambda *_, **__: None)

    def write(out: Path) -> dict[str, Any]:
        config = GenerateConfig(number=3, new_tokens=5, precision="fp32")
        return expand_by_model(out, toy.INLINE, data=data, models=[start], splits=["train"], seed=[1], config=config)

    wanted = write(place(tmp_path / "wanted"))
    out = place(tmp_path / "out")
    with monkeypatch.context() as power:
        cut_power(power, expand.Writer, "__call__", after=1)
        with pytest.raises(PowerCut):
            write(out)
    assert write(out) == wanted


def test_all_expansions_in_a_row(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    out = place(tmp_path / "concat")
    expand.concatenated(out, toy.INLINE, data=data, expanded=chain["expanded"])
    texts: dict[str, list[str]] = {}
    for row in pq.read_table(chain["expanded"] / expansions.FILE).to_pylist():
        texts.setdefault(row["query_id"], []).append(row["text"])
    for row in pq.read_table(out / expansions.FILE).to_pylist():
        assert (row["number"], row["text"]) == (1, " ".join(texts.pop(row["query_id"])))
    assert not texts


def test_what_was_chosen_is_asked_instead(
    chain: dict[str, Path], data: Path, tokens: Path, retriever: Path, tmp_path: Path
) -> None:
    """A collection with other queries, whose documents' tokens are those that are there."""
    choices, out, query_tokens, whole = (place(tmp_path / name) for name in ("choices", "out", "made", "whole"))
    choose.choose(
        choices,
        toy.INLINE,
        data=data,
        expanded=chain["expanded"],
        ranking=chain["ranking"],
        scores=None,
        otherwise=chain["found"],
        split="test",
        number=None,
    )
    expand.chosen_queries(out, toy.INLINE, data=data, choices=choices, split="test")
    first = {
        row["query_id"]: row["text"] for row in pq.read_table(chain["expanded"] / expansions.FILE).to_pylist()[::-1]
    }
    for row in pq.read_table(out / "queries.parquet").to_pylist():
        text = next(
            query["text"]
            for query in pq.read_table(data / "queries.parquet").to_pylist()
            if query["query_id"] == row["query_id"]
        )
        assert row["text"] == f"{text} ? {first[row['query_id']]}"
    tokenize_queries(query_tokens, toy.INLINE, data=out, model=retriever, documents=tokens, config=TokenizeConfig())
    tokenize(whole, toy.INLINE, data=out, model=retriever, config=TokenizeConfig())
    rows, expected = (
        {name: digest for name, digest in tiny.kept(folder).items() if "/" not in name}
        for folder in (query_tokens, whole)
    )
    assert rows == expected


def test_expansions_of_several_generators_are_joined(chain: dict[str, Path], data: Path, tmp_path: Path) -> None:
    """Nothing is drawn or retrieved again: what two generators have of different queries stands in one place."""
    parts = []
    for split in ("train", "dev"):
        by_relevance(tmp_path / split, toy.INLINE, data, chain["found"], [split])
        parts.append(tmp_path / split)
    out = place(tmp_path / "out")
    summary = expand.joined_expansions(
        out, toy.INLINE, data=data, expanded=parts, rankings=[chain["ranking"]], ranks=[chain["ranks"]]
    )
    tables = [pq.read_table(part / expansions.FILE) for part in parts]
    assert pq.read_table(out / expansions.FILE) == pa.concat_tables(tables)
    assert summary["expansions"] == sum(map(len, tables))
    assert pq.read_table(out / "ranking.parquet") == pq.read_table(chain["ranking"] / "ranking.parquet")
    assert pq.read_table(out / "ranks.parquet") == pq.read_table(chain["ranks"] / "ranks.parquet")
