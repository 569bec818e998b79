"""Whole recipes over a large collection, against one of a tenth: seconds, memory and files of each kind of step.

    make bench ARGS="-k scale"       (SPARRING_BENCH_LARGE: documents of the large collection;
                                      SPARRING_BENCH_QUERIES: queries of the large set;
                                      SPARRING_BENCH_UNTIL: the label of the last step, where not all are to run;
                                      SPARRING_BENCH_CANDIDATES: of each query, of which EAR's have half;
                                      SPARRING_BENCH_EXPANSIONS: of each query by each of EAR's two generators, 2 at
                                      least)

Documents are the beginnings of docstrings, again and again under new ids, each with two words of its own; the model is
one layer of random weights. DPR has the documents and few queries. CODER and EAR have the queries, a hundredth as many
documents as DPR, and 200 candidates a query, of which CODER compares 60 with each other. Memory is that of the driver
and of Java, without the pages of mapped files: the system takes those back when it needs them. Measured once: an hour
or more.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.models.configs import locate_model
from tests.benchmarks.conftest import MODEL
from tests.benchmarks.processes import Memory, watched
from tests.benchmarks.table import machine, write
from tests.support import recipes, tiny, toy

ROOT = Path(__file__).parents[2]
LARGE = int(os.environ.get("SPARRING_BENCH_LARGE", "10000000"))
QUERIES = int(os.environ.get("SPARRING_BENCH_QUERIES", "1000000"))
UNTIL = ["--until", os.environ["SPARRING_BENCH_UNTIL"]] if "SPARRING_BENCH_UNTIL" in os.environ else []
EXPANSIONS = int(os.environ.get("SPARRING_BENCH_EXPANSIONS", "4"))
CANDIDATES = int(os.environ.get("SPARRING_BENCH_CANDIDATES", "200"))
FEW, CONTEXT, CHARACTERS = 2_000, 60, 60


class Texts:
    """As many texts as one likes, of which no two are the same."""

    def __init__(self, docstrings: Path) -> None:
        table = pq.read_table(docstrings / "documents.parquet", columns=["text"])
        texts = pc.utf8_slice_codeunits(table["text"], 0, CHARACTERS).to_pylist()
        self._texts = [" ".join(text.split()) for text in texts]
        self._words = sorted(
            {word for text in self._texts for word in text.split() if word.isascii() and word.isalpha()}
        )

    def own(self, number: int) -> str:
        """The two words of a text that are its own."""
        count = len(self._words)
        return f"{self._words[number * 7919 % count]} {self._words[number // count * 31 % count]}"

    def text(self, number: int) -> str:
        """A document's text."""
        return f"{self._texts[number % len(self._texts)]} {self.own(number)}"

    def query(self, number: int) -> str:
        """A question for that document."""
        return f"{self._texts[number % len(self._texts)][-20:]} {self.own(number)}"


