"""Whole experiments that take seconds: a toy BEIR folder, toy models, and configs for the recipes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparring.components.yaml_files import yaml_text
from sparring.workflows.chaos.toy import CROSS_ENTROPY as CROSS_ENTROPY
from sparring.workflows.chaos.toy import DISTILLATION as DISTILLATION
from sparring.workflows.chaos.toy import experiment, training
from sparring.workflows.command_line import main
from sparring.workflows.running.executor import UNTIL_DONE

ROOT = Path(__file__).parents[2]

Said = Callable[[], tuple[str, str]]
"""The fixture of that name."""


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
            metadata = {"metadata": {"answers": row["answers"]}} if row["answers"] else {}
            file.write(json.dumps({"_id": row["query_id"], "text": row["text"], **metadata}) + "\n")
    for split in sorted({row["split"] for row in qrels}):
        with (folder / "qrels" / f"{split}.tsv").open("w") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for row in qrels:
                if row["split"] == split:
                    file.write(f"{row['query_id']}\t{row['doc_id']}\t{row['relevance']}\n")
    return folder


def dpr(beir: Path, encoder: Path) -> dict[str, Any]:
    """DPR with one hard negative of BM25."""
    small = experiment(beir, encoder, dropout=0.0)
    return {
        "recipe": "dpr",
        **{key: small[key] for key in ("data", "k", "encode")},
        "retriever": small["retriever"]["model"],
        "negatives": {"negatives": 1, "depth": 10},
        "train": training(over="batch"),
    }


def ar2(beir: Path, encoder: Path) -> dict[str, Any]:
    """One round of AR2 with both controls."""
    return {
        **experiment(beir, encoder, dropout=0.0),
        "controls": {
            "include": ["in-batch", "ance"],
            "in_batch": training(over="batch")["losses"],
            "ance": training()["losses"],
        },
    }


def simlm(beir: Path, encoder: Path) -> dict[str, Any]:
    """Pre-training and all stages of the pipeline, the ranker with what the public code adds."""
    small = dpr(beir, encoder)

    def pretraining(*views: str) -> dict[str, Any]:
        likelihood = "components.losses.likelihood.negative_log_likelihood"
        return {**training(batch=8), "losses": [{"function": likelihood, "over": view} for view in views]}

    contrastive = training("components.losses.simlm.contrastive", over="batch")
    r_drop = {"function": "components.losses.listwise.symmetric_kl", "over": "passes"}
    return {
        "recipe": "simlm",
        **{key: small[key] for key in ("data", "k", "encode")},
        "retriever": {**small["retriever"], "pooling": "cls"},
        "pretrain": {
            "generator": {
                "model": {"model": str(encoder), "layers": 1, "document_tokens": 24, "dropout": 0.0},
                "train": pretraining("tokens"),
            },
            "train": pretraining("encoder", "decoder"),
        },
        "without_pretraining": True,
        "retriever_1": {"mine": {"negatives": 2, "depth": 10}, "train": contrastive},
        "retriever_2": {"mine": {"negatives": 2, "depth": 10}, "train": contrastive},
        "ranker": {
            "model": {"model": str(encoder), "pooling": "mean", "pair_tokens": 24, "dropout": 0.1},
            "mine": {"negatives": 5, "depth": 10},
            "hardest": {"keep": 3},
            "train": {**training(), "losses": [*training()["losses"], r_drop]},
        },
        "distilled": {
            "mine": {"negatives": 3, "depth": 10},
            "train": {
                **training(),
                "losses": [{"function": "components.losses.listwise.kl"}, {**contrastive["losses"][0], "weight": 0.2}],
            },
        },
        "score": {"precision": "fp32", "shard": 16},
        "rerank": {"precision": "fp32", "shard": 16, "depth": 10},
    }


def ear(beir: Path, encoder: Path) -> dict[str, Any]:
    """Two generators that need no language model, both query rerankers, and a dense retriever as it is."""
    small = dpr(beir, encoder)
    relevance = {"number": 4, "documents": 4, "common": 1.0}
    model = {"model": str(encoder), "pooling": "mean", "pair_tokens": 24, "dropout": 0.0}
    learn = {**training("components.losses.query_ranks.ranking"), "schedule": "noam"}
    return {
        "recipe": "ear",
        **{key: small[key] for key in ("data", "k", "encode", "retriever")},
        "relevant_by": "qrels",
        "generators": {
            "sentence": {"relevance": {**relevance, "draws": "sentence"}},
            "terms": {"relevance": {**relevance, "terms": 2}},
        },
        "rerankers": {"ri": {"model": model, "train": learn}, "rd": {"model": model, "train": learn}},
        "predict": {"precision": "fp32", "shard": 16},
        "fewer_expansions": [2],
        "passages": {
            "model": model,
            "train": training("components.losses.pointwise.binary_cross_entropy"),
            "rerank": {"precision": "fp32", "shard": 16, "depth": 12},
            "other_depth": 4,
            "top_queries": 2,
        },
    }


def coder(beir: Path, encoder: Path, **more: Any) -> dict[str, Any]:
    """A base model that learned in batches, its contexts of 12, labels of both kinds of similarity."""
    small = dpr(beir, encoder)
    return {
        "recipe": "coder",
        **{key: small[key] for key in ("data", "k", "encode", "retriever")},
        "warm": {"mine": {"negatives": 0}, "train": training(over="batch")},
        "context": {"size": 12},
        "smooth": {"similarity": {"k": 4, "k_exp": 2, "geometric": "max-min"}, "n_max": 4, "context": 8},
        "train": {
            **training("components.losses.listwise.divergence", updates=6, batch=4),
            "validate_on_dev": {"every": 2, "from_start": True, "measure": "loss", "queries": 3, "negatives": 9},
        },
        "temperature": {"start": 0.1, "pace": 10},
        "rerank": {"k": 4, "k_exp": 2, "geometric": "max-min", "context": 9},
        "rerank_chosen": {"split": "dev", "trials": 3, "k": [2, 5], "k_exp": [1, 3], "context": [5, 9]},
        "interpolate": {"weight": 0.5},
        "analyse": {"map": 0},
        **more,
    }


def adapt(beir: Path, encoder: Path) -> dict[str, Any]:
    """A collection of one's own, with trainings of a moment."""
    small = dpr(beir, encoder)
    moment = {"updates": 3, "batch": 4}
    return {
        "recipe": "adapt",
        **{key: small[key] for key in ("data", "encode")},
        "model": str(encoder),
        "train": {"warm": moment, "ranker": moment, "game": moment},
        "rm3": None,
        "neighbours": {"trials": 3, "folds": 2, "k": [2, 5], "k_exp": [1, 3], "context": [5, 9]},
    }


