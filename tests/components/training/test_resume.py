"""Going on: a training that was killed anywhere, and one that carries on from another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparring.components import files
from sparring.components.config import UserError
from sparring.components.training import checkpoints, loop
from sparring.components.training.schedule import learning_rate
from sparring.components.training.state import Best, TrainingState
from tests.support import toy
from tests.support.tiny import ROOT
from tests.support.trainings import Interrupted, assert_same, lines, weights


@pytest.mark.parametrize("stop", [0, 1, 4, 5])
def test_interrupted_anywhere_it_ends_as_if_never_interrupted(
    run: Any, tmp_path: Path, stop: int, encoder: Path
) -> None:
    """With dropout, a table that is passed more than once, and an interval of logging that is cut in two."""
    model = toy.started(tmp_path / "dropping", toy.retriever_config(encoder, dropout=0.3, towers="separate"))
    losses = [
        {"function": toy.CROSS_ENTROPY, "over": "batch", "weight": 0.5},
        {"function": "components.losses.listwise.distillation"},
    ]
    options = {"updates": 6, "batch": 8, "log_every": 2, "losses": losses, "start": model, "weight_decay": 0.1}
    run("a", **options)
    with pytest.raises(Interrupted):
        run("b", stop=stop, **options)
    assert not (tmp_path / "b" / "state").exists()
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("kind", ["bert", "t5"])
def test_interrupted_with_adafactor_and_weights_in_common(run: Any, tmp_path: Path, kind: str) -> None:
    """Embeddings that stand under two names are kept once; those that are frozen stay as they were."""
    place = toy.write_encoder(tmp_path / kind, kind, tokenizer=toy.bert_tokenizer())
    tower = {"towers": "separate", "share": ["embedder", "projection"], "projection": 8, "pooling": "mean"}
    for name, frozen in (("a", []), ("f", ["embedder"])):
        model = toy.started(tmp_path / f"{name}0", toy.retriever_config(place, dropout=0.3, freeze=frozen, **tower))
        options = {"updates": 4, "optimizer": "adafactor", "learning_rate": 1e-2, "warmup": 0.0, "start": model}
        run(f"{name}1", **options)
        with pytest.raises(Interrupted):
            run(f"{name}2", stop=2, **options)
        run(f"{name}2", **options)
        assert_same(tmp_path / f"{name}1", tmp_path / f"{name}2")
        before, after = weights(model), weights(tmp_path / f"{name}1")
        words = [key for key in before if key.endswith(("word_embeddings.weight", "shared.weight"))]
        assert len(words) == 2
        assert [torch.equal(before[key], after[key]) for key in words] == [bool(frozen)] * 2
        assert torch.equal(after[words[0]], after[words[1]])
        assert not torch.equal(before["1_Dense/linear.weight"], after["1_Dense/linear.weight"])


def test_interrupted_again_and_again(run: Any, tmp_path: Path) -> None:
    """Also between a checkpoint and the next: what was done since is done again, and logged once."""
    options = {"updates": 7, "kind": "ranker", "log_every": 1, "dev": True, "validate_on_dev": {"every": 2}}
    run("a", **options)
    for stop in (2, 3, 6):
        with pytest.raises(Interrupted):
            run("b", stop=stop, **options)
    with pytest.raises(Interrupted):
        run("b", stop=6, save_seconds=1e9, **options)  # from 5 to 6 without a checkpoint
    run("b", **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_a_line_cut_in_half_by_a_kill_is_dropped(run: Any, tmp_path: Path) -> None:
    run("a", updates=5, log_every=1)
    with pytest.raises(Interrupted):
        run("b", updates=5, log_every=1, stop=3)
    with (tmp_path / "b/metrics.jsonl").open("a") as file:
        file.write('{"update": 4, "cross_ent')
    run("b", updates=5, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_a_checkpoint_that_was_not_finished_is_not_taken_up(run: Any, tmp_path: Path) -> None:
    """The kill came while checkpoint 3 was written: it lies beside the others under its temporary name."""
    run("a", updates=5)
    with pytest.raises(Interrupted):
        run("b", updates=5, stop=2)
    checkpoints = tmp_path / "b/checkpoints"
    newest = sorted(checkpoints.iterdir())[-1]
    assert newest.name == "update-000002"
    half = checkpoints / ".update-000003.0a1b2c3d"
    half.mkdir()
    (half / "state.json").write_text('{"update"')
    run("b", updates=5)
    assert_same(tmp_path / "a", tmp_path / "b")
    assert not checkpoints.exists()


def test_only_the_newest_checkpoints_are_kept(run: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run("a", updates=9, stop=6)
    assert [path.name for path in sorted((tmp_path / "a/checkpoints").iterdir())] == ["update-000005", "update-000006"]


def test_after_a_million_updates_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    """As text, update-1000000 stands before update-999999."""
    module, optimizer = torch.nn.Linear(2, 2), torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    for update in range(999_997, 1_000_003):
        checkpoints.save(tmp_path, module, optimizer, TrainingState(update=update))
        assert checkpoints.newest(tmp_path) == tmp_path / f"update-{update:06d}"
    assert {path.name for path in tmp_path.iterdir()} == {"update-1000001", "update-1000002"}


def test_only_the_best_weights_that_a_checkpoint_or_the_training_names_are_kept(tmp_path: Path) -> None:
    """However long the next checkpoint is away."""
    module, optimizer = torch.nn.Linear(2, 2), torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    state = TrainingState()
    names = []
    for update in range(999_990, 1_000_010):
        state.update, state.best = update, Best(float(update), update)
        checkpoints.save_best(tmp_path, module, state)
        if update % 5 == 0:
            checkpoints.save(tmp_path, module, optimizer, state)
        names.append({path.name for path in tmp_path.glob("best-*")})
    named = {f"best-{update}" for update in (1_000_000, 1_000_005, 1_000_009)}
    assert names[-1] == named
    assert max(map(len, names)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {*named, "update-1000000", "update-1000005"}


def test_best_weights_that_were_dropped_by_half_are_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill came while they were dropped; the training makes them again and does not end with half of them."""
    module, optimizer = torch.nn.Linear(2, 2), torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    states = {update: TrainingState(update=update, best=Best(float(update), update)) for update in (1, 2, 3)}
    checkpoints.save_best(tmp_path, module, states[1])
    checkpoints.save(tmp_path, module, optimizer, states[1])
    checkpoints.save_best(tmp_path, module, states[2])

    def dying(path: Path, **_: Any) -> None:
        (path / checkpoints.WEIGHTS).unlink()
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(files.shutil, "rmtree", dying)
        with pytest.raises(Interrupted):
            checkpoints.save_best(tmp_path, module, states[3])
    checkpoints.save_best(tmp_path, module, states[2])
    checkpoints.read_weights(module, checkpoints.best(tmp_path, states[2]), torch.device("cpu"))


