"""Write a collection of invented words and a model of a few thousand weights, and configure an experiment on them.

All of it takes a moment and needs no network. `chaos` and the tests share it.
"""

import functools
import json
import string
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.rng import keyed_rng

WORDS = [f"{a}{b}" for a in ["ba", "co", "du", "fe", "gi", "lo", "mu", "na"] for b in ["ra", "mi", "tol", "ven"]]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_lowercase + string.digits + ".,-"

DOCUMENTS, QUERIES, SPLITS = 240, 120, ("train", "train", "dev", "test")
"""Sizes of the collection, and splits that the queries belong to in turn."""
CROSS_ENTROPY = "components.losses.listwise.cross_entropy"
DISTILLATION = "components.losses.listwise.distillation"


def bert_tokenizer() -> Any:
    """Build a WordPiece tokenizer of the toy words, single letters, and their continuations."""
    from transformers import BertTokenizer

    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    return BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, model_max_length=64)


def some_text(rng: np.random.Generator, words: int) -> str:
    """Sample toy words, and now and then a word that is split into pieces."""
    return " ".join("xq7" if rng.random() < 0.1 else WORDS[rng.integers(len(WORDS))] for _ in range(words))


def write_collection(folder: Path) -> Path:
    """Write a folder in BEIR's layout. Query i has words of document i, its only relevant document."""
    (folder / "qrels").mkdir(parents=True)
    rng = keyed_rng("toy collection")
    texts = [some_text(rng, int(rng.integers(4, 24))) for _ in range(DOCUMENTS)]
    documents = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    queries = [{"_id": f"q{i}", "text": " ".join(texts[i].split()[: 2 + i % 3])} for i in range(QUERIES)]
    for name, rows in {"corpus": documents, "queries": queries}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split in dict.fromkeys(SPLITS):
        judged = [f"q{i}\td{i}\t1\n" for i in range(QUERIES) if SPLITS[i % len(SPLITS)] == split]
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


def write_encoder(folder: Path) -> Path:
    """Write a BERT of two small layers with its tokenizer."""
    import torch
    import transformers

    tokenizer = bert_tokenizer()
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=96,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModel.from_config(config)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


def training(loss: str = CROSS_ENTROPY, *, over: str = "group", updates: int = 3, batch: int = 4) -> dict[str, Any]:
    """Configure a training that takes a moment."""
    return {
        "updates": updates,
        "batch": batch,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "log_every": 1,
        "losses": [{"function": loss, "over": over}],
    }


def experiment(collection: Path, encoder: Path, *, dropout: float, updates: int = 3, batch: int = 4) -> dict[str, Any]:
    """Configure one round of AR2 with its refresh."""
    train = functools.partial(training, updates=updates, batch=batch)
    model = {"model": str(encoder), "pooling": "mean", "dropout": dropout}
    game = {"negatives": 3, "depth": 10}
    scoring = {"precision": "fp32", "shard": 16}
    return {
        "recipe": "ar2",
        "data": {"format": "beir", "path": str(collection)},
        "k": 20,
        "encode": {"shard": 7, "precision": "fp32", "vectors": "float32"},
        "rounds": 1,
        "retriever": {
            "model": {**model, "similarity": "cosine", "query_tokens": 8, "document_tokens": 24},
            "warm": {"mine": {"negatives": 0}, "train": train(over="batch")},
            "game": {"mine": game, "train": train(DISTILLATION)},
        },
        "ranker": {
            "model": {**model, "pair_tokens": 24},
            "warm": {"mine": {"negatives": 2, "depth": 10, "random": 1}, "train": train()},
            "game": {"mine": game, "train": train()},
        },
        "score": scoring,
        "rerank": {**scoring, "depth": 10},
        "gate": False,
    }
