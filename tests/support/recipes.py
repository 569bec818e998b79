"""An experiment of every recipe on toy data, which takes seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.support import tiny, toy
from tests.support.sentence_sets import sentence_sets
from tests.support.writers import write_generator

LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


def diffcse(folder: Path, encoder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    (folder / "texts.txt").write_text("".join(toy.some_text(rng, 6) + "\n" for _ in range(40)))
    small = tiny.dpr(folder, encoder)
    return {
        "recipe": "diffcse",
        "data": {"format": "lines", "path": str(folder / "texts.txt")},
        "retriever": {**small["retriever"], "dropout": 0.1},
        "encode": small["encode"],
        "pretrain": {
            "objective": "diffcse",
            "generator": {"model": {"model": str(encoder), "layers": 1, "document_tokens": 24, "dropout": 0.0}},
            "train": {
                **tiny.training(updates=2, batch=8),
                "losses": [
                    {"function": tiny.CROSS_ENTROPY, "over": "batch"},
                    {"function": LIKELIHOOD, "over": "discriminator", "weight": 0.005},
                ],
            },
        },
        **sentence_sets(folder),
    }


def sentences(folder: Path, encoder: Path) -> dict[str, Any]:
    small = tiny.dpr(folder, encoder)
    return {"recipe": "sentences", "retriever": small["retriever"], "encode": small["encode"], **sentence_sets(folder)}


def zeroshot(folder: Path, encoder: Path) -> dict[str, Any]:
    small = tiny.dpr(tiny.write_beir(folder / "toy", toy.write_data(folder / "data")), encoder)
    kept = {key: small[key] for key in ("k", "encode", "retriever")}
    return {
        "recipe": "zeroshot",
        **kept,
        "collections": {"toy": {"data": {**small["data"], "own_document": "leave out"}}},
        "analyse": {"map": 0},
    }


def adapt(beir: Path, encoder: Path) -> dict[str, Any]:
    """With pseudo-relevance feedback."""
    return {key: value for key, value in tiny.adapt(beir, encoder).items() if key != "rm3"}


def dpr(beir: Path, encoder: Path) -> dict[str, Any]:
    """With smaller vectors, an index, and screened negatives that bear no answer."""
    return {
        **tiny.dpr(beir, encoder),
        "screen": {"answering": True},
        "sizes": {
            "int8": {"vectors": "int8"},
            "bits": {"vectors": "binary", "rescore": 2, "rescore_by": "int8"},
            "graph": {"index": "HNSW8"},
        },
    }


def ear_of_words(folder: Path, encoder: Path) -> dict[str, Any]:
    """With every option, on a collection with answers; its generators need no language model."""
    data = toy.with_answers(folder / "with answers", toy.write_data(folder / "data"), rare=True)
    tree = tiny.ear(tiny.write_beir(folder / "answered", data), encoder)
    model = {"model": str(write_generator(folder / "t5", seed=1, words=True)), "passage_tokens": 24, "template": "fid"}
    tree["rerankers"]["rd"]["template"] = "released"
    tree["rerankers"]["ri"]["train"]["validate_on_dev"] = {"every": 2, "measure": "accuracy", "queries": 4}
    tree["generators"]["terms"]["learn_from"] = "sentence"
    return tree | {
        "relevant_by": "answers",
        "include_question": True,
        "fewer_expansions": [],
        "passages": None,
        "hnsw": "HNSW4",
        "to_dense": True,
        "rm3": {"terms": 3, "documents": 3},
        "all_expansions": {"how": "reciprocal"},
        "reader": {
            "model": model,
            "learn_from": "retriever",
            "passages": 3,
            "depths": [2, 4],
            "read": {"precision": "fp32", "new_tokens": 4},
            "train": tiny.training(LIKELIHOOD, updates=2),
        },
        "evaluate": {"measures": ["Answer@5", "RR@10"]},
    }


def ear_of_models(folder: Path, encoder: Path) -> dict[str, Any]:
    """The same with a language model that learns, another that is asked, and expansions and a ranking from files."""
    tree = ear_of_words(folder, encoder)
    model = {"model": str(folder / "t5"), "query_tokens": 32, "target_tokens": 16}
    generate = {"number": 4, "new_tokens": 12, "precision": "fp32"}
    learn = {
        "targets": {"kind": "sentence", "documents": "judged"},
        "folds": 2,
        "train": tiny.training(LIKELIHOOD, updates=2),
    }
    queries = map(json.loads, (folder / "answered" / "queries.jsonl").read_text().splitlines())
    rows = [
        {"_id": query["_id"], "expansions": {"titles": [query["text"].split()[0], *query["metadata"]["answers"]]}}
        for query in queries
        if "metadata" in query
    ]
    (folder / "titles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = [f"{query} Q0 d{rank} {rank} {9 - rank} other\n" for query in ("q0", "q6") for rank in range(1, 6)]
    (folder / "other.run").write_text("".join(run))
    tree["evaluate"]["other_rankings"] = {"other": {"path": str(folder / "other.run")}}
    return tree | {
        "generators": {
            "taught": {"writer": {"model": model, "generate": generate, "learn": learn}},
            "asked": {
                "writer": {"model": model, "generate": {**generate, "prompt": "{query} ? We need"}},
                "learn_from": "taught",
            },
            "given": {"file": {"path": str(folder / "titles.jsonl"), "field": "titles"}},
        },
    }


def unjudged(folder: Path, encoder: Path) -> dict[str, Any]:
    """A collection without judgements, whose documents alone are learnt from."""
    beir = tiny.write_beir(folder / "toy", toy.write_data(folder / "data"))
    shutil.rmtree(beir / "qrels")
    (beir / "queries.jsonl").write_text("")
    moment = {"updates": 3, "batch": 4}
    return {**adapt(beir, encoder), "pretrain": {"pairs": "sentences", "learning_rate": 1e-4, **moment}}


def over(name: str, **more: Any) -> Callable[[Path, Path], dict[str, Any]]:
    """A recipe over other experiments: here over DPR on the toy collection."""

    def tree(folder: Path, encoder: Path) -> dict[str, Any]:
        data = toy.write_data(folder / "data")
        inner = tiny.write(folder / "inner.yaml", tiny.dpr(tiny.write_beir(folder / "toy", data), encoder))
        return {"recipe": name, **yaml.safe_load(yaml.safe_dump(more).replace("INNER", str(inner)))}

    return tree


def in_one_split(folder: Path) -> Path:
    """A collection in BEIR's layout, whose judgements are now all of the split test."""
    lines = [
        line
        for split in ("train", "dev", "test")
        if (judgements := folder / "qrels" / f"{split}.tsv").exists()
        for line in judgements.read_text().splitlines()[1:]
    ]
    shutil.rmtree(folder / "qrels")
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def folds(folder: Path, encoder: Path) -> dict[str, Any]:
    tree = over("folds", experiment="INNER", folds=3)(folder, encoder)
    in_one_split(folder / "toy")
    return tree


def on_the_toy(tree: Callable[..., dict[str, Any]]) -> Callable[[Path, Path], dict[str, Any]]:
    """A recipe of one collection."""
    return lambda folder, encoder: tree(tiny.write_beir(folder / "toy", toy.write_data(folder / "data")), encoder)


RECIPES: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "ar2": on_the_toy(tiny.ar2),
    "ear": on_the_toy(tiny.ear),
    "coder": on_the_toy(tiny.coder),
    "adapt": on_the_toy(adapt),
    "simlm": on_the_toy(tiny.simlm),
    "diffcse": diffcse,
    "sentences": sentences,
    "zeroshot": zeroshot,
    "dpr": on_the_toy(dpr),
    "compare": over(
        "compare",
        experiments={"one": "INNER", "other": {"file": "INNER", "sets": ["k=11"]}},
        baseline="one",
        systems=["retriever"],
        curves={"k": {10: "one", 11: "other"}},
    ),
    "folds": folds,
    "ear-of-models": ear_of_models,
    "unjudged": unjudged,
}
"""Each writes the files that it reads into a folder, and returns the config."""