def test_what_is_finished_is_not_done_again(run: Any, tmp_path: Path) -> None:
    """Killed after the model was written and before the step's record was: nothing is trained anew."""
    summary = run("a", updates=3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()}

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it trained")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_update", never)
        assert run("a", updates=3) == summary
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "a").rglob("*") if path.is_file()} == before


def test_killed_while_it_writes_its_end_it_ends_once_more(run: Any, tmp_path: Path) -> None:
    """A model is there but not the state: the last checkpoint is taken up and the end is written again."""
    run("a", updates=4)
    run("b", updates=4, save_seconds=1e9)
    with pytest.MonkeyPatch.context() as patch:
        real = loop.write_json

        def dying(path: Path, value: Any) -> None:
            if path.parent.name.startswith(".state."):
                raise Interrupted
            real(path, value)

        patch.setattr(loop, "write_json", dying)
        (tmp_path / "c").mkdir()
        with pytest.raises(Interrupted):
            run("c", updates=4)
    assert (tmp_path / "c" / "model").exists()
    run("c", updates=4)
    assert_same(tmp_path / "a", tmp_path / "c")
    assert_same(tmp_path / "a", tmp_path / "b")


def test_carrying_all_goes_on_with_moments_and_schedule(run: Any, tmp_path: Path) -> None:
    """Three trainings of two steps on one schedule are one of six, as far as the same rows come."""
    options = {"batch": 24, "schedule_updates": 6, "log_every": 1}  # every step sees every row, in another order
    run("a", updates=6, **options)
    start = None
    for i in range(3):
        (tmp_path / f"part{i}").mkdir()
        run(f"part{i}", updates=2, start=start, carry="all" if i else "weights", **options)
        start = tmp_path / f"part{i}"
    assert json.loads((start / "state/state.json").read_text())["schedule_update"] == 6
    rates = [line["learning_rate"] for i in range(3) for line in lines(tmp_path / f"part{i}")]
    assert rates == [line["learning_rate"] for line in lines(tmp_path / "a")]
    whole, parts = (load_file(place / "state/optimizer.safetensors") for place in (tmp_path / "a", start))
    assert {float(value) for name, value in parts.items() if name.endswith("/step")} == {6.0}
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=1e-6, msg=name)
    a, b = weights(tmp_path / "a"), weights(start)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5, msg=name)


