"""Fusion-in-Decoder: a reader that writes an answer from many passages (Izacard and Grave, 2021).

Chuang et al. (2023, section 3.4.6) use it. The encoder reads the question with each passage separately. The decoder
attends to the states of all passages. So the encoder's time grows linearly with the number of passages. States have
positions only within their passage, so the answer of a T5 does not depend on the order of the passages.
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

from sparring.components.compute.chunking import checkpointed, chunk_rows, is_unchunked, take_rows
from sparring.components.data.batches import Batch, to_device, token_batches
from sparring.components.data.reading import CONTEXT, QUESTION
from sparring.components.data.template import Template
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokenizers import MODEL_CONFIG, load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models import pretrained, saved
from sparring.components.models.reader_configs import ReaderConfig


class PassageStates(NamedTuple):
    """The encoder's states of each question's passages, concatenated without padding between them."""

    states: Tensor
    """States: (N, L, d)."""
    mask: Tensor
    """1 for a state, 0 for padding at the end: (N, L)."""


class Reader(nn.Module):
    """A seq2seq model with its tokenizer."""

    def __init__(self, config: ReaderConfig, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        model.generation_config.pad_token_id = tokenizer.pad_token_id

    @classmethod
    def start(cls, config: ReaderConfig) -> tuple[Self, Any]:
        """Make a reader from a pre-trained model. Return it with its tokenizer."""
        tokenizer = pretrained.tokenizer(config)
        return cls(config, pretrained.language_model(config, AutoModelForSeq2SeqLM, tokenizer), tokenizer), tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a reader that `save` wrote."""
        config = saved.load_config(ReaderConfig, folder)
        model = saved.load_language_model(folder, AutoModelForSeq2SeqLM)
        return cls(config, model, load_tokenizer(folder))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the reader for this project and for `AutoModelForSeq2SeqLM`."""
        saved.save_tower(self.model, folder, tokenizer_from, self.config.passage_tokens)
        (folder / MODEL_CONFIG).write_text(self.config.model_dump_json(indent=1) + "\n")

    def encode_passages(
        self, passages: Batch, counts: Tensor, *, tokens: int, recompute: bool = False
    ) -> PassageStates:
        """Encode the passages of questions. `passages` has the rows of the first question, then of the second, etc.

        `counts` (N,) is the number of passages of each question. The encoder reads at most `tokens` tokens at a time.
        With `recompute` it runs again in the backward pass.
        """
        lengths = passages.mask.sum(-1)
        if is_unchunked():
            in_order = self._states(passages)[passages.mask.bool()]
        else:
            chunks, by_passage = chunk_rows(lengths, tokens), []
            for rows in chunks:
                chunk = take_rows(passages, rows, int(lengths[rows[0]]))
                states = checkpointed(self._states, chunk, recompute=recompute)
                by_passage += states[chunk.mask.bool()].split(lengths[rows].tolist())
            order = torch.argsort(torch.cat(chunks)).tolist()
            in_order = torch.cat([by_passage[i] for i in order])
        question_tokens = torch.stack([part.sum() for part in lengths.split(counts.tolist())])
        states = pad_sequence(list(in_order.split(question_tokens.tolist())), batch_first=True)
        return PassageStates(
            states, (torch.arange(states.shape[1], device=question_tokens.device) < question_tokens[:, None]).long()
        )

    def _states(self, texts: Batch) -> Tensor:
        states: Tensor = self.model.get_encoder()(input_ids=texts.ids, attention_mask=texts.mask).last_hidden_state
        return states

    def log_likelihoods(self, passages: PassageStates, answers: Batch) -> Tensor:
        """Compute the log-probability of each token of the answers, given the tokens before: (N, T) in fp32.

        It is 0 at padding.
        """
        first = answers.ids.new_full((len(answers.ids), 1), self.model.config.decoder_start_token_id)
        out = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=passages.states),
            attention_mask=passages.mask,
            decoder_input_ids=torch.cat([first, answers.ids[:, :-1]], 1),
        )
        chosen = out.logits.float().log_softmax(-1).gather(-1, answers.ids.unsqueeze(-1)).squeeze(-1)
        return chosen.masked_fill(answers.mask == 0, 0.0)

    @torch.inference_mode()
    def generate(self, passages: PassageStates, new_tokens: int) -> list[str]:
        """Decode the answer to each question greedily, with at most `new_tokens` tokens."""
        options: dict[str, Any] = {"temperature": None, "top_k": None, "top_p": None, "max_length": None}
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=passages.states),
            attention_mask=passages.mask,
            max_new_tokens=new_tokens,
            min_new_tokens=0,
            num_beams=1,
            do_sample=False,
            **options,
        )
        return [text.strip() for text in self.tokenizer.batch_decode(output, skip_special_tokens=True)]


class ReaderInputs:
    """A reader's inputs: pairs of a question and a passage."""

    def __init__(self, reader: Reader, single: Template, questions: Tokens, passages: Tokens) -> None:
        """`single` is the template of one text, of the reader's tokenizer. The texts are those of the reader's own
        template (`components.data.reading`)."""
        before = [QUESTION, CONTEXT] if reader.config.template is None else ["", ""]  # a template's are in the store
        question, context = reader.tokenizer(before, add_special_tokens=False)["input_ids"]
        self._template: Template = single._replace(
            pair_before=[*single.before, *question], pair_between=context, pair_after=single.after, segments=False
        )
        self._texts, self._limit = (questions, passages), reader.config.passage_tokens

    @classmethod
    def stored(cls, reader: Reader, folder: Path, model: Path) -> Self:
        """Open the token store `folder`, which must fit the reader's template. `model` is the reader's folder."""
        tokens = TokenStore(folder, model, pairs=False, reading=reader.config.template)
        return cls(reader, tokens.template, tokens.queries, tokens.documents)

    def lengths(self, pairs: np.ndarray) -> np.ndarray:
        """Return the lengths of pairs, which are rows (P, 2) of a question and a passage: (P,)."""
        return self._template.pair_lengths(*self._texts, pairs, self._limit)

    def batch(self, pairs: np.ndarray) -> Batch:
        """Return a batch of pairs."""
        return self._template.pairs(*self._texts, pairs, self._limit)


def answer_questions(
    reader: Reader,
    inputs: ReaderInputs,
    questions: Sequence[np.ndarray],
    *,
    new_tokens: int,
    batch_tokens: int,
    device: Any,
) -> list[str]:
    """Answer questions. Each question is rows (P, 2) of the question and its passages.

    A question without passages gets an empty answer. Questions share a batch if all their passages together have at
    most `batch_tokens` tokens.
    """
    answers = [""] * len(questions)
    with_passages = [i for i, pairs in enumerate(questions) if len(pairs)]
    sizes = np.asarray([int(inputs.lengths(questions[i]).sum()) for i in with_passages], np.int64)
    for rows in token_batches(sizes, batch_tokens):
        chosen = [with_passages[row] for row in rows.tolist()]
        passages = to_device(inputs.batch(np.concatenate([questions[i] for i in chosen])), device)
        counts = torch.tensor([len(questions[i]) for i in chosen])
        with torch.inference_mode():
            states = reader.encode_passages(passages, counts, tokens=batch_tokens)
        for i, answer in zip(chosen, reader.generate(states, new_tokens), strict=True):
            answers[i] = answer
    return answers
