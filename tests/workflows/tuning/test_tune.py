"""Tuning: what trials share is done once, who is behind is stopped, and the same command goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.search_space import Range
from tests import tiny
from tests.tiny import ROOT, Place, Said
from workflows import recipes, tune
from workflows.__main__ import main, parser
from workflows.cluster import Cluster
from workflows.store import Store, todo
from workflows.trials import Book, Trial, headings, scatter, table, write_page

pytestmark = pytest.mark.timeout(900)  # trials are processes that import torch: minutes where other programs are busy


WARM, GAME = "retriever.warm.train.learning_rate", "retriever.game.train.learning_rate"


def tree(beir: Path, encoder: Path, **options: Any) -> dict[str, Any]:
    """A game without controls, and a tuning of its learning rates."""
    space = {WARM: {"grid": [1e-3, 1e-9]}, GAME: {"grid": [1e-3, 2e-3]}}
    asked = {"measure": "RR@10", "systems": ["warm retriever", "retriever 1"], "space": space, **options}
    return {**tiny.ar2(beir, encoder), "controls": {"play": []}, "tune": asked}


def tuned(place: Place, *words: str) -> Path:
    """`tune` in this process, in the session's Ray, but for finishing the best trial."""
    return tune.tune(parser().parse_args(place.words("tune", *words)), Store(place.store))


def trials(place: Place, run: str = "tiny") -> list[dict[str, Any]]:
    """What trials.json says."""
    return list(json.loads((place.runs / run / "trials.json").read_text())["trials"])


def records(place: Place, function: str = "*") -> dict[str, tuple[float, float]]:
    """Beginning and end of every artifact that is there."""
    found = {}
    for path in place.store.glob(f"{function}-*/artifact.json"):
        record = json.loads(path.read_text())
        found[path.parent.name] = record["started"], record["started"] + record["seconds"]
    return found


