"""The command line: what each command prints, changes and ends with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ir_measures
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support import tiny
from tests.support.tiny import ROOT, Place, Said
from workflows.distributed import cluster as clusters

LIGHT = """
import sys
from workflows.__main__ import main
status = main(sys.argv[1:])
heavy = {"torch", "transformers", "ray", "faiss", "jnius", "matplotlib"}
print("heavy:", sorted(heavy & sys.modules.keys()))
sys.exit(status)
"""


def light(place: Place, *words: str) -> str:
    """The output of a command in a process of its own, which loads nothing heavy and says nothing else."""
    command = [sys.executable, "-W", "error", "-c", LIGHT, *place.words(*words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("heavy: []\n")
    return done.stdout


# plan


def test_plan_prints_every_step_and_changes_nothing(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "new", yaml.safe_load(played.config.read_text()))
    assert place("plan") == 0
    lines = said()[0].splitlines()
    assert re.split(r"  +", lines[0]) == ["label", "step", "state", "where"]
    assert [line.split("  ")[0] for line in lines[1:5]] == ["data", "bm25 index", "bm25 ranking", "BM25 measures"]
    assert all(re.search(r"  to do  \w+-[0-9a-f]{12}$", line) for line in lines[1:-2])
    assert lines[-1] == f"{len(lines) - 3} steps, {len(lines) - 3} to run"
    assert {path.name for path in place.folder.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_plan_of_a_finished_run(played: Place) -> None:
    lines = light(played, "plan").splitlines()[:-1]
    assert lines[-1].endswith(" steps, 0 to run")
    assert all("  done  " in line for line in lines[1:-2])
    assert [line.split()[-1] for line in lines[1:-2]] == [
        (played.runs / "tiny" / link).readlink().name for link in played.links()
    ]


def test_plan_says_that_a_source_is_missing(tmp_path: Path, encoder: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.dpr(tmp_path / "nowhere", encoder))
    assert place("plan") == 0
    assert said()[0].splitlines()[-1] == f"source missing: {tmp_path / 'nowhere' / 'corpus.jsonl'} and 1 more"
    assert place("run") == 2
    assert said()[1].splitlines()[-1].startswith("error: ")


def test_plan_into_a_pipe_that_closes(played: Place) -> None:
    command = [sys.executable, "-m", "workflows", *played.words("plan")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


# run


def test_a_run_leaves_what_people_look_at(played: Place) -> None:
    run = played.runs / "tiny"
    assert {path.name for path in run.iterdir() if not path.is_symlink()} == {
        "config.yaml", "plan.txt", "metrics.json", "report.html", "tensorboard", "tracked.json",
    }  # fmt: skip
    assert yaml.safe_load((run / "config.yaml").read_text())["rerank"] == {
        "precision": "fp32", "shard": 16, "depth": 10, "queries": None,
    }  # fmt: skip
    assert (run / "plan.txt").read_text().endswith(" to run\n")
    assert [link.partition("-")[2] for link in played.links()][:3] == ["data", "bm25-index", "bm25-ranking"]
    assert all((run / link / "artifact.json").is_file() for link in played.links())
    metrics = played.metrics()
    assert set(metrics) == {"rows", "comparisons", "steps"}
    assert all(one["executed"] for one in metrics["steps"])
    assert {row["system"] for row in metrics["rows"]} == {
        "BM25", "start model", "warm retriever", "warm ranker over warm retriever", "retriever 1",
        "ranker over retriever 1", "control: in-batch", "control: ance",
    }  # fmt: skip


def test_a_second_run_executes_nothing_and_is_light(played: Place, tmp_path: Path) -> None:
    place = played.copy(tmp_path / "again")
    before, files = place.metrics(), tiny.contents(place.store)
    out = light(place, "run")
    assert "nothing to run" in out
    assert "RR@10" in out
    after = place.metrics()
    assert after["rows"] == before["rows"]
    assert after["comparisons"] == before["comparisons"]
    assert not any(one["executed"] for one in after["steps"])
    assert tiny.contents(place.store) == files


def test_a_run_shows_its_own_results_when_its_config_was_another_meanwhile(
    played: Place, tmp_path: Path, said: Said
) -> None:
    place = played.copy(tmp_path / "edited")
    first, tree = place.metrics(), yaml.safe_load(place.config.read_text())
    tiny.write(place.config, {**tree, "evaluate": {"measures": ["nDCG@5"]}})
    assert place("run") == 0
    assert {row["measure"] for row in place.metrics()["rows"]} == {"nDCG@5"}
    tiny.write(place.config, tree)
    said()
    assert place("show") == 0
    assert "RR@10" in said()[0]
    assert place("run") == 0
    assert "RR@10" in said()[0]
    assert place.metrics()["rows"] == first["rows"]
    assert "nDCG@5" not in (place.runs / "tiny" / "report.html").read_text()


def test_run_until_a_label(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    assert place("run", "--until", "tokens") == 0
    out, err = said()
    assert re.fullmatch(r"tokens: .*/store/tokenize-[0-9a-f]{12}\n", out)
    assert [re.sub(r"\d+\.\d s  \(\d+:\d\d", "TIME", line) for line in err.splitlines()] == [
        "[1/3] data: done in TIME since the start)",
        "[2/3] start retriever: done in TIME since the start)",
        "[3/3] tokens: done in TIME since the start)",
    ]
    assert place("plan") == 0
    assert said()[0].splitlines()[-1] == "15 steps, 12 to run"
    assert place("show") == 2
    assert said()[1] == (
        "error: the step 'results' is not done; run it first: python -m workflows run CONFIG\n"
    )  # fmt: skip
    assert place("run", "--until", "token") == 2
    assert said()[1].startswith("error: no step is labelled 'token'; accepted: data, ")


def test_set_values_have_a_run_of_their_own(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "set")
    assert place("run", "--set", "evaluate.measures=[P@1]") == 0
    run = next(path for path in place.runs.iterdir() if path.name != "tiny")
    assert re.fullmatch(r"tiny-[0-9a-f]{6}", run.name)
    assert yaml.safe_load((run / "config.yaml").read_text())["evaluate"]["measures"] == ["P@1"]
    steps = {one["function"] for one in place.metrics(run.name)["steps"] if one["executed"]}
    assert steps == {"evaluate", "results"}
    assert f"search {place.config} \"your question\" --set 'evaluate.measures=[P@1]' --rank" in said()[0]


def test_a_failure_is_status_1_and_one_line(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflows.steps import tokenize

    def broken(*_: Any) -> None:
        raise RuntimeError("first line\nthe disk is on fire")

    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    monkeypatch.setattr(tokenize, "_join", broken)
    assert place("run", "--until", "tokens") == 1
    *_, failed, advice = said()[1].splitlines()
    assert re.fullmatch(r"failed: step 'tokens' failed: the disk is on fire \(traceback: .*failure\.txt\)", failed)
    assert advice == "Finished steps are kept. Repeat the command to resume."
    assert place("plan") == 0
    assert re.search(r"tokens +tokenize +partial", said()[0])


# show and report


def test_show_prints_the_measures(played: Place, said: Said) -> None:
    before = tiny.contents(played.folder)
    out = light(played, "show")
    assert "ranker over retriever 1" in out
    assert played("show", "--json") == 0
    assert json.loads(said()[0]) == played.metrics()
    assert tiny.contents(played.folder) == before


def test_show_prints_a_record(played: Place, said: Said) -> None:
    assert played("show", "retriever 1") == 0
    lines = said()[0].splitlines()
    assert re.match(r"retriever 1: workflows\.steps\.train\.train in \d+\.\d s", lines[0])
    assert "  updates: 3" in lines
    assert played("show", "retriever 1", "--json") == 0
    assert json.loads(said()[0])["label"] == "retriever 1"
    assert played("show", "retriever 2") == 2
    assert "no step is labelled 'retriever 2'; accepted: data, bm25 index" in said()[1]


def test_report_writes_the_page_anew(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "report")
    page = place.runs / "tiny" / "report.html"
    page.write_text("old")
    assert place("report") == 0
    assert said()[0] == f"{page}\n"
    assert "retriever 1" in page.read_text()
    assert place.metrics()["rows"] == played.metrics()["rows"]


# search


def test_search(played: Place, said: Said) -> None:
    before = tiny.contents(played.store)
    assert played("search", "barami comi", "-k", "3") == 0
    lines = [line for line in said()[0].splitlines() if not line.startswith("   ")]
    assert [bool(re.fullmatch(rf"{n}\. \S+  \(-?\d\.\d{{3}}\)  d\d+", line)) for n, line in enumerate(lines, 1)] == [
        True
    ] * 3
    assert played("search", "barami comi", "-k", "3", "--rank") == 0
    ranked = [float(score) for score in re.findall(r"ranker (-?\d+\.\d+)", said()[0])]
    assert len(ranked) == 3
    assert ranked == sorted(ranked, reverse=True)
    assert tiny.contents(played.store) == before


def test_search_needs_no_ray(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in this process, whatever the profile says of runs."""
    place = played.copy(tmp_path / "copy")
    tiny.write(place.folder / "inline.yaml", {"mode": "ray", "device": "auto"})
    monkeypatch.setattr(clusters, "ray_session", None)
    assert place("search", "barami comi", "-k", "3") == 0


