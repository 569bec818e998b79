"""Copying a finished run out: models, rankings and qrels in the formats that other tools load."""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from components import trec
from components.config import UserError
from components.files import replacing
from workflows.store import Store

TEXTS = ["a", "What is it?", "one two three", "B-25, c. 1940"]
"""What an exported retriever is tried with."""
APART = 1e-4
"""How far its vectors may be from ours."""


def write(experiment: Any, store: Store, to: Path) -> Iterator[str]:
    """Write `retriever/`, `ranker/`, `rankings/*.trec`, `qrels.trec` and an index, a line for each; never overwrite."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to}: is there already and not empty; name a directory that is not")
    outcome = experiment.outcome
    for step in (outcome.data, outcome.found.retriever, outcome.ranker, *outcome.rankings.values()):
        if step is not None and not store.done(step):
            raise UserError(f"the step {step.label!r} is not done; run first: python -m workflows run CONFIG")
    store.bring([step for step in (outcome.found.retriever, outcome.ranker) if step is not None], "model")
    store.bring([outcome.data], "queries.parquet", "qrels.parquet")
    store.bring(outcome.rankings.values(), "ranking.parquet")
    split = experiment.outcome.split
    with replacing(to) as folder:
        folder.mkdir(parents=True)
        shutil.copytree(store.path(outcome.found.retriever) / "model", folder / "retriever")
        _compare(folder / "retriever")
        yield f'{to}/retriever: SentenceTransformer("{to}/retriever")'
        if outcome.ranker is not None:
            shutil.copytree(store.path(outcome.ranker) / "model", folder / "ranker")
            yield f'{to}/ranker: CrossEncoder("{to}/ranker")'
        (folder / "rankings").mkdir()
        queries = pq.read_table(store.path(outcome.data) / "queries.parquet", columns=["query_id", "split"])
        wanted = queries["query_id"].filter(pc.equal(queries["split"], split)).combine_chunks()
        for system, step in outcome.rankings.items():
            table = pq.read_table(store.path(step) / "ranking.parquet")
            name = system.replace(": ", "-").replace(" ", "-")
            table = table.filter(pc.is_in(table["query_id"], value_set=wanted))
            trec.write_ranking(table, folder / "rankings" / f"{name}.trec", tag=name)
        yield f"{to}/rankings: {len(outcome.rankings)} TREC run files"
        qrels = pq.read_table(store.path(outcome.data) / "qrels.parquet")
        trec.write_qrels(qrels, folder / "qrels.trec", split)
        yield f"{to}/qrels.trec: python -m workflows evaluate {to}/rankings/NAME.trec {to}/qrels.trec"
        index = outcome.found.index
        if index is not None and store.whole(index):
            store.bring([index], "index.faiss")
            shutil.copyfile(store.path(index) / "index.faiss", folder / "index.faiss")
            yield f'{to}/index.faiss: faiss.read_index("{to}/index.faiss")'


def _compare(folder: Path) -> None:
    """UserError where sentence-transformers, if it is installed, makes other vectors of a retriever than we do."""
    if find_spec("sentence_transformers") is None:
        return
    import torch
    from sentence_transformers import SentenceTransformer

    from components.dual_encoder import DualEncoder, Side
    from components.pretrained import load_tokenizer
    from components.text import Template, Tokens

    tokenizer, model = load_tokenizer(folder), DualEncoder.load(folder).eval()
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    for side in get_args(Side):
        prompt = getattr(model.config, f"{side}_prompt")
        tokens = Tokens.of(tokenizer([prompt + text for text in TEXTS], add_special_tokens=False)["input_ids"])
        limit = model.tokens("document" if model.config.towers == "shared" else side)  # where it cuts both sides
        with torch.inference_mode():
            ours = model(Template.of(tokenizer).texts(tokens, np.arange(len(TEXTS)), limit), side).numpy()
        apart = np.abs(getattr(theirs, f"encode_{side}")(TEXTS, show_progress_bar=False) - ours).max()
        if not apart <= APART * max(1.0, np.abs(ours).max()):
            raise UserError(f"in sentence-transformers a {side}'s vector is {apart:.2g} away from what it is here")