def write_collection(folder: Path, texts: Texts, documents: int, queries: dict[str, int]) -> Path:
    """A folder in BEIR's layout; each query has one relevant document."""
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as file:
        for document in range(documents):
            file.write(json.dumps({"_id": f"d{document}", "title": "", "text": texts.text(document)}) + "\n")
    total = sum(queries.values())
    places = iter(query * documents // total for query in range(total))
    with (folder / "queries.jsonl").open("w") as file:
        for split, count in queries.items():
            with (folder / "qrels" / f"{split}.tsv").open("w") as qrels:
                qrels.write("query-id\tcorpus-id\tscore\n")
                for number, document in enumerate(islice(places, count)):
                    file.write(json.dumps({"_id": f"{split}{number}", "text": texts.query(document)}) + "\n")
                    qrels.write(f"{split}{number}\td{document}\t1\n")
    return folder


def usual(tree: dict[str, Any]) -> dict[str, Any]:
    """A toy's config with shards, updates and batches of the usual size."""
    small = {"shard": None, "updates": 50, "batch": 32, "log_every": 10}
    values = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            value = usual(value)
        if key not in small:
            values[key] = value
        elif small[key] is not None:
            values[key] = small[key]
    return values


def documents_tree(folder: Path, encoder: Path) -> dict[str, Any]:
    tree = usual(recipes.dpr(folder, encoder))
    del tree["sizes"]["graph"]  # which takes hours to build
    return {**tree, "k": 100, "encode": {"precision": "fp32"}}


def queries_tree(folder: Path, encoder: Path) -> dict[str, Any]:
    tree = usual(tiny.coder(folder, encoder, context={"size": CANDIDATES}))
    tree["smooth"] |= {"context": CONTEXT}
    tree["rerank"] |= {"context": CONTEXT}
    tree["rerank_chosen"] |= {"k": [2, 5], "context": [CONTEXT, CANDIDATES]}
    return {**tree, "k": CANDIDATES, "encode": {"precision": "fp32"}}


def expansions_tree(folder: Path, encoder: Path) -> dict[str, Any]:
    tree = usual(tiny.ear(folder, encoder))
    for generator in tree["generators"].values():
        generator["relevance"]["number"] = EXPANSIONS
    if max(tree["fewer_expansions"]) >= EXPANSIONS:
        del tree["fewer_expansions"]
    k = CANDIDATES // 2
    for reranker in tree["rerankers"].values():
        reranker["max_rank"] = k + 1  # that of an expansion that finds nothing
    return {**tree, "k": k, "encode": {"precision": "fp32"}}


SHAPES = {"DPR": documents_tree, "CODER": queries_tree, "EAR": expansions_tree}


def sizes(recipe: str, share: int) -> tuple[int, dict[str, int]]:
    """Documents, and queries of each split, of the large collection or of a part of it."""
    if recipe == "DPR":
        return LARGE // share, {"train": FEW // 2, "dev": FEW // 4, "test": FEW // 4}
    queries = QUERIES // share
    return LARGE // 100, {"train": queries - queries // 20, "dev": FEW // 4, "test": queries // 20}


def steps(place: tiny.Place, memory: Memory) -> Iterator[tuple[str, float, int, int, int]]:
    """Of each step: its function, seconds, bytes of memory, files, and bytes of them."""
    for path in sorted(place.store.glob("*/artifact.json")):
        record = json.loads(path.read_text())
        files = [file for file in path.parent.rglob("*") if file.is_file()]
        began, seconds = record["started"], record["seconds"]
        most = memory.peak(began, began + seconds)
        yield (
            record["function"].rpartition(".")[2],
            seconds,
            most,
            len(files),
            sum(file.stat().st_size for file in files),
        )


@pytest.mark.parametrize("recipe", SHAPES)
def test_scale(recipe: str, docstrings: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(locate_model(MODEL))
    encoder = toy.write_encoder(tmp_path / "encoder", tokenizer=tokenizer, num_hidden_layers=1)
    texts, tables = Texts(docstrings), []
    for share in (10, 1):
        documents, queries = sizes(recipe, share)
        folder = write_collection(tmp_path / f"data-{share}", texts, documents, queries)
        tree = SHAPES[recipe](folder, encoder)
        profile = {name: {"workers": 1, "threads": os.cpu_count()} for name in ("map", "train", "java")}
        place = tiny.place(tmp_path / f"run-{share}", tree, **profile, max_tokens_per_pass=None)
        command = [sys.executable, "-m", "workflows", *place.words("run", "--no-estimate", *UNTIL)]
        _, memory = watched(command, mapped=False, cwd=ROOT)
        kinds: dict[str, tuple[float, int, int, int]] = {}
        for kind, *amounts in steps(place, memory):
            before = kinds.get(kind, (0.0, 0, 0, 0))
            kinds[kind] = tuple(max(pair) for pair in zip(before, amounts, strict=True))
        tables.append(kinds)
        shutil.rmtree(place.folder)
        shutil.rmtree(folder)
    part, whole = tables
    rows = [
        [
            f"`{kind}`",
            f"{part[kind][0]:,.1f}",
            f"{whole[kind][0]:,.1f}",
            f"{whole[kind][0] / part[kind][0]:.1f}",
            f"{part[kind][1] / 2**20:,.0f}",
            f"{whole[kind][1] / 2**20:,.0f}",
            f"{whole[kind][2]:,}",
            f"{whole[kind][3] / 2**20:,.0f}",
        ]
        for kind in whole
    ]
    documents, queries = sizes(recipe, 1)
    lines = [
        f"{documents:,} documents and {sum(queries.values()):,} queries, against a tenth of the "
        f"{'documents' if recipe == 'DPR' else 'queries'}. Of each kind of step the longest, and the largest memory.",
        machine(ROOT),
    ]
    head = ["step", "seconds, a tenth", "seconds", "ratio", "MiB, a tenth", "MiB", "files", "MiB of files"]
    write(f"Scale, {recipe}", 'make bench ARGS="-k scale"', head, rows, lines)
