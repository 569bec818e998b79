"""What a run sends to its sinks: losses, throughput and measures, each once."""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparring.workflows.running import tracking
from sparring.workflows.running.tracking import STATE, Tracker, track_step
from sparring.workflows.store.progress import Progress
from tests.support import tiny
from tests.support.tiny import Place, Said


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self, run: Path, ids: dict[str, str]) -> None:
        self.sent: list[tuple[str, dict[str, float], int]] = []
        ids["kept"] = "7"

    def send(self, series: str, values: dict[str, float], step: int) -> None:
        self.sent.append((series, values, step))

    def close(self) -> None:
        self.sent.append(("closed", {}, 0))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tracker:
    """A tracker with one such sink."""
    monkeypatch.setattr(tracking, "_TensorBoard", Kept)
    return Tracker(tmp_path, ["tensorboard"], "one")


def sent(tracker: Tracker) -> list[tuple[str, dict[str, float], int]]:
    return tracker._open()[0].sent  # type: ignore[attr-defined,no-any-return]


def log(out: Path, *lines: dict[str, Any], rest: str = "") -> Path:
    out.mkdir(exist_ok=True)
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + rest)
    return out


LINES: list[dict[str, Any]] = [
    {"update": 10, "distillation": 2.0, "learning_rate": 1e-4, "gradient_norm": 1.5, "seconds": 4.0},
    {"update": 15, "dev RR": 0.25},
    {"update": 20, "distillation": 1.0, "learning_rate": 5e-5, "gradient_norm": 1.0, "seconds": 6.0},
]


def test_each_line_of_a_trainings_log_is_sent_once(kept: Tracker, tmp_path: Path) -> None:
    """Losses by name, and updates a second since the line before. A half-written line is sent the next time."""
    out = log(tmp_path / "train", LINES[0], LINES[1], rest='{"update": 20, "dist')
    kept.send_training("retriever 1", out)
    first = {"loss/distillation": 2.0, "learning_rate": 1e-4, "gradient_norm": 1.5, "updates_per_second": 2.5}
    assert sent(kept) == [("retriever 1", first, 10), ("retriever 1", {"dev/RR": 0.25}, 15)]
    log(out, *LINES)
    kept.send_training("retriever 1", out)
    kept.send_training("retriever 1", out)
    assert sent(kept)[2:] == [
        (
            "retriever 1",
            {"loss/distillation": 1.0, "learning_rate": 5e-5, "gradient_norm": 1.0, "updates_per_second": 5.0},
            20,
        ),
    ]


def test_a_resumed_run_sends_only_what_is_new(kept: Tracker, tmp_path: Path) -> None:
    kept.send_training("a", log(tmp_path / "train", *LINES[:2]))
    later = Tracker(tmp_path, ["tensorboard"], "one")
    later.send_training("a", log(tmp_path / "train", *LINES))
    assert [step for _, _, step in sent(later)] == [20]
    assert later._state["ids"] == {"kept": "7"}  # so that a service continues its own run


def test_a_development_line_that_follows_the_line_of_its_update_is_sent(kept: Tracker, tmp_path: Path) -> None:
    """The log is read between the two writes; a resumed training writes the lines since its checkpoint again."""
    dev = {"update": 10, "dev RR": 0.5}
    kept.send("retriever 1", {"updates_per_second": 1.0}, 15)  # progress, which was counted before the log was there
    kept.send_training("retriever 1", log(tmp_path / "train", LINES[0]))
    kept.send_training("retriever 1", log(tmp_path / "train", LINES[0], dev))
    kept.send_training("retriever 1", log(tmp_path / "train"))
    kept.send_training("retriever 1", log(tmp_path / "train", LINES[0], dev, LINES[2]))
    assert [step for _, values, step in sent(kept) if "loss/distillation" in values] == [10, 20]
    assert [(values, step) for _, values, step in sent(kept) if "dev/RR" in values] == [({"dev/RR": 0.5}, 10)]


def test_another_artifact_under_the_same_label_is_sent_from_its_beginning(kept: Tracker, tmp_path: Path) -> None:
    kept.send_training("a", log(tmp_path / "train-one", *LINES))
    kept.send_training("a", log(tmp_path / "train-two", *LINES[:1]))
    assert [step for _, _, step in sent(kept)] == [10, 15, 20, 10]


