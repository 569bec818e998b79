"""Pre-train an encoder whose vector a shallow decoder needs to restore the text (SimLM; Wang et al., 2023, section
3.1), and the paper's other objectives of that shape (section 5.1)."""

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
    """Some texts, and what the encoder and the decoder read of them."""

    ids: Tensor
    """(N, L) as they are in the collection."""
    mask: Tensor
    text: Tensor
    """(N, L) False for special tokens and padding."""
    encoder_masked: Tensor
    """(N, L) what is masked for the encoder."""
    decoder_masked: Tensor
    """(N, L) the same, and more."""
    encoder_draws: Tensor
    """(N, L) a random number for what stands at each place instead."""
    decoder_draws: Tensor
    encoder_ids: Tensor | None
    """(N, L) what the encoder reads; None where the generator is to be asked."""
    decoder_ids: Tensor | None
    keys: Tensor | None = None
    """(N,) which text the document of each is, where texts are compared."""


class Reading(NamedTuple):
    """States and vectors of some texts by the encoder."""

    states: Tensor
    """(N, L, h) of the last layer."""
    vectors: Tensor
    """(N, h)."""
    middle: Tensor | None
    """(N, L, h) of the middle layer, where the decoder reads them."""


class Predictions(NamedTuple):
    """Predictions and vectors of some texts."""

    likelihoods: Tensor
    """(N, 3, L) log-probabilities by the encoder, the decoder and the generator; 0 where nothing is predicted."""
    vectors: Tensor
    """(N, h)."""


class SimLM(TokenPrediction):
    """Log-probabilities of the tokens of texts, by the encoder and by a decoder that sees the encoder through its
    vector alone.

    The vector takes the place of the decoder's first token. It is the retriever's, before projection and normalization:
    the last state of [CLS], as in the paper, or with mean pooling the mean. Encoder and decoder share the token
    embeddings, the matrix before the softmax and the rest of the head; the decoder's layers are its own.

    `generator` is the artifact of a masked language model that samples replacements. It is frozen, or trained where a
    term looks over its view, by masked language modelling of what is masked for the encoder (weight .2 in the public
    code). `language_model` is the artifact of one whose head is the encoder's; without it a new head is made.

    Only the encoder is saved.
    """

    views: ClassVar[tuple[str, ...]] = ("encoder", "decoder", "generator")
    scores_of: ClassVar[dict[str, str]] = {
        "encoder": "tokens",
        "decoder": "tokens",
        "generator": "tokens",
    }
    reads: ClassVar[float] = 1.5  # the decoder and the generator together half
    predicts: ClassVar[float] = 2.0
    # A sample that lies on the edge between two tokens may be another where products are rounded differently.
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
            raise UserError("towers: separate: pre-training makes one encoder for both sides; accepted: shared")
        if not self.store.template.before:
            raise UserError("model: its tokenizer puts no token before a text for the vector to take the place of")
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
        """The encoder in training."""
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
        """Return the predicted tokens: all tokens of the text, or only masked ones."""
        everywhere = self.config.task != "masked"
        return {
            "encoder": batch.text if everywhere else batch.encoder_masked,
            "decoder": batch.text if everywhere else batch.decoder_masked,
            "generator": batch.encoder_masked,
        }

    def operations(self, batch: BottleneckBatch) -> float:
        """Count the operations of encoder, decoder and head, and of the generator's samples and training."""
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
        """Compute the predictions of a batch's texts, and their vectors."""
        width = batch.ids.shape[1]

        def predictions(part: BottleneckBatch) -> Tensor:
            reading = self._read(part)
            return torch.cat([self._likelihoods(part, reading, width).flatten(1), reading.vectors], 1)

        flat = self.in_chunks(predictions, self.replaced(batch))
        return Predictions(flat[:, : 3 * width].unflatten(1, (3, width)), flat[:, 3 * width :])

    def scores(self, representations: Predictions, batch: BottleneckBatch, term: LossTerm) -> Scores:
        """Over the tokens of each text, by the view that the term asks for."""
        return self.token_scores(representations.likelihoods, batch, term)

    def replaced(self, batch: BottleneckBatch) -> BottleneckBatch:
        """Replace masked tokens by the generator's samples, which are independent for encoder and decoder (Wang et al.,
        2023, Eq. 1)."""
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
        """Compute (N, 3, width) log-probabilities by each view. Views without a loss are 0."""
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
        """The masked language model that samples."""
        return self.trained_generator if self.trained_generator is not None else self.frozen(GENERATOR)

    def _predict(self, states: Tensor, where: Tensor, ids: Tensor, read: Tensor | None) -> Tensor:
        """Compute (M,) log-probabilities at the M places of `where`: of the token, or of its detection as replaced."""
        assert read is not None
        wanted = (read != ids)[where] if self.config.task == "detection" else ids[where]
        likelihoods: Tensor = self.head.log_likelihoods(states[where], wanted)
        return likelihoods

    def _add_generator(self, artifact: Path | None) -> None:
        """Load the generator; UserError where there is none and the task needs it, or its tokens are others."""
        self.trained_generator = None
        if self.config.task == "masked":
            if "generator" in self._views or artifact is not None:
                raise UserError("generator: `task: masked` has none; accepted: no generator, and no loss over it")
            return
        if artifact is None:
            raise UserError(f"generator: `task: {self.config.task}` needs one; accepted: a masked language model")
        generator = load_generator(artifact, self.inputs.model, self.model.max_tokens("document"))
        if "generator" in self._views:
            self.trained_generator = generator
        else:
            self.add_frozen(GENERATOR, generator)


class _Side(NamedTuple):
    """Inputs of the generator for the encoder, or for the decoder."""

    ids: Tensor
    mask: Tensor
    masked: Tensor
    draws: Tensor


Objective = SimLM
