"""`export` and `evaluate`: other software reads what a run made, and finds the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.evaluation.measures import within
from tests.support import tiny
from tests.support.tiny import Place, Said
from tests.support.trainings import lines


def test_export_and_evaluate_agree_with_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    out = tmp_path / "not" / "there" / "out"
    assert played("export", str(out)) == 0
    assert said()[0].count("\n") == 5
    assert {path.name for path in out.iterdir()} == {"retriever", "ranker", "rankings", "qrels.trec", "system"}
    values = {(row["system"], row["measure"]): row["value"] for row in played.metrics()["rows"]}
    for system, file in (("BM25", "BM25"), ("retriever 1", "retriever-1"), ("control: ance", "control-ance")):
        ranking, qrels = out / "rankings" / f"{file}.trec", out / "qrels.trec"
        assert played("evaluate", str(ranking), str(qrels), "--measures", "RR@10", "R@100") == 0
        head, *lines = [line.split("\t") for line in said()[0].splitlines()]
        assert head == ["measure", "mean", "low", "high"]
        means = {metric["measure"]: metric for metric in played.metrics()["means"] if metric["system"] == system}
        ends = {name: within(name, item["low"], item["high"]) for name, item in means.items()}
        assert lines == [
            [name, *(f"{number:.4f}" for number in (means[name]["value"], *ends[name]))] for name in ("RR@10", "R@100")
        ]
        expected = ir_measures.calc_aggregate(
            [ir_measures.parse_measure("RR@10")],
            ir_measures.read_trec_qrels(str(qrels)),
            ir_measures.read_trec_run(str(ranking)),
        )
        assert list(expected.values()) == [pytest.approx(values[system, "RR@10"])]


def test_a_retriever_that_is_not_the_systems_is_called_the_last(played: Place, tmp_path: Path, said: Said) -> None:
    """Whoever loads it alone would not get what was chosen."""
    for name, report in {
        "warm retriever": "(retriever 1, the last one; the system has warm retriever)",
        "BM25": "(retriever 1)",
        "retriever 1": "(retriever 1)",
    }.items():
        assert played("export", str(tmp_path / name), "--system", name) == 0
        assert said()[0].splitlines()[0].startswith(f"{tmp_path / name}/retriever {report}: Sentence")


def test_evaluate_compares_two_files_as_the_run_does(played: Place, tmp_path: Path, said: Said) -> None:
    assert played("export", str(tmp_path / "out")) == 0
    rankings, qrels = tmp_path / "out" / "rankings", str(tmp_path / "out" / "qrels.trec")
    system, second = str(rankings / "retriever-1.trec"), str(rankings / "warm-retriever.trec")
    said()
    assert played("evaluate", system, qrels, "--against", second, "--measures", "RR@10") == 0
    head, line = [line.split("\t") for line in said()[0].splitlines()]
    result = next(
        metric
        for metric in played.metrics()["comparisons"]
        if metric["measure"] == "RR@10" and (metric["system"], metric["baseline"]) == ("retriever 1", "warm retriever")
    )
    assert head[-4:] == ["difference", "difference_low", "difference_high", "p"]
    assert line[-4:-1] == [f"{result[key]:.4f}" for key in ("difference", "low", "high")]
    assert float(line[-1]) == pytest.approx(result["p"], abs=0.02)  # by random signs of another seed
    assert played("evaluate", system, qrels, "--against", system, "--measures", "RR@10") == 0
    assert said()[0].splitlines()[1].split("\t")[-4:] == ["0.0000", "0.0000", "0.0000", "1.0000"]


def test_one_query_is_compared_without_intervals(played: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "qrels.trec").write_text("q1 0 d1 1\n")
    run, second = tmp_path / "run.trec", tmp_path / "other.trec"
    run.write_text("q1 Q0 d1 1 2.0 x\n")
    second.write_text("q1 Q0 d2 1 2.0 x\nq1 Q0 d1 2 1.0 x\n")
    said()
    words = ["evaluate", str(run), str(tmp_path / "qrels.trec"), "--against", str(second), "--measures", "RR@10"]
    assert played(*words) == 0
    assert said()[0].splitlines()[1].split("\t") == ["RR@10", "1.0000", "", "", "0.5000", "", "", "1.0000"]


def test_evaluate_prints_columns_on_a_terminal(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qrels.trec").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    (tmp_path / "a.trec").write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d2 1 2.0 x\n")
    said()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert played("evaluate", str(tmp_path / "a.trec"), str(tmp_path / "qrels.trec"), "--measures", "nDCG@10") == 0
    assert said()[0] == "measure  mean    low     high\nnDCG@10  1.0000  1.0000  1.0000\n"


def test_evaluate_measures_on_common_queries_where_asked(played: Place, tmp_path: Path, said: Said) -> None:
    """A ranking that lacks queries is compared on those that it has."""
    (tmp_path / "qrels.trec").write_text("q1 0 d1 1\nq2 0 d2 1\nq3 0 d3 1\n")
    first, second = tmp_path / "a.trec", tmp_path / "b.trec"
    first.write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d1 1 2.0 x\nq2 Q0 d2 2 1.0 x\nq3 Q0 d1 1 2.0 x\n")
    second.write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d2 1 2.0 x\nq9 Q0 d2 1 2.0 x\n")
    command = ("evaluate", str(first), str(tmp_path / "qrels.trec"), "--measures", "RR@10", "--against", str(second))
    said()
    assert played(*command, "--common") == 0
    out, err = said()
    assert err == "on 2 of 3 queries\n"
    assert out.splitlines()[1].split("\t")[1::3] == ["0.7500", "-0.2500", "1.0000"]
    assert played(*command) == 0
    assert said()[0].splitlines()[1].split("\t")[1::3] == ["0.5000", "-0.1667", "1.0000"]
    second.write_text("q3 Q0 d1 1 2.0 x\n")
    first.write_text("q1 Q0 d1 1 2.0 x\n")
    assert played(*command, "--common") == 2
    assert said()[1] == f"error: --common: no query of {command[2]} has results in {first}, {second}\n"


def test_evaluate_says_what_has_another_name(played: Place, tmp_path: Path, said: Said) -> None:
    """A ranking of other queries had measures of 0.0000, and exit status 0."""
    (tmp_path / "qrels.trec").write_text("q1 0 d1 1\nq2 0 d2 1\n")
    ranking = tmp_path / "a.trec"
    command = ("evaluate", str(ranking), str(tmp_path / "qrels.trec"))
    ranking.write_text("1 Q0 d1 1 2.0 x\n")
    assert played(*command) == 2
    assert said()[1].endswith("has no query of " + command[2] + ". Its ids look like '1', those there like 'q1'.\n")
    ranking.write_text("q1 Q0 1 1 2.0 x\n")
    assert played(*command) == 0
    assert said()[1] == (
        f"{ranking}: 1 of 2 queries have no results, and count 0\n"
        f"{ranking}: has no relevant document of any query. Its ids look like '1', those in {command[2]} like 'd1'.\n"
    )


def test_evaluate_says_which_queries_it_leaves_out(played: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "qrels.trec").write_text("q1 0 d1 1\nq2 0 d2 0\n")
    (tmp_path / "a.trec").write_text("q1 Q0 d1 1 2.0 x\nq2 Q0 d2 1 2.0 x\n")
    assert played("evaluate", str(tmp_path / "a.trec"), str(tmp_path / "qrels.trec"), "--measures", "RR@10") == 0
    out, left_out = said()
    assert "1.0000" in out
    assert left_out == (
        f"{tmp_path / 'qrels.trec'}: 1 of 2 queries have no relevant document, and are left out (trec_eval and "
        "ir_measures count them 0)\n"
    )


def test_export_overwrites_nothing(played: Place, tmp_path: Path, said: Said) -> None:
    (tmp_path / "mine").write_text("precious")
    for to in (tmp_path, tmp_path / "mine"):
        assert played("export", str(to)) == 2
        assert said()[1] == (
            f"error: {to}: exists and is not empty; accepted: a directory that does not exist, or an empty one\n"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    assert played("export", str(tmp_path / "empty")) == 0
    assert (tmp_path / "empty" / "qrels.trec").exists()


def test_export_follows_a_link_and_refuses_a_mount(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    assert played("export", str(tmp_path / "link")) == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "qrels.trec").exists()
    said()
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path) == tmp_path / "disk")
    assert played("export", str(tmp_path / "disk")) == 2
    assert said()[1].startswith(f"error: {tmp_path}/disk: is where a disk is mounted, which cannot be replaced;")


def test_export_before_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "new", yaml.safe_load(played.config.read_text()))
    assert place("export", str(tmp_path / "out")) == 2
    assert said()[1].startswith("error: the step 'results' is not done")
    assert not (tmp_path / "out").exists()


def test_groups_are_exported_and_another_run_trains_on_them(
    played: Place, tmp_path: Path, beir: Path, encoder: Path
) -> None:
    """The teacher's scores come along; the game's groups without them are not written a second time."""
    for kind, ending in (("tevatron", "jsonl"), ("tevatron-corpus", "jsonl"), ("sentence-transformers", "parquet")):
        assert played("export", str(tmp_path / kind), "--groups", kind) == 0
        assert list((tmp_path / kind / "groups").glob(f"*.{ending}"))
    assert played("export", str(tmp_path / "flag"), "--groups", "flagembedding") == 0
    names = sorted(path.stem for path in (tmp_path / "flag/groups").iterdir())
    assert "judged-1" in names
    assert "retriever-groups-1" not in names
    small = tiny.dpr(beir, encoder)
    held = {"hold_out": {"test": {"share": 0.3}}}
    tree = {
        **small,
        "k": 4,
        "data": {
            "format": "flagembedding",
            "path": str(tmp_path / "flag/groups"),
            "groups": {"train": "judged-1.jsonl"},
            **held,
        },
        "negatives": {"negatives": 2, "given": "scores"},
        "train": tiny.training(tiny.DISTILLATION),
    }
    second = tiny.place(tmp_path / "other", tree)
    assert second("run", "--until", "retriever") == 0
    rows = pq.read_table(second.artifact("retriever groups") / "groups.parquet").to_pylist()
    expected = [json.loads(line) for line in (tmp_path / "flag/groups/judged-1.jsonl").read_text().splitlines()]
    scores = {s for row in expected for s in np.float32([*row["pos_scores"], *row["neg_scores"]]).tolist()}
    assert {score for row in rows for score in row["teacher"]} <= scores
    assert len(lines(second.artifact("retriever"))) == 3


def test_a_run_without_groups_exports_none(tmp_path: Path, beir: Path, encoder: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "bare", {**tiny.dpr(beir, encoder), "train": None})
    assert place("run") == 0
    said()
    assert place("export", str(tmp_path / "out"), "--groups", "tevatron") == 2
    assert "--groups: this run has no finished training groups" in said()[1]
    assert not (tmp_path / "out").exists()
