"""`search`: what a run's models give for a query on the command line, by its own index and depth."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.systems.reading import ReaderAnswer
from sparring.components.systems.system import Answered, Hit, LoadedSystem
from sparring.workflows.commands import search
from sparring.workflows.distributed import machine
from sparring.workflows.experiments import loading
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable, library
from tests.support import tiny
from tests.support.tiny import Place, Said

RETRIEVER = ["--system", "retriever 1"]  # none with BM25: Java would start here
RANKER = ["--system", "ranker over retriever 1"]


def test_search(played: Place, said: Said) -> None:
    before = tiny.contents(played.store)
    assert played("search", "barami comi", "-k", "3", *RETRIEVER) == 0
    lines = [line for line in said()[0].splitlines() if not line.startswith("   ")]
    assert [bool(re.fullmatch(rf"{n}\. (\S+  )?\(-?\d\.\d{{3}}\)  d\d+", line)) for n, line in enumerate(lines, 1)] == [
        True
    ] * 3
    assert played("search", "barami comi", "-k", "3", *RANKER) == 0
    ranked = [float(score) for score in re.findall(r"ranker (-?\d+\.\d+)", said()[0])]
    assert len(ranked) == 3
    assert ranked == sorted(ranked, reverse=True)
    assert tiny.contents(played.store) == before


@pytest.mark.parametrize("blank", ["", " \t\n"])
def test_a_blank_question_is_refused(played: Place, said: Said, blank: str) -> None:
    """As the service refuses it; also where no system is opened."""
    assert played("search", blank) == 2
    assert said() == ("", f"error: QUERY: got {blank!r}; accepted: a text that is not blank\n")


def test_a_document_in_the_querys_place_is_left_out(played: Place, said: Said) -> None:
    assert played("search", "--id", "d3", "-k", "40", *RETRIEVER) == 0
    result = [hit[-1] for hit in HIT.findall(said()[0])]
    assert len(set(result)) == 39
    assert "d3" not in result
    assert played("search", "--id", "no", *RETRIEVER) == 2
    assert said()[1] == "error: id: no document is called 'no'; accepted: the id of a document\n"
    for words in ([], ["barami", "--id", "d3"]):
        assert played("search", *words, *RETRIEVER) == 2
        assert "accepted: either QUERY, a text to search for, or --id ID" in said()[1]


def test_who_names_no_system_asks_the_one_that_export_packs(played: Place, said: Said) -> None:
    outcome = loading.read(played.config, [], played.runs).outcome
    packed = deployable.exported(outcome, Store(played.store))
    done = subprocess.run(
        [sys.executable, "-m", "workflows", *played.words("search", "barami")],
        cwd=tiny.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == f"{packed.name} searches here; --system NAME asks another\n"
    plan = library.measured(packed, Store(played.store))
    assert len(HIT.findall(done.stdout)) == min(5, plan.config.limit)
    assert played("search", "barami", *RETRIEVER) == 0
    assert said()[1] == ""


def test_of_a_run_that_is_not_finished_the_last_retriever_is_asked(
    beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    assert place("run", "--until", "retriever ranking (test)") == 0
    said()
    assert place("search", "barami") == 0
    assert said()[1] == "the run is not finished; retriever searches here; --system NAME asks another\n"


@pytest.mark.parametrize(
    ("missing", "name"),
    [
        ([], "ranker over retriever 1"),
        (["ranker over retriever 1"], "retriever 1"),
        (["ranker over retriever 1", "retriever 1"], None),
    ],
)
def test_of_a_run_that_is_not_finished_what_was_measured_is_asked(
    played: Place, monkeypatch: pytest.MonkeyPatch, missing: list[str], name: str | None
) -> None:
    """By `serve` too: the last retriever, reordered where that was measured."""
    outcome = loading.read(played.config, [], played.runs).outcome
    absent = [outcome.results, *(outcome.ranked[item].ranking for item in missing)]
    monkeypatch.setattr(Store, "is_done", lambda store, node: not any(node is item for item in absent))
    system = deployable.asked(outcome, Store(played.store))
    assert (system and system.name) == name


def test_search_needs_no_ray(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes in this process, whatever the profile says of runs."""
    place = played.copy(tmp_path / "copy")
    tiny.write(place.folder / "inline.yaml", {"mode": "ray", "device": "auto"})
    monkeypatch.setattr(machine, "ray_session", None)
    assert place("search", "barami comi", "-k", "3", *RETRIEVER) == 0


def test_it_imports_nothing_heavy_that_it_does_not_need(played: Place) -> None:
    """Transformers' model classes alone take as long to import as all else takes."""
    code = """
import sys
from sparring.workflows.command_line import main
assert main(sys.argv[1:]) == 0
heavy = ("ray", "transformers.modeling_utils", "torch._dynamo", "peft", "accelerate", "sklearn", "fastapi", "pyserini")
print("imported:", *(name for name in heavy if name in sys.modules))
"""
    words = [sys.executable, "-c", code, *played.words("search", "barami comi", *RANKER)]
    done = subprocess.run(words, cwd=tiny.ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("imported:\n"), done


def test_control_characters_of_documents_do_not_reach_the_terminal(
    monkeypatch: pytest.MonkeyPatch, played: Place, said: Said
) -> None:
    hit = Hit("d\x1b[2J1", 1.0, {"dense": 1.0}, "a \x1b]0;title\x07 b", "one\x9b31m\ntwo \x1b[31m\u202bred")
    monkeypatch.setattr(LoadedSystem, "answer", lambda *_, **__: [Answered(None, [hit])])
    assert played("search", "barami", *RETRIEVER) == 0
    assert said()[0] == "1. a  ]0;title  b  (1.000)  d\\x1b[2J1\n   one 31m two [31mred\n"


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (ReaderAnswer("Oslo\x1b[2J", "d1"), "answer: Oslo [2J  (in d1)"),
        (ReaderAnswer("Oslo", None), "answer: Oslo  (in none of the documents that were read)"),
        (ReaderAnswer("", None), "answer: none"),
    ],
)
def test_a_readers_answer_is_printed_first(
    monkeypatch: pytest.MonkeyPatch, played: Place, said: Said, answer: ReaderAnswer, line: str
) -> None:
    hit = Hit("d1", 1.0, {"dense": 1.0}, "", "Its text.")
    monkeypatch.setattr(LoadedSystem, "answer", lambda *_, **__: [Answered(answer, [hit])])
    assert played("search", "barami", *RETRIEVER) == 0
    assert said()[0] == f"{line}\n1. (1.000)  d1\n   Its text.\n"