def queries_of(place: Place) -> list[dict[str, Any]]:
    """The queries of the test split."""
    return list(pq.read_table(place.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist())


def ranked(place: Place, label: str, query: str) -> list[dict[str, Any]]:
    """What the run's ranking of a label has for a query, best first."""
    return list(
        pq.read_table(place.artifact(label) / "ranking.parquet", filters=[("query_id", "=", query)]).to_pylist()
    )


HIT = re.compile(r"^\d+\. .*\((-?\d\.\d{3})(?:, ranker (-?\d+\.\d\d))?\)  (\S+)$", re.MULTILINE)
"""A line of what was found: the retriever's score, the ranker's, the document."""


@pytest.mark.parametrize(
    ("search", "vectors"),
    [
        ({}, {"precision": "fp32", "vectors": "float32"}),
        ({}, {"precision": "bf16", "vectors": "float16"}),
        ({"index": "Flat"}, {"precision": "fp32", "vectors": "float32"}),
        ({"index": "IVF8,Flat", "probes": 1}, {"precision": "fp32", "vectors": "float32"}),
    ],
)
def test_search_finds_what_the_run_found(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, search: dict[str, Any], vectors: dict[str, Any]
) -> None:
    """With all that a query is read with, such as a prompt, and by the run's index: of eight cells one is looked at."""
    tree = tiny.dpr(beir, encoder)
    tree["retriever"] |= {"query_prompt": "barami: ", "document_prompt": "comi "}
    place = tiny.place(tmp_path, {**tree, "search": search, "encode": {"shard": 7, **vectors}})
    assert place("run", "--until", "retriever ranking") == 0
    said()
    shortest = 20
    for query in queries_of(place)[:3]:
        assert place("search", query["text"], "-k", "20") == 0
        hits = [(score, doc_id) for score, _, doc_id in HIT.findall(said()[0])]
        wanted = [
            (f"{row['score']:.3f}", row["doc_id"]) for row in ranked(place, "retriever ranking", query["query_id"])
        ]
        assert hits == wanted
        shortest = min(shortest, len(hits))
    assert (shortest < 20) == ("probes" in search)


def test_search_with_an_index_needs_no_vectors(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}})
    assert place("run", "--until", "retriever ranking") == 0
    for path in place.artifact("retriever vectors").glob("*.npy"):
        path.unlink()
    assert place("search", "barami", "-k", "3") == 0
    assert len(HIT.findall(said()[0])) == 3


