"""The ranker. It reads a query and a document together and returns a score (Zhang et al., 2022, Eq. 4)."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.files import write_json
from sparring.components.models import attention, layers, pretrained, saved, seeding, sentence_modules, special_tokens
from sparring.components.models.configs import CrossEncoderConfig, ResolvedCrossEncoderConfig
from sparring.components.models.dual_encoder import pool
from sparring.components.models.maxsim import CODE, MODULE, maxsim
from sparring.components.models.sentence_modules import WEIGHTS, Found


class CrossEncoder(nn.Module):
    """A ranker with one of several heads, as `config.pooling` says.

    It is a sequence classifier with one label; an encoder with a linear layer on pooled states; a causal language model
    that scores a next token; or an encoder whose score is a similarity of the states of both texts.
    """

    def __init__(
        self, config: ResolvedCrossEncoderConfig, backbone: Any, head: nn.Linear | None, tokens: list[int] | None = None
    ) -> None:
        """Assemble a ranker from its parts.

        `tokens` are needed with `pooling: token`: the id of the token whose logit is the score, and optionally the id
        of the token whose logit is subtracted.
        """
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.head = head
        self._tokens = tokens
        self._typed = "token_type_ids" in inspect.signature(backbone.forward).parameters

    @classmethod
    def start(cls, config: CrossEncoderConfig) -> tuple[Self, Any]:
        """Make a ranker from a pre-trained encoder with a new head, or read a ranker of sentence-transformers.

        Return it with its tokenizer. Raise UserError if the ranker in the folder contradicts the config, or has an
        unsupported form.
        """
        content = sentence_modules.ranker(config) or Found({"shared": ""}, {}, {})
        stored = {key: value for key, value in content.values.items() if value is not None}
        stated = {key: value for key, value in config.model_dump().items() if value is not None}
        folder = content.encoders["shared"]
        model_config = pretrained.huggingface_config(config, folder)
        if attention.is_decoder(model_config):
            if stored.get("pooling") == "cls":  # a decoder's own head is on its last token
                stored["pooling"] = "last"
            usual = "last" if config.true_token is None else "token"
            stated = {"pooling": usual, **stored, **stated}
        whole = ResolvedCrossEncoderConfig.model_validate({**stored, **stated})
        if attention.is_decoder(model_config) and whole.pooling in ("cls", "first"):
            raise UserError(
                f"pooling: got {whole.pooling}, but {config.model} is a causal language model, whose first token sees "
                "no other token. Use last, token or mean."
            )
        for key in ("pooling", "template"):
            if getattr(whole, key) != stored.get(key, getattr(whole, key)):
                raise UserError(
                    f"{key}: got {getattr(whole, key)}, but the ranker in {config.model} has {stored[key]}. Use "
                    f"{stored[key]}, or null.",
                    code="fixed-by-model",
                )
        with seeding.seeded(config.seed):
            head = None
            if whole.pooling == "cls":
                backbone = pretrained.classifier(config, folder)
            elif whole.pooling == "token":
                backbone = pretrained.causal_language_model(config, folder)
            elif whole.pooling == "maxsim":
                backbone = pretrained.encoder(config, folder)
            else:
                backbone = pretrained.encoder(config, folder)
                head = nn.Linear(backbone.config.hidden_size, 1)
                nn.init.normal_(head.weight, std=0.02)
                nn.init.zeros_(head.bias)
                if (
                    whole.pooling == "last"
                    and not content.projections
                    and _is_decoders_classifier(config, model_config)
                ):
                    head.weight = pretrained.plain_classifier(config, folder).score.weight
                elif config.label is not None:
                    raise UserError(
                        f"label: got {config.label}, but {config.model} is not a classifier. Use `label: null`."
                    )
                for file in content.projections.values():
                    if (weights := pretrained.file_of(config, file)) is not None:
                        saved.load_weights(head, weights, prefix="linear.")
        layers.check_length(backbone, whole, "pair_tokens")
        layers.check_padding(backbone.base_model, whole)
        tokenizer = pretrained.tokenizer(config, folder)
        if whole.pooling == "maxsim" and "token_type_ids" not in tokenizer.model_input_names:
            accepted = "last, token, mean" if attention.is_decoder(model_config) else "cls, first, mean"
            raise UserError(
                f"pooling: maxsim needs token types, which mark the two texts of a pair, and the tokenizer of "
                f"{config.model} has none. Use one of these: {accepted}."
            )
        tokens = _token_ids(whole, tokenizer)
        whole = whole.model_copy(update={"label": None, "other_label": None})  # the head has one label now
        if whole.template is not None and "template" not in stored:
            tokenizer = special_tokens.reading_pairs_by(tokenizer, whole.template)
        special_tokens.check_pairs(tokenizer, config.model, whole.pair_tokens)
        return cls(whole, backbone, head, tokens), tokenizer

    @classmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load a ranker that `save` wrote. A `frozen` ranker is used for inference only."""
        config = saved.load_config(ResolvedCrossEncoderConfig, folder)
        if config.pooling == "cls":
            return cls(config, saved.load_classifier(folder, frozen=frozen), None)
        if config.pooling == "token":
            tokens = _token_ids(config, load_tokenizer(folder))
            return cls(config, saved.load_causal_language_model(folder), None, tokens)
        backbone = saved.load_encoder(folder, frozen=frozen)
        if config.pooling == "maxsim":
            return cls(config, backbone, None)
        head = nn.Linear(backbone.config.hidden_size, 1)
        saved.load_weights(head, folder / "2_Dense" / WEIGHTS, prefix="linear.")
        return cls(config, backbone, head)

    def forward(self, batch: Batch) -> Tensor:
        """Score a batch of pairs: (N,) in fp32."""
        inputs = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if batch.segments is not None and self._typed:
            inputs["token_type_ids"] = batch.segments
        if self.config.pooling == "cls":
            return self.backbone(**inputs).logits.float().squeeze(-1)
        if self.config.pooling == "token":
            return self._token_scores(pool(self.base_model(**inputs).last_hidden_state, batch.mask, "last"))
        states = self.backbone(**inputs).last_hidden_state
        if self.head is None:
            assert batch.segments is not None  # else `start` would have refused the tokenizer
            return maxsim(states, batch.mask, batch.segments)
        vectors = pool(states, batch.mask, _POOLING[self.config.pooling])
        with torch.autocast(vectors.device.type, enabled=False):  # with bf16 many scores would be equal
            return functional.linear(vectors.float(), self.head.weight, self.head.bias).squeeze(-1)

    def _token_scores(self, states: Tensor) -> Tensor:
        """Score the last tokens' states (N, h): the logit of `true_token` minus that of `false_token`, (N,) in fp32.

        The logits of all other tokens are never computed.
        """
        head = self.backbone.get_output_embeddings()
        with torch.autocast(states.device.type, enabled=False):
            bias = None if head.bias is None else head.bias[self._tokens].float()
            logits = functional.linear(states, head.weight[self._tokens].float(), bias)
        return logits[:, 0] - logits[:, 1] if logits.shape[1] == 2 else logits[:, 0]

    @property
    def base_model(self) -> Any:
        """The encoder without the classification head."""
        return self.backbone.base_model

    def to_dtype(self, dtype: torch.dtype) -> Self:
        """Convert the encoder to another precision.

        The head stays in fp32, because with bf16 many documents would have equal scores.
        """
        encoder = self.backbone.base_model
        encoder.to(dtype)
        for module in self.backbone.children():
            if module is not encoder and self.config.pooling == "cls":
                module.register_forward_pre_hook(lambda _, inputs: tuple(tensor.float() for tensor in inputs))
        return self

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write the ranker for this project and for sentence-transformers' `CrossEncoder(folder)`.

        With `pooling: cls`, `AutoModelForSequenceClassification.from_pretrained` loads it too. With `pooling: maxsim`
        the folder contains code, and `CrossEncoder` needs `trust_remote_code=True`. Scores are always logits: the
        activation is the identity.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self.config.pooling == "maxsim":
            self.backbone.config.num_labels = 1  # sentence-transformers reads it here
        saved.save_tower(self.backbone, folder, tokenizer_from, self.config.pair_tokens)
        modules = [("", "sentence_transformers.base.modules.transformer.Transformer")]
        limit = {"max_seq_length": self.config.pair_tokens}
        if self.config.pooling == "maxsim":
            shutil.copyfile(CODE, folder / CODE.name)
            modules.append(("1_MaxSim", MODULE))
        elif self._tokens is not None:
            write_json(folder / "sentence_bert_config.json", {**limit, **_LANGUAGE_MODEL})
            (folder / "1_LogitScore").mkdir(exist_ok=True)
            names = zip(("true_token_id", "false_token_id"), [*self._tokens, None], strict=False)
            write_json(folder / "1_LogitScore" / "config.json", {**dict(names), "module_input_name": "causal_logits"})
            modules.append(("1_LogitScore", "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"))
        elif self.head is None:
            write_json(folder / "sentence_bert_config.json", {**limit, **_CLASSIFIER})
        else:
            width = self.head.in_features
            (folder / "1_Pooling").mkdir(exist_ok=True)
            write_json(
                folder / "1_Pooling" / "config.json",
                {"embedding_dimension": width, "pooling_mode": _THEIRS[self.config.pooling], "include_prompt": True},
            )
            (folder / "2_Dense").mkdir(exist_ok=True)
            saved.save_weights(self.head, folder / "2_Dense" / WEIGHTS, prefix="linear.")
            write_json(
                folder / "2_Dense" / "config.json",
                {
                    "in_features": width,
                    "out_features": 1,
                    "bias": True,
                    "activation_function": "torch.nn.modules.linear.Identity",
                    "module_input_name": "sentence_embedding",
                    "module_output_name": "scores",
                },
            )
            modules += [
                ("1_Pooling", "sentence_transformers.sentence_transformer.modules.pooling.Pooling"),
                ("2_Dense", "sentence_transformers.base.modules.dense.Dense"),
            ]
        description = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
        saved.save_modules(folder, modules, description, self.config)