@pytest.fixture(scope="module")
def halved(ray: Cluster, beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Four trials of which two begin at a time, and ASHA lets the better half go on."""
    folder = tmp_path_factory.mktemp("tuned")
    place = tiny.place(folder, tree(beir, encoder, scheduler="asha", keep=2), trials=2)
    assert tuned(place) == folder / "runs" / "tiny" / "tiny-best.yaml"
    return place


def test_trials_that_are_behind_are_stopped(halved: Place) -> None:
    found = trials(halved)
    # The config as it is is the first point of the grid: it is no trial of its own.
    assert [(one["point"].get(WARM), one["point"].get(GAME)) for one in found] == [
        (None, None), (1e-3, 2e-3), (1e-9, 1e-3), (1e-9, 2e-3),
    ]  # fmt: skip
    assert [one["state"] for one in found] == ["done", "done", "stopped", "stopped"]
    assert [len(one["measures"]) for one in found] == [2, 2, 1, 1]
    assert found[0]["shown"] == {WARM: 1e-3, GAME: 1e-3}


def test_what_trials_share_is_done_once(halved: Place) -> None:
    """Every artifact is one trial's work, or was done before all of them: none was done twice."""
    found = trials(halved)
    first = min(began for began, _ in records(halved, "train").values())
    before = [name for name, (_, ended) in records(halved).items() if ended <= first]
    assert {name.partition("-")[0] for name in before} >= {"ingest", "start", "tokenize", "mine"}
    assert sum(one["steps"] for one in found) == len(records(halved)) - len(before)
    # Trials 0 and 1 began at the same moment with the same warm-up, and so did 2 and 3.
    assert len(records(halved, "train")) == 2 + 2 + 2  # warm retrievers; warm ranker and its round; two games
    assert {one["steps"] for one in found[2:]} != {0}


def test_the_measure_is_the_recipes_own(halved: Place) -> None:
    """A trial is what `run --set` makes of its numbers: there is nothing left to do for it."""
    one = trials(halved)[1]
    sets = [f"{key}={json.dumps(value)}" for key, value in one["point"].items()]
    same = recipes.read(halved.config, ["evaluate.split=dev", *sets], halved.runs)
    store = Store(halved.store)
    measured = [e["metrics"] for e in same.outcome.results.inputs["systems"] if e["system"] == "retriever 1"]
    record = store.record(measured[0])
    assert record is not None
    assert record["summary"]["measures"]["RR@10"] == one["measures"][1]
    assert todo(measured, store) == []


def test_a_stopped_trial_is_finished_by_what_is_left(halved: Place) -> None:
    one = trials(halved)[2]
    sets = [f"{key}={json.dumps(value)}" for key, value in one["point"].items()]
    same = recipes.read(halved.config, ["evaluate.split=dev", *sets], halved.runs)
    board = {e["system"]: e["metrics"] for e in same.outcome.results.inputs["systems"]}
    left = {node.label for node in todo([board["retriever 1"]], Store(halved.store))}
    assert left == {
        "warm ranker groups", "warm ranker", "ranker 1 groups", "ranker 1", "retriever 1 groups", "judged 1",
        "retriever 1", "retriever 1 vectors", "retriever 1 ranking", "retriever 1 measures",
    }  # fmt: skip
    assert not todo([board["warm retriever"]], Store(halved.store))


def test_the_same_command_again_does_nothing(halved: Place, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "ray_session", None)  # not even Ray is joined
    before, done = records(halved), trials(halved)
    best = tuned(halved)
    assert (records(halved), trials(halved)) == (before, done)
    out, err = said()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "RR@10, dev split; 4 trials: 2 done, 2 stopped"
    assert lines[2].split() == ["trial", "warm.train.learning_rate", "game.train.learning_rate", "warm", "retriever",
                                "retriever", "1"]  # fmt: skip
    assert lines[3].endswith("  best")
    assert sum("the config as it is" in line for line in lines) == 1
    assert lines[-2] == f"the report: {halved.runs / 'tiny' / 'tune.html'}"
    assert best.exists()


def test_the_best_config_runs_as_it_is(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "copy")
    best = place.runs / "tiny" / "tiny-best.yaml"
    numbers = [one for one in trials(place) if one["state"] == "done"]
    winner = max(numbers, key=lambda one: one["measures"][-1])
    text = best.read_text()
    assert f"RR@10 {winner['measures'][-1]:.3f} of retriever 1" in text
    assert "--set evaluate.split=test\n" in text
    assert yaml.safe_load(text)["retriever"]["game"]["train"]["learning_rate"] == winner["shown"][GAME]
    run = ["--store", str(place.store), "--runs", str(place.runs), "run", str(best), "--cluster",
           str(place.folder / "inline.yaml")]  # fmt: skip
    trained = records(place, "train")
    assert main(run) == 0  # what the measures did not need: BM25, the ranker over it
    assert set(records(place, "train")) == set(trained)
    rows = place.metrics("tiny-best")["rows"]
    value = next(row["value"] for row in rows if (row["system"], row["measure"]) == ("retriever 1", "RR@10"))
    assert value == pytest.approx(winner["measures"][-1])
    said()
    assert main(run) == 0
    assert "nothing to run" in said()[0]


def test_the_page(halved: Place) -> None:
    page = (halved.runs / "tiny" / "tune.html").read_text()
    assert page.count("<svg") == 2
    assert page.count("<circle") == 8
    assert "http" not in page.replace("http-equiv", "")
    assert "retriever.warm.train.learning_rate" in page
    assert "2 done, 2 stopped" in page


def test_keys_that_no_training_knows_of_train_nothing(halved: Place, tmp_path: Path, said: Said) -> None:
    """A ranker's depth: the models are what all trials have in common."""
    place = halved.copy(tmp_path / "copy")
    config = yaml.safe_load(place.config.read_text())
    config["tune"] = {
        "measure": "RR@10", "systems": ["ranker over retriever 1"], "space": {"rerank.depth": {"grid": [2, 5, 10]}}
    }  # fmt: skip
    tiny.write(place.config, config)
    tiny.write(place.folder / "inline.yaml", {**tiny.INLINE, "trials": 1})
    trained = records(place, "train")
    tuned(place)
    assert records(place, "train") == trained
    assert [(one["steps"], one["state"]) for one in trials(place)] == [(2, "done")] * 3  # rerank, evaluate
    assert "first what all trials have in common" not in said()[1]


def test_a_trial_that_fails_is_one_trial(halved: Place, tmp_path: Path, said: Said) -> None:
    place = halved.copy(tmp_path / "copy")
    words = ["--set", f"tune.space.{WARM}.grid=[1.0e-3, 1.0e+38]", "--set", "tune.systems=[warm retriever]"]
    words += ["--set", f"tune.space={{{WARM}: {{grid: [1.0e-3, 1.0e+38]}}}}"]
    tuned(place, *words)
    out, err = said()
    assert re.search(r"^trial 1: failed: step 'warm retriever' failed: .*  \(", err, re.M)
    assert out.startswith("RR@10, dev split; 2 trials: 1 done, 1 failed\n")
    assert re.search(r"^  trial 1 failed: step 'warm retriever' failed: .*gradient", out, re.M)


OPTUNA = {"search": "optuna", "space": {GAME: {"loguniform": [1e-5, 1e-2]}}, "trials": 3}


@pytest.mark.kill
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("options", "states", "same"),
    [
        pytest.param({}, ["done"] * 4, 2, id="grid"),
        pytest.param({"scheduler": "asha", "keep": 2}, ["done", "done", "stopped", "stopped"], 4, id="asha"),
        pytest.param(OPTUNA, ["done"] * 4, 1, id="optuna"),
    ],
)
def test_a_tuning_that_is_killed_goes_on(
    beir: Path, encoder: Path, halved: Place, tmp_path: Path, options: dict[str, Any], states: list[str], same: int
) -> None:
    """Killed when a trial is done: that one is not begun again, and all comes out as if nothing had been, but for what
    Optuna draws: it begins from another seed, and knows what was known."""
    place = tiny.place(tmp_path, tree(beir, encoder, **options), trials=2)
    command = [sys.executable, "-m", "workflows", *place.words("tune")]
    path = place.runs / "tiny" / "trials.json"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as driver:
        while not (path.exists() and any(one["state"] == "done" for one in trials(place))):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.kill()
    drawn = [one["point"] for one in trials(place)]
    done = {one["number"]: one for one in trials(place) if one["state"] == "done"}
    artifacts = records(place)
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    for number, one in done.items():
        assert trials(place)[number] == one
        assert not re.search(rf"^trial {number}: ", again.stderr, re.M)
    now = records(place)
    assert {name: now[name] for name in artifacts} == artifacts
    found = trials(place)
    assert [one["point"] for one in found[: len(drawn)]] == drawn
    assert [one["state"] for one in found] == states
    for one, other in zip(found[:same], trials(halved)[:same], strict=True):
        assert (one["point"], one["measures"]) == (other["point"], other["measures"])


