"""SimLM's losses against closed forms and plain loops, its bottleneck, its generator, and what it saves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModel, AutoModelForMaskedLM

from sparring.components.config import UserError
from sparring.components.data.batches import to_device
from sparring.components.models import masked_language_model
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.objectives import simlm
from sparring.components.objectives.parts.config import BottleneckConfig
from tests.support import toy
from tests.support.errors import refused
from tests.support.pretrainings import BOTH, CONDENSER, VARIANTS, Artifacts, Variant
from tests.support.trainings import visits

SIMLM = VARIANTS["SimLM"]
ROWS = [0, 3, 5, 8]


def terms(objective: Any, rows: list[int] = ROWS) -> dict[str, float]:
    """By view, the mean loss over some documents."""
    objective.eval()
    batch = objective.collate(visits(rows))
    with torch.no_grad():
        result = objective.terms(objective.encode(batch), batch)
    views = [term.over for term in objective.inputs.losses]
    return {view: float(term.value) / term.rows for view, term in zip(views, result.values(), strict=True)}


def replaced(objective: Any, rows: list[int] = ROWS) -> Any:
    """A batch with the generator's samples."""
    return objective.eval().replaced(objective.collate(visits(rows)))


# Losses


def test_a_head_that_knows_nothing_has_the_loss_of_a_guess(pretraining: Artifacts) -> None:
    """Scores that are all 0: log V for each text, whatever its length, and log 2 for detection."""
    objective = pretraining.objective(VARIANTS["joint"])
    for head in (objective.head, objective.generator.head):
        for parameter in (
            *head.model.cls.predictions.transform.LayerNorm.parameters(),
            head.model.cls.predictions.bias,
        ):
            torch.nn.init.zeros_(parameter)
    vocabulary = objective.generator.vocabulary
    assert terms(objective) == pytest.approx(dict.fromkeys((*BOTH, "generator"), math.log(vocabulary)), rel=1e-5)
    detection = pretraining.objective(VARIANTS["Enc-Dec RTD"])
    for parameter in detection.head.score.parameters():
        torch.nn.init.zeros_(parameter)
    assert terms(detection) == pytest.approx(dict.fromkeys(BOTH, math.log(2)), rel=1e-5)


def naive(objective: Any, batch: Any) -> dict[str, list[list[float]]]:
    """By view and document the log-probability of each token that is predicted, one document and token at a time."""
    config, encoder, head = objective.config, objective.encoder, objective.head
    result: dict[str, list[list[float]]] = {"encoder": [], "decoder": []}
    for row in range(len(batch.ids)):
        length = int(batch.mask[row].sum())
        original, read = batch.ids[row, :length], batch.encoder_ids[row : row + 1, :length]
        output = encoder(input_ids=read, output_hidden_states=True)
        states = output.last_hidden_state
        hidden = encoder.embeddings(input_ids=batch.decoder_ids[row : row + 1, :length])
        if config.decoder_reads == "states":
            hidden = output.hidden_states[1]
        hidden = hidden.clone()
        hidden[0, 0] = states[0, 0]
        for layer in objective.decoder.layers.encoder.layer:
            hidden = layer(hidden)
        sides = {
            "encoder": (states[0], batch.encoder_masked, batch.encoder_ids),
            "decoder": (hidden[0], batch.decoder_masked, batch.decoder_ids),
        }
        for view, (last, masked, ids) in sides.items():
            likelihoods = []
            for place in range(1, length - 1):
                if config.task == "masked" and not masked[row, place]:
                    continue
                if config.task == "detection":
                    score = head.score(torch.nn.functional.gelu(head.hidden(last[place])))
                    forward = torch.sigmoid(score if ids[row, place] != original[place] else -score)
                    likelihoods.append(math.log(forward))
                else:
                    scores = head.model.cls.predictions.decoder(head.model.cls.predictions.transform(last[place]))
                    likelihoods.append(float(scores.softmax(-1)[original[place]].log()))
            result[view].append(likelihoods)
    return result


