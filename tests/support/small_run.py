"""A run in a moment, of what the Python version could change: BM25, a training, a search. Prints a line of JSON.

python -m tests.support.small_run FOLDER
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from pathlib import Path

import sparring
from tests.support import tiny, toy

QUERIES = ["barami comi", "domu", "barami", "tela"]


def main(folder: Path) -> dict[str, object]:
    """Run it in an empty folder; what it found."""
    data = toy.write_data(folder / "data")
    beir = tiny.write_beir(folder / "beir", data)
    encoder = toy.write_encoder(folder / "encoder")
    config = tiny.write(folder / "small.yaml", {**tiny.dpr(beir, encoder), "k": 10})
    cluster = tiny.write(folder / "inline.yaml", tiny.INLINE)
    with contextlib.redirect_stdout(sys.stderr):
        run = sparring.run(config, cluster=cluster, store=folder / "store", runs=folder / "runs")
    lexical = run.load("BM25", threads=1)
    dense = run.load("retriever", threads=1)
    return {
        "python": platform.python_version(),
        "measures": {f"{row['system']} {row['measure']}": round(row["value"], 6) for row in run.rows},
        "bm25": [[(hit.doc_id, hit.score) for hit in hits] for hits in lexical.search(QUERIES, k=10)],
        "retriever": [[hit.doc_id for hit in hits] for hits in dense.search(QUERIES, k=10)],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