@pytest.mark.parametrize(("words", "depth"), [([], 10), (["--depth", "4"], 4), (["--depth", "1"], 1)])
def test_search_reranks_as_the_run_does(played: Place, said: Said, words: list[str], depth: int) -> None:
    """The run's own first ten, or as many as are asked for; the others follow in the retriever's order. Documents that
    say the same are taken for one: rounding decides which comes first."""
    documents = pq.read_table(played.artifact("data") / "documents.parquet").to_pylist()
    texts = {row["doc_id"]: (row["title"], row["text"]) for row in documents}
    for query in queries_of(played)[:3]:
        assert played("search", query["text"], "--rank", "-k", "20", *words) == 0
        hits = HIT.findall(said()[0])
        before = [row["doc_id"] for row in ranked(played, "retriever 1 ranking", query["query_id"])]
        after = ranked(played, "ranker over retriever 1", query["query_id"])
        first = [row for row in after if row["doc_id"] in before[:depth]]
        wanted = [row["doc_id"] for row in first] + before[depth:]
        assert [texts[doc_id] for *_, doc_id in hits] == [texts[doc_id] for doc_id in wanted]
        assert [float(score) for _, score, _ in hits[:depth]] == pytest.approx([r["score"] for r in first], abs=0.006)
        assert [score for _, score, _ in hits[depth:]] == [""] * (20 - depth)


