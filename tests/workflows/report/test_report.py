"""The report from a small game of fake steps whose rankings get better by the round."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.data.groups import measured_queries
from sparring.components.data.tables import DOCUMENTS, QRELS, QUERIES, RANKING, TEXT, of_queries
from sparring.components.evaluation.result_table import outcome, p_text, table
from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING
from sparring.workflows.report import report
from sparring.workflows.report.finished import finished_steps
from sparring.workflows.report.metrics import metrics_of
from sparring.workflows.report.sections.costs import costs
from sparring.workflows.report.sections.examples import examples
from sparring.workflows.running.executor import execute
from sparring.workflows.steps.evaluate import EntropyConfig, evaluate, results
from sparring.workflows.store.dag import Description, Step, graph, step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost

QUERY_COUNT, DEPTH = 60, 20
MEASURES = ["RR@10", "R@5"]


def ingest(out: Path, machine: Any) -> dict[str, Any]:
    """Queries whose right document is `d<number>`; one text that is also markup."""
    names = [str(n) for n in range(QUERY_COUNT)]
    texts = [f"how is thing {n} done" for n in names]
    texts[7] = "what does <script>alert(1)</script> & co do"
    queries = {"query_id": names, "text": texts, "answers": [[]] * QUERY_COUNT, "split": ["test"] * QUERY_COUNT}
    documents = [f"d{n}" for n in range(QUERY_COUNT + DEPTH)]
    titles = [f"thing {n}" for n in range(len(documents))]
    pq.write_table(pa.table(queries, schema=QUERIES), out / "queries.parquet")
    report = {"doc_id": documents, "title": titles, "text": [f"All of {title}." for title in titles]}
    pq.write_table(pa.table(report, schema=DOCUMENTS), out / "documents.parquet")
    judged = {"query_id": names, "doc_id": documents[:QUERY_COUNT], "relevance": [1] * QUERY_COUNT}
    pq.write_table(pa.table({**judged, "split": queries["split"]}, schema=QRELS), out / "qrels.parquet")
    return {"documents": len(documents)}


def search(out: Path, machine: Any, *, data: Path, skill: float, seed: int) -> dict[str, Any]:
    """Rankings with the right document first with a chance of `skill`, else anywhere or nowhere."""
    rng = np.random.default_rng([seed, 3])
    columns: dict[str, list[Any]] = {name: [] for name in RANKING.names}
    for query in range(QUERY_COUNT):
        place = 0 if rng.random() < skill else int(rng.integers(0, DEPTH + 2))
        rest = [f"d{(query + 1 + n) % (QUERY_COUNT + DEPTH)}" for n in range(DEPTH)]
        result = [*rest[:place], f"d{query}", *rest[place:]][:DEPTH]
        columns["query_id"] += [str(query)] * DEPTH
        columns["doc_id"] += result
        columns["rank"] += range(1, DEPTH + 1)
        columns["score"] += [10 - n * skill for n in range(DEPTH)]
    pq.write_table(pa.table(columns, schema=RANKING), out / "ranking.parquet")
    return {"queries": QUERY_COUNT}


def train(out: Path, machine: Any, *, data: Path, seed: int) -> dict[str, Any]:
    (out / "weights").write_bytes(b"0" * 4096)
    return {"updates": 100}


GAME: list[tuple[str, int | None, float]] = [
    ("BM25", None, 0.2),
    ("start model", None, 0.3),
    ("warm retriever", None, 0.4),
    ("retriever 1", 1, 0.6),
    ("ranker 1 over retriever 1", 1, 0.85),
    ("retriever 2", 2, 0.75),
    ("ranker 2 over retriever 2", 2, 0.9),
    ("control: in-batch", None, 0.35),
]


def game(seeds: tuple[int, ...] = (1, 2, 3)) -> tuple[list[Step], Step, list[Row]]:
    """A recipe's graph: what is wanted, the results among it, and the systems."""
    data = step("data", ingest)
    systems = []
    trained = [
        step(f"retriever 1, seed {seed}", train, part="retriever training", data=data, seed=seed) for seed in seeds
    ]
    for system, number, skill in GAME:
        for seed in seeds:
            ranking = step(f"search {system}, seed {seed}", search, data=data, skill=skill, seed=seed)
            measured = step(
                f"evaluate {system}, seed {seed}",
                evaluate,
                data=data,
                ranking=ranking,
                split="test",
                measures=MEASURES,
                entropy=EntropyConfig() if "retriever" in system.split() else None,
            )
            systems.append(Row(system, number, "things", "test", seed, measured, data, ranking))
    pairs = [("retriever 2", "warm retriever"), ("control: in-batch", "warm retriever"), ("BM25", "retriever 2")]
    requests = [{"system": system, "baseline": baseline} for system, baseline in pairs]
    last = step("results", results, systems=[system.inputs() for system in systems], comparisons=requests, rounds=2000)
    return [*trained, last], last, systems


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Store]:
    """A finished game and its run directory."""
    wanted, last, systems = game()
    store, run = Store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("runs") / "game"
    for node in graph(wanted):
        execute(node, store, None, on_wait=print)
    executed = {node.fingerprint for node in graph(wanted)}
    metrics = report.write(
        run,
        title="A game",
        wanted=wanted,
        results=last,
        systems=systems,
        store=store,
        executed=executed,
        config={"recipe": "ar2", "rounds": 2},
        note="The start model has seen <nothing> of `train`.",
    )
    return run, metrics, store