_POOLING = {"first": "cls", "mean": "mean", "last": "last"}
"""Retrievers' names of the pooling before a linear layer."""
_THEIRS = {"first": "cls", "mean": "mean", "last": "lasttoken"}
"""Names of the same poolings in sentence-transformers."""

_CLASSIFIER = {
    "transformer_task": "sequence-classification",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "scores",
}
"""Settings of sentence-transformers. Without them it would cut at a wrong length and not treat scores as logits."""

_LANGUAGE_MODEL = {
    "transformer_task": "text-generation",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "causal_logits",
}
"""The same settings for a causal language model. The text comes from our tokenizer, without a chat template."""


def _token_ids(config: ResolvedCrossEncoderConfig, tokenizer: Any) -> list[int] | None:
    """Return the ids of the tokens whose logits make the score. Return None if the score is not made from logits."""
    if config.pooling != "token":
        return None
    named = {"true_token": config.true_token, "false_token": config.false_token}
    return [special_tokens.token_id(tokenizer, token, key=key) for key, token in named.items() if token is not None]


def _is_decoders_classifier(source: CrossEncoderConfig, config: Any) -> bool:
    """Return True if a Hugging Face config is that of a decoder with a head for a single score on its last token, or
    for several of which `source` names one."""
    names = getattr(config, "architectures", None) or []
    scores = config.num_labels == 1 or source.label is not None
    return scores and attention.is_decoder(config) and any(name.endswith("ForSequenceClassification") for name in names)
