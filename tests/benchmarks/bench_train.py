"""Training both players, and asking the ranker, against sentence-transformers; gradient caching against plain steps.

make bench ARGS="-k 'test_retriever or test_ranker or test_scores or test_large'"
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from sparring.components.training.config import TrainConfig
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.mine import MineConfig, mine
from sparring.workflows.steps.score import ScoreConfig, Scorer
from sparring.workflows.steps.train import train
from tests.benchmarks.conftest import AT_ONCE, LENGTH, ROOT, World
from tests.benchmarks.measure import HEAD, PAIRS, by_turns, figure
from tests.benchmarks.table import machine, write
from tests.support.machines import changed

BATCH, NEGATIVES = 32, 7


class Size(NamedTuple):
    """Of one turn."""

    pairs: int
    """Of a retriever's batch."""
    groups: int
    """Of a ranker's batch."""
    updates: int


SIZES = {"cpu": Size(BATCH, 8, 8), "cuda": Size(128, 32, 24)}
CROSS_ENTROPY = "components.losses.listwise.cross_entropy"


def mined(world: World, groups: int, negatives: int) -> Path:
    """Groups with random negatives."""
    out = world.place("groups")
    config = MineConfig(negatives=0, random=negatives)
    mine(
        out,
        world.machine,
        data=world.data,
        tokens=world.tokens,
        ranking=None,
        split="train",
        groups=groups,
        seed=[1],
        config=config,
    )
    return out


def trained(world: World, objective: str, groups: Path, machine: Machine, **config: Any) -> dict[str, Any]:
    """What a training says of itself."""
    start = world.retriever if objective == "retriever" else world.ranker
    return train(
        world.place("trained"),
        machine,
        objective=objective,
        rows=groups,
        dev=None,
        data=world.data,
        tokens=world.tokens,
        start=start,
        seed=[1],
        config=TrainConfig(warmup=0.0, **config),
    )


def seconds_of_ours(world: World, objective: str, groups: Path, machine: Machine, **config: Any) -> float:
    """Inside the training loop."""
    return float(trained(world, objective, groups, machine, **config)["model_seconds"])


class Shares(list[float]):
    """Of our time, what the models' matrix products alone would take."""

    def seconds(self, summary: dict[str, Any]) -> float:
        """Inside the training loop; the share is kept."""
        seconds = float(summary["model_seconds"])
        self.append(summary["roofline_seconds"] / seconds)
        return seconds

    def __str__(self) -> str:
        return (
            f"The matrix products of the tokens alone would take {median(self):.0%} of our time ({min(self):.0%} to "
            f"{max(self):.0%}); wanted: 70%."
        )


def written(world: World, groups: Path) -> dict[str, list[Any]]:
    """The groups in words: queries, and each one's documents, the positive first."""
    table = pq.read_table(groups / "groups.parquet")
    query_columns = pq.read_table(world.data / "queries.parquet", columns=["query_id", "text"]).to_pydict()
    queries = dict(zip(query_columns["query_id"], query_columns["text"], strict=True))
    names = pq.read_table(world.data / "documents.parquet", columns=["doc_id"])["doc_id"].to_pylist()
    documents = dict(zip(names, world.documents(), strict=True))
    lists = [[documents[name] for name in group] for group in table["doc_ids"].to_pylist()]
    return {
        "query": [queries[name] for name in table["query_id"].to_pylist()],
        "docs": lists,
        "labels": table["targets"].to_pylist(),
    }


def arguments(world: World, kind: Any, batch: int) -> Any:
    """Their trainer's, as like ours as it can be set."""
    return kind(
        output_dir=str(world.place("theirs")),
        per_device_train_batch_size=batch,
        bf16=world.precision == "bf16",
        max_steps=SIZES[world.device].updates,
        learning_rate=2e-5,
        warmup_steps=0,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=world.device == "cpu",
    )


def test_retriever(world: World) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    pairs, _, updates = SIZES[world.device]
    groups = mined(world, pairs * updates, 0)
    examples = written(world, groups)
    shares = Shares()
    data = Dataset.from_dict(
        {"anchor": examples["query"], "positive": [documents[0] for documents in examples["docs"]]}
    )

    def ours() -> float:
        loss = {"function": CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}
        config = {"updates": updates, "batch": pairs, "losses": [loss]}
        return shares.seconds(trained(world, "retriever", groups, world.machine, **config))

    def theirs() -> float:
        torch.set_num_threads(cores())
        model = SentenceTransformer(str(world.retriever / "model"), device=world.device)
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments(world, SentenceTransformerTrainingArguments, pairs),
            train_dataset=data,
            loss=MultipleNegativesRankingLoss(model, scale=20.0),
        )
        return float(trainer.train().metrics["train_runtime"])

    turns = by_turns(ours, theirs)
    row = turns.row(
        "train the retriever",
        f"SentenceTransformerTrainer, MultipleNegativesRankingLoss, {world.precision}",
        "pairs/s",
        pairs * updates,
        1.3,
    )
    lines = [
        f"Batches of {pairs} pairs of a query and its document; {updates} updates a turn, inside the loop.",
        str(shares),
        machine(ROOT),
    ]
    write("Training the retriever", 'make bench ARGS="-k test_retriever"', HEAD, [row], lines)


