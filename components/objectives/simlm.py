"""Pre-training of an encoder with a bottleneck (SimLM; Wang et al., 2023, section 3.1).

A shallow decoder restores the text and sees the encoder only through its vector. The variants of the paper's section
5.1 are options.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.compute.roofline import MatrixProducts, head_operations
from sparring.components.config import UserError
from sparring.components.models.bottleneck import Decoder, DetectionHead
from sparring.components.models.dual_encoder import DualEncoder, pool
from sparring.components.objectives.parts.config import BottleneckConfig
from sparring.components.objectives.parts.replacing import GENERATOR, language_model_head, load_generator, placed
from sparring.components.objectives.parts.token_prediction import TokenPrediction
from sparring.components.scores import Scores
from sparring.components.training.objective import ObjectiveInputs, Visit
from sparring.components.training.terms import LossTerm


class BottleneckBatch(NamedTuple):
    """Some texts, with masked copies for the encoder and the decoder."""

    ids: Tensor
    """Original tokens: (N, L)."""
    mask: Tensor
    text: Tensor
    """True at tokens of the text, False at special tokens and padding: (N, L)."""
    encoder_masked: Tensor
    """True at tokens that are masked for the encoder: (N, L)."""
    decoder_masked: Tensor
    """True at tokens that are masked for the decoder, which include the encoder's: (N, L)."""
    encoder_draws: Tensor
    """A random number for the replacement of each token: (N, L)."""
    decoder_draws: Tensor
    encoder_ids: Tensor | None
    """Tokens that the encoder reads: (N, L). If None, the generator still has to choose them."""
    decoder_ids: Tensor | None
    keys: Tensor | None = None
    """Key of the document's text: (N,). If None, vectors are not compared."""


class Reading(NamedTuple):
    """The encoder's states and vectors of some texts."""

    states: Tensor
    """States of the last layer: (N, L, h)."""
    vectors: Tensor
    """Vectors of the texts: (N, h)."""
    middle: Tensor | None
    """States of the middle layer: (N, L, h). If None, the decoder does not read them."""


class Predictions(NamedTuple):
    """Predictions and vectors of some texts."""

    likelihoods: Tensor
    """Log-probabilities by the encoder, the decoder and the generator: (N, 3, L). 0 where nothing is predicted."""
    vectors: Tensor
    """Vectors of the texts: (N, h)."""