class Page(HTMLParser):
    """What a page refers to, says, and whether every element that was opened was closed."""

    VOID = {"meta", "link", "img", "br", "circle"}

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data


def test_metrics_json_is_as_the_contract_has_it(played: tuple[Path, dict[str, Any], Store]) -> None:
    run, metrics, _ = played
    assert json.loads((run / "metrics.json").read_text()) == metrics
    assert set(metrics) == {"rows", "means", "comparisons", "leading", "steps", "verdict"}
    row_keys = {"system", "round", "collection", "split", "seed", "measure", "value", "queries"}
    assert all(set(row) == row_keys for row in metrics["rows"])
    assert len(metrics["rows"]) == len(GAME) * 3 * len(MEASURES)
    assert len(metrics["means"]) == len(GAME) * len(MEASURES)
    assert all(
        metric["low"] < metric["value"] < metric["high"] and metric["seeds"] == [1, 2, 3] for metric in metrics["means"]
    )
    assert len(metrics["comparisons"]) == 2 * 3 * len(MEASURES)  # two tests of three pairs
    step_keys = {"label", "function", "executed", "seconds", "time", "model_seconds", "roofline_seconds"}
    assert all(set(metric) == step_keys for metric in metrics["steps"])
    assert {metric["function"] for metric in metrics["steps"]} == {"ingest", "search", "train", "evaluate", "results"}
    assert all(metric["executed"] for metric in metrics["steps"])


def test_beside_its_cost_a_system_has_its_measure_on_the_collection_itself(tmp_path: Path) -> None:
    """By other judgements, `evaluate.other_qrels`, it has another."""
    rows = [
        {"system": "BM25", "collection": collection, "split": "test", "measure": "R@5", "value": value}
        for collection, value in (("things", 0.25), ("others", 1.0), ("things", 0.75), ("others", 1.0))
    ]
    (cost,) = costs([SystemCost(system="BM25")], Store(tmp_path), rows)
    assert cost["value"] == 0.5


def sampled(out: Path, machine: Any, *, data: Path, ranking: Path, queries: int) -> dict[str, Any]:
    """What a ranker that read a sample of the queries has."""
    requests = pa.array(measured_queries(data, "test", queries), TEXT)
    pq.write_table(of_queries(ranking / "ranking.parquet", RANKING, requests), out / "ranking.parquet")
    return {"queries": queries}


def test_no_query_is_lost_that_a_system_was_not_asked(played: tuple[Path, dict[str, Any], Store]) -> None:
    store = played[2]
    systems = {item.name: item for item in game((1,))[2]}
    ranker = systems["ranker 1 over retriever 1"]
    ranking = step("sample", sampled, data=ranker.data, ranking=ranker.ranking, queries=10)
    execute(ranking, store, None, on_wait=print)
    pair = replace(ranker, ranking=ranking, queries=10), systems["BM25"]
    for first, second in (pair, pair[::-1]):
        output = examples(pair, store, (first.name, second.name))
        assert output is not None
        assert sum(output["counts"].values()) == 10


