"""Documents with equal scores: measures, run files, `evaluate`, `search` and the exported program have one order.

The collection is full of ties: each text stands twice, codes stand in two documents each, and the model has noise for
weights and knows few words, so that it gives many texts one vector.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import ir_measures
import pyarrow.parquet as pq
import pytest

from sparring.components.files import file_names
from sparring.components.sources.trec import read_ranking
from sparring.workflows.chaos.toy import WORDS
from tests.support import deployed, searching, tiny
from tests.support.served import Served, served
from tests.support.tiny import Place, Said

MEASURES = ["nDCG@10", "RR@10", "RR", "Success@1", "P@1", "AP@10", "R@10"]
NAMES = [
    "BM25",
    "retriever",
    "fusion",
    "mixture",
    deployed.FUSED,
    deployed.MIXED,
    "ranker over retriever",
    deployed.PRIOR,
    deployed.NEIGHBOURS,
]
PLAIN = WORDS[:10]
COPIES, CODES = 12, 8


def write_collection(folder: Path) -> Path:
    """A BEIR folder. `copy N` asks for a text that stands twice, of which the second is judged; `code N` for a code in
    two documents, of which the second is judged."""
    draw = random.Random(3)
    documents, queries, judged = [], [], []
    for number in range(COPIES):
        text = " ".join([f"only{number}", *draw.choices(PLAIN, k=7)])
        documents += [(f"faq-{number}", text), (f"zz-archive-{number}", text)]
        queries.append((f"copy{number}", " ".join(text.split()[:3])))
        judged.append((f"copy{number}", f"zz-archive-{number}"))
    for number in range(CODES):
        documents += [
            (f"d{number}-{place}", " ".join([*draw.choices(PLAIN, k=6), f"zx47{number}"])) for place in (0, 1)
        ]
        queries.append((f"code{number}", f"zx47{number}"))
        judged.append((f"code{number}", f"d{number}-1"))
    draw.shuffle(documents)
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": id, "title": "", "text": text}) + "\n" for id, text in documents)
    )
    requests = [(f"{split}-{id}", text) for split in ("dev", "test") for id, text in queries]
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": id, "text": text}) + "\n" for id, text in requests)
    )
    for split in ("dev", "test"):
        rows = "".join(f"{split}-{query}\t{document}\t1\n" for query, document in judged)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return folder


@pytest.fixture(scope="module")
def run(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run with a system of every kind."""
    folder = tmp_path_factory.mktemp("ties")
    tree = deployed.config(write_collection(folder / "data"), encoder)
    place = tiny.place(folder / "run", {**tree, "evaluate": {"measures": MEASURES}})
    assert place("run") == 0
    return place


def run_file(folder: Path, name: str) -> Path:
    """A system's exported ranking."""
    return folder / "rankings" / f"{file_names(NAMES)[name]}.trec"


def test_the_measures_are_those_of_the_exported_run_files(
    run: Place, exported: Callable[[str], Path], said: Said
) -> None:
    """As ir_measures computes them, whatever part of it does, and as `evaluate` does."""
    folder = exported("BM25")
    qrels = list(ir_measures.read_trec_qrels(str(folder / "qrels.trec")))
    rows = [row for row in run.metrics()["rows"] if row["split"] == "test"]
    assert {row["system"] for row in rows} >= set(NAMES)
    for name in NAMES:
        itself = {row["measure"]: row["value"] for row in rows if row["system"] == name}
        result = list(ir_measures.read_trec_run(str(run_file(folder, name))))
        assert itself.keys() == set(MEASURES)
        for measure in map(ir_measures.parse_measure, MEASURES):
            for provider in (ir_measures.pytrec_eval, ir_measures.DefaultPipeline):
                if provider.supports(measure):
                    assert provider.calc_aggregate([measure], qrels, result)[measure] == pytest.approx(
                        itself[str(measure)]
                    )
        said()
        words = [str(run_file(folder, name)), str(folder / "qrels.trec"), "--measures", *MEASURES]
        assert run("evaluate", *words) == 0
        printed = [line.split("\t") for line in said()[0].splitlines()[1:]]
        assert {line[0]: float(line[1]) for line in printed} == pytest.approx(itself, abs=5e-5)


