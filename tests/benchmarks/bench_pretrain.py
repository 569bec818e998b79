"""Training on texts alone: SimCSE against sentence-transformers, SimLM against Hugging Face's Trainer.

make bench ARGS="-k 'test_simcse or test_simlm'"
"""

from __future__ import annotations

import random
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparring.components.data.tokenizers import word_starts
from sparring.components.models.configs import DualEncoderConfig, MaskedLanguageModelConfig
from sparring.components.training.config import TrainConfig
from sparring.workflows.distributed.limits import cores
from sparring.workflows.steps.start import start
from sparring.workflows.steps.train import train
from tests.benchmarks.bench_train import CROSS_ENTROPY
from tests.benchmarks.conftest import LENGTH, ROOT, World
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.table import machine, write


class Size(NamedTuple):
    """Of one turn."""

    updates: int
    sentences: int
    """SimCSE's batch."""
    documents: int
    """SimLM's batch."""
    hands: int
    """Processes that make the other side's batches; 0 for its own."""


SIZES = {"cpu": Size(12, 64, 32, 0), "cuda": Size(40, 128, 128, 4)}
SHORT = 32
"""SimCSE's tokens of a text."""
LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


def begun(world: World, **config: Any) -> Path:
    """A start model with dropout."""
    out = world.place("begun")
    start(out, world.machine, config=DualEncoderConfig(model=world.model, pooling="mean", dropout=0.1, **config))
    return out


def generator(world: World) -> Path:
    """A masked language model with a new head."""
    out = world.place("generator")
    config = MaskedLanguageModelConfig(model=world.model, layers=3, document_tokens=LENGTH, dropout=0.0)
    start(out, world.machine, config=config)
    return out


def seconds_of_ours(world: World, objective: str, begins: Path, config: TrainConfig, **own: Any) -> float:
    """Inside the training loop."""
    summary = train(
        world.place("trained"),
        world.machine,
        objective=objective,
        rows=world.data,
        dev=None,
        data=world.data,
        tokens=world.tokens,
        start=begins,
        seed=[1],
        config=config,
        **own,
    )
    return float(summary["model_seconds"])


def test_simcse(few: World) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    steps, sentences, _, hands = SIZES[few.device]
    begins = begun(few, similarity="cosine", document_tokens=SHORT)
    texts = few.documents(sentences * steps)
    data = Dataset.from_dict({"first": texts, "second": texts})
    loss = {"function": CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}
    config = TrainConfig(updates=steps, batch=sentences, warmup=0.0, losses=[loss])

    def theirs() -> float:
        torch.set_num_threads(cores())
        model = SentenceTransformer(str(begins / "model"), device=few.device)
        model.max_seq_length = SHORT
        arguments = SentenceTransformerTrainingArguments(
            output_dir=str(few.place("theirs")),
            per_device_train_batch_size=sentences,
            max_steps=steps,
            bf16=few.precision == "bf16",
            warmup_steps=0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=few.device == "cpu",
            dataloader_num_workers=hands,
        )
        loss = MultipleNegativesRankingLoss(model, scale=20.0)
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
        return float(trainer.train().metrics["train_runtime"])

    turns = by_turns(lambda: seconds_of_ours(few, "simcse", begins, config), theirs)
    row = turns.row(
        "SimCSE",
        f"SentenceTransformerTrainer, MultipleNegativesRankingLoss, {few.precision}",
        "texts/s",
        sentences * steps,
        1.3,
    )
    lines = [
        f"Batches of {sentences} texts of {SHORT} tokens at most, each encoded twice; {steps} updates a turn, "
        "inside the loop.",
        machine(ROOT),
    ]
    write("SimCSE", 'make bench ARGS="-k test_simcse"', HEAD, [row], lines)