def test_the_page_stands_alone_and_is_well_formed(played: tuple[Path, dict[str, Any], Store]) -> None:
    run, _, _ = played
    text = (run / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(reference.startswith("#") for reference in page.references)
    assert all(f'id="{reference[1:]}"' in text for reference in page.references)
    assert "<script src" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert page.tags.count("svg") == 1 + len(MEASURES)  # all systems, and round by round
    assert len(text) < 150_000


def test_the_page_leads_with_the_verdict_and_pictures(played: tuple[Path, dict[str, Any], Store]) -> None:
    text = (played[0] / "report.html").read_text(encoding="utf-8")
    parts = ['aria-label="Verdict"', "RR@10 of every system", "Queries won and lost", 'aria-label="Contents"', "<table"]
    assert [text.count(part) > 0 for part in parts] == [True] * len(parts)
    assert sorted(map(text.index, parts)) == list(map(text.index, parts))
    assert text.count("are 95 % intervals") == 1


def test_texts_are_shown_as_text(played: tuple[Path, dict[str, Any], Store]) -> None:
    text = (played[0] / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "The start model has seen <nothing> of train." in page.text
    assert "<code>train</code>" in text
    assert "`" not in page.text


def test_a_page_begins_with_what_it_has(played: tuple[Path, dict[str, Any], Store], tmp_path: Path) -> None:
    """Only a game is said to be one, measures to be there, and systems that can be asked to be."""
    wanted, last, systems = game()
    rest = [replace(system, round=None) for system in systems]

    def said(results: Step | None, systems: list[Row], unmeasured: str = "") -> str:
        report.write(
            tmp_path,
            title="A run",
            wanted=wanted,
            results=results,
            systems=systems,
            store=played[2],
            executed=(),
            config={},
            unmeasured=unmeasured,
        )
        return Page((tmp_path / "report.html").read_text(encoding="utf-8")).text

    measured = "No system was trained on the measured queries."
    assert f"against each other in rounds. {measured}" in said(last, systems)
    assert "in rounds" not in said(last, rest)
    assert measured in said(last, rest)
    assert "measured queries" not in said(None, rest, "Nothing was measured.")
    requests = "searches with these systems"
    assert requests in said(last, rest)
    assert requests not in said(
        last, [replace(item, ranking=None) for item in rest]
    )  # as of folds: over several rankings


def test_the_page_says_what_happened(played: tuple[Path, dict[str, Any], Store]) -> None:
    text = Page((played[0] / "report.html").read_text(encoding="utf-8")).text
    for system, _, _ in GAME:
        assert system in text
    assert "Queries won and lost" in text
    assert "recipe: ar2" in text
    assert "4,096" not in text
    assert re.search(r"retriever training[^\n]* [k]?B3\s", text)
    assert re.search(
        r"other[^\n]* [k]?B25\s", text
    )  # this file's steps that say nothing of themselves: data, and 24 searches
    assert "300 updates" in text  # three seeds of 100
    assert "Entropy of the retriever's scores" in text
    assert "2.71" in text  # log 15
    assert "The longest chain of steps that need one another, in bold, took" in text
    assert text.count("± are 95 % intervals") == 1
    assert "Intervals count queries and trainings as chance." in text
    assert "the method: p < .001, Holm <.001" in text
    assert "this training: p < .001, Holm .003" in text
    assert "Holm: p is corrected for the 6 differences of this table." in text


def test_the_table_can_be_read(played: tuple[Path, dict[str, Any], Store]) -> None:
    text = table(played[1])
    lines = text.splitlines()
    assert max(len(line) for line in lines) <= 110
    verdict = " ".join(text.rpartition("\n\n")[2].split())
    assert re.fullmatch(
        r"retriever 2 has RR@10 \.\d{3} \[\.\d{3}, \.\d{3}\] on 60 test queries\. "
        r"That is clearly better than warm retriever \(\.\d{3}, p < \.001\)\.",
        verdict,
    )
    assert lines[0] == "things, test split: 60 queries, 3 seeds"
    order = [next(n for n, line in enumerate(lines) if line.startswith(f"  {system} ")) for system, _, _ in GAME]
    assert order == sorted(order)
    means = [row["value"] for row in played[1]["rows"] if row["system"] == "BM25" and row["measure"] == "RR@10"]
    mean = next(item for item in played[1]["means"] if (item["system"], item["measure"]) == ("BM25", "RR@10"))
    half = (mean["high"] - mean["low"]) / 2
    assert f"{np.mean(means):.3f} ± {half:.3f} ({np.std(means, ddof=1):.3f})" in lines[order[0]]
    better = next(n for n, line in enumerate(lines) if "retriever 2 against warm retriever (3 seeds)" in line)
    assert re.fullmatch(r" +RR@10  \+0\.\d{3} ± 0\.\d{3}  better +<\.001 +<\.001 +<\.001 +\.00\d", lines[better + 1])
    assert "RR@10: 1 / rank of the first relevant document (0 beyond rank 10)." in text
    message = " ".join(text.split())
    assert "the method: p counts queries and trainings as chance" in message
    assert "Holm: p is corrected for the 6 differences of this table." in message


def test_words_go_by_the_corrected_p_of_the_test_that_counts_most() -> None:
    """Clear over the queries alone, and without the correction; not over trainings too, with it."""
    details = {"collection": "c", "split": "test", "measure": "RR", "queries": 9, "system": "new", "baseline": "old"}
    compared = {**details, "seeds": [1, 2], "difference": 0.1, "low": -0.02, "high": 0.22}
    metrics: dict[str, Any] = {
        "rows": [{**details, "round": None, "seed": seed, "value": 0.5} for seed in (1, 2)],
        "means": [{**details, "seeds": [1, 2], "value": 0.5, "low": 0.4, "high": 0.6}],
        "comparisons": [
            {**compared, "test": THIS_TRAINING, "p": 0.001, "p_holm": 0.002},
            {**compared, "test": THE_METHOD, "p": 0.04, "p_holm": 0.08},
        ],
    }
    assert re.search(r"RR  \+0\.100 ± 0\.120  no clear difference +\.040 +\.080 +\.001 +\.002\n", table(metrics))
    one_seed = {**metrics, "comparisons": metrics["comparisons"][:1]}
    text = table(one_seed)
    assert re.search(r"RR  \+0\.100 ± 0\.120  better +\.001 +\.002\n", text)
    assert "one seed says nothing about the method" in " ".join(text.split())
    assert "the method: p" not in text


def test_steps_that_were_there_are_told_from_those_that_ran(
    played: tuple[Path, dict[str, Any], Store], tmp_path: Path
) -> None:
    wanted, last, systems = game()
    metrics = report.write(
        tmp_path / "run",
        title="Again",
        wanted=wanted,
        results=last,
        systems=systems,
        store=played[2],
        executed={last.fingerprint},
        config={},
    )
    assert [metric["label"] for metric in metrics["steps"] if metric["executed"]] == ["results"]


def test_a_run_that_did_not_get_far_has_a_report_too(tmp_path: Path) -> None:
    wanted, last, systems = game((1,))
    store = Store(tmp_path / "store")
    execute(graph(wanted)[0], store, None, on_wait=print)
    metrics = report.write(
        tmp_path / "run",
        title="Early",
        wanted=wanted,
        results=last,
        systems=systems,
        store=store,
        executed=set(),
        config={},
    )
    assert metrics["rows"] == []
    assert [metric["label"] for metric in metrics["steps"]] == ["data"]
    assert table(metrics) == "No measures yet."
    assert "There are no measures yet" in (tmp_path / "run" / "report.html").read_text()


def noted(out: Path, machine: Any, *, seed: int, more: bool) -> dict[str, Any]:
    """A step with something to say."""
    return {"note": f"It took {seed}.5 tries" + (", and broke." if more else ".")}


@Description(makes="imported ranking")
def noted_ranking(out: Path, machine: Any, *, seed: int, more: bool) -> dict[str, Any]:
    """An imported ranking with something to say."""
    return noted(out, machine, seed=seed, more=more)


def test_what_the_steps_of_several_seeds_say_alike_is_said_once(tmp_path: Path) -> None:
    steps = [step(f"gate (seed {seed})", noted, seed=seed, more=seed == 2) for seed in (1, 2, 3, 10)]
    store = Store(tmp_path / "store")
    for item in steps:
        execute(item, store, None, on_wait=print)
    metrics = metrics_of(None, finished_steps(steps, store), store, set())
    assert metrics["notes"] == [
        "gate (seed 1), and 2 more with other numbers: It took 1.5 tries.",
        "gate (seed 2): It took 2.5 tries, and broke.",
    ]


def test_nothing_at_all_still_makes_a_page(tmp_path: Path) -> None:
    report.write(tmp_path, title="Nothing", wanted=[], results=None, store=Store(tmp_path), executed=[], config={})
    assert Page((tmp_path / "report.html").read_text()).open == []


def test_examples_are_of_queries_that_both_were_asked(played: tuple[Path, dict[str, Any], Store]) -> None:
    """Of a system that was measured on another collection before, those on the collection of both."""
    run, _, store = played
    _, _, systems = game()
    pair = "retriever 2", "warm retriever"
    result = examples(systems, store, pair)
    assert result is not None
    assert (result["collection"], result["seed"]) == ("things", 1)
    second = next(system for system in systems if system.name == "BM25")
    assert examples([replace(second, name=pair[0], collection="others"), *systems], store, pair) == result
    assert "retriever 2 (seed 1) ranks the first relevant document higher" in (run / "report.html").read_text()


def test_examples_are_left_out_when_the_rankings_were_dropped(
    played: tuple[Path, dict[str, Any], Store], tmp_path: Path
) -> None:
    wanted, last, systems = game((1,))
    store = Store(tmp_path / "store")
    for node in graph(wanted):
        execute(node, store, None, on_wait=print)
    for system in systems:
        assert system.ranking is not None
        store.drop(system.ranking, ["ranking.parquet"])
    report.write(
        tmp_path / "run",
        title="Clean",
        wanted=wanted,
        results=last,
        systems=systems,
        store=store,
        executed=[],
        config={},
    )
    text = (tmp_path / "run" / "report.html").read_text()
    assert "Queries won and lost" not in text
    message = Page(text).text
    assert re.search(r"BM25\d\.\d{3} ± \d\.\d{3}\d\.\d{3} ± \d\.\d{3}\s", message)  # one seed has no deviation
    assert "Intervals count the queries as chance." in message
    assert "one seed says nothing about the method" in message


def test_outcomes_are_words_for_people() -> None:
    text = [(0.1, 0.0001), (-0.1, 0.0213), (0.1, 0.0999), (-0.1, 0.05), (0.0, 1.0)]
    assert [(outcome(difference, p), p_text(p)) for difference, p in text] == [
        ("better", "p < .001"),
        ("worse", "p = .021"),
        ("no clear difference", "p = .100"),
        ("no clear difference", "p = .050"),
        ("no clear difference", "p = 1.00"),
    ]


def test_a_measure_of_fewer_queries_says_of_how_many() -> None:
    """And keeps no row from being compared; nor does a system's seed make another's of several seeds."""
    details = {"round": None, "collection": "c", "split": "test", "value": 0.5}
    rows = [
        {**details, "system": name, "seed": seed, "measure": measure, "queries": queries}
        for name, seed in (("old", 1), ("new", 2))
        for measure, queries in (("RR", 4), ("Answer@5", 1))
    ]
    rows += [{**details, "system": "of a sample", "seed": 1, "measure": "RR", "queries": 2}]
    means = [{**row, "seeds": [row["seed"]], "low": 0.4, "high": 0.6} for row in rows]
    lines = table({"rows": rows, "means": means, "comparisons": [], "steps": []}).splitlines()
    assert lines[0] == "c, test split: 4 queries"
    assert "  Answer@5: of 1 query." in lines
    assert [line.strip().split("  ")[0] for line in lines if "of 2 queries" in line] == ["of a sample"]
    assert sum("0.500 ± 0.100*" in line for line in lines) == 2


def test_rankings_of_other_systems_have_a_note_each(tmp_path: Path) -> None:
    steps = [step(f"{name} ranking", noted_ranking, seed=seed, more=False) for name, seed in (("old", 1), ("new", 2))]
    store = Store(tmp_path / "store")
    for item in steps:
        execute(item, store, None, on_wait=print)
    notes = metrics_of(None, finished_steps(steps, store), store, set())["notes"]
    assert notes == ["old ranking: It took 1.5 tries.", "new ranking: It took 2.5 tries."]


def test_a_wide_table_is_cut_into_blocks() -> None:
    details = {"round": None, "collection": "c", "split": "test", "seed": 1, "queries": 5, "value": 0.5}
    rows = [
        {**details, "system": "a system with a name that is far too long for a table", "measure": f"R@{n}"}
        for n in range(1, 20)
    ]
    means = [{**row, "seeds": [1], "low": 0.4, "high": 0.6} for row in rows]
    text = table({"rows": rows, "means": means, "comparisons": [], "steps": []})
    assert max(len(line) for line in text.splitlines()) <= 110
    assert all(f" R@{n}" in text for n in range(1, 20))
    assert "0.500 ± 0.100*" in text
