"""Language models that write expansions of queries (GAR, T0 and others; paper 002, sections 3.2.1 and 3.3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutput

from components import draws, pretrained
from components.config import UserError
from components.generator_configs import GenerateConfig, GeneratorConfig
from components.model_configs import OWN
from components.text import token_batches


class Written(NamedTuple):
    """What a generator wrote."""

    texts: list[list[str]]
    """Of each query, the likeliest first; the same text may stand there more than once."""
    tokens: int


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
        """A pre-trained language model, and its tokenizer."""
        tokenizer = pretrained.tokenizer(config)
        auto = AutoModelForSeq2SeqLM if config.architecture == "seq2seq" else AutoModelForCausalLM
        return cls(config, pretrained.language_model(config, auto, tokenizer), tokenizer), tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """A generator that `save` wrote."""
        config = GeneratorConfig.model_validate_json((folder / OWN).read_text())
        auto = AutoModelForSeq2SeqLM if config.architecture == "seq2seq" else AutoModelForCausalLM
        return cls(config, auto.from_pretrained(str(folder), dtype=torch.float32), pretrained.load_tokenizer(folder))

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it so that `AutoModelForSeq2SeqLM` or `AutoModelForCausalLM` loads it."""
        pretrained.save_tower(self.model, folder, tokenizer_from, self.config.query_tokens)
        (folder / OWN).write_text(self.config.model_dump_json(indent=1) + "\n")

    @property
    def seq2seq(self) -> bool:
        """Whether an encoder reads the input."""
        return self.config.architecture == "seq2seq"

    def log_likelihoods(self, inputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
        """(N, T) fp32 log-probability of each target token after those before it, 0 at padding.

        `inputs` and `targets` are token ids (N, S) and (N, T) with their masks. A causal model reads both in a row.
        """
        (ids, mask), (wanted, there) = inputs, targets
        if self.seq2seq:
            first = wanted.new_full((len(wanted), 1), self.model.config.decoder_start_token_id)
            before = torch.cat([first, wanted[:, :-1]], 1)
            logits = self.model(input_ids=ids, attention_mask=mask, decoder_input_ids=before).logits
        else:
            whole, whole_mask = torch.cat([ids, wanted], 1), torch.cat([mask, there], 1)
            places = (whole_mask.cumsum(1) - 1).clamp_min(0)
            states = self.model(input_ids=whole, attention_mask=whole_mask, position_ids=places).logits
            # A target's first token is foretold where the input ends, which is not where its padding does.
            end = mask.sum(1, keepdim=True) - 1
            logits = torch.cat([states.gather(1, end.unsqueeze(-1).expand(-1, 1, states.shape[-1])),
                                states[:, ids.shape[1] : -1]], 1)  # fmt: skip
        return logits.float().log_softmax(-1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1).masked_fill(there == 0, 0.0)

    @torch.inference_mode()
    def expansions(
        self, queries: Sequence[str], config: GenerateConfig, *, keys: Sequence[tuple[Any, ...]], batch_tokens: int
    ) -> Written:
        """Expansions of each query. Draws depend on the query's key alone, not on what it is batched with."""
        encoded = self._prompted(queries, config.prompt)
        if not self.seq2seq:  # a tokenizer that ends every text has ended what is to be gone on with
            end = self.tokenizer.eos_token_id
            encoded = [ids[:-1] if len(ids) > 1 and ids[-1] == end else ids for ids in encoded]
        lengths = torch.tensor([len(ids) for ids in encoded])
        room = lengths + config.new_tokens
        # Each query stands as often as it is drawn for; one pass is as large as any other.
        batches = token_batches(room.numpy() * config.number, max(batch_tokens, 1))
        texts: list[list[str]] = [[] for _ in queries]
        tokens = 0
        device = next(self.parameters()).device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=config.precision == "bf16"):
            for rows in batches:
                ids, mask = self._padded([encoded[row] for row in rows.tolist()])
                ids, mask = ids.to(device), mask.to(device)
                for found in self._outputs(ids, mask, config, [keys[row] for row in rows.tolist()]):
                    tokens += int((found != self.tokenizer.pad_token_id).sum())
                    whole = self.tokenizer.batch_decode(found, skip_special_tokens=True)
                    each = len(whole) // len(rows)
                    for place, row in enumerate(rows.tolist()):
                        texts[row] += whole[place * each : (place + 1) * each]
        return Written(texts, tokens)

    def _prompted(self, queries: Sequence[str], prompt: str) -> list[list[int]]:
        """Token ids of the prompt about each query. What is too long loses the end of the query, not of the prompt."""
        most, quiet = self.config.query_tokens, {"verbose": False}
        asked = [prompt.replace("{query}", query) for query in queries]
        encoded: list[list[int]] = self.tokenizer(asked, **quiet)["input_ids"]
        for row in [row for row, ids in enumerate(encoded) if len(ids) > most]:
            spans = self.tokenizer(queries[row], add_special_tokens=False, return_offsets_mapping=True, **quiet)
            kept = len(spans["offset_mapping"])
            # Where a prompt meets a query two tokens may be one, so more than what is over may have to go.
            while len(encoded[row]) > most and kept:
                kept -= min(kept, len(encoded[row]) - most)
                end = spans["offset_mapping"][kept - 1][1] if kept else 0
                encoded[row] = self.tokenizer(prompt.replace("{query}", queries[row][:end]), **quiet)["input_ids"]
            if len(encoded[row]) > most:
                raise UserError(
                    f"prompt: {prompt!r} takes {len(encoded[row])} tokens without a query, and query_tokens is {most}; "
                    "make query_tokens larger, or the prompt shorter"
                )
        return encoded

    def _padded(self, encoded: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids and mask; a causal model's padding stands before, so that what it writes follows its input."""
        width, pad = max(map(len, encoded)), self.tokenizer.pad_token_id
        full = [[pad] * (width - len(ids)) for ids in encoded]
        rows = [ids + gap if self.seq2seq else gap + ids for ids, gap in zip(encoded, full, strict=True)]
        mask = [[1] * len(ids) + [0] * len(gap) for ids, gap in zip(encoded, full, strict=True)]
        mask = mask if self.seq2seq else [row[::-1] for row in mask]
        return torch.tensor(rows), torch.tensor(mask)

    def _outputs(self, ids: Tensor, mask: Tensor, config: GenerateConfig, keys: list[tuple[Any, ...]]) -> list[Tensor]:
        """What was written for a batch, in parts of the same number a query: greedy first, then draws; or beams."""
        options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": config.new_tokens, "min_new_tokens": 0}
        options |= {"temperature": None, "top_k": None, "top_p": None, "do_sample": False, "max_length": None}
        cut, states = 0 if self.seq2seq else ids.shape[1], None
        if self.seq2seq:  # read once, however many texts are written
            states = self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state
            options["encoder_outputs"] = BaseModelOutput(last_hidden_state=states)
        if config.method == "beam":
            beams = config.beams or config.number
            found = self.model.generate(ids, num_beams=beams, num_return_sequences=config.number, **options)
            return [found[:, cut:]]
        parts = [self.model.generate(ids, num_beams=1, **options)[:, cut:]]
        if config.number > 1:
            count = config.number - 1
            generators = [draws.generator(*key, number) for key in keys for number in range(count)]
            random = np.stack([one.random(config.new_tokens) for one in generators])
            options["logits_processor"] = [_Drawing(config, torch.from_numpy(random).to(ids.device))]
            # The processor leaves one token of each row, its draw: taking the likeliest is then drawing.
            times = ids.repeat_interleave(count, 0)
            options["attention_mask"] = mask.repeat_interleave(count, 0)
            if states is not None:
                options["encoder_outputs"] = BaseModelOutput(last_hidden_state=states.repeat_interleave(count, 0))
            parts.append(self.model.generate(times, num_beams=1, **options)[:, cut:])
        return parts


class _Drawing:
    """Draws one token a row, as temperature, top-k and top-p have it, with random numbers of the row's own."""

    def __init__(self, config: GenerateConfig, random: Tensor) -> None:
        self._config, self._random, self._step = config, random, 0

    def __call__(self, ids: Tensor, logits: Tensor) -> Tensor:
        """(N, V) logits in which the drawn token stands alone."""
        kept = filtered(logits.float() / self._config.temperature, self._config.top_k, self._config.top_p)
        cumulated = kept.softmax(-1).double().cumsum(-1)
        place = self._random[:, self._step : self._step + 1] * cumulated[:, -1:]
        self._step += 1
        drawn = (cumulated <= place).sum(-1, keepdim=True).clamp_max(logits.shape[-1] - 1)
        return torch.full_like(logits, -torch.inf).scatter_(1, drawn, 0.0)


def filtered(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """(N, V) logits of what may be drawn, -inf elsewhere: the k likeliest tokens, and of these the fewest that have
    probability p together."""
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k, -1).values[:, -1:], -torch.inf)
    if top_p is not None and top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        kept = ordered.masked_fill(before >= top_p, -torch.inf)
        logits = torch.full_like(logits, -torch.inf).scatter(-1, order, kept)
    return logits