@pytest.mark.kill
@pytest.mark.timeout(600)
def test_ctrl_c_ends_a_tuning_in_a_line(beir: Path, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder), trials=2)
    command = [sys.executable, "-m", "workflows", *place.words("tune")]
    path = place.runs / "tiny" / "trials.json"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as driver:
        while not (path.exists() and any(one["state"] == "running" for one in trials(place))):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.send_signal(signal.SIGINT)
        _, err = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert err.splitlines()[-1].startswith("interrupted; ")
    assert "Traceback" not in err


# Mistakes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"measure": "RR@11"}, r"tune\.measure: RR@11 is not measured; accepted: RR@10, Success@5, R@100"),
        ({"measure": "MRR11"}, r"tune: measure: measure 'MRR11': not known"),
        ({"systems": []}, r"tune: systems: .*at least 1 item"),
        ({"systems": ["retriever 2"]}, r"tune\.systems: there is no 'retriever 2'; accepted: BM25, start model, "),
        ({"systems": ["BM25", "BM25"]}, r"tune: systems: a system stands twice"),
        ({"split": "test"}, r"tune\.split: 'test' is for the results alone; .*accepted: another split, such as dev"),
        ({"trials": 0}, r"tune: trials: .*greater than or equal to 1, got 0"),
        ({"search": "grid"}, r"tune: search: Input should be 'random' or 'optuna', got 'grid'"),
        ({"keep": 1}, r"tune: keep: .*greater than or equal to 2"),
        ({"spaces": {}}, r"tune: spaces: unknown key; accepted: measure, systems, split, goal, trials, "),
        ({"space": {}}, r"tune: space: .*at least 1 item"),
        ({"space": {WARM: {"loguniform": [0, 1]}}}, r"tune: space\.retriever\.warm\.train\.learning_rate: loguniform:"),
        ({"space": {WARM: {"uniform": [-1, 1]}}},
         r"retriever\.warm\.train\.learning_rate: Input should be greater than 0, got -1\.0"),
        ({"space": {"retriever.warm.train.rate": {"uniform": [0, 1]}}},
         r"retriever\.warm\.train\.rate: unknown key; accepted: steps, batch, "),
        ({"space": {"retriever.warm.train.losses.3.weight": {"uniform": [0, 1]}}},
         r"'3' is not a position in a list of 1"),
        ({"space": {"heat": {"uniform": [0, 1]}}}, r"heat: unknown key; accepted: recipe, data, "),
        ({"space": {"rounds": {"choice": ["two"]}}}, r"rounds: .*valid integer.*got 'two'"),
        ({"space": {GAME: {"grid": [1e-3]}}, "search": "optuna"}, r"tune\.space\..*: grid: Optuna draws; accepted: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, options: dict[str, Any], says: str
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, **options))
    assert place("tune") == 2
    out, err = said()
    assert out == ""
    assert re.fullmatch(rf"error: .*tiny\.yaml.*{says}.*\n|error: --set .*{says}\n", err), err
    assert {path.name for path in tmp_path.iterdir()} == {"tiny.yaml", "inline.yaml"}


