"""`adapt` at its defaults against what people train who have sentence-transformers alone, in the same time.

    SPARRING_TEST_DATA=FOLDER make bench ARGS="-k same_time"

The collection is about 2,000 paragraphs of SQuAD: whole articles, with 6,000 training, 600 dev and 1,000 test
questions. SPARRING_BENCH_FOLDER keeps the run, so that a repeated command resumes it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparring.components.evaluation.measures import per_query
from sparring.components.evaluation.result_table import p_text
from sparring.components.evaluation.significance import compare
from sparring.components.sources import trec
from sparring.workflows.report.verdict import Verdict
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
MEASURES = ["RR@10", "nDCG@10", "R@100"]
PARAGRAPHS = 1_992
QUESTIONS = {"test": 1_000, "dev": 600, "train": 6_000}


def test_same_time(tmp_path: Path) -> None:
    folder = Path(os.environ.get("SPARRING_BENCH_FOLDER", tmp_path)).absolute()
    data = folder / "squad-2000"
    if not data.exists():
        make_collection(data)
    program = [sys.executable, "-m", "sparring"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*program, "adapt", str(data)], cwd=folder, env=environment, check=True)
    records = [json.loads(path.read_text()) for path in (folder / "store").glob("*/artifact.json")]
    began = min(record["started"] for record in records)
    seconds = max(record["started"] + record["seconds"] for record in records) - began
    metrics = json.loads((folder / "runs" / "squad-2000" / "metrics.json").read_text())
    verdict = Verdict.read(metrics["verdict"])
    plain, record = folder / "plain.trec", folder / "plain.json"
    if not record.exists():
        command = [sys.executable, "-m", "tests.benchmarks.plain_training", str(data), f"{seconds:.0f}", str(plain)]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        record.write_text(done.stdout.splitlines()[-1])
    peer_run = json.loads(record.read_text())
    out = folder / "out"
    if not out.exists():
        config = str(folder / "squad-2000.yaml")
        subprocess.run([*program, "export", config, str(out)], cwd=folder, env=environment, check=True)
    qrels = trec.read_qrels(out / "qrels.trec")
    peer_ranking = trec.read_ranking(plain)
    rows = []
    for path in sorted((out / "rankings").glob("*.trec")):
        ranking = trec.read_ranking(path)  # perhaps of a sample of the queries
        common = qrels.filter(pc.is_in(qrels["query_id"], pc.unique(ranking["query_id"])))
        values, peer = (per_query(side, common, MEASURES) for side in (ranking, peer_ranking))
        pair = next(pair for pair in compare([values], [peer], seed=0) if pair["measure"] == MEASURES[0])
        queries = f"{len(pc.unique(common['query_id'])):,}"
        rows.append(
            [path.stem.replace("-", " "), queries, *means(values), f"{pair['difference']:+.3f}", p_text(pair["p"])]
        )
    whole = per_query(peer_ranking, qrels, MEASURES)
    rows.append(["sentence-transformers alone", f"{len(pc.unique(whole['query_id'])):,}", *means(whole), "", ""])
    lines = [
        f"Our run took {seconds / 60:.0f} min. Theirs took {peer_run['seconds'] / 60:.0f} min: {peer_run['updates']:,} "
        f"updates of 32 questions, of which dev chose the model after {peer_run['chosen']:,}. "
        f"Differences and p are for {MEASURES[0]} of the same queries, against theirs. p is not corrected.",
        f"Our verdict: {verdict}",
        machine(ROOT, "sentence-transformers"),
    ]
    head = ["system", "queries", *MEASURES, "difference", "p"]
    write("Adapting to 2,000 paragraphs", 'make bench ARGS="-k same_time"', head, rows, lines)


def means(values: pa.Table) -> list[str]:
    """The mean of every measure over the queries."""
    return [f"{pc.mean(values.filter(pc.equal(values['measure'], name))['value']).as_py():.3f}" for name in MEASURES]


def read_objects(path: Path) -> list[dict[str, str]]:
    """The objects of a compressed file with one on each line."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def make_collection(folder: Path) -> None:
    """Write a part of SQuAD: whole articles in the order of their titles' digests, and questions drawn at random."""
    source = Path(os.environ.get("SPARRING_TEST_DATA", "nowhere")) / "squad"
    if not source.is_dir():
        pytest.skip("SPARRING_TEST_DATA names no folder with squad in it")
    articles: dict[str, list[dict[str, str]]] = {}
    relevant = [tuple(line.split("\t")) for line in (source / "qrels" / "train.tsv").read_text().splitlines()[1:]]
    judged = {document for _, document, _ in relevant}
    for paragraph in read_objects(source / "corpus.jsonl.gz"):
        if paragraph["_id"] in judged:
            articles.setdefault(paragraph["title"], []).append(paragraph)
    chosen: dict[str, dict[str, str]] = {}
    for title in sorted(articles, key=lambda title: hashlib.sha256(title.encode()).hexdigest()):
        if len(chosen) + len(articles[title]) <= PARAGRAPHS:
            chosen.update((paragraph["_id"], paragraph) for paragraph in articles[title])
    texts = {row["_id"]: row["text"] for row in read_objects(source / "queries.jsonl.gz")}
    pairs = [pair for pair in relevant if pair[1] in chosen]
    random.Random(1).shuffle(pairs)
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(paragraph) + "\n" for paragraph in chosen.values()))
    with (folder / "queries.jsonl").open("w") as queries:
        for split, count in QUESTIONS.items():
            drawn, pairs = pairs[:count], pairs[count:]
            lines = ["\t".join(pair) + "\n" for pair in drawn]
            (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
            queries.writelines(json.dumps({"_id": pair[0], "text": texts[pair[0]]}) + "\n" for pair in drawn)


if __name__ == "__main__":
    make_collection(Path(sys.argv[1]))
