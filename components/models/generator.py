"""Language models that write query expansions, such as GAR and T0 (Chuang et al., 2023, sections 3.2.1 and 3.3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from sparring.components.compute.precision import autocast, computed
from sparring.components.config import UserError
from sparring.components.data.batches import token_batches
from sparring.components.data.tokenizers import MODEL_CONFIG, load_tokenizer
from sparring.components.models import pretrained, saved
from sparring.components.models.generator_configs import GenerateConfig, GeneratorConfig
from sparring.components.rng import keyed_rng


class Generated(NamedTuple):
    """Texts that a generator wrote."""

    texts: list[list[str]]
    """Texts of each query. A beam search gives the most probable first, and sampling the greedy text first. A text may
    occur more than once."""
    tokens: int
    """Number of tokens in all texts."""


class Generator(nn.Module):
    """A seq2seq or causal language model with its tokenizer."""

    def __init__(self, config: GeneratorConfig, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.config, self.model, self.tokenizer = config, model, tokenizer
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.generation_config.pad_token_id = tokenizer.pad_token_id

    @classmethod
    def start(cls, config: GeneratorConfig) -> tuple[Self, Any]:
        """Make a generator from a pre-trained language model. Return it with its tokenizer."""
        tokenizer = pretrained.tokenizer(config)
        auto = AutoModelForSeq2SeqLM if config.architecture == "seq2seq" else AutoModelForCausalLM
        return cls(config, pretrained.language_model(config, auto, tokenizer), tokenizer), tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Load a generator that `save` wrote."""
        config = saved.load_config(GeneratorConfig, folder)
        auto = AutoModelForSeq2SeqLM if config.architecture == "seq2seq" else AutoModelForCausalLM
        return cls(config, saved.load_language_model(folder, auto), load_tokenizer(folder))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the generator for this project and for `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM`."""
        saved.save_tower(self.model, folder, tokenizer_from, self.config.query_tokens)
        (folder / MODEL_CONFIG).write_text(self.config.model_dump_json(indent=1) + "\n")

    @property
    def seq2seq(self) -> bool:
        """True if the model is an encoder-decoder."""
        return self.config.architecture == "seq2seq"

    def log_likelihoods(self, inputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        """Compute the log-probability of each target token, given the input and the tokens before: (N, T) in fp32.

        It is 0 at padding. `inputs` and `targets` are token ids (N, S) and (N, T) with their masks. A causal model
        reads the target after the input.
        """
        (ids, mask), (target, target_mask) = inputs, targets
        if self.seq2seq:
            first = target.new_full((len(target), 1), self.model.config.decoder_start_token_id)
            shifted = torch.cat([first, target[:, :-1]], 1)
            logits = self.model(input_ids=ids, attention_mask=mask, decoder_input_ids=shifted).logits
        else:
            joint, joint_mask = torch.cat([ids, target], 1), torch.cat([mask, target_mask], 1)
            positions = (joint_mask.cumsum(1) - 1).clamp_min(0)
            states = self.model(input_ids=joint, attention_mask=joint_mask, position_ids=positions).logits
            # The target's first token is predicted at the input's last token, before the input's padding.
            end = mask.sum(1, keepdim=True) - 1
            logits = torch.cat(
                [states.gather(1, end.unsqueeze(-1).expand(-1, 1, states.shape[-1])), states[:, ids.shape[1] : -1]], 1
            )
        chosen = logits.float().log_softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
        return chosen.masked_fill(target_mask == 0, 0.0)

    @torch.inference_mode()
    def expansions(
        self, queries: Sequence[str], config: GenerateConfig, *, keys: Sequence[tuple[Any, ...]], batch_tokens: int
    ) -> Generated:
        """Write expansions of each query. Samples depend on the query's key, but not on its batch."""
        encoded = self._prompted(queries, config.prompt)
        if not self.seq2seq:  # some tokenizers add an end token, but the model must continue this text
            end = self.tokenizer.eos_token_id
            encoded = [ids[:-1] if len(ids) > 1 and ids[-1] == end else ids for ids in encoded]
        lengths = torch.tensor([len(ids) for ids in encoded])
        # A query occupies the batch once for each of its texts.
        batches = token_batches((lengths + config.new_tokens).numpy() * config.number, max(batch_tokens, 1))
        texts: list[list[str]] = [[] for _ in queries]
        tokens = 0
        device = next(self.parameters()).device
        with autocast(computed(config.precision, device.type), device.type):
            for rows in batches:
                ids, mask = self._padded([encoded[row] for row in rows.tolist()])
                ids, mask = ids.to(device), mask.to(device)
                for output in self._outputs(ids, mask, config, [keys[row] for row in rows.tolist()]):
                    tokens += int((output != self.tokenizer.pad_token_id).sum())
                    decoded = self.tokenizer.batch_decode(output, skip_special_tokens=True)
                    per_query = len(decoded) // len(rows)
                    for i, row in enumerate(rows.tolist()):
                        texts[row] += decoded[i * per_query : (i + 1) * per_query]
        return Generated(texts, tokens)

    def _prompted(self, queries: Sequence[str], prompt: str) -> list[list[int]]:
        """Tokenize the prompt of each query. If a prompt is too long, the end of the query is cut."""
        limit, quiet = self.config.query_tokens, {"verbose": False}
        prompts = [prompt.replace("{query}", query) for query in queries]
        encoded: list[list[int]] = self.tokenizer(prompts, **quiet)["input_ids"]
        for row in [row for row, ids in enumerate(encoded) if len(ids) > limit]:
            spans = self.tokenizer(queries[row], add_special_tokens=False, return_offsets_mapping=True, **quiet)
            kept = len(spans["offset_mapping"])
            # The ends of prompt and query may merge into one token, so one cut may not be enough.
            while len(encoded[row]) > limit and kept:
                kept -= min(kept, len(encoded[row]) - limit)
                end = spans["offset_mapping"][kept - 1][1] if kept else 0
                encoded[row] = self.tokenizer(prompt.replace("{query}", queries[row][:end]), **quiet)["input_ids"]
            if len(encoded[row]) > limit:
                raise UserError(
                    f"prompt: {prompt!r} has {len(encoded[row])} tokens without a query, but query_tokens is {limit}. "
                    "Raise query_tokens or shorten the prompt."
                )
        return encoded

    def _padded(self, encoded: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Pad token ids and return them with a mask. Causal models are padded on the left: output follows the input."""
        width, pad = max(map(len, encoded)), self.tokenizer.pad_token_id
        padding = [[pad] * (width - len(ids)) for ids in encoded]
        rows = [ids + pads if self.seq2seq else pads + ids for ids, pads in zip(encoded, padding, strict=True)]
        mask = [[1] * len(ids) + [0] * len(pads) for ids, pads in zip(encoded, padding, strict=True)]
        mask = mask if self.seq2seq else [row[::-1] for row in mask]
        return torch.tensor(rows), torch.tensor(mask)

    def _outputs(self, ids: Tensor, mask: Tensor, config: GenerateConfig, keys: list[tuple[Any, ...]]) -> list[Tensor]:
        """Return the output tokens for a batch: the greedy texts, followed by the sampled texts, or the beams."""
        options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": config.new_tokens, "min_new_tokens": 0}
        options |= {"temperature": None, "top_k": None, "top_p": None, "do_sample": False, "max_length": None}
        cut, states = 0 if self.seq2seq else ids.shape[1], None
        if self.seq2seq:  # encode the input once for all texts
            states = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            options["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        if config.method == "beam":
            beams = config.beams or config.number
            output = self.model.generate(ids, num_beams=beams, num_return_sequences=config.number, **options)
            return [output[:, cut:]]
        parts = [self.model.generate(ids, num_beams=1, **options)[:, cut:]]
        if config.number > 1:
            count = config.number - 1
            random = np.stack(
                [keyed_rng(*key, number).random(config.new_tokens) for key in keys for number in range(count)]
            )
            options["logits_processor"] = [_Sampler(config, torch.from_numpy(random).to(ids.device))]
            # The sampler leaves one token per row, so that greedy decoding takes this token.
            repeated = ids.repeat_interleave(count, 0)
            options["attention_mask"] = mask.repeat_interleave(count, 0)
            if states is not None:
                options["encoder_outputs"] = BaseModelOutput(last_hidden_state=states.repeat_interleave(count, 0))
            parts.append(self.model.generate(repeated, num_beams=1, **options)[:, cut:])
        return parts


class _Sampler:
    """A logits processor that samples a token for each row, with the row's own random numbers."""

    def __init__(self, config: GenerateConfig, random: Tensor) -> None:
        self._config, self._random, self._position = config, random, 0

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        """Return logits (N, V): 0 for the sampled token, -inf for the rest."""
        kept = filter_logits(logits.float() / self._config.temperature, self._config.top_k, self._config.top_p)
        cumulated = kept.softmax(-1).double().cumsum(-1)
        threshold = self._random[:, self._position : self._position + 1] * cumulated[:, -1:]
        self._position += 1
        sampled = (cumulated <= threshold).sum(-1, keepdim=True).clamp_max(logits.shape[-1] - 1)
        return torch.full_like(logits, -torch.inf).scatter_(1, sampled, 0.0)


def filter_logits(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Return logits (N, V) with -inf for tokens that must not be sampled.

    The remaining tokens are the `top_k` most probable, and of these the fewest with a total probability of `top_p`.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[:, -1:], -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        kept = ordered.masked_fill(before >= top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, order, kept)
    return logits
