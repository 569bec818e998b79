"""What Pyserini does in a process of its own; a line of JSON says what of it was search, without any start-up.

    python -m tests.benchmarks.pyserini_side search THREADS INDEX K < queries.json
    python -m tests.benchmarks.pyserini_side index THREADS INPUT INDEX

Pyserini asks Java for a module that the packaged runtime lacks, so Java is started before it is imported: with Java's
own defaults, and as many processors as there are threads, as that is what a batch of queries uses.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from typing import Any

from sparring.components.retrieval import lucene

QUERIES_AT_ONCE = 1_000


def main() -> None:
    """Start Java, do the work, and say how long that took."""
    import jnius_config

    work, threads, *arguments = sys.argv[1:]
    runtime = lucene.runtime()
    os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(runtime.home), str(runtime.library)
    jnius_config.set_classpath(str(runtime.jar))
    jnius_config.set_options(f"-XX:ActiveProcessorCount={threads}")
    import jnius  # noqa: F401  (starts Java)

    works: dict[str, Callable[..., dict[str, Any]]] = {"search": search, "index": index}
    print(json.dumps(works[work](int(threads), *arguments)))


def search(threads: int, place: str, k: str) -> dict[str, Any]:
    """Search an index for all queries, and read ids and scores of what is found."""
    from pyserini.search.lucene import LuceneSearcher

    queries, rows = json.load(sys.stdin), []
    began = time.perf_counter()
    searcher = LuceneSearcher(place)
    searcher.set_bm25(0.9, 0.4)
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        ids, texts = zip(*queries[start : start + QUERIES_AT_ONCE], strict=True)
        hits = searcher.batch_search(list(texts), list(ids), k=int(k), threads=threads)
        rows += [(query, hit.docid, hit.score) for query in ids for hit in hits[query]]
    return {"seconds": time.perf_counter() - began, "ranking": digest((query, doc_id) for query, doc_id, _ in rows)}


def digest(pairs: Any) -> str:
    """What stands for a ranking: a digest of its queries and documents, in order."""
    return hashlib.sha256("".join(f"{query} {doc_id}\n" for query, doc_id in pairs).encode()).hexdigest()


def index(threads: int, source: str, place: str) -> dict[str, Any]:
    """Run Pyserini's command."""
    sys.argv[1:] = [
        "--collection",
        "JsonCollection",
        "--input",
        source,
        "--index",
        place,
        "--generator",
        "DefaultLuceneDocumentGenerator",
        "--threads",
        str(threads),
    ]
    runpy.run_module("pyserini.index.lucene", run_name="__main__", alter_sys=True)
    return {}


if __name__ == "__main__":
    main()
