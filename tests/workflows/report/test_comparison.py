"""Two runs side by side: `report --compare` and `show --diff`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.evaluation.significance import compare
from sparring.workflows.command_line import main
from sparring.workflows.report.differences import changes, differences
from sparring.workflows.report.runs import read_runs
from tests.support import tiny
from tests.support.tiny import Place, Said

LONGER = "retriever.game.train.updates=2"


@pytest.fixture(scope="module")
def both(played: Place, tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Path, Path]:
    """Two finished runs in one store, which differ in the updates of the game, and their folders."""
    place = played.copy(tmp_path_factory.mktemp("two") / "place")
    assert place("run", "--set", LONGER) == 0
    [second] = [path for path in place.runs.iterdir() if path.name.startswith("tiny-")]
    return place, place.runs / "tiny", second


def call(place: Place, *words: str) -> int:
    from sparring.workflows.command_line import main

    return main(["--store", place.where, "--runs", str(place.runs), *words])


def test_a_run_is_read_from_its_folder_as_from_its_config(both: tuple[Place, Path, Path]) -> None:
    place, first, _ = both
    folder, config = read_runs([first, place.config], place.runs, place.where)
    assert [run.experiment.outcome.results.fingerprint for run in (folder, config)] == [
        folder.experiment.outcome.results.fingerprint
    ] * 2
    assert folder.store.root == config.store.root
    assert [run.name for run in (folder, config)] == [str(first), str(place.config)]  # both would be `tiny`


def test_it_began_where_the_changed_number_is_an_input(both: tuple[Place, Path, Path]) -> None:
    place, *folders = both
    result = differences(*read_runs(folders, place.runs, place.where))
    assert result.config == [("retriever.game.train.updates", 3, 2)]
    assert [node.label for node, _ in result.began][:1] == ["retriever 1 groups"]
    assert ("groups", 12, 8) in result.began[0][1]
    assert {node.label for node in result.followed} >= {"retriever 1 ranking (test)", "retriever 1 measures", "results"}
    assert "warm retriever" in {node.label for node in result.same}
    assert result.removed == result.apart == []
    assert result.compared == 0  # one store: the same artifacts


def test_show_diff_says_so(both: tuple[Place, Path, Path], said: Said) -> None:
    place, first, second = both
    assert call(place, "show", "--diff", str(first), str(second)) == 0
    text = said()[0]
    assert text.splitlines()[0] == f"tiny against {second.name}"
    assert re.search(r"retriever\.game\.train\.updates  3  ->  2\n", text)
    assert re.search(r"It began at\n  retriever 1 groups\n    groups  12  ->  8\n", text)
    assert call(place, "show", "--diff", str(first), str(first)) == 0
    assert "The configs are the same." in said()[0]


def test_keys_that_only_one_recipe_has_are_counted(said: Said) -> None:
    assert main(["show", "--diff", "configs/demo.yaml", "configs/dpr/docstrings.yaml"]) == 0
    lines = said()[0].splitlines()
    assert re.fullmatch(r"  recipe +ar2  ->  dpr", lines[3])
    assert any(re.fullmatch(r"  only in demo: rounds, order, retriever \(\d+ keys\), .*", line) for line in lines)
    assert not any("not set" in line for line in lines[:20])


def test_the_same_steps_with_other_results_are_found(
    both: tuple[Place, Path, Path], tmp_path: Path, said: Said
) -> None:
    """Of two stores, the first artifact in order whose data differs, however many follow."""
    place, first, _ = both
    second = place.copy(tmp_path / "elsewhere")
    assert call(place, "show", "--diff", str(first), str(second.runs / "tiny")) == 0
    assert re.search(r"The data of the \d+ artifacts that both have is the same, bit by bit\.", said()[0])
    for label in ("warm-retriever-ranking-(test)", "bm25-ranking-(test)"):
        file = min((second.artifact(label) / "ranking.parquet").iterdir())
        table = pq.read_table(file)
        pq.write_table(table.slice(0, len(table) - 1), file)
    assert call(place, "show", "--diff", str(first), str(second.runs / "tiny")) == 0
    text = said()[0]
    assert "Same steps, other results: 2 of the" in text
    assert "  bm25 ranking (test): ranking.parquet" in text
    assert "warm retriever" not in text.split("The first is")[1]


def test_the_page_has_each_system_of_both_with_p(both: tuple[Place, Path, Path], said: Said) -> None:
    place, first, second = both
    assert call(place, "report", "--compare", str(first), str(second)) == 0
    page = Path(said()[0].strip())
    assert page == place.runs / f"{second.name}-against-tiny.html"
    text = page.read_text()
    assert "retriever.game.train.updates" in text
    assert "retriever 1 groups" in text
    single, two = read_runs([first, second], place.runs, place.where)
    tables = [
        pq.read_table(run.store.path(row.metrics) / "per_query.parquet")
        for run in (two, single)
        for row in run.experiment.outcome.rows
        if row.name == "retriever 1"
    ]
    entry = compare([tables[0]], [tables[1]], seed=0)[0]
    row = text.split('<th scope="row">retriever 1')[1].split("</tr>")[0]
    assert f'data-value="{entry["difference"]}"' in row
    assert f'data-p="{entry["p"]}"' in row
    subject = [table.filter(np.array(table["measure"]) == entry["measure"]) for table in tables]
    values = [table["value"].to_numpy().mean() for table in subject]
    assert f"{values[1]:.3f} → {values[0]:.3f}" in row
    assert text.count("data-holm") == text.count("data-p=")
    assert f"retriever 1, {second.name}" in text  # to choose from, query by query
    assert '"BM25",' in text  # which both have from one artifact: it is there once, and not among the differences
    assert '<th scope="row">start model' not in text
    verdict = f"By {entry['measure']}, {second.name} is neither clearly better nor clearly worse in any of "
    assert text.index(verdict) < text.index("<svg") < text.index("<table")
    assert re.search(r"The same artifacts in both runs, so without a difference: BM25; start model;", text)


def test_measures_of_one_system_alone_have_columns_of_their_own(
    both: tuple[Place, Path, Path], tmp_path: Path, said: Said
) -> None:
    """As those of a reader, beside the measures of rankings."""
    place = both[0].copy(tmp_path / "place")
    folders = [place.runs / folder.name for folder in both[1:]]
    for run in read_runs(folders, place.runs, place.where):
        (system,) = [row for row in run.experiment.outcome.rows if row.name == "retriever 1"]
        path = run.store.path(system.metrics) / "per_query.parquet"
        values = pq.read_table(path)
        names = pc.replace_substring(values["measure"], "RR@10", "EM")
        pq.write_table(values.set_column(1, "measure", names), path)
    said()
    assert call(place, "report", "--compare", *map(str, folders)) == 0
    text = Path(said()[0].strip()).read_text()
    table = text.split('<th scope="col">system</th>')[1].split("</tbody>")[0]
    head, body = table.split("</thead>")
    columns = re.findall(r'<th scope="col">([^<]+)</th>', head)
    assert {"RR@10", "EM"} < set(columns)
    rows = body.split('<th scope="row">')[1:]
    assert len(rows) > 1
    for row in rows:
        filled = dict(zip(columns, [cell != "<td></td>" for cell in re.findall(r"<td.*?</td>", row)], strict=True))
        assert filled["EM"] == row.startswith("retriever 1<") != filled["RR@10"]


def test_runs_with_other_queries_are_compared_on_those_that_both_have(
    tmp_path: Path, beir: Path, encoder: Path, said: Said
) -> None:
    """The means of the page are over them too, and over the seeds of both: else they contradict the difference."""
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder) | {"seeds": [1, 2]})
    sample = ["--set", "data.sample.test=4", "--set", "seeds=[1]"]
    assert place("run") == 0
    assert place("run", *sample) == 0
    [second] = [path for path in place.runs.iterdir() if path.name.startswith("tiny-")]
    said()
    assert call(place, "report", "--compare", str(place.runs / "tiny"), str(second)) == 0
    text = Path(said()[0].strip()).read_text()
    assert "4 queries that both have" in text
    for row in text.split('<th scope="row">')[1:]:
        for cell in re.findall(r'data-value="([^"]+)".*?([\d.]+) → ([\d.]+)', row.split("</tr>")[0], re.DOTALL):
            difference, before, after = map(float, cell)
            assert difference == pytest.approx(after - before, abs=1.1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show"], "nothing to open; accepted: CONFIG, or --diff RUN RUN"),
        (["report"], "nothing to open; accepted: CONFIG, or --compare RUN RUN"),
        (["report", "configs/demo.yaml", "--compare", "a", "b"], "--compare takes two runs and nothing else"),
        (
            ["show", "--diff", "{folder}", "configs/demo.yaml"],
            "{folder}: it has no config.yaml; accepted: the",
        ),
    ],
)
def test_what_is_not_two_runs_is_refused(
    both: tuple[Place, Path, Path], said: Said, tmp_path: Path, words: list[str], message: str
) -> None:
    assert call(both[0], *(word.format(folder=tmp_path) for word in words)) == 2
    assert said()[1].startswith(f"error: {message.format(folder=tmp_path)}")


def test_lists_of_keys_are_compared_key_by_key() -> None:
    first = {"losses": [{"function": "a", "weight": 1.0}], "seeds": [1, 2]}
    second = {"losses": [{"function": "a", "weight": 0.5}, {"function": "b"}], "seeds": [1]}
    assert [key for key, _, _ in changes(first, second)] == ["losses.0.weight", "seeds", "losses.1.function"]