def test_there_is_nothing_to_tune(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, tiny.ar2(beir, encoder))
    assert place("tune") == 2
    assert re.fullmatch(r"error: .*tiny\.yaml: tune: missing; accepted: .*\n", said()[1])
    assert place("tune", "--set", "tune=3") == 2
    assert re.fullmatch(r"error: .*tiny\.yaml: tune: expected keys and values, got 3\n", said()[1])


def test_a_comparison_is_not_tuned(said: Said) -> None:
    asked = "tune={measure: RR@10, systems: [a], space: {k: {grid: [1]}}}"
    assert main(["tune", "configs/ar2-ablations.yaml", "--set", asked]) == 2
    assert re.fullmatch(r"error: .*: compare has no numbers of its own; tune one of its experiments\n", said()[1])


def test_optuna_that_is_not_there(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    space = {GAME: {"uniform": [1e-3, 2e-3]}}
    place = tiny.place(tmp_path, tree(beir, encoder, search="optuna", space=space))
    assert place("tune") == 2
    assert re.fullmatch(r"error: .*tune\.search: optuna is not installed; accepted: random, or .*\n", said()[1])


# The book, and what is made of it


@pytest.fixture
def book(tmp_path: Path) -> Book:
    found = Book(tmp_path / "x", "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "0123")
    found.trials = [
        Trial(0, {}, {"a.rate": 0.1}, "done", [0.2, 0.3], 4.0, 5),
        Trial(1, {"a.rate": 0.2, "b.rate": "x"}, {"a.rate": 0.2, "b.rate": "x"}, "done", [0.1, 0.4]),
        Trial(2, {"a.rate": 0.4, "b.rate": "y"}, {"a.rate": 0.4, "b.rate": "y"}, "stopped", [0.9]),
        Trial(3, {"a.rate": 0.8, "b.rate": "y"}, {"a.rate": 0.8, "b.rate": "y"}, "failed", [], reason="no <memory>"),
        Trial(4, {"a.rate": 0.9, "b.rate": "y"}, {"a.rate": 0.9, "b.rate": "y"}, "running", [0.5]),
    ]
    return found


def test_the_best_comes_first(book: Book) -> None:
    assert book.best is book.trials[1]
    assert [one.number for one in book.ordered] == [1, 0, 2, 4, 3]
    book.goal = "min"
    assert book.best is book.trials[0]
    assert [one.number for one in book.ordered] == [0, 1, 4, 2, 3]


def test_the_table(book: Book) -> None:
    assert table(book) == (
        "RR@10, dev split; 5 trials: 2 done, 1 stopped, 1 failed, 1 running\n\n"
        "  trial  a.rate  b.rate   warm   last\n"
        "      1     0.2       x  0.100  0.400  best\n"
        "      0     0.1          0.200  0.300  the config as it is\n"
        "      2     0.4       y  0.900         stopped\n"
        "      4     0.9       y  0.500         running\n"
        "      3     0.8       y                failed\n\n"
        "  trial 3 failed: no <memory>"
    )


def test_a_book_remembers_what_is_done(book: Book) -> None:
    book.save()
    later = Book(book.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "0123")
    later.remember()
    assert later.trials[:3] == book.trials[:3]
    assert [(one.state, one.measures, one.reason) for one in later.trials[3:]] == [
        ("waiting", [], ""), ("waiting", [0.5], ""),
    ]  # fmt: skip
    other = Book(book.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "4567")
    other.remember()
    assert other.trials == []


def test_a_page_without_a_best_trial(book: Book) -> None:
    book.trials = book.trials[2:]
    text = write_page(book, title="t", source=Path("t.yaml"), config={}, scales={}, results="test").read_text()
    assert "No trial came to its end." in text
    assert "no &lt;memory&gt;" in text
    assert scatter(Book(book.folder, "RR@10", ["x"], "dev", "max", ["a.rate"], ""), "a.rate", log=False) is None


def test_headings_are_as_short_as_they_can_be() -> None:
    assert headings(["a.b.rate", "c.b.rate", "k"]) == ["a.b.rate", "c.b.rate", "k"]
    assert headings(["x.warm.rate", "x.game.rate", "x.heat"]) == ["warm.rate", "game.rate", "heat"]


# Room


def test_a_share_of_a_profile() -> None:
    cluster = Cluster(train={"workers": 2, "threads": 0}, map={"workers": 8, "threads": 1})
    share = tune.Share.of(cluster, parts=4, trials=4)
    assert share.workers(share.map, 100) == 2
    assert share.workers(share.map, 1) == 1
    assert share.train.threads >= 1
    assert share.reserved() == 2 + 2 * 4
    assert tune.Share.of(cluster, parts=1, trials=4).workers(cluster.map, 100) == 8
    assert Cluster.model_validate(share.model_dump(mode="json")).train_threads() == share.train_threads()


@pytest.mark.parametrize(
    ("profile", "there", "most"),
    [
        ({"train": {"workers": 2}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 4),
        ({"train": {"workers": 8}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 1),
        ({"train": {"workers": 16}, "device": "cuda"}, {"GPU": 8.0, "CPU": 99.0}, 1),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 3}, {"GPU": 8.0, "CPU": 99.0}, 3),
        ({"train": {"workers": 1}, "device": "cuda", "trials": 30}, {"GPU": 8.0, "CPU": 99.0}, 8),
        ({"train": {"workers": 1}, "device": "cpu", "address": "auto"}, {"CPU": 9.0}, 4),
        ({"train": {"workers": 4}, "device": "cpu", "address": "auto"}, {"CPU": 4.0}, 1),
    ],
)  # fmt: skip
def test_as_many_trials_as_a_cluster_has_room_for(
    monkeypatch: pytest.MonkeyPatch, profile: dict[str, Any], there: dict[str, float], most: int
) -> None:
    class Session:
        @staticmethod
        def cluster_resources() -> dict[str, float]:
            return there

    monkeypatch.setattr(tune, "ray_session", lambda _: Session)
    monkeypatch.setattr("workflows.cluster.ray_session", lambda _: Session)
    assert tune.at_once(Cluster(**profile), 20, 20) == most


def test_room_on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "cores", lambda: 16)
    monkeypatch.setattr(tune.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 5 * 2**20}.get)  # 20 GB
    assert tune.room(1) == 5
    assert tune.room(8) == 2
    assert tune.room(99) == 1


