"""The command line: what `plan`, `run`, `show`, `report` and `doctor` print, change and end with."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from sparring.workflows.command_line import main
from sparring.workflows.distributed import leftovers
from tests.support import tiny
from tests.support.light import light
from tests.support.tiny import ROOT, Place, Said

# plan


def test_plan_prints_every_step_and_changes_nothing(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "new", yaml.safe_load(played.config.read_text()))
    assert place("plan") == 0
    analyzer, *lines = said()[0].splitlines()
    assert analyzer == "BM25: `bm25.index.language: en` (English, Porter stemmer, stop words removed)"
    assert re.split(r"  +", lines[0]) == ["label", "phase", "step", "state", "where"]
    assert [line.split("  ")[0] for line in lines[1:5]] == [
        "data",
        "bm25 index",
        "bm25 ranking (test)",
        "BM25 measures",
    ]
    assert all(re.search(r"  to do  \w+-[0-9a-f]{12}$", line) for line in lines[1:-2])
    assert lines[-1] == f"{len(lines) - 3} steps, {len(lines) - 3} to run"
    assert {path.name for path in place.folder.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_plan_of_a_finished_run(played: Place) -> None:
    lines = light(played, "plan").splitlines()[1:-1]
    assert lines[-1].endswith(" steps, 0 to run")
    assert all("  done  " in line for line in lines[1:-2])
    assert [line.split()[-1] for line in lines[1:-2]] == [
        (played.runs / "tiny" / link).readlink().name for link in played.links()
    ]


def test_a_source_that_is_missing_is_named_before_anything_is_written(
    tmp_path: Path, encoder: Path, said: Said
) -> None:
    place = tiny.place(tmp_path, tiny.dpr(tmp_path / "nowhere", encoder))
    assert place("plan") == 0
    assert said()[0].splitlines()[-1] == f"source missing: {tmp_path / 'nowhere' / 'corpus.jsonl'} and 1 more"
    assert place("run") == 2
    assert said()[1].startswith(f"error: data: source missing: {tmp_path / 'nowhere' / 'corpus.jsonl'}, ")
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_a_model_that_is_missing_is_named_before_anything_is_written(beir: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, tmp_path / "nowhere"))
    assert place("run") == 2
    assert said()[1] == f"error: start retriever: model: {tmp_path / 'nowhere'}: there is no such directory\n"
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_plan_says_that_a_model_is_nowhere(beir: Path, tmp_path: Path, said: Said) -> None:
    assert tiny.place(tmp_path, tiny.dpr(beir, Path("someone/no-such-model")))("plan") == 0
    assert said()[0].splitlines()[-1].startswith("model missing: someone/no-such-model: it is neither a folder nor in ")


def test_plan_says_that_a_ranking_file_is_missing(beir: Path, tmp_path: Path, encoder: Path, said: Said) -> None:
    tree = tiny.dpr(beir, encoder)
    tree["evaluate"] = {"other_rankings": {"theirs": {"path": str(tmp_path / "theirs.trec")}}}
    assert tiny.place(tmp_path, tree)("plan") == 0
    assert said()[0].splitlines()[-1] == f"source missing: {tmp_path / 'theirs.trec'}"


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
        "config.yaml",
        "from.txt",
        "plan.txt",
        "estimate.json",
        "metrics.json",
        "report.html",
        "tensorboard",
        "tracked.json",
    }
    assert yaml.safe_load((run / "config.yaml").read_text())["rerank"] == {
        "precision": "fp32",
        "shard": 16,
        "depth": 10,
        "queries": None,
    }
    assert (run / "plan.txt").read_text().endswith(" to run\n")
    assert [link.partition("-")[2] for link in played.links()][:3] == ["data", "bm25-index", "bm25-ranking-(test)"]
    assert all((run / link / "artifact.json").is_file() for link in played.links())
    metrics = played.metrics()
    assert set(metrics) == {"rows", "means", "comparisons", "leading", "verdict", "steps", "notes"}
    says = "The ranking ends at rank 20, so R@100 may be too low."
    shorter, tied = metrics["notes"]
    assert shorter == f"BM25 measures, and 13 more: {says}"
    assert re.match(r"BM25 measures, .*: For \d of 4 queries RR@10 depends on the order of documents with equal", tied)
    assert all(metric["executed"] for metric in metrics["steps"])
    assert {row["system"] for row in metrics["rows"]} == {
        "BM25",
        "start model",
        "BM25 + start model, reciprocal",
        "BM25 + start model, interpolated",
        "warm retriever",
        "warm ranker over warm retriever",
        "BM25 + warm retriever, interpolated",
        "warm ranker over BM25 + warm retriever",
        "retriever 1",
        "ranker over retriever 1",
        "BM25 + retriever 1, interpolated",
        "ranker over BM25 + retriever 1",
        "control: in-batch",
        "control: ance",
    }


def test_a_second_run_executes_nothing_and_is_light(played: Place, tmp_path: Path) -> None:
    place = played.copy(tmp_path / "again")
    before, files = place.metrics(), tiny.contents(place.store)
    out = light(place, "run")
    assert "nothing to run" in out
    assert "RR@10" in out
    after = place.metrics()
    assert after["rows"] == before["rows"]
    assert after["comparisons"] == before["comparisons"]
    assert not any(item["executed"] for item in after["steps"])
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


def test_a_finished_run_says_what_is_not_there_any_more(played: Place, tmp_path: Path, said: Said) -> None:
    """Nothing that is measured needs it, but `search` and `export` do."""
    place = played.copy(tmp_path / "copy")
    shutil.rmtree(place.artifact("warm retriever"))
    assert place("run") == 0
    lines = said()[0].splitlines()
    assert [line for line in lines if line.startswith("nothing to run")] == [
        "nothing to run: every step that this needs is done; not there any more, and not needed: warm retriever; "
        "--until LABEL makes one again"
    ]
    assert place("run", "--until", "warm retriever") == 0
    said()
    assert place("run") == 0
    assert "\nnothing to run: every step that this needs is done\n" in said()[0]


def test_run_until_a_label(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    assert place("run", "--until", "tokens") == 0
    out, err = said()
    assert re.fullmatch(r"tokens: .*/store/tokenize-[0-9a-f]{12}\n", out)
    first, narrows, *lines = err.splitlines()
    assert re.match(r"estimate: \d+ (s |min )?to \d+ (s|min) for 3 steps, .* of disk, .* of memory$", first)
    assert narrows.strip().startswith("The range narrows as steps finish.")
    lines = [line for line in lines if not re.match(r"\[\d/3 collection\] .*: (running|[\d,]+)", line)]  # if busy
    assert [re.sub(r"\d+\.\d s  \(\d+:\d\d", "TIME", re.sub(r"(start), .*\)$|\)$", r"\1", line)) for line in lines] == [
        "[1/3 collection] data: done in TIME since the start",
        "[2/3 collection] start retriever: done in TIME since the start",
        "[3/3 collection] tokens: done in TIME since the start",
    ]
    assert place("plan") == 0
    assert said()[0].splitlines()[-1] == "30 steps, 27 to run"
    assert place("show") == 0
    assert said()[0].startswith(
        "tiny: 3 of 30 steps done, 27 to run\n"
        "  No step is running. A job that was just submitted may still be starting.\n"
        "  Otherwise resume with: python -m workflows --store "
    )
    run = f"python -m workflows --store {place.store} --runs {place.runs} run {place.config} --set k=30"
    assert place("export", str(tmp_path / "out"), "--set", "k=30") == 2
    assert said()[1].endswith(f" is not done; run it first: {run}\n")  # the other run is not finished either
    (place.runs / "tiny" / "report.html").touch()
    assert place("show", "--json", "--set", "k=30") == 2
    second = f"; or give another run's folder in place of the config: {place.runs}/tiny\n"
    assert said()[1] == f"error: {place.config}: no results yet: they are made last: {run}{second}"
    assert place("export", str(tmp_path / "out"), "--set", "k=30") == 2
    assert said()[1].endswith(f" is not done; run it first: {run}{second}")
    assert place("show", "--set", "k=30") == 0
    out = said()[0]
    rest = f"  other runs of this config, which `show` takes too:\n    {place.runs}/tiny: k="
    assert f"resume with: {run} (and the --cluster that it had)\n{rest}" in out
    file = place.runs / "tiny" / "config.yaml"
    whole = file.read_text()
    file.write_text("k: [")
    assert place("show", "--set", "k=30") == 0
    assert f"    {place.runs}/tiny (its config.yaml cannot be read)\n" in said()[0]
    file.write_text(whole)
    assert main(["--store", str(place.store), "show", str(place.runs / "tiny")]) == 0
    assert said()[0].startswith("tiny: 3 of 30 steps done, 27 to run\n")
    assert place("run", "--until", "token") == 2
    assert said()[1].startswith("error: no step is labelled 'token'; did you mean 'tokens'? `plan` ")


def test_a_run_says_each_score_once_and_when_it_goes_on_once_more(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    assert place("run", "--until", "BM25 measures") == 0
    lines = said()[1].splitlines()
    position = next(number for number, line in enumerate(lines) if " BM25 measures: done in " in line)
    assert "measured before:" not in lines
    (bm25,) = [line for line in lines if re.match(r"  BM25 +RR@10 [.\d]+  ", line)]
    assert lines.index(bm25) > position
    assert place("show") == 0
    assert said()[0].splitlines()[-2:] == ["  measured:", f"  {bm25}"]
    assert place("run") == 0
    lines = said()[1].splitlines()
    before = lines.index("measured before:")
    assert lines[before + 1] == bm25
    assert lines.count(bm25) == 1
    assert before < next(number for number, line in enumerate(lines) if ": done in " in line)
    rows = place.metrics()["rows"]
    report = [line.partition("  RR@10")[0].strip() for line in lines if re.match(r"  \S.* RR@10 ", line)]
    assert sorted(report) == sorted({row["system"] for row in rows})
    value = next(row["value"] for row in rows if (row["system"], row["measure"]) == ("BM25", "RR@10"))
    assert f"RR@10 {value:.3f}".replace(" 0.", " .") in bm25
    assert place("run") == 0
    assert not re.search("^  BM25 ", said()[1], re.MULTILINE)  # all are in the table


def test_set_values_have_a_run_of_their_own(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "set")
    assert place("run", "--set", "evaluate.measures=[P@1]") == 0
    run = next(path for path in place.runs.iterdir() if path.name != "tiny")
    assert re.fullmatch(r"tiny-[0-9a-f]{6}", run.name)
    assert yaml.safe_load((run / "config.yaml").read_text())["evaluate"]["measures"] == ["P@1"]
    steps = {metric["function"] for metric in place.metrics(run.name)["steps"] if metric["executed"]}
    # Weights of fusions are chosen by another measure, and what is fused by them is reranked.
    assert steps == {"evaluate", "fit_fusion", "fuse", "rerank", "select", "results"}
    assert f"search {place.config} \"your question\" --set 'evaluate.measures=[P@1]'\n" in said()[0]


def test_a_failure_is_status_1_and_one_line(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparring.workflows.steps import tokenize

    def broken(*_: Any) -> None:
        raise RuntimeError("first line\nthe disk is on fire")

    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    monkeypatch.setattr(tokenize, "_join", broken)
    assert place("run", "--until", "tokens") == 1
    *_, failed, advice = said()[1].splitlines()
    assert re.fullmatch(r"failed: step 'tokens' failed: the disk is on fire \(traceback: .*failure\.txt\)", failed)
    assert advice == "Finished steps are kept. Fix the cause, then repeat the command to resume."
    assert place("plan") == 0
    assert re.search(r"tokens +collection +tokenize +partial", said()[0])


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
    assert played("show", "--set", "k=20", "retriever 1", "--json") == 0  # behind an option too
    assert json.loads(said()[0])["label"] == "retriever 1"
    with pytest.raises(SystemExit):
        played("show", "--set", "k=20", "retriever 1", "retriever 2")
    assert said()[1].startswith("error: unrecognized arguments: retriever 2")
    assert played("show", "retriever 2") == 2
    assert "no step is labelled 'retriever 2'; did you mean 'retriever 1' or " in said()[1]


def test_report_writes_the_page_anew(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "report")
    page = place.runs / "tiny" / "report.html"
    page.write_text("old")
    assert place("report") == 0
    assert said()[0] == f"{page}\n"
    assert "retriever 1" in page.read_text()
    assert place.metrics()["rows"] == played.metrics()["rows"]


# a profile that what is there cannot meet


@pytest.mark.parametrize("command", ["plan", "run"])
@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({"mode": "inline", "device": "cuda"}, "cluster: device: cuda is asked for, and there is no GPU"),
        ({"mode": "ray", "address": "auto"}, "cluster: address: auto: no Ray answers there (nobody there). Start one"),
    ],
)
def test_a_profile_that_cannot_be_met_changes_nothing(
    tmp_path: Path,
    beir: Path,
    encoder: Path,
    said: Said,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    profile: dict[str, Any],
    says: str,
) -> None:
    def nobody(**_: Any) -> None:
        raise ConnectionError("nobody there\nat all")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("ray.init", nobody)
    monkeypatch.setattr("psutil.process_iter", lambda _: iter([]))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder), **profile)
    assert place(command, *(["--cluster", str(place.folder / "inline.yaml")] if command == "plan" else [])) == 2
    out, err = said()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: {says}")
    assert {path.name for path in place.folder.iterdir()} <= {"tiny.yaml", "inline.yaml", "store"}
    assert not place.store.exists() or not list(place.store.iterdir())


@pytest.mark.parametrize("rest", [True, False])
def test_a_head_that_is_gone_is_told_at_once(
    tmp_path: Path, beir: Path, encoder: Path, said: Said, monkeypatch: pytest.MonkeyPatch, rest: bool
) -> None:
    """Ray tries for minutes, and prints its log; a head that was killed leaves its address."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nothing listens there, and nothing else can
        missing = f"127.0.0.1:{taken.getsockname()[1]}"
        current = tmp_path / "ray" / "ray_current_cluster"
        current.parent.mkdir()
        current.write_text(missing)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        monkeypatch.setattr("sparring.workflows.distributed.session.psutil.process_iter", lambda attributes: iter(()))
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        address = "auto" if rest else missing
        place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder), mode="ray", address=address)
        assert place("run") == 2
    says = f"error: cluster: address: {address}: no Ray answers there (nothing listens at {missing}: Connection refused"
    says += f"; {current} says so, remove it). " if rest else "). "
    assert said()[1].startswith(says)


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
    monkeypatch.setattr(
        "sparring.workflows.commands.doctor.shutil.disk_usage", lambda place: SimpleNamespace(free=2**30)
    )
    assert played("doctor") == 2
    out, err = said()
    assert f"  MISSING disk: 1.0 GiB free at {played.store}; move it: `sparring --store FOLDER COMMAND`" in out
    assert err == "error: something is missing; the lines above say what to do\n"
    memory = SimpleNamespace(available=2**30, free=2**33)  # what the kernel gives back counts
    monkeypatch.setattr("sparring.workflows.commands.doctor.psutil.virtual_memory", lambda: memory)
    assert played("doctor") == 2
    assert "  MISSING memory: 1.0 GiB free; 2 are needed: close something" in said()[0]


