"""Fusion-in-Decoder: a reader that writes an answer out of many passages (Izacard and Grave 2021; paper 002, 3.4.6).

The encoder reads the question with each passage by itself; the decoder attends to the states of all of them in a row.
So the time to encode grows with the passages and not with their square, and as the states carry no place beyond their
own passage, the order of the passages means nothing to a T5.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from components import pretrained
from components.chunked import is_whole, kept, pieces, take
from components.model_configs import OWN
from components.reader_configs import ReaderConfig
from components.text import Batch, Template, TokenStore, to_device, token_batches

QUESTION, CONTEXT = "question:", "context:"
"""What stands before a question and before a passage, as in the released code; that has a mark before a title too,
which here is the beginning of the passage, as for every other model."""


class Joined(NamedTuple):
    """The states of each question's passages in a row, without the passages' padding."""

    states: Tensor
    """(N, L, d), L tokens of the question that has most of them."""
    mask: Tensor
    """(N, L) which are there."""


class Reader(nn.Module):
    """A seq2seq model with its tokenizer."""

    def __init__(self, config: ReaderConfig, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        model.generation_config.pad_token_id = tokenizer.pad_token_id

    @classmethod
    def start(cls, config: ReaderConfig) -> tuple[Self, Any]:
        """A pre-trained model, and its tokenizer."""
        tokenizer = pretrained.tokenizer(config)
        return cls(config, pretrained.language_model(config, AutoModelForSeq2SeqLM, tokenizer), tokenizer), tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """A reader that `save` wrote."""
        config = ReaderConfig.model_validate_json((folder / OWN).read_text())
        model = AutoModelForSeq2SeqLM.from_pretrained(str(folder), dtype=torch.float32)
        return cls(config, model, pretrained.load_tokenizer(folder))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it so that `AutoModelForSeq2SeqLM` loads it."""
        pretrained.save_tower(self.model, folder, tokenizer_from, self.config.passage_tokens)
        (folder / OWN).write_text(self.config.model_dump_json(indent=1) + "\n")

    def joined(self, passages: Batch, counts: Tensor, *, tokens: int, recompute: bool = False) -> Joined:
        """The states of questions' passages: `counts` (N,) says how many of the rows are of each question in turn.

        The encoder takes at most `tokens` tokens at once; with `recompute` it runs again for the gradient.
        """
        lengths = passages.mask.sum(-1)
        if is_whole():
            in_order = self._states(passages)[passages.mask.bool()]
        else:
            chosen, found = pieces(lengths, tokens), []
            for rows in chosen:
                piece = take(passages, rows, int(lengths[rows[0]]))
                states = kept(self._states, piece, recompute=recompute)
                found += states[piece.mask.bool()].split(lengths[rows].tolist())
            order = torch.argsort(torch.cat(chosen)).tolist()
            in_order = torch.cat([found[at] for at in order])
        each = torch.stack([part.sum() for part in lengths.split(counts.tolist())])
        states = pad_sequence(list(in_order.split(each.tolist())), batch_first=True)
        return Joined(states, (torch.arange(states.shape[1], device=each.device) < each[:, None]).long())

    def _states(self, texts: Batch) -> Tensor:
        states: Tensor = self.model.get_encoder()(input_ids=texts.ids, attention_mask=texts.mask).last_hidden_state
        return states

    def log_likelihoods(self, joined: Joined, answers: Batch) -> Tensor:
        """(N, T) fp32 log-probability of each token of the answers after those before it, 0 at padding."""
        labels = answers.ids.masked_fill(answers.mask == 0, -100)
        out = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=joined.states), attention_mask=joined.mask, labels=labels
        )
        chances = out.logits.float().log_softmax(-1).gather(-1, answers.ids.unsqueeze(-1)).squeeze(-1)
        return chances.masked_fill(answers.mask == 0, 0.0)

    @torch.inference_mode()
    def answers(self, joined: Joined, new_tokens: int) -> list[str]:
        """What it writes of each question, the likeliest token each time."""
        options: dict[str, Any] = {"temperature": None, "top_k": None, "top_p": None, "max_length": None}
        written = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=joined.states), attention_mask=joined.mask,
            max_new_tokens=new_tokens, min_new_tokens=0, num_beams=1, do_sample=False, **options,
        )  # fmt: skip
        return [text.strip() for text in self.tokenizer.batch_decode(written, skip_special_tokens=True)]


class Readings:
    """Questions with passages as a reader reads them, out of a token store."""

    def __init__(self, reader: Reader, tokens: TokenStore) -> None:
        marks = reader.tokenizer([QUESTION, CONTEXT], add_special_tokens=False)["input_ids"]
        whole = tokens.template
        self._template: Template = whole._replace(
            pair_before=[*whole.before, *marks[0]], pair_between=marks[1], pair_after=whole.after, segments=False
        )
        self._texts, self._limit = (tokens.queries, tokens.documents), reader.config.passage_tokens

    def lengths(self, pairs: np.ndarray) -> np.ndarray:
        """(P,) tokens of (P, 2) rows of questions and passages."""
        return self._template.pair_lengths(*self._texts, pairs, self._limit)

    def batch(self, pairs: np.ndarray) -> Batch:
        """Some of them, padded."""
        return self._template.pairs(*self._texts, pairs, self._limit)


def answered(
    reader: Reader, readings: Readings, questions: Sequence[np.ndarray], *, new_tokens: int, batch_tokens: int,
    device: Any,
) -> list[str]:  # fmt: skip
    """The answers to questions, each given as the (P, 2) rows of itself with its passages; empty without a passage.

    Questions are read together as long as all their passages have no more than `batch_tokens` tokens.
    """
    texts = [""] * len(questions)
    there = [at for at, pairs in enumerate(questions) if len(pairs)]
    sizes = np.asarray([int(readings.lengths(questions[at]).sum()) for at in there], np.int64)
    for rows in token_batches(sizes, batch_tokens):
        own = [there[row] for row in rows.tolist()]
        passages = to_device(readings.batch(np.concatenate([questions[at] for at in own])), device)
        counts = torch.tensor([len(questions[at]) for at in own])
        with torch.inference_mode():
            joined = reader.joined(passages, counts, tokens=batch_tokens)
        for at, text in zip(own, reader.answers(joined, new_tokens), strict=True):
            texts[at] = text
    return texts