@pytest.mark.parametrize("average", ["texts", "tokens"])
@pytest.mark.parametrize("name", ["SimLM", "Enc-Dec MLM", "Condenser", "Enc-Dec RTD"])
def test_losses_are_those_of_a_plain_loop(pretraining: Artifacts, name: str, average: str) -> None:
    """Over texts as in Eq. 2, over tokens as in the public code."""
    variant = VARIANTS[name]
    objective = pretraining.objective(
        variant, max_tokens=60, bottleneck=BottleneckConfig(**variant.bottleneck, average=average)
    )
    batch = replaced(objective)
    with torch.no_grad():
        result = naive(objective, batch)
    for view, value in terms(objective).items():
        texts = [text for text in result[view] if text]
        per_text = sum(-float(np.mean(text)) for text in texts) / len(ROWS)
        assert value == pytest.approx(per_text if average == "texts" else -np.mean(np.concatenate(texts)), rel=1e-4)


# What is read


def test_replacements_are_the_generators(pretraining: Artifacts) -> None:
    """A plain loop: Hugging Face's whole model over the masked text, and at each masked place the token where the
    cumulative probability passes the draw."""
    objective = pretraining.objective(SIMLM)
    generator = AutoModelForMaskedLM.from_pretrained(str(pretraining.language_model / "model")).eval()
    batch = replaced(objective, [0, 3])
    mask_token = objective.store.template.mask
    for side in BOTH:
        masked, draws = getattr(batch, f"{side}_masked"), getattr(batch, f"{side}_draws")
        ids = batch.ids.clone()
        ids[masked] = mask_token
        with torch.no_grad():
            probabilities = generator(input_ids=ids, attention_mask=batch.mask).logits.double().softmax(-1)
        expected = batch.ids.clone()
        for row, place in masked.nonzero().tolist():
            total, token = 0.0, -1
            while total <= draws[row, place]:
                token += 1
                total += float(probabilities[row, place, token])
            expected[row, place] = token
        assert torch.equal(getattr(batch, f"{side}_ids"), expected)


def test_encoder_and_decoder_have_samples_of_their_own(pretraining: Artifacts) -> None:
    """Whatever is masked for the encoder is for the decoder, but not replaced by the same tokens."""
    batch = replaced(pretraining.objective(SIMLM), list(range(40)))
    both = batch.encoder_masked
    assert (batch.decoder_masked | ~both).all()
    assert (batch.encoder_ids[both] != batch.decoder_ids[both]).float().mean() > 0.5
    assert torch.equal(batch.encoder_ids[~both], batch.ids[~both])
    assert torch.equal(batch.decoder_ids[~batch.decoder_masked], batch.ids[~batch.decoder_masked])


def test_the_autoencoder_reads_the_text_and_decodes_mask_tokens(pretraining: Artifacts) -> None:
    objective = pretraining.objective(VARIANTS["AutoEncoder"])
    batch = objective.collate(visits(ROWS))
    assert torch.equal(batch.encoder_ids, batch.ids)
    assert (batch.decoder_ids[batch.text] == objective.store.template.mask).all()


def test_masked_tokens_as_berts(pretraining: Artifacts) -> None:
    """80 % become the mask token, 10 % any token, and 10 % stay; the public default beside the released script's."""
    options = {"task": "masked", "encoder_rate": 0.5, "masked_as": "bert"}
    objective = pretraining.objective(Variant("simlm", BOTH, options))
    many = [visits(range(40))[row]._replace(visit=v) for row in range(40) for v in range(20)]
    batch = objective.collate(many)
    read, before = (ids[batch.encoder_masked] for ids in (batch.encoder_ids, batch.ids))
    mask = objective.store.template.mask
    assert len(read) > 2000
    assert (read == mask).float().mean() == pytest.approx(0.8, abs=0.03)
    assert (read == before).float().mean() == pytest.approx(0.1, abs=0.03)
    rest = read[(read != mask) & (read != before)]
    assert len(rest) / len(read) == pytest.approx(0.1, abs=0.03)
    assert len(rest.unique()) > 50
    assert torch.equal(batch.encoder_ids[~batch.encoder_masked], batch.ids[~batch.encoder_masked])


