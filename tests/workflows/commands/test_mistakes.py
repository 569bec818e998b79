"""A mistake at the command line is one clear line and status 2, and nothing was changed."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from sparring.components.config import UserError
from sparring.workflows.command_line import main
from sparring.workflows.program import program
from tests.support import tiny
from tests.support.tiny import ROOT, Place, Said

# Configs

LOSS = "retriever.game.train.losses.0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("recipe: [", r"tiny\.yaml:1: not YAML"),
        ("recipe: dpr\nk: 1\nk: 2\n", r"tiny\.yaml:3: not YAML: the key 'k' is given twice"),
        ("- a\n", r"tiny\.yaml: expected keys and values, got list"),
        ("", r"tiny\.yaml: the file is empty\. Write keys and values\."),
        ("k: 3\n", r"tiny\.yaml: recipe: missing; accepted: .*ar2, "),
        ("recipe: bm25\n", r"tiny\.yaml: recipe: 'bm25'; accepted: .*ar2, "),
        ("recipe: \x00\n", r"tiny\.yaml: not YAML: "),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, said: Said, text: str, says: str) -> None:
    place = tiny.place(tmp_path, {})
    place.config.write_text(text)
    for command in ("plan", "run", "show", "clean"):
        assert place(command) == 2
        assert re.fullmatch(rf"error: .*{says}.*\n", said()[1])
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_a_file_that_is_not_there(tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path / "x", {})
    place.config.unlink()
    assert place("plan") == 2
    assert said()[1] == f"error: {place.config}: there is no such file; `{program()} init FOLDER` writes one\n"
    place.config.mkdir()
    assert place("plan") == 2
    folder = f"{place.config}: a folder without configs; accepted: a config, or a folder that has some"
    assert said()[1] == f"error: {folder}\n"
    place.config.rmdir()
    place.config.write_bytes(b"recipe: \xff\n")
    assert place("plan") == 2
    assert re.fullmatch(r"error: .*tiny\.yaml: not UTF-8 text \(.* at byte 8\)\n", said()[1])


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_model_that_does_not_fit_is_told_with_the_plan(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, command: str
) -> None:
    shutil.copytree(encoder, tmp_path / "three")
    config = AutoConfig.from_pretrained(encoder, num_labels=3)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "three")
    place = tiny.place(tmp_path / "place", tiny.ar2(beir, encoder))
    ranker = ["--set", f"ranker.model.model={tmp_path / 'three'}", "--set", "ranker.model.pooling=cls"]
    assert place(command, *ranker) == 2
    says = f"error: start ranker: model: {tmp_path / 'three'}: the head gives 3 scores per pair"
    assert said()[1].splitlines()[-1].startswith(says)
    assert not place.store.exists() or not list(place.store.glob("*/artifact.json"))


def test_a_tokenizer_with_more_tokens_than_embeddings_is_told_with_the_plan(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    shutil.copytree(encoder, tmp_path / "own")
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(tmp_path / "own")
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, tmp_path / "own"))
    assert place("plan") == 2
    says = (
        r"its tokenizer does not fit its weights: the token 'zzz' has the number (\d+), and there are \1 embeddings; "
    )
    assert re.search(says, said()[1])


@pytest.mark.parametrize(
    "words", [["search", "x.yaml", "caf\udce9"], ["--store", "a\udcff", "plan", "x"], ["init", "\udcff"]]
)
def test_arguments_that_are_not_utf8_are_one_line(said: Said, words: list[str]) -> None:
    """Python reads their bytes as halves of characters."""
    assert main(words) == 2
    wrong = next(ascii(word) for word in words if not word.isascii())
    assert said() == (
        "",
        f"error: argument {wrong}: it is not UTF-8. Write it in UTF-8. If it names a file or folder, "
        "rename that, or enter the folder and write `.`\n",
    )


def test_output_that_cannot_have_a_character_escapes_it(tmp_path: Path) -> None:
    (tmp_path / "docs.txt").write_text("caf\u00e9 \u202egnp.exe\n", encoding="utf-8")
    command = [sys.executable, "-m", "workflows", "init", str(tmp_path / "docs.txt"), "-o", str(tmp_path / "own.yaml")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "caf\\xe9 gnp.exe\n" in done.stdout


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("rounds=[", r"--set rounds=\[: not YAML: "),
        ("rounds.x=2", r"--set rounds\.x=2: 'rounds' holds a value, not keys"),
        ("retriever.game.train.losses.1.weight=3", r"'1' is not a position in a list of 1"),
        (
            "retriever.game.train.validate_on_dev={every: 2, measure: nDCG}",
            r"retriever 1: validate_on_dev: measure: got 'nDCG', .* these: RR, accuracy, loss",
        ),
        (
            "ranker.game.train.losses.0.over=batch",
            r"tiny\.yaml: ranker 1: losses: over: got 'batch', but the objective ranker accepts group",
        ),
        (
            "retriever.game.train.losses.0.over=all",
            r"retriever 1: losses: over: got 'all', but the objective retriever accepts group, batch",
        ),
        ("controls.ance=[]", r"controls: ance is included, and ance names no losses"),
        ("evaluate.measures=[RR@10, MRR]x", r"not YAML"),
        (
            "ranker.warm.train.losses=[{function: components.losses.margin.mean_squared}]",
            r"warm ranker: losses: components\.losses\.margin\.mean_squared reads a teacher's scores, and these groups "
            r"have none\. Use a loss over targets, ",
        ),
        ("evaluate.measures=[]", r"evaluate: measures: none; accepted: one or more, such as RR@10"),
        ("evaluate.select=train", r"evaluate\.select: 'train' is what is learnt from; accepted: another split, such"),
        ("data.format=bier", r"data: unknown format 'bier'; accepted: .*beir, "),
    ],
)
def test_a_mistake_in_a_config_is_one_line(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, assignment: str, says: str
) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    assert place("run", "--set", assignment) == 2
    out, err = said()
    assert out == ""
    assert re.fullmatch(rf"error: .*{says}.*\n", err)
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


@pytest.mark.parametrize(
    ("assignment", "key", "code"),
    [
        ("rounds=0", "rounds", "too-small"),
        ("rounds=two", "rounds", "wrong-type"),
        ("round=2", "round", "unknown-key"),
        ("seeds=[]", "seeds", "too-short"),
        ("seeds=[1,1]", "seeds", "duplicate"),
        ("k=0", "k", "too-small"),
        ("retriever.game.train.step=3", "retriever.game.train.step", "unknown-key"),
        ("retriever.game.train.updates=0", "retriever.game.train.updates", "too-small"),
        (f"{LOSS}.function=components.losses.listwise.cros", f"{LOSS}.function", "unknown-function"),
        (f"{LOSS}.function=components.loss.cross_entropy", f"{LOSS}.function", "unknown-module"),
        (f"{LOSS}.options={{heat: 1}}", f"{LOSS}.options", "unknown-option"),
        ("controls.include=[random]", "controls.include.0", "unknown-value"),
        ("controls.include=[ance, ance]", "controls.include", "duplicate"),
        ("evaluate.measures=[BLEU@4]", "evaluate.measures.0", "unknown-measure"),
        ("data.pth=x", "data.pth", "unknown-key"),
        ("data=null", "data", "wrong-type"),
        ("order=sideways", "order", "unknown-value"),
    ],
)
def test_a_wrong_key_or_value_changes_nothing(
    beir: Path,
    encoder: Path,
    tmp_path: Path,
    said: Said,
    mistakes: list[UserError],
    assignment: str,
    key: str,
    code: str,
) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    assert place("run", "--set", assignment) == 2
    assert [(mistake.key, mistake.code) for mistake in mistakes] == [(key, code)]
    assert said() == ("", f"error: {mistakes[0]}\n")
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


@pytest.mark.parametrize(
    ("until", "assignment", "says"),
    [
        (
            "start model measures",
            "k=41",
            r"k: got 41, but the collection has 40 documents. Use 1 to 40.",
        ),
        (
            "start model measures",
            "evaluate.split=tset",
            r"split 'tset' has no query with a relevant document; splits that have some: dev, test, train",
        ),
        ("start retriever", "retriever.model=./nowhere", r"model: \./nowhere: there is no such directory"),
        ("start retriever", "retriever.model=package:no-such-model", r"the package 'no_such_model' is not installed"),
        ("start retriever", "retriever.layers=3", r"layers: got 3, but the model has 2 layers. Use 1 to 2"),
        ("retriever", "train.batch=3", r"batch: 3 rows cannot be divided into 2 equal parts"),
    ],
)
def test_a_mistake_that_shows_while_running_is_one_line(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, until: str, assignment: str, says: str
) -> None:
    tree = tiny.dpr(beir, encoder)
    tree["train"]["accumulate"] = 2
    tree["negatives"] = {"negatives": 0}
    place = tiny.place(tmp_path, tree)
    assert place("run", "--set", assignment, "--until", until) == 2
    assert re.fullmatch(rf"error: .*{says}.*", said()[1].splitlines()[-1])
    assert place("run", "--until", until) == 0


def test_workers_that_cannot_share_a_batch_are_refused_before_anything_runs(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder), mode="ray", device="cpu", train={"workers": 2, "threads": 1})
    says = r"error: retriever: batch: 1 rows at once \(batch / accumulate\) are too few for 2 workers"
    for words in (["run", "--no-estimate"], ["plan", "--cluster", str(place.folder / "inline.yaml")]):
        assert place(*words, "--set", "train.batch=1") == 2
        assert re.match(says, said()[1].splitlines()[-1])
    assert not list(place.store.glob("*-*"))


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("k=41", r"k: got 41, but the collection has 40 documents. Use 1 to 40."),
        ("evaluate.split=tset", "splits: there are no queries in 'tset'. Use one of these splits: test, train, dev"),
        ("evaluate.select=val", "splits: there are no queries in 'val'. Use one of these splits: test, train, dev"),
    ],
)
def test_what_a_collection_cannot_give_is_told_as_soon_as_it_is_read(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, assignment: str, says: str
) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    assert place("run", "--set", assignment) == 2
    steps = said()[1].splitlines()
    assert re.fullmatch(rf"error: .*{says}.*", steps[-1])
    assert [line.partition("] ")[2].partition(":")[0] for line in steps if line.startswith("[")] == ["data"]


def test_a_file_that_changed_after_it_was_read_is_named(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    """A rerun would otherwise say "nothing to run" of other data, or of another start model."""
    for path in (beir, encoder):
        shutil.copytree(path, tmp_path / path.name)
    place = tiny.place(tmp_path / "place", tiny.dpr(tmp_path / beir.name, tmp_path / encoder.name))
    until = ("--until", "start ranking (test)")
    assert place("run", *until) == 0
    queries, model = tmp_path / beir.name / "queries.jsonl", tmp_path / encoder.name / "config.json"
    for path, step, declared in (
        (queries, "data", 'data.sha256={"queries.jsonl": "%s"}'),
        (model, "start retriever", "retriever.revision=%s"),
    ):
        before, held = tiny.contents(place.store), path.read_bytes()
        path.write_bytes(held + b"\n")
        now = hashlib.sha256(path.read_bytes()).hexdigest()
        assert place("run", *until) == 2
        wanted = (
            rf"error: {path}: changed since the step '{step}' read it \(sha256 {now} now, [0-9a-f]{{64}} then\); .*"
        )
        refused = said()[1].splitlines()[-1]
        assert re.fullmatch(wanted, refused)
        if step == "data":
            assert refused.endswith(f"`data: {{format: beir, ..., sha256: {{queries.jsonl: {now}}}}}`")
        assert place("plan") == 0
        stops = f"`run` stops here: {refused.removeprefix('error: ')}"
        assert said()[0].splitlines()[-1] == stops
        shutil.copy(place.config, place.folder / "other.yaml")
        assert place("plan", str(place.folder / "other.yaml")) == 0
        assert said()[0].splitlines()[1] == f"{place.config}: {stops}"
        assert place("run", *until, "--set", declared % now) == 0
        path.unlink()  # gone is no change: what was read is in the store
        assert place("run", *until) == 0
        path.write_bytes(held)
        assert place("run", *until) == 0
        assert before.items() <= tiny.contents(place.store).items()


def test_a_file_that_is_new_among_those_that_are_read_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    shutil.copytree(beir, tmp_path / "beir")
    place = tiny.place(tmp_path / "place", tiny.dpr(tmp_path / "beir", encoder))
    assert place("run", "--until", "data") == 0
    names = ("corpus.jsonl", "queries.jsonl", *(f"qrels/{split}.tsv" for split in ("dev", "test", "train")))
    digests = {name: hashlib.sha256((tmp_path / "beir" / name).read_bytes()).hexdigest() for name in names}
    assert tiny.records(place.store)[0]["files"] == digests
    shutil.copy(tmp_path / "beir/qrels/test.tsv", tmp_path / "beir/qrels/more.tsv")
    assert place("run", "--until", "data") == 2
    assert re.search(r"more\.tsv: changed since the step 'data' read it \(sha256 \w+ now, not there then\)", said()[1])


# Profiles


@pytest.mark.parametrize(
    ("profile", "key", "code"),
    [
        ({"mode": "rya"}, "mode", "unknown-value"),
        ({"worker": 3}, "worker", "unknown-key"),
        ({"map": {"worker": 3}}, "map.worker", "unknown-key"),
    ],
)
def test_a_mistake_in_a_profile_is_one_line(
    beir: Path,
    encoder: Path,
    tmp_path: Path,
    said: Said,
    mistakes: list[UserError],
    profile: dict[str, Any],
    key: str,
    code: str,
) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder), **profile)
    assert place("run") == 2
    assert [(mistake.key, mistake.code) for mistake in mistakes] == [(key, code)]
    assert said()[1] == f"error: {tmp_path / 'inline.yaml'}: {str(mistakes[0]).partition(': ')[2]}\n"
    assert not place.store.exists()


def test_a_profile_that_asks_for_what_is_not_there(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()), device="cuda")
    assert place("run", "--until", "start vectors") == 2
    assert re.fullmatch(r"error: .*device: cuda is asked for, .*; accepted: auto, cpu", said()[1].splitlines()[-1])


# Files to evaluate


RUN = "q1 Q0 d1 1 2.0 x\nq1 Q0 d2 2 1.0 x\n"
QRELS = "q1 0 d2 1\n"


@pytest.mark.parametrize(
    ("run", "qrels", "measure", "says"),
    [
        (RUN + "q1 Q0 d3 3\n", QRELS, "RR@10", r"run:3: expected 6 columns .*, got 4"),
        (RUN + "q1 Q0 d3 3 high x\n", QRELS, "RR@10", r"run:3: the score 'high' is not a number"),
        (RUN + "q1 Q0 d3 3 nan x\n", QRELS, "RR@10", r"run:3: the score 'nan' is not a number"),
        (RUN + "q1 Q0 d2 3 0.5 x\n", QRELS, "RR@10", r"run: the query q1 ranks a document twice"),
        (RUN, "q1 0 d2 yes\n", "RR@10", r"qrels:1: the relevance 'yes' is not an integer"),
        (RUN, "q1 d2\n", "RR@10", r"qrels:1: expected 4 columns"),
        (RUN, "", "RR@10", r"qrels: the file has no judgements"),
        (RUN, "q1 0 d2 0\n", "RR@10", r"qrels: no query has a relevant document"),
        (RUN, QRELS, "RR@ten", r"measure 'RR@ten': not known; accepted: RR@k, "),
        (None, QRELS, "RR@10", r"run: there is no such file"),
        (RUN, None, "RR@10", r"qrels: there is no such file"),
    ],
)
def test_evaluate_says_what_is_wrong_with_a_file(
    played: Place, tmp_path: Path, said: Said, run: str | None, qrels: str | None, measure: str, says: str
) -> None:
    for name, text in (("run", run), ("qrels", qrels)):
        if text is not None:
            (tmp_path / name).write_text(text)
    assert played("evaluate", str(tmp_path / "run"), str(tmp_path / "qrels"), "--measures", measure) == 2
    out, err = said()
    assert out == ""
    assert re.fullmatch(rf"error: .*{says}.*\n", err)


def test_evaluate_takes_directories_for_no_file(played: Place, tmp_path: Path, said: Said) -> None:
    assert played("evaluate", str(tmp_path), str(tmp_path)) == 2
    assert said()[1] == f"error: {tmp_path}: this is a directory. Name a file.\n"


# Words and places


def test_a_word_that_is_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["fly"], ["plan"], ["run", "x", "--resume"]):
        with pytest.raises(SystemExit) as caught:
            tiny.main(words)
        assert caught.value.code == 2
        assert re.fullmatch(r"error: .* \(more: .* --help\)\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("words", "command", "says"),
    [
        (["export", "x.yaml", "out", "--cluster", "y"], "export", "unrecognized arguments: --cluster y"),
        (["plan", "x.yaml", "--until", "data"], "plan", "unrecognized arguments: --until data"),
        (
            ["plan", "x.yaml", "--clutser", "y"],
            "plan",
            r"unrecognized arguments: --clutser y; did you mean --cluster\?",
        ),
        (
            ["run", "x.yaml", "--store", "y"],
            "run",
            r"unrecognized arguments: --store y; accepted: before the command, .* "
            r"--store PLACE COMMAND \.\.\.",
        ),
        (["run", "x.yaml", "--set", "a", "3"], "run", "argument --set: got 'a'; accepted: KEY=VALUE, as one word"),
        (["run", "x", "--set", "a=1", "--set", "a=2"], "run", "argument --set: a is set twice, to 1 and to 2. .*"),
        (["--stor", "x", "--fast", "plan", "x.yaml"], "", "unrecognized arguments: --fast"),
        (["serach", "x.yaml", "words"], "", r"argument COMMAND: invalid choice: 'serach' .*; did you mean search\?"),
        (["completion", "bahs"], "completion", r".*invalid choice: 'bahs' .*; did you mean bash\?"),
        (["fly"], "", r"argument COMMAND: invalid choice: 'fly' \(choose from [^)]*\)"),
    ],
)
def test_a_word_that_a_command_does_not_have_is_one_line_that_names_its_help(
    capsys: pytest.CaptureFixture[str], words: list[str], command: str, says: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        tiny.main(words)
    assert caught.value.code == 2
    name = f"{program()} {command}".strip()
    assert re.fullmatch(rf"error: {says} \(more: {name} --help\)\n", capsys.readouterr().err)


def test_a_python_without_the_packages_is_named() -> None:
    command = [sys.executable, "-S", "-m", "workflows", "plan", "x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"error: .* has no package numpy, psutil, .*\. Use the Python of .*\n", done.stderr)


# Disks


MOVED = {
    "store": r"; accepted: another place \(--store PLACE, or \$SPARRING_STORE\)",
    "runs": r"; accepted: another folder \(--runs FOLDER\)",
}


@pytest.mark.parametrize("which", ["store", "runs"])
@pytest.mark.parametrize("command", ["run", "tune"])
def test_a_place_that_one_may_not_write_to_is_named_before_anything_is_done(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, which: str, command: str
) -> None:
    """Whether the place is there, or only a folder above it; these tests may be run by root, who may write anywhere."""
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder))
    folder = tmp_path / "another's"
    folder.mkdir()

    def denied(dir: Path) -> Any:
        if folder in (dir, *dir.parents):
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return io.BytesIO()

    monkeypatch.setattr("sparring.components.files.tempfile.TemporaryFile", denied)
    for path in (folder / "new" / "deep", folder):
        places = {"store": place.store, "runs": place.runs, which: path}
        words = ["--store", str(places["store"]), "--runs", str(places["runs"]), command, str(place.config)]
        assert tiny.main([*words, "--cluster", str(place.folder / "inline.yaml")]) == 2
        out, err = said()
        assert (out, err.count("\n")) == ("", 1)
        assert re.fullmatch(
            rf"error: {path}\S*: the (store|run) cannot be there, as {folder} cannot be written to "
            rf"\(Permission denied\){MOVED[which]}\n",
            err,
        )
        assert not list(folder.iterdir())
    assert not place.store.exists()
    assert not place.runs.exists()


def test_a_store_that_one_may_not_even_read_is_named(
    tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tiny.place(tmp_path / "place", {"recipe": "adapt", "data": {"format": "lines", "path": "README.md"}})
    monkeypatch.setattr("sparring.workflows.store.object_store.os.access", lambda path, _: Path(path) != tmp_path)
    for command in ("plan", "run", "show", "clean"):
        assert tiny.main(["--store", str(tmp_path / "a" / "b"), command, str(place.config)]) == 2
        reason = rf"{tmp_path}/a/b: the store cannot be there, as {tmp_path} may not be read"
        assert re.fullmatch(rf"error: {reason}{MOVED['store']}\n", said()[1])


def test_a_part_of_the_store_that_is_anothers_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an artifact that another user has begun, or one that may not even be read."""
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder))
    assert place("run", "--until", "data", "--no-estimate") == 0
    (record,) = place.store.glob("ingest-*/artifact.json")
    read = Path.read_bytes

    def unread(path: Path) -> bytes:
        if path == record:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    def denied(dir: Path) -> Any:
        if dir == record.parent:
            raise PermissionError(errno.EACCES, "Permission denied", str(dir))
        return io.BytesIO()

    said()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", unread)
        for command in ("plan", "run"):
            assert place(command) == 2
            assert said()[1].startswith(f"error: {record}: Permission denied; accepted: ")
    record.unlink()
    monkeypatch.setattr("sparring.components.files.tempfile.TemporaryFile", denied)
    assert place("run", "--until", "data") == 2
    assert re.fullmatch(rf"error: {place.store}: .*{record.parent} cannot be .*{MOVED['store']}\n", said()[1])