def test_copies_are_in_one_order_in_every_system(exported: Callable[[str], Path]) -> None:
    """In order of id, so that no system looks better than another by a tie."""
    for name in NAMES:
        seen = 0
        for ranks in positions(run_file(exported("BM25"), name)).values():
            for number in range(COPIES):
                if (second := ranks.get(f"zz-archive-{number}")) is not None:
                    assert second > ranks[f"faq-{number}"], (name, number)
                    seen += 1
        assert seen >= COPIES


def test_both_documents_with_a_code_come_first(exported: Callable[[str], Path]) -> None:
    for name in ("BM25", "mixture"):
        ranks = positions(run_file(exported("BM25"), name))
        for number in range(CODES):
            assert {ranks[f"test-code{number}"][f"d{number}-{place}"] for place in (0, 1)} == {1, 2}, (name, number)


ODD = [
    "",
    " ",
    "?!",
    "the",
    "unknownword",
    "\u00e9t\u00e9 na\u00efve",
    "\U0001f98a",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u4e2d",
    "only1",
    "only2 only3",
    "zx470",
    "zx471 bara",
    "ZX472",
    "zx47",
    "'quoted' \"words\"",
    "a\tb\nc",
    "zx473 " * 300,
    "+bara -dote",
    "bara AND (dote OR lumi)",
    "field:bara",
    "bara~2",
    "[bara TO dote]",
    "\\",
    "*",
    *PLAIN,
    *(f"{word} {word} {word}" for word in PLAIN),
    *(" ".join(PLAIN[place:]) for place in range(10)),
    *(
        " ".join(random.Random(seed).choices([*PLAIN, "only4", "zx475", "nothing"], k=seed % 9 + 1))
        for seed in range(60)
    ),
]


@pytest.mark.timeout(900)
def test_the_exported_program_finds_what_search_finds(run: Place, exported: Callable[[str], Path]) -> None:
    """For every kind of system, on odd queries: empty, without hits, with one, long, in other scripts, in syntax."""
    assert len(ODD) >= 100
    wanted = [(exported(name) / "system", ODD, 15) for name in NAMES]
    result = [[[hit["doc_id"] for hit in hits] for hits in lists] for lists in searching.by_systems(wanted)]
    programs = searching.by_examples(wanted)
    for name, actual, expected in zip(NAMES, result, programs, strict=True):
        for query, single, second in zip(ODD, actual, expected, strict=True):
            assert single == second, (name, query[:50])


def positions(ranking: Path) -> dict[str, dict[str, int]]:
    """The ranks in a run file, by query and document."""
    ranks: dict[str, dict[str, int]] = {}
    for row in read_ranking(ranking).to_pylist():
        ranks.setdefault(row["query_id"], {})[row["doc_id"]] = row["rank"]
    return ranks


SERVED = ["BM25", "retriever", "fusion", "mixture"]
"""Systems without a ranker: each list, and both fusions of them."""


@pytest.fixture(scope="module")
def service(run: Place) -> Iterator[Served]:
    with served(run, *(word for name in SERVED for word in ("--system", name))) as single:
        yield single


def test_the_service_finds_what_search_the_run_file_and_the_program_find(
    run: Place, exported: Callable[[str], Path], service: Served
) -> None:
    """In one order, where copies have equal scores and where a fusion puts lists together."""
    rows = pq.read_table(run.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    requests = {row["query_id"]: row["text"] for row in rows[::3]}
    texts = list(requests.values())
    wanted = [(exported(name) / "system", texts, 10) for name in SERVED]
    searches = [[[hit["doc_id"] for hit in hits] for hits in lists] for lists in searching.by_systems(wanted)]
    programs = searching.by_examples(wanted)
    for name, result, printed in zip(SERVED, searches, programs, strict=True):
        ranks = positions(run_file(exported("BM25"), name))
        report = [list(ranks.get(query, {}))[:10] for query in requests]
        answers = [[doc_id for doc_id, _ in service.ask(text, 10, name)] for text in texts]
        assert answers == result == printed == report, name
        assert any(
            {f"faq-{number}", f"zz-archive-{number}"} <= set(answer) for answer in answers for number in range(COPIES)
        )
