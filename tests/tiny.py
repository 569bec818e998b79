"""Whole experiments that take seconds: a toy BEIR folder, toy models, and configs for the recipes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).parent.parent
CROSS_ENTROPY = "components.losses.listwise.cross_entropy"
DISTILLATION = "components.losses.listwise.distillation"


def write_beir(folder: Path, data: Path) -> Path:
    """A data artifact as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    queries = pq.read_table(data / "queries.parquet").to_pylist()
    qrels = pq.read_table(data / "qrels.parquet").to_pylist()
    with (folder / "corpus.jsonl").open("w") as file:
        for row in documents:
            file.write(json.dumps({"_id": row["doc_id"], "title": row["title"], "text": row["text"]}) + "\n")
    with (folder / "queries.jsonl").open("w") as file:
        for row in queries:
            file.write(json.dumps({"_id": row["query_id"], "text": row["text"]}) + "\n")
    for split in sorted({row["split"] for row in qrels}):
        with (folder / "qrels" / f"{split}.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for row in qrels:
                if row["split"] == split:
                    file.write(f"{row['query_id']}\t{row['doc_id']}\t{row['relevance']}\n")
    return folder


def training(loss: str = CROSS_ENTROPY, *, over: str = "group", steps: int = 3, batch: int = 4) -> dict[str, Any]:
    """A training of a moment."""
    return {
        "steps": steps, "batch": batch, "learning_rate": 1e-3, "precision": "fp32", "log_every": 1,
        "losses": [{"function": loss, "over": over}],
    }  # fmt: skip


def dpr(beir: Path, encoder: Path) -> dict[str, Any]:
    """DPR with one hard negative of BM25."""
    return {
        "recipe": "dpr",
        "data": {"format": "beir", "path": str(beir)},
        "k": 20,
        "encode": {"shard": 7, "precision": "fp32", "vectors": "float32"},
        "retriever": {
            "model": str(encoder), "pooling": "mean", "similarity": "cosine", "query_tokens": 8,
            "document_tokens": 24, "dropout": 0.0,
        },
        "negatives": {"negatives": 1, "depth": 10},
        "train": training(over="batch"),
    }  # fmt: skip


def ar2(beir: Path, encoder: Path) -> dict[str, Any]:
    """One round of AR2 with both controls."""
    small = dpr(beir, encoder)
    return {
        "recipe": "ar2",
        **{key: small[key] for key in ("data", "k", "encode")},
        "rounds": 1,
        "retriever": {
            "model": small["retriever"],
            "warm": {"mine": {"negatives": 0}, "train": training(over="batch")},
            "game": {"mine": {"negatives": 3, "depth": 10}, "train": training(DISTILLATION)},
        },
        "ranker": {
            "model": {"model": str(encoder), "pooling": "mean", "pair_tokens": 24, "dropout": 0.0},
            "warm": {"mine": {"negatives": 2, "depth": 10, "random": 1}, "train": training()},
            "game": {"mine": {"negatives": 3, "depth": 10}, "train": training()},
        },
        "judge": {"precision": "fp32", "shard": 16},
        "rerank": {"precision": "fp32", "shard": 16, "depth": 10},
        "controls": {"play": ["in-batch", "ance"], "in_batch": training(over="batch"), "ance": training()},
    }  # fmt: skip


def write(path: Path, tree: dict[str, Any]) -> Path:
    """A config or profile as a file."""
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path