# Optuna


def test_optuna_learns_from_what_is_known(book: Book) -> None:
    """The box that it draws from is the space's."""
    import optuna

    from workflows.tune_optuna import Sampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"a.rate": Range(loguniform=(0.01, 1.0)), "b.rate": Range(choice=["x", "y"])}
    sampler = Sampler(optuna, book, space, goal="max", seed=0)
    assert [one.state.name for one in sampler._study.trials] == ["COMPLETE", "PRUNED"]  # 0 says nothing of b.rate
    for number in range(5, 40):
        point = sampler.ask()
        assert all(space[name].has(value) for name, value in point.items())
        value = -abs(point["a.rate"] - 0.05) + (point["b.rate"] == "x")
        sampler.tell(Trial(number, point, point, "done", [0.0, value]))
    assert sampler._study.best_value > 0.97
    sampler.tell(Trial(40, sampler.ask(), {}, "failed"))


@pytest.mark.slow
def test_optuna_draws_while_trials_run_and_goes_on(ray: Cluster, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """Through Ray Tune; asked for more, it keeps the trials that there are and draws others."""
    space = {WARM: {"loguniform": [1e-5, 1e-2]}}
    asked = tree(beir, encoder, search="optuna", space=space, systems=["warm retriever"], trials=2)
    place = tiny.place(tmp_path, asked, trials=2)
    tuned(place)
    first = trials(place)
    assert [one["state"] for one in first] == ["done"] * 3
    drawn = [one["point"][WARM] for one in first[1:]]
    assert first[0]["point"] == {}
    assert len({1e-3, *drawn}) == 3
    assert all(1e-5 <= rate <= 1e-2 for rate in drawn)
    trained = records(place, "train")
    assert len(trained) == 3
    asked["tune"]["trials"] = 3
    tiny.write(place.config, asked)
    tuned(place)
    assert trials(place)[:3] == first
    assert trials(place)[3]["point"][WARM] not in drawn
    assert trained.items() <= records(place, "train").items()
    assert len(records(place, "train")) == 4