def test_each_token_may_be_masked_by_itself(pretraining: Artifacts) -> None:
    """For tokenizers that do not say where words begin; "xq7" is a word of three toy tokens."""
    ids = {unit: pretraining.objective(SIMLM, bottleneck=BottleneckConfig(unit=unit)) for unit in ("words", "tokens")}
    parts = {}
    for unit, objective in ids.items():
        starts = ids["words"].masking.starts
        batch = objective.collate(visits(range(40)))
        inside = torch.from_numpy(~starts[batch.ids.numpy()])[:, 1:]
        parts[unit] = (batch.encoder_masked[:, 1:] != batch.encoder_masked[:, :-1])[inside].any()
    assert not parts["words"]
    assert parts["tokens"]


# The bottleneck


def test_the_decoder_sees_the_encoder_through_its_vector_alone(
    pretraining: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gradient of the decoder's loss reaches the encoder's last layer at position 0 and nowhere else, and no layer
    at all where that vector is cut off."""
    seen: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    def decoded() -> dict[str, Tensor | None]:
        objective = pretraining.objective(Variant("simlm", ("decoder",), generator=True), max_tokens=10_000).eval()
        objective.encoder.register_forward_hook(keep)
        batch = objective.collate(visits(ROWS))
        objective.terms(objective.encode(batch), batch)["negative_log_likelihood (decoder)"].value.backward()
        layers = objective.encoder.encoder.named_parameters()
        return {name: parameter.grad for name, parameter in layers}

    through = decoded()
    assert all(gradient is not None for gradient in through.values())
    (states,) = seen
    assert states.grad is not None
    assert (states.grad[:, 0].abs().sum(-1) > 0).all()
    assert not states.grad[:, 1:].any()
    pool = simlm.pool
    monkeypatch.setattr(simlm, "pool", lambda *source: pool(*source).detach())
    assert all(gradient is None for gradient in decoded().values())


def test_with_mean_pooling_the_bottleneck_is_the_mean(pretraining: Artifacts, retriever: Path) -> None:
    """The vector that is trained is the one that retrieves."""
    objective = pretraining.objective(VARIANTS["Enc-Dec MLM"], start=retriever).eval()
    batch = objective.collate(visits(ROWS))
    states = objective.encoder(input_ids=batch.encoder_ids, attention_mask=batch.mask).last_hidden_state
    weights = batch.mask.unsqueeze(-1)
    torch.testing.assert_close(objective.encode(batch).vectors, (states * weights).sum(1) / weights.sum(1))


def test_the_decoder_begins_as_the_encoders_last_layers_and_goes_its_own_way(pretraining: Artifacts) -> None:
    objective = pretraining.objective(SIMLM, bottleneck=BottleneckConfig(decoder_layers=1))
    (layer,) = objective.decoder.layers.encoder.layer
    last = objective.encoder.encoder.layer[-1]
    for actual, of_encoder in zip(layer.parameters(), last.parameters(), strict=True):
        assert torch.equal(actual, of_encoder)
        assert actual is not of_encoder
    random = pretraining.objective(VARIANTS["Condenser"]).decoder.layers.encoder.layer[-1]
    assert not torch.allclose(random.output.dense.weight, last.output.dense.weight)
    names = {name for name, _ in objective.decoder.named_parameters()}
    assert not any("embeddings" in name for name in names)  # they are the encoder's


def test_only_what_is_asked_for_is_made(pretraining: Artifacts) -> None:
    """MLM has no decoder: Table 7's baseline costs what it costs."""
    assert pretraining.objective(VARIANTS["MLM"]).decoder is None
    assert pretraining.objective(VARIANTS["MLM"]).operations(
        pretraining.objective(VARIANTS["MLM"]).collate(visits(ROWS))
    ) < pretraining.objective(VARIANTS["Enc-Dec MLM"]).operations(
        pretraining.objective(VARIANTS["Enc-Dec MLM"]).collate(visits(ROWS))
    )


# The generator


def test_a_frozen_generator_has_no_dropout_but_where_it_is_asked_for(
    pretraining: Artifacts, encoder: Path, tmp_path: Path
) -> None:
    """The public code leaves it on while the generator samples. Neither is it trained, nor in a checkpoint."""
    shaky = toy.started(tmp_path / "shaky", toy.language_model_config(encoder, dropout=0.5))
    modes = {}
    for released in (False, True):
        actual = {"generator": shaky, "bottleneck": BottleneckConfig(generator_dropout=released)}
        objective = pretraining.objective(SIMLM, **actual)
        assert not any("generator" in name for name in objective.state_dict())
        assert not any(parameter.requires_grad for parameter in objective.generator.parameters())
        batch = objective.collate(visits(ROWS))
        modes[released] = torch.equal(*(objective.train().replaced(batch).decoder_ids for _ in range(2)))
        assert torch.equal(*(objective.eval().replaced(batch).decoder_ids for _ in range(2)))
    assert modes == {False: True, True: False}


def test_a_trained_generator_learns_from_its_own_term_alone(pretraining: Artifacts) -> None:
    """Sampling has no gradient. With its term the generator is in checkpoints (Table 12, "joint train")."""
    objective = pretraining.objective(VARIANTS["joint"]).eval()
    assert any(name.startswith("trained_generator.") for name in objective.state_dict())
    batch = objective.collate(visits(ROWS))
    result = objective.terms(objective.encode(batch), batch)
    rest = [term.value for name, term in result.items() if "generator" not in name]
    actual = list(objective.trained_generator.parameters())
    assert not any(gradient.any() for gradient in torch.autograd.grad(sum(rest), actual, retain_graph=True))
    result["negative_log_likelihood (generator)"].value.backward()
    assert all(parameter.grad.any() for parameter in objective.trained_generator.encoder.encoder.layer[0].parameters())
    assert not any(parameter.grad.any() for parameter in objective.encoder.parameters())


def test_the_generator_scores_masked_places_alone(pretraining: Artifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = pretraining.objective(SIMLM, max_tokens=60)
    scored: list[int] = []
    head = type(objective.generator.head)
    sample = head.sample
    monkeypatch.setattr(
        head, "sample", lambda self, states, draws: scored.append(len(states)) or sample(self, states, draws)
    )
    batch = replaced(objective)
    assert sum(scored) == int(batch.encoder_masked.sum() + batch.decoder_masked.sum())


def test_a_generator_of_another_vocabulary_is_refused(pretraining: Artifacts, tmp_path: Path) -> None:
    second = toy.write_encoder(tmp_path / "roberta", "roberta")
    started = toy.started(tmp_path / "generator", toy.language_model_config(second))
    with pytest.raises(UserError, match=r"generator: the vocabulary of .*roberta differs from the retriever's"):
        pretraining.objective(SIMLM, generator=started)
    with refused("head", "other-vocabulary"):
        pretraining.objective(SIMLM, language_model=started)


def test_the_head_may_be_that_of_a_language_model(pretraining: Artifacts) -> None:
    """As where BERT's own goes on learning; a new one has the weights of the seed."""
    inputs = pretraining.objective(SIMLM, language_model=pretraining.language_model)
    existing = AutoModelForMaskedLM.from_pretrained(str(pretraining.language_model / "model"))
    weight = inputs.head.model.cls.predictions.transform.dense.weight
    assert torch.equal(weight, existing.cls.predictions.transform.dense.weight)
    new = [pretraining.objective(SIMLM).head.model.cls.predictions.transform.dense.weight for _ in range(2)]
    assert torch.equal(*new)
    assert not torch.equal(new[0], weight)


# What is saved


def test_the_saved_encoder_is_transformers_and_sentence_transformers(pretraining: Artifacts, tmp_path: Path) -> None:
    """With equal vectors, and without the decoder, the head or the generator."""
    from sentence_transformers import SentenceTransformer

    objective = pretraining.objective(VARIANTS["joint"])
    with torch.no_grad():
        for parameter in objective.model.parameters():
            parameter.add_(0.01)
    objective.eval().save(tmp_path / "model")
    assert DualEncoder.load(tmp_path / "model").state_dict().keys() == objective.model.state_dict().keys()
    texts = ["bara comi xq7", "dutol"]
    peer = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    read = peer.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        actual = objective.encoder(**{key: read[key] for key in ("input_ids", "attention_mask")}).last_hidden_state[
            :, 0
        ]
        plain = AutoModel.from_pretrained(str(tmp_path / "model")).eval()(**read).last_hidden_state[:, 0]
    torch.testing.assert_close(plain, actual)
    torch.testing.assert_close(torch.from_numpy(peer.encode(texts)), actual)


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_rate": 0.5, "decoder_rate": 0.3}, "decoder_rate: 0.3 is below encoder_rate"),
        ({**CONDENSER, "decoder_rate": 0.5}, "decoder_reads: the encoder's states need"),
        ({**CONDENSER, "task": "replaced"}, "decoder_reads: the encoder's states need"),
        ({"masked_as": "bert"}, "masked_as: the generator samples at mask tokens"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        BottleneckConfig(**options)


def test_what_cannot_be_pretrained_is_refused(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="generator: `task: replaced` needs a generator"):
        pretraining.objective(Variant("simlm", BOTH))
    with pytest.raises(UserError, match="generator: `task: masked` does not use"):
        pretraining.objective(Variant("simlm", BOTH, {"task": "masked"}, generator=True))
    with pytest.raises(UserError, match="losses: over: encoder: no tokens are masked"):
        pretraining.objective(Variant("simlm", BOTH, VARIANTS["AutoEncoder"].bottleneck))
    two = toy.started(tmp_path / "two", toy.retriever_config(encoder, towers="separate"))
    with pytest.raises(UserError, match="towers: got separate, but pre-training makes one"):
        pretraining.objective(VARIANTS["MLM"], start=two)


def test_a_batch_moves_to_a_device_with_what_is_not_there_yet(pretraining: Artifacts) -> None:
    batch = pretraining.objective(SIMLM).collate(visits(ROWS))
    assert to_device(batch, torch.device("cpu")).encoder_ids is None


# What it costs


@pytest.mark.parametrize("name", ["SimLM", "joint", "Enc-Dec MLM", "MLM", "Enc-Dec RTD", "AutoEncoder", "mlm"])
def test_operations_are_those_that_torch_counts(
    pretraining: Artifacts, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers and heads, but for scores that are computed again for the gradient: they are no part of the floor."""
    monkeypatch.setattr(masked_language_model, "checkpointed", lambda forward, *piece, recompute: forward(*piece))
    objective = pretraining.objective(VARIANTS[name]).eval()
    frozen = objective.generator.modules() if name in ("SimLM", "Enc-Dec RTD") else ()
    for module in (*objective.modules(), *frozen):
        if hasattr(module, "set_attn_implementation"):
            module.set_attn_implementation("eager")
    batch = objective.collate(visits([0]))
    assert batch.mask.all()  # no padding, which would be counted
    with FlopCounterMode(display=False) as counter:
        result = objective.terms(objective.encode(batch), batch)
        sum(term.value for term in result.values()).backward()
    assert objective.operations(batch) == counter.get_total_flops()