def test_what_a_command_writes_is_tried_before_its_work(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(dir: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr("sparring.components.files.tempfile.TemporaryFile", denied)
    (tmp_path / "texts").write_text("a text\n")
    config, out = str(played.config), str(tmp_path / "out")
    for words, another in (
        (["init", str(tmp_path / "texts"), "-o", out], r"another file \(-o FILE\)"),
        (["record", config, out], "another FILE"),
        (["export", config, out], "another DIRECTORY"),
        (["marks", config, out], "another DIRECTORY"),
        (["convert", "x", out, "--model", "y"], "another DIRECTORY"),
    ):
        assert tiny.main(["--store", str(played.store), "--runs", str(played.runs), *words]) == 2
        reason = rf"{tmp_path} cannot be written to \(Permission denied\)"
        assert re.fullmatch(rf"error: {out}: cannot be written, as {reason}; accepted: {another}\n", "".join(said()))


def test_a_store_that_becomes_read_only_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, no traceback; and the same command resumes when it can."""
    place, mkdir = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder)), os.mkdir

    def read_only(path: Any, *arguments: Any) -> None:
        if str(path).startswith(place.where):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        mkdir(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", read_only)
        assert place("run", "--until", "data", "--no-estimate") == 1
    kept = "Finished steps are kept. Fix the cause, then repeat the command to resume."
    assert re.fullmatch(rf"failed: {place.store}(/ingest-\w+)?: Read-only file system\n{kept}\n", said()[1])
    assert place("run", "--until", "data", "--no-estimate") == 0


def test_an_output_that_cannot_be_written_is_named(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And neither the store nor the runs, of whose disks it says nothing."""
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder))
    with monkeypatch.context() as patch, open("/dev/full", "w", encoding="utf-8") as full:
        patch.setattr(sys, "stdout", full)
        assert place("plan") == 1
    assert said()[1].startswith("failed: standard output: No space left on device\n")