class SimLM(TokenPrediction):
    """Log-probabilities of tokens by the encoder, and by a decoder that sees the encoder only through its vector.

    The vector replaces the decoder's first token. It is the retriever's vector before projection and normalization: the
    last state of [CLS], as in the paper, or the mean with mean pooling. Encoder and decoder share the token embeddings
    and the head, but not the layers.

    `generator` is the artifact of a masked language model that samples replacements. It stays frozen unless a loss term
    uses the view `generator`. Then it learns to predict the tokens that are masked for the encoder (weight .2 in the
    public code). `language_model` is the artifact of a masked language model whose head the encoder starts with. If
    None, the head is new.

    Only the encoder is saved.
    """

    views: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "generator")
    scores_of: ClassVar[dict[str, str]] = {
        "encoder": "tokens",
        "decoder": "tokens",
        "generator": "tokens",
    }
    reads: ClassVar[float] = 1.5  # the encoder, plus half for the decoder and the generator together
    predicts: ClassVar[float] = 2.0
    # Different rounding can turn a sample at the boundary between two tokens into a different token.
    self_check = False

    def __init__(
        self,
        inputs: ObjectiveInputs,
        *,
        bottleneck: BottleneckConfig | None = None,
        generator: Path | None = None,
        language_model: Path | None = None,
    ) -> None:
        config = bottleneck or BottleneckConfig()
        super().__init__(inputs, config)
        self.config = config
        self.model = DualEncoder.load(inputs.model)
        if self.model.config.towers != "shared":
            raise UserError(
                "towers: got separate, but pre-training makes one encoder for both sides. Use `towers: shared`."
            )
        if not self.store.template.before:
            raise UserError(
                "model: the decoder reads the vector in place of the text's first special token, and this tokenizer "
                "adds none. Use a model whose tokenizer puts a token such as [CLS] before a text."
            )
        self._views = {term.over for term in inputs.losses}
        for view in self._views:
            if wrong := config.unmasked(view):
                raise UserError(f"losses: {wrong}")
        self.decoder = None
        if "decoder" in self._views:
            self.decoder = Decoder(self.encoder, config.decoder_layers, config.decoder_weights)
        self.head: Any = (
            DetectionHead(self.model.width)
            if config.task == "detection"
            else language_model_head(self.encoder, language_model, inputs.model)
        )
        self._add_generator(generator)
        parts = [self.encoder, *([self.decoder.layers] if self.decoder is not None else [])]
        self.products = [MatrixProducts(part) for part in parts]
        samples = config.task != "masked"
        self._generators_products = MatrixProducts(self.generator.encoder) if samples else None

    @property
    def encoder(self) -> Any:
        """The encoder, shared by both sides."""
        return self.model.tower("document")

    def collate(self, visits: list[Visit]) -> BottleneckBatch:
        """Collate documents into a batch."""
        config = self.config
        texts = self.documents(visits, self.model.max_tokens("document"))
        masks = self.masks(visits, texts, (config.encoder_rate, config.decoder_rate))
        width = texts.ids.shape[1]
        draws = [torch.from_numpy(self.draws(visits, f"{side} tokens", width)) for side in ("encoder", "decoder")]
        read: list[Tensor | None] = [None, None]
        if config.task == "masked":
            count = self.encoder.config.vocab_size
            read = [self.masking.masked(texts.ids, mask, draw, count) for mask, draw in zip(masks, draws, strict=True)]
        text = self.store.template.text_positions(texts)
        return BottleneckBatch(texts.ids, texts.mask, text, *masks, *draws, *read)

    def predicted(self, batch: BottleneckBatch) -> dict[str, Tensor]:
        """Return the mask of predicted tokens, by view: all tokens of the text, or only masked ones."""
        everywhere = self.config.task != "masked"
        return {
            "encoder": batch.text if everywhere else batch.encoder_masked,
            "decoder": batch.text if everywhere else batch.decoder_masked,
            "generator": batch.encoder_masked,
        }

    def operations(self, batch: BottleneckBatch) -> float:
        """Count the operations of encoder, decoder and head, and of the generator's sampling and training."""
        lengths = batch.mask.sum(-1).numpy()
        places = {view: int(where.sum()) for view, where in self.predicted(batch).items() if view in self._views}
        drawn = places.pop("generator", 0)
        learned = sum(products.training_operations(lengths) for products in self.products)
        learned += 3 * head_operations(self.head, sum(places.values()))
        if self._generators_products is None:
            return learned
        masked = int(batch.encoder_masked.sum() + batch.decoder_masked.sum())
        samples = 2 * self._generators_products.operations(lengths) + head_operations(self.generator.head, masked)
        if not drawn:
            return learned + samples
        trained = self._generators_products.training_operations(lengths)
        return learned + samples + trained + 3 * head_operations(self.generator.head, drawn)

    def encode(self, batch: BottleneckBatch) -> Predictions:
        """Compute the predictions and vectors of a batch's texts."""
        width = batch.ids.shape[1]

        def predictions(part: BottleneckBatch) -> Tensor:
            reading = self._read(part)
            return torch.cat([self._likelihoods(part, reading, width).flatten(1), reading.vectors], 1)

        flat = self.in_chunks(predictions, self.replaced(batch))
        return Predictions(flat[:, : 3 * width].unflatten(1, (3, width)), flat[:, 3 * width :])

    def scores(self, representations: Predictions, batch: BottleneckBatch, term: LossTerm) -> Scores:
        """Return the scores of a loss term over the tokens of each text."""
        return self.token_scores(representations.likelihoods, batch, term)

    def replaced(self, batch: BottleneckBatch) -> BottleneckBatch:
        """Replace masked tokens by samples of the generator (Wang et al., 2023, Eq. 1).

        The samples for encoder and decoder are independent.
        """
        if batch.encoder_ids is not None:
            return batch
        generator, width = self.generator, batch.ids.shape[1]
        if self.trained_generator is None:
            generator.train(self.training and self.config.generator_dropout)

        def sampled(part: _Side) -> Tensor:
            places = part.masked
            masked = self.masking.with_mask_tokens(part.ids, places)
            full = generator.sampled(masked, part.mask, places, part.draws)
            return functional.pad(full, (0, width - full.shape[1]), value=self.store.template.pad)

        sides = ((batch.encoder_masked, batch.encoder_draws), (batch.decoder_masked, batch.decoder_draws))
        with torch.no_grad():
            ids = [self.in_chunks(sampled, _Side(batch.ids, batch.mask, *side)) for side in sides]
        return batch._replace(encoder_ids=ids[0], decoder_ids=ids[1])

    def _read(self, batch: BottleneckBatch) -> Reading:
        middle = self.encoder.config.num_hidden_layers // 2 if self.config.decoder_reads == "states" else None
        output = self.encoder(
            input_ids=batch.encoder_ids, attention_mask=batch.mask, output_hidden_states=middle is not None
        )
        vectors = pool(output.last_hidden_state, batch.mask, self.model.config.pooling)
        return Reading(output.last_hidden_state, vectors, None if middle is None else output.hidden_states[middle])

    def _likelihoods(self, batch: BottleneckBatch, reading: Reading, width: int) -> Tensor:
        """Compute log-probabilities by view: (N, 3, width). Views without a loss are 0."""
        where = self.predicted(batch)
        likelihoods = {}
        if "encoder" in self._views:
            likelihoods["encoder"] = self._predict(reading.states, where["encoder"], batch.ids, batch.encoder_ids)
        if self.decoder is not None:
            states = reading.middle
            if states is None:
                states = self.encoder.embeddings(input_ids=batch.decoder_ids)
            decoded = self.decoder(reading.vectors, states, batch.mask)
            likelihoods["decoder"] = self._predict(decoded, where["decoder"], batch.ids, batch.decoder_ids)
        if "generator" in self._views:
            places = where["generator"]
            states = self.generator.states(self.masking.with_mask_tokens(batch.ids, places), batch.mask, places)
            likelihoods["generator"] = self.generator.head.log_likelihoods(states, batch.ids[places])
        nothing = reading.vectors.new_zeros(len(batch.ids), width)
        views = ("encoder", "decoder", "generator")
        return torch.stack([placed(likelihoods[v], where[v], width) if v in likelihoods else nothing for v in views], 1)

    @property
    def generator(self) -> Any:
        """The masked language model that samples replacements."""
        return self.trained_generator if self.trained_generator is not None else self.frozen(GENERATOR)

    def _predict(self, states: Tensor, where: Tensor, ids: Tensor, read: Tensor | None) -> Tensor:
        """Compute log-probabilities at the M places of `where`: (M,).

        They are those of the original token, or for `task: detection` those of the right answer: replaced or not.
        """
        assert read is not None
        wanted = (read != ids)[where] if self.config.task == "detection" else ids[where]
        likelihoods: Tensor = self.head.log_likelihoods(states[where], wanted)
        return likelihoods

    def _add_generator(self, artifact: Path | None) -> None:
        """Load the generator. Raise UserError if it is missing, superfluous, or has another vocabulary."""
        self.trained_generator = None
        if self.config.task == "masked":
            if "generator" in self._views or artifact is not None:
                raise UserError(
                    "generator: `task: masked` does not use a generator. Remove the generator and the loss `over: "
                    "generator`."
                )
            return
        if artifact is None:
            raise UserError(
                f"generator: `task: {self.config.task}` needs a generator. Set it to a masked language model."
            )
        generator = load_generator(artifact, self.inputs.model, self.model.max_tokens("document"))
        if "generator" in self._views:
            self.trained_generator = generator
        else:
            self.add_frozen(GENERATOR, generator)


class _Side(NamedTuple):
    """The generator's inputs for one side: the encoder or the decoder."""

    ids: Tensor
    mask: Tensor
    masked: Tensor
    draws: Tensor


Objective = SimLM