def test_search_reranks_what_it_retrieves_beyond_what_it_shows(played: Place, said: Said) -> None:
    query = queries_of(played)[0]
    assert played("search", query["text"], "--rank", "-k", "2") == 0
    wanted = [row["doc_id"] for row in ranked(played, "ranker over retriever 1", query["query_id"])[:2]]
    assert [doc_id for *_, doc_id in HIT.findall(said()[0])] == wanted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--rank", "--depth", "0"],
            "--depth: got 0 documents for a query; accepted: 1 to 40, the size of the collection",
        ),
        (
            ["--rank", "--depth", "41"],
            "--depth: got 41 documents for a query; accepted: 1 to 40, the size of the collection",
        ),
        (["--depth", "4"], "--depth: says how many documents --rank reorders; accepted: together with --rank"),
    ],
)
def test_a_depth_that_cannot_be(played: Place, said: Said, words: list[str], says: str) -> None:
    assert played("search", "barami", *words) == 2
    assert said()[1] == f"error: {says}\n"


@pytest.mark.parametrize("k", ["0", "-1", "41"])
def test_search_for_more_than_there_is(played: Place, said: Said, k: str) -> None:
    assert played("search", "barami", "-k", k) == 2
    assert said()[1] == f"error: -k: got {k} documents for a query; accepted: 1 to 40, the size of the collection\n"


def test_search_before_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    assert place("search", "barami") == 2
    assert said()[1].startswith("error: the step 'retriever 1' is not done")


def test_search_of_a_recipe_without_a_ranker(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    assert place("search", "barami", "--rank") == 2
    assert said()[1] == "error: --rank: the recipe dpr trains no ranker\n"


# export and evaluate


def test_export_and_evaluate_agree_with_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    out = tmp_path / "not" / "there" / "out"
    assert played("export", str(out)) == 0
    assert said()[0].count("\n") == 4
    assert {path.name for path in out.iterdir()} == {"retriever", "ranker", "rankings", "qrels.trec"}
    values = {(row["system"], row["measure"]): row["value"] for row in played.metrics()["rows"]}
    for system, file in (("BM25", "BM25"), ("retriever 1", "retriever-1"), ("control: ance", "control-ance")):
        ranking, qrels = out / "rankings" / f"{file}.trec", out / "qrels.trec"
        assert played("evaluate", str(ranking), str(qrels), "--measures", "RR@10", "R@100") == 0
        assert said()[0] == f"RR@10\t{values[system, 'RR@10']:.4f}\nR@100\t{values[system, 'R@100']:.4f}\n"
        theirs = ir_measures.calc_aggregate(
            [ir_measures.parse_measure("RR@10")],
            ir_measures.read_trec_qrels(str(qrels)),
            ir_measures.read_trec_run(str(ranking)),
        )
        assert list(theirs.values()) == [pytest.approx(values[system, "RR@10"])]


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


def test_export_before_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "new", yaml.safe_load(played.config.read_text()))
    assert place("export", str(tmp_path / "out")) == 2
    assert said()[1].startswith("error: the step 'results' is not done")
    assert not (tmp_path / "out").exists()


# clean


