"""Equal scores: measures see one order, whatever the ids, the scale of scores and the pieces of a ranking."""

from __future__ import annotations

import random
from pathlib import Path

import ir_measures
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparring.components.data.tables import QRELS, RANKING
from sparring.components.evaluation.measures import means, per_query
from sparring.components.evaluation.ties import decided, remark
from sparring.components.retrieval.fusion import FusionConfig, fuse
from sparring.components.sources.trec import read_qrels, read_ranking, write_ranking
from sparring.workflows.command_line import main
from tests.support.tiny import Said

MEASURES = ["RR", "RR@10", "P@1", "nDCG@10", "Success@1", "AP@10"]
Scores = dict[str, float]


def ranking(scores: Scores, query: str = "q") -> pa.Table:
    ordered = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    rows = [
        {"query_id": query, "doc_id": doc, "rank": rank, "score": score} for rank, (doc, score) in enumerate(ordered, 1)
    ]
    return pa.Table.from_pylist(rows, schema=RANKING)


def qrels(*relevant: str) -> pa.Table:
    rows = [{"query_id": "q", "doc_id": doc, "relevance": 1, "split": "test"} for doc in relevant]
    return pa.Table.from_pylist(rows, schema=QRELS)


def order(table: pa.Table) -> list[str]:
    return table.sort_by("rank")["doc_id"].to_pylist()


FEW = st.dictionaries(st.sampled_from("abcdefghij"), st.integers(0, 4).map(float), min_size=1)


@settings(max_examples=60, deadline=None)
@given(
    FEW, st.integers(0, 9), st.sampled_from([0.25, 2.0, 1024.0]), st.sampled_from([-16.0, 0.0, 4096.0]), st.integers()
)
def test_ids_scale_and_constant_change_no_measure(
    scores: Scores, right: int, scale: float, constant: float, seed: int
) -> None:
    """Scores are small integers, so that float32 holds them after every change."""
    names = list("abcdefghij")
    table, judged = ranking(scores), qrels(names[right])
    expected = means(per_query(table, judged, MEASURES))
    second = random.Random(seed).sample(names, 10)
    renamed = table.set_column(1, "doc_id", pa.array([second[names.index(doc)] for doc in table["doc_id"].to_pylist()]))
    assert means(per_query(renamed, qrels(second[right]), MEASURES)) == expected
    moved = ranking({doc: score * scale + constant for doc, score in scores.items()})
    assert means(per_query(moved, judged, MEASURES)) == expected
    assert means(per_query(table.take(pa.array(range(len(table) - 1, -1, -1))), judged, MEASURES)) == expected


@settings(max_examples=60, deadline=None)
@given(FEW, FEW, st.sampled_from([0.25, 2.0, 1024.0]), st.sampled_from([-16.0, 0.0, 64.0]), st.sampled_from([0.3, 0.5]))
def test_scale_and_constant_change_no_fusion(
    words: Scores, near: Scores, scale: float, constant: float, weight: float
) -> None:
    """A constant counts for lists without a zero alone."""
    words = {doc: score + 1 for doc, score in words.items()}
    scaled = {doc: score * scale for doc, score in words.items()}
    moved = {doc: score * scale + constant for doc, score in near.items()}
    for mode in ("reciprocal", "interpolate"):
        config = FusionConfig(how=mode, weight=weight)
        lists = [ranking(words), ranking(near)], [ranking(scaled), ranking(moved)]
        before, after = (fuse(both, config, lexical=[0]) for both in lists)
        assert order(before) == order(after)


def test_a_list_that_ties_leaves_the_order_to_the_other() -> None:
    """An error code in two documents: both come first, in the order of the other list, ties of float32 included."""
    near = ranking({f"d{number}": 1 - number / 100 for number in range(30)} | {"code 1": 0.2, "code 2": 0.3})
    for second in (7.0, 7.0 - 1e-6, 6.9):
        words = ranking({"code 1": 7.0, "code 2": second})
        assert set(order(fuse([words, near], FusionConfig(how="interpolate"), lexical=[0]))[:2]) == {"code 1", "code 2"}
    for mode in ("reciprocal", "interpolate"):
        fused = fuse([ranking({"code 1": 7.0, "code 2": 7.0}), near], FusionConfig(how=mode), lexical=[0])
        assert order(fused)[:2] == ["code 2", "code 1"]