class PlainSimLM(nn.Module):
    """SimLM from the library's own modules, as its public code puts them together: every logit of every token."""

    def __init__(self, model: str, drawn_by: str) -> None:
        from transformers import AutoModelForMaskedLM

        super().__init__()
        self.language_model = AutoModelForMaskedLM.from_pretrained(model)
        self.generator = AutoModelForMaskedLM.from_pretrained(drawn_by).requires_grad_(False)
        layers = self.language_model.bert.encoder.layer
        self.decoder = nn.ModuleList(deepcopy(layer) for layer in layers[-2:])

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, text: Tensor, masks: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        self.generator.eval()
        mask_token, bert = 103, self.language_model.bert
        read = []
        for mask in masks.unbind(1):
            with torch.no_grad():
                logits = self.generator(input_ids.masked_fill(mask, mask_token), attention_mask).logits
                drawn = torch.distributions.Categorical(logits=logits[mask].float()).sample()
            read.append(input_ids.masked_scatter(mask, drawn))
        states = bert(read[0], attention_mask).last_hidden_state
        hidden = torch.cat([states[:, :1], bert.embeddings(read[1])[:, 1:]], dim=1)
        far = torch.finfo(hidden.dtype).min
        unseen = (1 - attention_mask)[:, None, None, :].to(hidden.dtype) * far
        for layer in self.decoder:
            out = layer(hidden, attention_mask=unseen)
            hidden = out[0] if isinstance(out, tuple) else out
        losses = [
            nn.functional.cross_entropy(self.language_model.cls(layer)[text], input_ids[text])
            for layer in (states, hidden)
        ]
        return {"loss": losses[0] + losses[1]}


def collate(texts: list[dict[str, Any]], starts: np.ndarray, rng: random.Random) -> dict[str, Tensor]:
    """A padded batch with nested whole-word masks, drawn word by word."""
    width = max(len(text["input_ids"]) for text in texts)
    ids, attention, inside = (torch.zeros(len(texts), width, dtype=torch.long) for _ in range(3))
    masks = torch.zeros(len(texts), 2, width, dtype=torch.bool)
    for row, text in enumerate(texts):
        tokens = text["input_ids"]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        attention[row, : len(tokens)] = 1
        inside[row, 1 : len(tokens) - 1] = 1
        words: list[list[int]] = []
        for place in range(1, len(tokens) - 1):
            if starts[tokens[place]] or not words:
                words.append([])
            words[-1].append(place)
        rng.shuffle(words)
        masked = 0
        for word in words:
            for which, rate in enumerate((0.3, 0.5)):
                if masked < rate * len(tokens):
                    masks[row, which, word] = True
            masked += len(word)
    return {"input_ids": ids, "attention_mask": attention, "text": inside.bool(), "masks": masks, "labels": ids}


def test_simlm(few: World) -> None:
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    steps, _, documents, hands = SIZES[few.device]
    begins, drawn_by = begun(few, document_tokens=LENGTH), generator(few)
    losses = [{"function": LIKELIHOOD, "over": view} for view in ("encoder", "decoder")]
    config = TrainConfig(updates=steps, batch=documents, warmup=0.0, losses=losses)
    tokenizer = AutoTokenizer.from_pretrained(str(begins / "model"))
    texts = few.documents(documents * steps)
    examples = [{"input_ids": ids} for ids in tokenizer(texts, truncation=True, max_length=LENGTH)["input_ids"]]
    starts = word_starts(begins / "model")

    def theirs() -> float:
        torch.set_num_threads(cores())
        model, rng = PlainSimLM(str(begins / "model"), str(drawn_by / "model")).to(few.device), random.Random(1)
        arguments = TrainingArguments(
            output_dir=str(few.place("theirs")),
            per_device_train_batch_size=documents,
            max_steps=steps,
            bf16=few.precision == "bf16",
            warmup_steps=0,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=few.device == "cpu",
            remove_unused_columns=False,
            dataloader_num_workers=hands,
        )
        trainer = Trainer(
            model=model, args=arguments, train_dataset=examples, data_collator=lambda b: collate(b, starts, rng)
        )
        return float(trainer.train().metrics["train_runtime"])

    turns = by_turns(lambda: seconds_of_ours(few, "simlm", begins, config, generator=drawn_by), theirs)
    tokens = sum(len(example["input_ids"]) for example in examples)
    row = turns.row("SimLM", f"Hugging Face's Trainer over its own modules, {few.precision}", "tokens/s", tokens, 1.3)
    lines = [
        f"Batches of {documents} documents of {LENGTH} tokens at most, a frozen generator of three layers; "
        f"{steps} updates a turn, inside the loop.",
        machine(ROOT),
    ]
    write("SimLM", 'make bench ARGS="-k test_simlm"', HEAD, [row], lines)