def test_clean_frees_what_no_one_needs_and_nothing_comes_back(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "clean")
    before = tiny.contents(place.folder)
    assert place("show") == 0
    table = said()[0]
    assert place("clean", "--dry-run") == 0
    planned = said()[0].splitlines()
    assert tiny.contents(place.folder) == before
    assert place("clean") == 0
    dropped = said()[0].splitlines()
    assert [line.replace("would drop", "dropped") for line in planned[:-1]] == dropped[:-1]
    assert [line.split("  ")[-1].partition(":")[0] for line in dropped[:-1]] == [
        "start vectors", "warm retriever", "warm retriever vectors", "warm ranker", "control in-batch 1 vectors",
        "control ance 1 vectors",
    ]  # fmt: skip
    assert tiny.results(place.store) == tiny.results(played.store)
    assert place("plan") == 0
    assert "done, documents-*.npy, queries.npy dropped" in said()[0]
    assert place("clean") == 0
    assert said()[0] == "0.0 MB freed\n"
    again = light(place, "run")
    assert again.startswith(table)
    assert "nothing to run" in again
    assert place("search", "barami", "--rank") == 0
    assert place("export", str(tmp_path / "out")) == 0


def test_clean_goes_on_where_it_was_killed(played: Place, tmp_path: Path, said: Said) -> None:
    """Between the record that says so and the files."""
    place = played.copy(tmp_path / "clean")
    vectors = place.artifact("start vectors")
    record = json.loads((vectors / "artifact.json").read_text())
    (vectors / "artifact.json").write_text(json.dumps({**record, "dropped": ["documents-*.npy", "queries.npy"]}))
    assert place("clean") == 0
    assert "start vectors" in said()[0]
    assert [path.name for path in vectors.glob("*.npy")] == []


def test_what_was_dropped_comes_back_when_it_is_asked_for(played: Place, tmp_path: Path, said: Said) -> None:
    """Another run's clean may take the vectors that this run searches."""
    place = played.copy(tmp_path / "clean")
    vectors = place.artifact("retriever 1 vectors")
    record = json.loads((vectors / "artifact.json").read_text())
    before = {path.name: path.read_bytes() for path in vectors.glob("*.npy")}
    (vectors / "artifact.json").write_text(json.dumps({**record, "dropped": ["documents-*.npy"]}))
    for path in vectors.glob("documents-*.npy"):
        path.unlink()
    assert place("search", "barami") == 2
    assert said()[1].endswith(
        "were dropped; make them again: python -m workflows run CONFIG --until 'retriever 1 vectors'\n"
    )
    assert place("run", "--until", "retriever 1 vectors") == 0
    assert {path.name: path.read_bytes() for path in vectors.glob("*.npy")} == before
    assert place("search", "barami") == 0


def test_clean_of_an_unfinished_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    assert place("clean") == 2
    assert said()[1].startswith("error: the run is not finished")


# a profile that what is there cannot meet


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({"mode": "inline", "device": "cuda"}, "cluster: device: cuda is asked for, and there is no GPU"),
        ({"mode": "ray", "address": "auto"}, "cluster: address: auto: no Ray answers there (nobody there); start one"),
    ],
)
def test_a_profile_that_cannot_be_met_changes_nothing(
    tmp_path: Path, beir: Path, encoder: Path, said: Said, monkeypatch: pytest.MonkeyPatch, command: str,
    profile: dict[str, Any], says: str,
) -> None:  # fmt: skip
    def nobody(**_: Any) -> None:
        raise ConnectionError("nobody there\nat all")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("ray.init", nobody)
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder), **profile)
    assert place(command, *(["--cluster", str(place.folder / "inline.yaml")] if command == "plan" else [])) == 2
    out, err = said()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {says}")
    assert {path.name for path in place.folder.iterdir()} <= {"tiny.yaml", "inline.yaml", "store"}
    assert not place.store.exists() or not list(place.store.iterdir())


# doctor


def test_doctor_says_what_is_there_and_what_is_missing(
    played: Place, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert played("doctor") == 0
    lines = said()[0].splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", f"{name}:"] for name in ("python", "java", "ray", "torch", "faiss", "memory", "disk")
    ]
    assert lines[-1].endswith(f"GiB free at {played.store}")
    monkeypatch.setattr("workflows.commands.doctor.shutil.disk_usage", lambda place: SimpleNamespace(free=2**30))
    assert played("doctor") == 2
    out, err = said()
    assert f"  MISSING disk: 1.0 GiB free at {played.store}; move the store with SPARRING_STORE or --store" in out
    assert err == "error: something is missing; the lines above say what to do\n"