def test_ranker(world: World) -> None:
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import ListNetLoss

    _, size, updates = SIZES[world.device]
    groups = mined(world, size * updates, NEGATIVES)
    data, shares = Dataset.from_dict(written(world, groups)), Shares()

    def ours() -> float:
        losses = [{"function": CROSS_ENTROPY}]
        config = {"updates": updates, "batch": size, "losses": losses}
        return shares.seconds(trained(world, "ranker", groups, world.machine, **config))

    def theirs() -> float:
        torch.set_num_threads(cores())
        model = CrossEncoder(str(world.ranker / "model"), device=world.device)
        trainer = CrossEncoderTrainer(
            model=model,
            args=arguments(world, CrossEncoderTrainingArguments, size),
            train_dataset=data,
            loss=ListNetLoss(model, mini_batch_size=-1),
        )
        return float(trainer.train().metrics["train_runtime"])

    turns = by_turns(ours, theirs)
    row = turns.row(
        "train the ranker", f"CrossEncoderTrainer, ListNetLoss, {world.precision}", "groups/s", size * updates, 1.3
    )
    lines = [
        f"Batches of {size} groups of {1 + NEGATIVES} documents; {updates} updates a turn, inside the loop.",
        str(shares),
        machine(ROOT),
    ]
    write("Training the ranker", 'make bench ARGS="-k test_ranker"', HEAD, [row], lines)


def test_scores(few: World) -> None:
    from sentence_transformers.cross_encoder import CrossEncoder

    groups = mined(few, 250, NEGATIVES)
    examples, table = written(few, groups), pq.read_table(groups / "groups.parquet")
    pairs = [
        (query, document)
        for query, documents in zip(examples["query"], examples["docs"], strict=True)
        for document in documents
    ]
    queries = pq.read_table(few.data / "queries.parquet", columns=["query_id"])["query_id"].to_pylist()
    documents = pq.read_table(few.data / "documents.parquet", columns=["doc_id"])["doc_id"].to_pylist()
    query_rows, document_rows = ({name: row for row, name in enumerate(names)} for names in (queries, documents))
    rows = np.asarray(
        [
            (query_rows[query], document_rows[document])
            for query, names in zip(table["query_id"].to_pylist(), table["doc_ids"].to_pylist(), strict=True)
            for document in names
        ]
    )
    np.save(few.root / "pairs.npy", rows)
    cuda = few.machine.cuda
    scorer = Scorer(
        tokens=few.tokens,
        model=few.ranker / "model",
        pairs=few.root / "pairs.npy",
        config=ScoreConfig(),
        batch_tokens=few.machine.batch_tokens,
        cuda=cuda,
        threads=cores(),
    )
    peer = CrossEncoder(str(few.ranker / "model"), device=few.device, max_length=LENGTH)
    exact = peer.predict(pairs[:200], show_progress_bar=False)
    if few.precision == "bf16":
        peer.bfloat16()
    worst = float(np.abs(scorer.scores(rows[:200])[0] - exact).max())
    turns = by_turns(
        lambda: scorer.scores(rows),
        lambda: peer.predict(
            pairs, batch_size=AT_ONCE[few.device], show_progress_bar=False, convert_to_tensor=True
        ).cpu(),
    )
    row = turns.row("score groups with the ranker", f"CrossEncoder.predict, {few.precision}", "pairs/s", len(rows), 1.5)
    lines = [
        f"{len(rows):,} pairs of {LENGTH} tokens at most. Largest difference from a score in fp32: {worst:.4f} "
        f"(their standard deviation is {exact.std():.4f}).",
        machine(ROOT),
    ]
    write("Scoring", 'make bench ARGS="-k test_scores"', HEAD, [row], lines)


LARGE = 1024
ONE = """
import json, resource, sys
import torch
from pathlib import Path
from tests.benchmarks.bench_train import seconds_of_ours
from tests.benchmarks.conftest import World
told = json.loads(sys.argv[1])
world = World.of(told["world"])
seconds = seconds_of_ours(world, "retriever", Path(told["groups"]), world.machine, **told["config"])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([seconds, torch.cuda.max_memory_allocated() if world.machine.cuda else peak]))
"""


def test_large_batches(world: World) -> None:
    """Each training in a process of its own, for its memory: the process's, or on a GPU the GPU's."""
    groups = mined(world, LARGE, 0)
    loss = {"function": CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}

    def trained(batch: int, *, recompute: bool) -> tuple[float, float]:
        config = {"updates": LARGE // batch, "batch": batch, "losses": [loss]}
        variant = replace(world, machine=changed(world.machine, {"recompute": recompute}))
        request = json.dumps({"world": variant.told(), "groups": str(groups), "config": config})
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        done = subprocess.run(
            [sys.executable, "-c", ONE, request], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
        )
        seconds, peak = json.loads(done.stdout.splitlines()[-1])
        return seconds, peak

    def pair(number: int) -> tuple[tuple[float, float], tuple[float, float]]:
        order = (LARGE, BATCH) if number % 2 else (BATCH, LARGE)
        costs = {batch: trained(batch, recompute=batch == LARGE) for batch in order}
        return costs[LARGE], costs[BATCH]

    pairs = [pair(number) for number in range(PAIRS + 1)][1:]  # the first is unmeasured
    times = sorted(cached / plain for (cached, _), (plain, _) in pairs)
    memory = sorted(cached / plain for (_, cached), (_, plain) in pairs)
    head = ["job", "what", "one batch of 1,024, cached", "32 batches of 32", "ratio (range)", "wanted", "reached"]
    rows = []
    for quantity, place, ratios, wanted, unit in (
        ("time", 0, times, 1.6, 1.0),
        ("peak memory, GiB", 1, memory, 1.25, 2**30),
    ):
        large, small = (figure(median(pair[side][place] for pair in pairs) / unit) for side in (0, 1))
        spread = f"{median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rows.append(
            [
                "gradient caching",
                quantity,
                large,
                small,
                spread,
                f"<= {wanted}x",
                "yes" if median(ratios) <= wanted else "no",
            ]
        )
    lines = [f"{LARGE} pairs in all on both sides; each training in a process of its own.", machine(ROOT)]
    write("Large batches", 'make bench ARGS="-k test_large"', head, rows, lines)