def test_doctor_finds_a_store_that_cannot_be_written_to(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do the other commands, where it is a file."""
    monkeypatch.setattr("sparring.workflows.commands.doctor.CHECKS", {})
    file = tiny.write(tmp_path / "file", {})
    assert main(["--store", str(file), "doctor"]) == 2
    assert said()[0] == f"  MISSING disk: {file} is a file; move it: `sparring --store FOLDER COMMAND`\n"
    for command in ("plan", "run", "show"):
        assert main(["--store", str(file / "store"), command, "configs/demo.yaml"]) == 2
        assert said()[1].startswith(f"error: {file}/store: the store cannot be there, as {file} is a file; accepted: ")

    def read_only(**_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("sparring.components.files.tempfile.TemporaryFile", read_only)
    assert main(["--store", str(tmp_path / "store"), "doctor"]) == 2
    assert f"{tmp_path} cannot be written to (Read-only file system); move it: " in said()[0]


def test_doctor_asks_for_the_bucket_of_a_store(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bucket(*_: Any, Bucket: str) -> None:
        raise FileNotFoundError(Bucket)

    monkeypatch.setattr("sparring.workflows.commands.doctor.CHECKS", {})
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path))
    monkeypatch.setattr("sparring.workflows.store.s3.file_system", lambda: SimpleNamespace(call_s3=no_bucket))
    assert main(["--store", "s3://nowhere/x", "doctor"]) == 2
    assert "  MISSING store: --store s3://nowhere/x: there is no bucket nowhere\n" in said()[0]
    monkeypatch.setattr(
        "sparring.workflows.store.s3.file_system", lambda: SimpleNamespace(call_s3=lambda *_, Bucket: None)
    )
    assert main(["--store", "s3://bucket/x", "doctor"]) == 0
    assert "  ok   store: s3://bucket/x answers\n" in said()[0]


def test_doctor_names_what_a_killed_run_has_left(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what a living driver has started."""
    monkeypatch.setattr("sparring.workflows.commands.doctor.CHECKS", {})
    with subprocess.Popen([sys.executable, "-c", ""]) as missing:
        missing.wait()
    sleep = [sys.executable, "-c", "input()"]
    with ExitStack() as stack:
        rest, second = (
            stack.enter_context(
                subprocess.Popen(sleep, stdin=subprocess.PIPE, env={**os.environ, leftovers.DRIVER: str(driver)})
            )
            for driver in (missing.pid, os.getpid())
        )
        for process in (rest, second):
            stack.callback(process.kill)
        tiny.place(tmp_path / "place", {})("doctor")
        out = said()[0]
    details = f"the run of process {missing.pid} is gone, and this is still running; end it: kill {rest.pid}"
    assert f"  left processes: {details}\n" in out
    assert re.search(rf"^ +{rest.pid}  python[\d.]*, since {time.strftime('%Y-%m-%d')} [\d:]+, \d\.\d GiB$", out, re.M)
    assert f"kill {second.pid}" not in out


def test_what_a_run_starts_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.DRIVER, "1")
    leftovers.mark()
    assert os.environ[leftovers.DRIVER] == str(os.getpid())


@pytest.mark.parametrize("command", ["show", "run"])
def test_only_what_runs_steps_says_that_they_are_kept(
    command: str, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    def interrupted(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"sparring.workflows.commands.{command}.call", interrupted)
    assert main([command, "configs/demo.yaml"]) == 130
    kept = " Finished steps are kept. Repeat the command to resume." if command == "run" else ""
    assert said()[1] == f"\nInterrupted.{kept}\n"