def test_one_hit_no_hit_and_noise() -> None:
    near = ranking({"a": 0.9, "b": 0.8, "c": 0.1})
    config = FusionConfig(how="interpolate")
    assert order(fuse([ranking({"c": 0.01}), near], config, lexical=[0]))[0] in ("a", "c")
    assert order(fuse([ranking({}), near], config, lexical=[0])) == ["a", "b", "c"]
    noise = ranking({"a": 0.5, "b": 0.5 + 1e-7, "c": 0.5 - 1e-7})
    assert order(fuse([noise, near], config)) == ["a", "b", "c"]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_run_of_equal_scores_has_one_answer_for_all_measures(tmp_path: Path, said: Said, place: int) -> None:
    """The order of the file's ranks; and the command says that ties decide."""
    names = ["x", "y"]
    names.insert(place - 1, "a")
    (tmp_path / "run.trec").write_text("".join(f"q1 Q0 {doc} {rank} 5.0 t\n" for rank, doc in enumerate(names, 1)))
    (tmp_path / "qrels.txt").write_text("q1 0 a 1\n")
    words = ["evaluate", str(tmp_path / "run.trec"), str(tmp_path / "qrels.txt"), "--measures"]
    assert main([*words, "RR", "RR@10", "nDCG@10", "P@1", "Success@1"]) == 0
    out, error = said()
    result = {line.split("\t")[0]: float(line.split("\t")[1]) for line in out.splitlines()[1:]}
    first = float(place == 1)
    gain = {1: 1.0, 2: 0.6309, 3: 0.5}[place]
    rank = pytest.approx(1 / place, abs=1e-4)
    assert result == {"RR": rank, "RR@10": rank, "nDCG@10": gain, "P@1": first, "Success@1": first}
    assert "depends on the order of documents with equal scores" in error
    assert "Equal scores are in the order of the file's ranks." in error


def test_scores_are_read_in_float64_for_every_measure(tmp_path: Path) -> None:
    (tmp_path / "run.trec").write_text("q Q0 a 1 16777216 t\nq Q0 b 2 16777217 t\nq Q0 c 3 16777216.5 t\n")
    (tmp_path / "qrels.txt").write_text("q 0 b 1\n")
    result = means(per_query(read_ranking(tmp_path / "run.trec"), read_qrels(tmp_path / "qrels.txt"), MEASURES))
    assert result == dict.fromkeys(MEASURES, 1.0)


@settings(max_examples=30, deadline=None)
@given(scores=FEW, right=st.sampled_from("abcdefghij"))
def test_the_written_run_measures_alike_in_every_tool(
    tmp_path_factory: pytest.TempPathFactory, scores: Scores, right: str
) -> None:
    path, table = tmp_path_factory.mktemp("run") / "run.trec", ranking(scores)
    write_ranking(table, path, "t")
    actual = means(per_query(table, qrels(right), MEASURES))
    assert means(per_query(read_ranking(path), qrels(right), MEASURES)) == actual
    run = list(ir_measures.read_trec_run(str(path)))
    for measure in map(ir_measures.parse_measure, MEASURES):
        for provider in (ir_measures.pytrec_eval, ir_measures.cwl_eval, ir_measures.msmarco):
            if provider.is_available() and provider.supports(measure):
                result = provider.calc_aggregate([measure], [ir_measures.Qrel("q", right, 1)], run)[measure]
                assert result == pytest.approx(actual[str(measure)]), provider


def test_few_ties_are_not_told() -> None:
    table, judged = ranking({"a": 1.0, "b": 1.0}), qrels("b")
    result = decided(table, judged, MEASURES)
    values = per_query(table, judged, MEASURES)
    assert remark(result, values).startswith("For 1 of 1 queries ")
    rest = [
        values.set_column(0, "query_id", pa.array([f"other {number}"] * len(values), pa.large_string()))
        for number in range(20)
    ]
    assert remark(result, pa.concat_tables([values, *rest])) == ""
    assert remark(decided(ranking({"a": 2.0, "b": 1.0}), judged, MEASURES), values) == ""
