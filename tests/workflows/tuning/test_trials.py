"""The table of trials: how it resumes, how it is shown, and what Optuna learns from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring.components.config import UserError
from sparring.workflows.tuning.report import LUCK, column_names, format_table, scatter, verdict, write_page
from sparring.workflows.tuning.search_space import Range
from sparring.workflows.tuning.trials import Trial, TrialTable


@pytest.fixture
def table(tmp_path: Path) -> TrialTable:
    trials = TrialTable(tmp_path / "x", "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "0123")
    trials.trials = [
        Trial(0, {}, {"a.rate": 0.1}, "done", [0.2, 0.3], 4.0, 5),
        Trial(1, {"a.rate": 0.2, "b.rate": "x"}, {"a.rate": 0.2, "b.rate": "x"}, "done", [0.1, 0.4]),
        Trial(2, {"a.rate": 0.4, "b.rate": "y"}, {"a.rate": 0.4, "b.rate": "y"}, "stopped", [0.9]),
        Trial(3, {"a.rate": 0.8, "b.rate": "y"}, {"a.rate": 0.8, "b.rate": "y"}, "failed", [], reason="no <memory>"),
        Trial(4, {"a.rate": 0.9, "b.rate": "y"}, {"a.rate": 0.9, "b.rate": "y"}, "running", [0.5]),
    ]
    return trials


def test_the_best_comes_first(table: TrialTable) -> None:
    assert table.best is table.trials[1]
    assert [trial.number for trial in table.best_first] == [1, 0, 2, 4, 3]
    table.goal = "min"
    assert table.best is table.trials[0]
    assert [trial.number for trial in table.best_first] == [0, 1, 4, 2, 3]


def test_the_text_shows_the_best_trial_first(table: TrialTable) -> None:
    assert format_table(table) == (
        "RR@10, dev split; 5 trials: 2 done, 1 stopped, 1 failed, 1 running\n\n"
        "  trial  a.rate  b.rate   warm   last\n"
        "      1     0.2       x  0.100  0.400  best\n"
        "      0     0.1          0.200  0.300  the config as it is\n"
        "      2     0.4       y  0.900         stopped\n"
        "      4     0.9       y  0.500         running\n"
        "      3     0.8       y                failed\n\n"
        "  trial 3 failed: no <memory>\n\n"
        "Trial 1 is the best of 5: RR@10 .400 for last on the dev queries, against .300 with the config as it is. The\n"
        "best of many trials is partly lucky. On queries that chose no trial, expect a little less."
    )
    table.error = 0.0234
    assert verdict(table)[0].startswith("Trial 1 is the best of 5: RR@10 .400 [.354, .446] for last on the dev queries")


def test_verdict_says_that_no_trial_was_better(table: TrialTable) -> None:
    table.trials[0].measures[-1] = 0.9
    assert verdict(table) == [
        "No trial was better than the config as it is: RR@10 .900 for last on the dev queries.",
        LUCK,
    ]


def test_a_trial_that_is_as_good_as_the_best_says_so(table: TrialTable) -> None:
    table.trials[0].measures[-1] = 0.3999
    lines = format_table(table).splitlines()
    assert lines[4] == "      0     0.1          0.200  0.400  as good, the config as it is"


def test_a_table_that_is_cut_is_named(table: TrialTable) -> None:
    table.save()
    file = table.folder / "trials.json"
    file.write_text("[")
    with pytest.raises(UserError, match=rf"{file}: not JSON \(.*\). Delete the file: "):
        TrialTable.read(table.folder)


@pytest.mark.parametrize("text", ["[]", "{}", "7", '{"trials": [7]}', '{"trials": [{"name": 1}]}', '{"trials": []}'])
def test_a_table_of_another_shape_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "trials.json").write_text(text)
    with pytest.raises(UserError, match=r"trials\.json: not a table of trials \(.*\). Delete the file: "):
        TrialTable.read(tmp_path)


def test_a_table_keeps_the_finished_trials_of_an_earlier_run(table: TrialTable) -> None:
    table.save()
    later = TrialTable(table.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "0123")
    later.resume()
    assert later.trials[:3] == table.trials[:3]
    assert [(trial.state, trial.measures, trial.reason) for trial in later.trials[3:]] == [
        ("waiting", [], ""),
        ("waiting", [0.5], ""),
    ]
    twin = TrialTable(table.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "4567")
    twin.resume()
    assert twin.trials == []


def test_a_table_remembers_what_trials_that_it_has_no_more_stood_on(table: TrialTable) -> None:
    for trial in table.trials:
        trial.artifacts = ["data", f"own-{trial.number}"]
    table.cut(3)
    assert [trial.number for trial in table.trials] == [0, 1, 2]
    assert table.earlier == ["data", "own-3", "own-4"]
    table.save()
    later = TrialTable(table.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "0123")
    later.resume()
    assert later.earlier == table.earlier
    twin = TrialTable(table.folder, "RR@10", ["warm", "last"], "dev", "max", ["a.rate", "b.rate"], "4567")
    twin.resume()
    assert sorted(twin.earlier) == ["data", *(f"own-{number}" for number in range(5))]
    twin.forget_artifacts()
    assert twin.artifacts == []


def test_a_page_escapes_reasons_and_draws_no_key_without_measures(table: TrialTable) -> None:
    text = write_page(
        table, title="t", source=Path("t.yaml"), config={}, log_keys=set(), results_split="test", then="run it"
    ).read_text()
    assert "no &lt;memory&gt;" in text
    assert text.index("Trial 1 is the best of 5") < text.index("<svg") < text.index("<table")
    assert scatter(TrialTable(table.folder, "RR@10", ["x"], "dev", "max", ["a.rate"], ""), "a.rate", log=False) is None


def test_column_names_are_as_short_as_they_can_be() -> None:
    assert column_names(["a.b.rate", "c.b.rate", "k"]) == ["a.b.rate", "c.b.rate", "k"]
    assert column_names(["x.warm.rate", "x.game.rate", "x.heat"]) == ["warm.rate", "game.rate", "heat"]


def test_optuna_learns_from_the_finished_trials(table: TrialTable) -> None:
    """Its points are of the space, and close in on the best values."""
    import optuna

    from sparring.workflows.tuning.sampler import draw

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"a.rate": Range(loguniform=(0.01, 1.0)), "b.rate": Range(choice=["x", "y"])}
    for number in range(5, 40):
        point = draw(optuna, table, space, seed=0)
        assert all(space[name].has(value) for name, value in point.items())
        value = -abs(point["a.rate"] - 0.05) + (point["b.rate"] == "x")
        table.trials.append(Trial(number, point, point, "done", [0.0, value]))
    assert table.best is not None
    assert table.best.measures[-1] > 0.97


def test_a_resumed_tuning_draws_what_it_would_have_drawn(table: TrialTable) -> None:
    import optuna

    from sparring.workflows.tuning.sampler import draw

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"a.rate": Range(loguniform=(0.01, 1.0)), "b.rate": Range(choice=["x", "y"])}
    table.trials += [Trial(5 + i, {}, {"a.rate": 0.01 * i, "b.rate": "x"}, "done", [0.0, 0.1 * i]) for i in range(12)]
    table.save()
    resumed = TrialTable.read(table.folder)
    assert resumed is not None
    assert draw(optuna, resumed, space, seed=0) == draw(optuna, table, space, seed=0)
    assert draw(optuna, table, space, seed=1) != draw(optuna, table, space, seed=0)


def test_optuna_draws_no_point_again(table: TrialTable) -> None:
    """As long as the space has another point, finished and running trials are not repeated."""
    import optuna

    from sparring.workflows.tuning.sampler import draw

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = {"a.rate": Range(choice=[0.1, 0.2, 0.3]), "b.rate": Range(choice=["x", "y"])}
    points = [{"a.rate": 0.2, "b.rate": "x"}]  # the point of trial 1
    for number in range(5, 10):
        point = draw(optuna, table, space, seed=0)
        assert point not in points
        points.append(point)
        table.trials.append(Trial(number, point, point, "running" if number % 2 else "done", [0.1, 0.1]))
    assert draw(optuna, table, space, seed=0) in points  # the space has no other
