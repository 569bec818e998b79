"""A few real batches of each model task, on made-up texts as long as the collection's: the rates of an estimate.

Encoding and scoring are what their steps' workers run, and training is the training loop itself from its self-check to
the model that it writes, with a few updates. Everything lies in a temporary folder.
"""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparring.components.data.tables import DOCUMENTS, GROUPS, QRELS, QUERIES, write
from sparring.components.files import write_json
from sparring.workflows.store.progress import Progress

SECONDS = 1.5
"""An encoder or a ranker is tried for about so long, after one batch that does not count."""
NO_TIME = "no time was left"
"""Why something was not tried."""
UPDATES = 3
"""Updates of a training that are tried; the first, which allocates what all need, counts as a part of what is fixed."""
OPERATIONS = 1.5e12
"""A training is tried on as many rows of its batch as take so many operations, on a CPU."""


class Spec(NamedTuple):
    """What is tried; plain values and configs, as it travels to another process."""

    use: str
    config: Any
    """The model's config."""
    vocabulary: int
    document_lengths: list[int]
    query_lengths: list[int]
    options: dict[str, Any]
    operations: float
    """Of one unit."""


class Trial(NamedTuple):
    """What was measured."""

    unit: float
    """Seconds of a unit (a text, a pair, an update)."""
    fixed: float = 0.0
    """Seconds beside the units: of a training all that is none of its updates, such as its objective, its self-check
    and writing the model; of others loading the model."""
    own: float = 1.0
    """The share of the time in which this process computed: less than 1 where other programs took the rest."""
    products: float = 0.0
    """Operations a second of the model's matrix products alone; 0 where not known."""


def measure(
    specs: list[Spec], folder: Path, *, threads: int, batch_tokens: int, cuda: bool, seconds: float = math.inf
) -> Iterator[float | Trial | str]:
    """Seconds that importing torch took, and then for each spec what was measured or, in words, why nothing was. No
    trial begins after so many `seconds` of them. The folder, which is empty, gets the progress, and what trials write.
    """
    began = time.perf_counter()
    import torch
    import transformers  # noqa: F401

    yield time.perf_counter() - began
    from sparring.components.compute.processor import configure_process

    configure_process(threads)
    began = time.perf_counter()
    with Progress(folder, len(specs), "kinds of work tried") as progress:
        models: dict[str, Path] = {}
        for number, spec in enumerate(specs):
            if time.perf_counter() - began >= seconds:
                yield NO_TIME
                continue
            place = folder / f"{number}"
            found: Trial | str
            try:
                others = spec.options.get("models", {})
                begun = {}
                for key, config in {"start": spec.config, **others}.items():
                    name = f"{config!r}"
                    if name not in models:
                        models[name] = _started(place / key, config)
                    begun[key] = models[name]
                try_out = partial(_train, own=begun) if spec.use == "training" else _ask
                found = try_out(
                    spec,
                    place,
                    begun.pop("start"),
                    threads=threads,
                    batch_tokens=batch_tokens,
                    device=torch.device("cuda" if cuda else "cpu"),
                )
            except Exception as error:  # an estimate goes on without this rate, and says so
                found = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            yield found
            progress.add()


def send(connection: Connection, specs: list[Spec], folder: Path, **options: Any) -> None:
    """Send what is measured to another process, each thing as soon as it is there."""
    for found in measure(specs, folder, **options):
        connection.send(found)


def _started(folder: Path, config: Any) -> Path:
    """The model's artifact, made by the step that a run makes it with."""
    from sparring.workflows.steps.start import start

    folder.mkdir(parents=True)
    start(folder, None, config=config)  # type: ignore[arg-type]  # it runs in this process and asks no cluster
    return folder


def _ask(spec: Spec, place: Path, start: Path, *, threads: int, batch_tokens: int, device: Any) -> Trial:
    """Seconds of a text or a pair."""
    from sparring.components.data.token_store import TokenStore
    from sparring.components.models.cross_encoder import CrossEncoder
    from sparring.components.models.inference import Inference, Pairs, Texts, TimedInference
    from sparring.components.retrieval.kind import kind_of

    tokens = _tokens(place / "tokens", spec, start, documents=512, queries=512)
    scoring = spec.use == "scoring"
    kind: Any = CrossEncoder if scoring else kind_of(start / "model").model()
    opened: Any = {
        "precision": spec.options["precision"],
        "batch_tokens": batch_tokens,
        "cuda": device.type == "cuda",
        "threads": threads,
    }
    products = TimedInference(kind, start / "model", **opened).rate
    began = time.perf_counter()
    inference = Inference(kind, start / "model", **opened)
    fixed = time.perf_counter() - began
    store, limits = TokenStore(tokens, start / "model"), inference.config
    side: list[str] = [] if scoring else [spec.options["side"]]
    reading: Any = (
        Pairs(store.template, store.queries, store.documents, limits.pair_tokens)
        if scoring
        else Texts(store.template, store.queries, limits.query_tokens)
        if side == ["query"]
        else Texts(store.template, store.documents, limits.document_tokens)
    )
    rows = np.arange(512)
    rows = np.stack([rows, rows], 1) if scoring else rows
    began = time.perf_counter()
    inference.ask(reading, rows[:32], *side)
    rate = 32 / (time.perf_counter() - began)
    count = int(np.clip(rate * SECONDS, 64, 512))
    done, began, own = 0, time.perf_counter(), time.process_time()
    while done == 0 or time.perf_counter() - began < SECONDS / 2:
        inference.ask(reading, rows[:count], *side)
        done += count
    took = time.perf_counter() - began
    return Trial(took / done, fixed, _own(time.process_time() - own, took, threads), products)


