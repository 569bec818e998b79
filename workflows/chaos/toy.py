"""A collection of invented words, a model of a few thousand weights and an experiment on them, made in a moment and
without a network."""

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
"""Of the collection; queries belong to the splits in turn."""
UPDATES, BATCH, SHARD = 40, 8, 12
"""Of each training; documents, or groups, of a shard."""
CROSS_ENTROPY = "components.losses.listwise.cross_entropy"
DISTILLATION = "components.losses.listwise.distillation"


def bert_tokenizer() -> Any:
    """WordPiece over the toy words, single letters, and their continuations."""
    from transformers import BertTokenizer

    pieces = [*SPECIAL, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS]
    return BertTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, model_max_length=64)


def some_text(rng: np.random.Generator, words: int) -> str:
    """Toy words, now and then one that falls to pieces."""
    return " ".join("xq7" if rng.random() < 0.1 else WORDS[rng.integers(len(WORDS))] for _ in range(words))


def write_collection(folder: Path) -> Path:
    """A folder in BEIR's layout; query i asks with words of document i, the only one that is relevant to it."""
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
    """A BERT of two small layers with its tokenizer."""
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


def experiment(collection: Path, encoder: Path, *, workers: int) -> dict[str, Any]:
    """One round of AR2 with its refresh, as a config; each batch can be divided among so many workers."""

    def training(loss: str = CROSS_ENTROPY, over: str = "group") -> dict[str, Any]:
        return {
            "updates": UPDATES,
            "batch": workers * -(-BATCH // workers),
            "learning_rate": 1e-3,
            "precision": "fp32",
            "log_every": 1,
            "losses": [{"function": loss, "over": over}],
        }

    model = {"model": str(encoder), "pooling": "mean", "dropout": 0.1}
    scoring = {"precision": "fp32", "shard": SHARD}
    return {
        "recipe": "ar2",
        "data": {"format": "beir", "path": str(collection)},
        "k": 20,
        "encode": {"shard": SHARD, "precision": "fp32", "vectors": "float32"},
        "rounds": 1,
        "retriever": {
            "model": {**model, "similarity": "cosine", "query_tokens": 8, "document_tokens": 24},
            "warm": {"mine": {"negatives": 0}, "train": training(over="batch")},
            "game": {"mine": {"negatives": 3, "depth": 10}, "train": training(DISTILLATION)},
        },
        "ranker": {
            "model": {**model, "pair_tokens": 32},
            "warm": {"mine": {"negatives": 3, "depth": 10}, "train": training()},
            "game": {"mine": {"negatives": 3, "depth": 10}, "train": training()},
        },
        "score": scoring,
        "rerank": {**scoring, "depth": 10},
        "gate": False,
    }