def queries_of(place: Place) -> list[dict[str, Any]]:
    """The queries of the test split."""
    return list(pq.read_table(place.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist())


def ranked(place: Place, label: str, query: str) -> list[dict[str, Any]]:
    """What the run's ranking of a label has for a query, best first."""
    return list(
        pq.read_table(place.artifact(label) / "ranking.parquet", filters=[("query_id", "=", query)]).to_pylist()
    )


HIT = re.compile(r"^\d+\. .*\((-?\d+\.\d{3})(?:: retriever (-?\d\.\d{3})(?:, ranker (-?\d+\.\d\d))?)?\)  (\S+)$", re.M)
"""A line of what was found: the score that is sorted by, the retriever's, the ranker's, the document."""


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
    assert place("run", "--until", "retriever ranking (test)") == 0
    said()
    shortest = 20
    for query in queries_of(place)[:3]:
        assert place("search", query["text"], "-k", "20") == 0
        hits = [(score, doc_id) for score, _, _, doc_id in HIT.findall(said()[0])]
        wanted = [
            (f"{row['score']:.3f}", row["doc_id"])
            for row in ranked(place, "retriever ranking (test)", query["query_id"])
        ]
        assert hits == wanted
        shortest = min(shortest, len(hits))
    assert (shortest < 20) == ("probes" in search)


def test_search_with_an_index_needs_no_vectors(beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, {**tiny.dpr(beir, encoder), "search": {"index": "Flat"}})
    assert place("run", "--until", "retriever ranking (test)") == 0
    for path in place.artifact("retriever vectors").glob("*.npy"):
        path.unlink()
    assert place("search", "barami", "-k", "3") == 0
    assert len(HIT.findall(said()[0])) == 3


def test_search_reranks_as_the_run_does(played: Place, said: Said) -> None:
    """The run's own first ten; the others follow in the retriever's order. Documents that say the same are taken for
    one: rounding decides which comes first."""
    depth = 10
    documents = pq.read_table(played.artifact("data") / "documents.parquet").to_pylist()
    texts = {row["doc_id"]: (row["title"], row["text"]) for row in documents}
    for query in queries_of(played)[:3]:
        assert played("search", query["text"], "-k", "20", *RANKER) == 0
        hits = HIT.findall(said()[0])
        before = [row["doc_id"] for row in ranked(played, "retriever 1 ranking (test)", query["query_id"])]
        after = ranked(played, "ranker over retriever 1 (test)", query["query_id"])
        first = [row for row in after if row["doc_id"] in before[:depth]]
        wanted = [row["doc_id"] for row in first] + before[depth:]
        assert [texts[doc_id] for *_, doc_id in hits] == [texts[doc_id] for doc_id in wanted]
        by = [float(score) for score, *_ in hits]
        assert by == sorted(by, reverse=True)
        assert by[:depth] == pytest.approx([row["score"] for row in first], abs=0.0006)
        assert [float(score) for _, _, score, _ in hits[:depth]] == pytest.approx(by[:depth], abs=0.006)
        assert [score for _, _, score, _ in hits[depth:]] == [""] * (20 - depth)
        assert all(retriever for _, retriever, _, _ in hits)


def test_search_reranks_what_it_retrieves_beyond_what_it_shows(played: Place, said: Said) -> None:
    query = queries_of(played)[0]
    assert played("search", query["text"], "-k", "2", *RANKER) == 0
    wanted = [row["doc_id"] for row in ranked(played, "ranker over retriever 1 (test)", query["query_id"])[:2]]
    assert [doc_id for *_, doc_id in HIT.findall(said()[0])] == wanted


@pytest.mark.parametrize(("limit", "shown"), [(3, 3), (40, 5)])
def test_who_says_no_number_is_shown_five_or_all_that_are_ranked(limit: int, shown: int) -> None:
    config = cast(Any, SimpleNamespace(limit=limit, check_k=lambda k, key: None))
    assert search._k(argparse.Namespace(k=None), config) == shown
    assert search._k(argparse.Namespace(k=9), config) == 9


@pytest.mark.parametrize("k", ["0", "-1", "41"])
def test_search_for_more_than_there_is(played: Place, said: Said, k: str) -> None:
    assert played("search", "barami", "-k", k, *RETRIEVER) == 2
    assert said()[1].startswith(f"error: -k: got {k}, but the collection has 40 documents. Use 1 to 40.")


def test_search_before_the_run(played: Place, tmp_path: Path, said: Said) -> None:
    place = tiny.place(tmp_path, yaml.safe_load(played.config.read_text()))
    assert place("search", "barami") == 2
    assert said()[1].startswith("error: the step 'retriever 1' is not done")