def write(path: Path, tree: dict[str, Any]) -> Path:
    """A config or profile as a file."""
    path.write_text(yaml_text(tree))
    return path


INLINE = {
    "mode": "inline",
    "device": "cpu",
    "max_tokens_per_pass": 256,
    "map": {"workers": 1, "threads": 1},
    "train": {"workers": 1, "threads": 1},
}


@dataclass(frozen=True)
class Place:
    """A folder with a config, a profile, a store and runs; called with the words of a command, it runs it."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "tiny.yaml"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def where(self) -> str:
        """The store as the command line has it."""
        return str(self.store)

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def words(self, command: str, *words: str) -> list[str]:
        """The command line. Commands that run models get the profile, and those that need a config get it."""
        where = ["--store", self.where, "--runs", str(self.runs)]
        config = [] if command in ("evaluate", "doctor") else [str(self.config)]
        runs_models = command in ("run", "search", "encode", "rerank", "serve", "tune")
        cluster = ["--cluster", str(self.folder / "inline.yaml")] if runs_models else []
        return [*where, command, *config, *cluster, *words]

    def __call__(self, command: str, *words: str) -> int:
        return main(self.words(command, *words))

    def metrics(self, run: str = "tiny") -> dict[str, Any]:
        """What a run's metrics.json says."""
        return dict(json.loads((self.runs / run / "metrics.json").read_text()))

    def links(self, run: str = "tiny") -> list[str]:
        """The names of a run's links to its artifacts, in order."""
        return sorted(path.name for path in (self.runs / run).iterdir() if path.is_symlink())

    def artifact(self, label: str) -> Path:
        """The directory that the run's link of a label points to."""
        name = label.replace(" ", "-")
        return next(self.runs / "tiny" / link for link in self.links() if link.partition("-")[2] == name).resolve()

    def copy(self, to: Path) -> Place:
        """The same, to do something to."""
        shutil.copytree(self.folder, to, symlinks=True)
        return Place(to)


def place(folder: Path, tree: dict[str, Any], **profile: Any) -> Place:
    """A folder with a config and an inline profile."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "tiny.yaml", tree)
    write(folder / "inline.yaml", {**INLINE, **profile})
    return Place(folder)


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file below a folder, and where links point."""
    digests = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            digests[str(path.relative_to(folder))] = str(path.readlink())
        elif path.is_file():
            digests[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def kept(folder: Path) -> dict[str, str]:
    """The contents of a step's directory, without what goes when its record is written."""
    return {name: digest for name, digest in contents(folder).items() if name not in UNTIL_DONE}


def results(store: Path) -> dict[str, str]:
    """The digests of what a run is for: rankings, models' weights, groups and measures, by artifact."""
    wanted = {"ranking.parquet", "groups.parquet", "per_query.parquet", "metrics.json"}
    return {
        name: digest
        for name, digest in contents(store).items()
        if not wanted.isdisjoint(Path(name).parts) or ("/model/" in name and name.endswith(".safetensors"))
    }


def records(store: Path) -> list[dict[str, Any]]:
    """The records of all finished artifacts."""
    return [json.loads(path.read_text()) for path in sorted(store.glob("*/artifact.json"))]