def _own(computed: float, took: float, threads: int) -> float:
    """The share of the time that a process's threads computed in."""
    return min(1.0, max(0.01, computed / (took * threads)))


def _train(
    spec: Spec, place: Path, start: Path, *, own: dict[str, Path], threads: int, batch_tokens: int, device: Any
) -> Trial:
    """Seconds of an update, of as many rows of a batch as are quick, and of what comes before and after them; `own` are
    the objective's other models."""
    from sparring.components.training.gradients import products
    from sparring.components.training.loop import train
    from sparring.components.training.objective import ObjectiveInputs, make_objective

    config, candidates = spec.options["config"], spec.options["candidates"]
    parts = config.accumulate
    whole = max(1, config.batch // spec.options["workers"])
    most = whole if device.type != "cpu" else math.ceil(OPERATIONS / spec.operations * config.batch)
    rows = max(min(whole, 2), min(whole, most)) // parts * parts or parts
    documents = int(np.clip(rows * max(1, candidates), 64, 20_000))
    tokens = _tokens(place / "tokens", spec, start, documents=documents, queries=rows)
    data = _collection(place / "data", documents=documents, queries=rows)
    table = data
    if candidates:
        table = _groups(
            place / "groups", rows=rows, candidates=candidates, documents=documents, scored=spec.options["scored"]
        )
    shown: list[float] = []
    computed: list[float] = []

    def on_update(update: int, note: str) -> None:
        shown.append(time.perf_counter())
        computed.append(time.process_time())

    inputs = ObjectiveInputs(
        model=start / "model",
        rows=table,
        data=data,
        tokens=tokens,
        losses=config.losses,
        max_tokens=batch_tokens,
        recompute=spec.options["recompute"],
    )
    few = config.model_copy(
        update={
            "batch": rows,
            "updates": UPDATES,
            "validate_on_dev": None,
            "carry": "weights",
            "schedule_updates": None,
        }
    )
    (place / "out").mkdir()
    began = time.perf_counter()
    made = make_objective(spec.options["objective"], inputs, seed=1, **own, **spec.options["own"])
    making = time.perf_counter() - began
    rate = made.rate(device=device.type, precision=products(config, device))  # measured once in a process
    began = time.perf_counter()
    train(
        made,
        few,
        out=place / "out",
        seed=1,
        start=start,
        device=device,
        dev=None,
        save_seconds=math.inf,
        on_update=on_update,
    )
    took = making + time.perf_counter() - began
    shutil.rmtree(place / "out")  # as large as the model, and others are tried after it
    update = statistics.median(np.diff(shown)[1:])
    share = _own(computed[-1] - computed[0], shown[-1] - shown[0], threads) if device.type == "cpu" else 1.0
    return Trial(update * whole / rows, max(0.0, took - UPDATES * update), share, rate or 0.0)


def _tokens(folder: Path, spec: Spec, start: Path, *, documents: int, queries: int) -> Path:
    """A token store of random tokens with lengths of the collection's."""
    from sparring.components.data.token_store import TOKENIZER
    from sparring.components.data.tokenizers import tokenizer_digest

    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count, known in (
        ("documents", documents, spec.document_lengths),
        ("queries", queries, spec.query_lengths),
    ):
        lengths = np.resize(rng.permutation(known), count)
        ids = rng.integers(min(1000, spec.vocabulary // 2), spec.vocabulary, int(lengths.sum()))
        np.save(folder / f"{name}.ids.npy", ids.astype(np.uint16 if spec.vocabulary <= 65_536 else np.uint32))
        np.save(folder / f"{name}.offsets.npy", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        np.save(folder / f"{name}.same.npy", np.arange(count))
    write_json(folder / TOKENIZER, tokenizer_digest(start / "model"))
    return folder


def _collection(folder: Path, *, documents: int, queries: int) -> Path:
    """Tables whose query i is answered by document i."""
    folder.mkdir()
    ids, asked = [f"d{i}" for i in range(documents)], [f"q{i}" for i in range(queries)]
    texts = {"doc_id": ids, "title": [""] * documents, "text": ["-"] * documents}
    write(folder / "documents.parquet", pa.table(texts, schema=DOCUMENTS), DOCUMENTS)
    table = {"query_id": asked, "text": ["-"] * queries, "answers": [[]] * queries, "split": ["train"] * queries}
    write(folder / "queries.parquet", pa.table(table, schema=QUERIES), QUERIES)
    judged = {
        "query_id": asked,
        "doc_id": [ids[i % documents] for i in range(queries)],
        "relevance": [1] * queries,
        "split": ["train"] * queries,
    }
    write(folder / "qrels.parquet", pa.table(judged, schema=QRELS), QRELS)
    return folder


def _groups(folder: Path, *, rows: int, candidates: int, documents: int, scored: bool) -> Path:
    """A group a query: its document, and the ones after it."""
    folder.mkdir()
    table = [
        {
            "query_id": f"q{i}",
            "visit": 0,
            "targets": [1.0] + [0.0] * (candidates - 1),
            "doc_ids": [f"d{(i + j * rows) % documents}" for j in range(candidates)],
            "teacher": [float(-j) for j in range(candidates)] if scored else None,
        }
        for i in range(rows)
    ]
    write(folder / "groups.parquet", pa.Table.from_pylist(table, schema=GROUPS), GROUPS)
    return folder