def test_carrying_weights_begins_schedule_and_moments_anew(run: Any, tmp_path: Path) -> None:
    run("a", updates=2)
    run("b", updates=2, start=tmp_path / "a", log_every=1)
    assert {float(v) for k, v in load_file(tmp_path / "b/state/optimizer.safetensors").items() if "step" in k} == {2.0}
    assert json.loads((tmp_path / "b/state/state.json").read_text())["schedule_update"] == 2
    assert lines(tmp_path / "b")[0]["learning_rate"] == learning_rate(toy.train_config(updates=2), 0)


def test_an_optimizer_is_kept_where_another_training_may_carry_it(run: Any, tmp_path: Path) -> None:
    run("alone", updates=2, schedule_updates=None)
    assert [path.name for path in (tmp_path / "alone/state").iterdir()] == ["state.json"]
    with pytest.raises(UserError, match=r"carry: got all, but the start model was saved without its optimizer. Use "):
        run("next", updates=2, start=tmp_path / "alone", carry="all")


def test_interrupted_while_carrying_all(run: Any, tmp_path: Path) -> None:
    run("a", updates=3, schedule_updates=9)
    options = {"updates": 4, "schedule_updates": 9, "carry": "all", "start": tmp_path / "a", "log_every": 1}
    run("b", **options)
    (tmp_path / "c").mkdir()
    with pytest.raises(Interrupted):
        run("c", stop=2, **options)
    run("c", **options)
    assert_same(tmp_path / "b", tmp_path / "c")


@pytest.mark.kill
def test_killed_outright_it_ends_as_if_never_killed(
    run: Any, tmp_path: Path, data: Path, tokens: Path, retriever: Path
) -> None:
    """A process of its own is killed by SIGKILL at several steps, and the last one goes to the end."""
    script = tmp_path / "one.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import os, signal, sys
            from pathlib import Path
            import torch
            from sparring.components.training.loop import train
            from sparring.components.training.objective import ObjectiveInputs, objective_named
            from tests.support import toy
            config = toy.train_config(updates=8, log_every=1)
            def build():
                return objective_named("retriever")(ObjectiveInputs(
                    model=Path({str(retriever)!r}) / "model", rows=Path({str(tmp_path)!r}) / "groups",
                    data=Path({str(data)!r}), tokens=Path({str(tokens)!r}), losses=config.losses, max_tokens=200,
                    recompute=False,
                ))
            def on_update(update, note):
                if update == int(sys.argv[1]):
                    os.kill(os.getpid(), signal.SIGKILL)
            train(build(), config, out=Path({str(tmp_path)!r}) / "b", seed=1, start=Path({str(retriever)!r}),
                  device=torch.device("cpu"), dev=None, save_seconds=-1.0, on_update=on_update)
            """
        )
    )
    for stop in (1, 4, 7, -1):
        done = subprocess.run(
            [sys.executable, script, str(stop)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
        assert done.returncode == (-signal.SIGKILL if stop > 0 else 0)
    run("a", updates=8, log_every=1)
    assert_same(tmp_path / "a", tmp_path / "b")
