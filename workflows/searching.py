"""Searching with a finished run's models: one query, encoded, compared with every document, perhaps ranked."""

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components import topk
from components.config import UserError
from components.groups import documents_for, ids_of, places_of
from components.tables import records
from components.vectors import documents_of
from workflows.cluster import Cluster
from workflows.store import Store


def text(experiment: Any, store: Store, cluster: Cluster, arguments: argparse.Namespace) -> str:
    """The documents found, best first, with scores and the beginning of their texts."""
    here = cluster.model_copy(update={"mode": "inline"})  # whatever the profile's runs are on
    found = find(experiment, store, arguments.query, k=arguments.k, rank=arguments.rank, cuda=here.cuda())
    lines = []
    for number, row in enumerate(found, 1):
        scores = f"{row['score']:.3f}" + (f", ranker {row['ranker']:.2f}" if "ranker" in row else "")
        lines.append(f"{number}. {row['title'] or row['doc_id']}  ({scores})  {row['doc_id']}")
        lines.append(textwrap.indent(textwrap.fill(textwrap.shorten(row["text"], 280, placeholder=" ..."), 100), "   "))
    return "\n".join(lines)


def find(experiment: Any, store: Store, query: str, *, k: int, rank: bool, cuda: bool) -> list[dict[str, Any]]:
    """`k` documents with text and scores; with `rank`, the ranker orders the retriever's first max(k, 20)."""
    import torch

    from components.dual_encoder import DualEncoder
    from components.pretrained import load_tokenizer
    from components.text import Template, Tokens, to_device

    outcome = experiment.outcome
    if rank and outcome.ranker is None:
        raise UserError(f"--rank: the recipe {experiment.config.recipe} trains no ranker")
    vectors = outcome.found.vectors
    for step in (outcome.found.retriever, vectors, outcome.data, *([outcome.ranker] if rank else [])):
        if not store.done(step):
            raise UserError(f"the step {step.label!r} is not done; run first: python -m workflows run CONFIG")
    if not store.whole(vectors):
        again = f"python -m workflows run CONFIG --until {vectors.label!r}"
        raise UserError(f"the vectors of {vectors.label!r} were dropped; make them again: {again}")
    store.bring([outcome.data], "documents.parquet")
    documents_for(k, store.path(outcome.data), key="-k")
    store.bring([vectors])
    store.bring([outcome.found.retriever, *([outcome.ranker] if rank else [])], "model")
    device = torch.device("cuda" if cuda else "cpu")
    folder = store.path(outcome.found.retriever) / "model"
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    model = DualEncoder.load(folder).eval().to(device)
    tokens = Tokens.of([tokenizer(model.config.query_prompt + query, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        batch = to_device(template.texts(tokens, np.array([0]), model.tokens("query")), device)
        vector = model(batch, "query")[0].cpu().numpy()
    found = _nearest(store.path(vectors), store.path(outcome.data), vector, k=max(k, 20) if rank else k)
    if rank:
        found = _ranked(store.path(outcome.ranker) / "model", query, found, device)
    return found[:k]


def _nearest(vectors: Path, data: Path, query: np.ndarray, *, k: int) -> list[dict[str, Any]]:
    """The documents nearest to a query's vector, with their scores."""
    table = data / "documents.parquet"
    ids = ids_of(table, "doc_id")
    by_id, places = places_of(ids)
    found = topk.top_k(query[None], documents_of(vectors), places, k)[0]
    chosen = ids.take(pa.array(by_id[topk.places(found)])).to_pylist()
    texts = records(table, "doc_id", chosen)
    return [{**texts[i], "score": float(score)} for i, score in zip(chosen, topk.scores(found), strict=True)]


def _ranked(folder: Path, query: str, found: list[dict[str, Any]], device: Any) -> list[dict[str, Any]]:
    """The documents in the ranker's order."""
    import torch

    from components.cross_encoder import CrossEncoder
    from components.pretrained import load_tokenizer
    from components.text import Template, Tokens, document_text, to_device

    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    model = CrossEncoder.load(folder).eval().to(device)
    whole = [document_text(row["title"], row["text"]) for row in found]
    tokens = Tokens.of(tokenizer([query, *whole], add_special_tokens=False)["input_ids"])
    rows = np.array([(0, 1 + place) for place in range(len(whole))])
    with torch.inference_mode():
        batch = template.pairs(tokens, tokens, rows, model.config.pair_tokens)
        scores = model(to_device(batch, device)).cpu().tolist()
    for row, score in zip(found, scores, strict=True):
        row["ranker"] = score
    return sorted(found, key=lambda row: -row["ranker"])