@pytest.mark.parametrize("damaged", ["", "{"])
def test_what_was_sent_and_cannot_be_read_is_sent_again(kept: Tracker, tmp_path: Path, damaged: str) -> None:
    out = log(tmp_path / "train", *LINES)
    kept.send_training("a", out)
    (tmp_path / STATE).write_text(damaged)
    second = Tracker(tmp_path, ["tensorboard"], "one")
    second.send_training("a", out)
    assert [step for _, _, step in sent(second)] == [10, 15, 20]


def test_another_experiment_in_the_same_folder_begins_anew(kept: Tracker, tmp_path: Path) -> None:
    """After an edited config nothing of the one before is shown beside it, and services get a run of their own."""
    out = log(tmp_path / "train", *LINES)
    kept.send_training("a", out)
    (tmp_path / "tensorboard" / "a").mkdir(parents=True)
    (tmp_path / "tensorboard" / "a" / "events").touch()
    same = Tracker(tmp_path, ["tensorboard"], "one")
    same.send_training("a", out)
    assert (tmp_path / "tensorboard" / "a" / "events").exists()
    second = Tracker(tmp_path, ["tensorboard"], "two")
    assert second._state["ids"] == {}
    second.send_training("a", out)
    assert [step for _, _, step in sent(second)] == [10, 15, 20]
    assert not (tmp_path / "tensorboard").exists()


def test_the_throughput_and_the_log_of_a_running_step_are_sent(
    kept: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "POLL_SECONDS", 0.01)
    with track_step(kept, "vectors", tmp_path), Progress(tmp_path, 10, "texts", done=2) as counted:
        counted.set_done(6)
        counted._began -= 2.0  # two seconds ago
        counted._write()
        while not sent(kept):
            pass
    series, values, step = sent(kept)[0]
    assert (series, step) == ("vectors", 6)
    assert values["texts_per_second"] == pytest.approx(2.0, rel=0.1)
    with track_step(kept, "b", log(tmp_path / "b", *LINES)):
        pass
    assert [step for series, _, step in sent(kept) if series == "b"] == [
        10,
        15,
        20,
    ]  # the last line too
    with track_step(None, "b", tmp_path):
        pass


def test_measures_are_sent_by_system_and_round(kept: Tracker) -> None:
    def row(system: str, number: int | None, measure: str, value: float) -> dict[str, Any]:
        return {"system": system, "round": number, "measure": measure, "value": value}

    kept.send_measures(
        [
            row("BM25", None, "RR@10", 0.1),
            row("warm retriever", 0, "RR@10", 0.2),
            row("warm retriever", 0, "R@100", 0.5),
            row("retriever 1", 1, "RR@10", 0.3),
            row("retriever 1", 1, "R@100", 0.6),
        ]
    )
    assert ("measures/BM25", {"RR@10": 0.1}, 0) in sent(kept)
    assert ("measures/retriever", {"RR@10": 0.2, "R@100": 0.5}, 0) in sent(kept)
    assert ("measures/retriever", {"RR@10": 0.3, "R@100": 0.6}, 1) in sent(kept)


def test_a_sink_that_fails_gets_nothing_more(kept: Tracker, tmp_path: Path, said: Said) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no route to http://me:swordfish@host")

    sink = kept._open()[0]
    sink.send = refuse  # type: ignore[method-assign]
    kept.send_training("a", log(tmp_path / "train", *LINES))
    assert said()[1] == "Kept: no route to http://***@host; nothing more is sent there\n"
    assert kept._open() == []


def events(folder: Path) -> dict[str, list[int]]:
    """The steps of each tag in a folder's event files."""
    from tensorboardX.proto.event_pb2 import Event

    curves: dict[str, list[int]] = {}
    for path in sorted(folder.rglob("events.out.*")):
        data, offset = path.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            event = Event.FromString(data[offset + 12 : offset + 12 + length])
            offset += 12 + length + 4
            for value in event.summary.value:
                curves.setdefault(f"{path.parent.relative_to(folder)}: {value.tag}", []).append(event.step)
    return curves


def test_a_run_writes_event_files_for_tensorboard(played: Place) -> None:
    curves = events(played.runs / "tiny" / "tensorboard")
    assert curves["retriever 1: loss/distillation_group"] == [1, 2, 3]
    assert curves["warm ranker: learning_rate"] == [1, 2, 3]
    assert curves["measures/retriever: RR_10"] == [0, 1]
    assert "measures/BM25: RR_10" in curves


def test_many_series_keep_few_threads_and_every_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "OPEN_SERIES", 2)
    tracker = Tracker(tmp_path, ["tensorboard"], "one")
    before = threading.active_count()
    for step in range(3):
        for series in "abcde":
            tracker.send(series, {"loss": 1.0}, step)
    while threading.active_count() > before + 2 * 2:  # a closed file's thread ends a moment later
        time.sleep(0.01)
    tracker.close()
    assert events(tmp_path / "tensorboard") == {f"{series}: loss": [0, 1, 2] for series in "abcde"}


def test_an_edited_config_shows_its_own_trainings_alone(played: Place, tmp_path: Path) -> None:
    """Those that it shares with the one before too, though nothing of them runs."""
    place = played.copy(tmp_path / "copy")
    before = events(place.runs / "tiny" / "tensorboard")
    tree = yaml.safe_load(place.config.read_text())
    del tree["controls"]
    tree["retriever"]["game"]["train"]["updates"] = 2
    tiny.write(place.config, tree)
    assert place("run") == 0
    after = events(place.runs / "tiny" / "tensorboard")
    assert after["retriever 1: loss/distillation_group"] == [1, 2]
    assert after["warm ranker: learning_rate"] == before["warm ranker: learning_rate"] == [1, 2, 3]
    assert any(series.startswith("control") for series in before)
    assert not any(series.startswith("control") for series in after)
    assert place("run") == 0
    assert events(place.runs / "tiny" / "tensorboard") == after


def test_the_sinks_are_no_part_of_the_identity(played: Place, tmp_path: Path, said: Said) -> None:
    place = played.copy(tmp_path / "copy")
    tiny.write(place.folder / "inline.yaml", {**tiny.INLINE, "track": []})
    assert place("run") == 0
    assert "nothing to run" in said()[0]


def test_a_run_without_sinks_writes_no_files_for_them(beir: Path, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder), track=[])
    assert place("run", "--until", "tokens") == 0
    assert {path.name for path in (place.runs / "tiny").iterdir() if not path.is_symlink()} == {
        "config.yaml",
        "from.txt",
        "plan.txt",
        "estimate.json",
    }


@pytest.mark.parametrize("kind", ["mlflow", "wandb"])
def test_a_sink_that_is_not_installed_is_refused_before_anything_runs(
    played: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tracking, "is_installed", lambda _: False)
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()), track=[kind])
    assert place("run", "--until", "data") == 2
    assert said()[1] == (
        f"error: cluster: track: {kind} is not installed; accepted: leave it out, or `pip install {kind}` first\n"
    )
    assert not list(place.store.glob("*"))
    assert not place.runs.exists()


def test_what_mlflow_and_wandb_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded by stand-ins with the functions that are used of them."""
    calls: list[Any] = []

    def note(name: str, returns: Any = None) -> Any:
        def call(*words: Any, **named: Any) -> Any:
            calls.append((name, *words, named))
            return returns

        return call

    begun = types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"), id="w1")
    stand_ins = {
        "mlflow": {"set_experiment": None, "start_run": begun, "log_metrics": None, "end_run": None},
        "wandb": {"init": begun, "define_metric": None, "log": None, "finish": None},
    }
    for module, functions in stand_ins.items():
        stub = types.ModuleType(module)
        for name, returns in functions.items():
            setattr(stub, name, note(f"{module}.{name}", returns))
        monkeypatch.setitem(sys.modules, module, stub)
    for step in (1, 2):  # the second time resumed
        tracker = Tracker(tmp_path / "demo", ["mlflow", "wandb"], "one")
        (tmp_path / "demo").mkdir(exist_ok=True)
        tracker.send("retriever 1", {"loss/a": 0.5}, step)
        tracker.send("retriever 1 (seed 2)", {"RR@10": 0.5}, step)
        tracker.close()
    assert ("mlflow.start_run", {"run_id": None, "run_name": "demo"}) in calls
    assert ("mlflow.start_run", {"run_id": "m1", "run_name": "demo"}) in calls
    assert ("mlflow.log_metrics", {"retriever_1/loss/a": 0.5}, {"step": 2}) in calls
    assert ("mlflow.log_metrics", {"retriever_1_seed_2/RR_10": 0.5}, {"step": 2}) in calls
    assert [call[-1]["id"] for call in calls if call[0] == "wandb.init"] == [None, "w1"]
    assert ("wandb.log", {"retriever 1/step": 1, "retriever 1/loss/a": 0.5}, {}) in calls
    assert ("wandb.define_metric", "retriever 1/*", {"step_metric": "retriever 1/step"}) in calls
