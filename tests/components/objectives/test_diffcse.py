"""SimCSE and DiffCSE: their losses against plain loops, what the discriminator sees, what is saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM

from components.config import UserError
from components.losses.likelihood import negative_log_likelihood
from components.losses.listwise import cross_entropy
from components.models.bottleneck import Projector
from components.objectives.simcse import view_scores
from components.training.pretraining import DifferenceConfig, ProjectorConfig
from tests.support import toy
from tests.support.pretrainings import DIFFCSE, Artifacts, Variant, run
from tests.support.trainings import Interrupted, assert_same, checked, groups, lines, visits

SIMCSE, EDITING = DIFFCSE["SimCSE"], DIFFCSE["DiffCSE"]
ROWS = [0, 3, 5, 8]
SPECIAL = torch.tensor([0, 2, 3, 4])  # [PAD], [CLS], [SEP], [MASK] of the toy vocabulary

TASKS = {
    "detection": {},
    "detection, over texts": {"average": "texts"},
    "detection, at all places": {"places": "all"},
    "conditional MLM": {"task": "masked"},
    "conditional MLM, masked as BERT": {"task": "masked", "masked_as": "bert"},
    "corrective LM": {"task": "replaced"},
    "as released": {"replaced_by": "argmax", "places": "all", "masked_as": "bert", "generator_dropout": True},
}


def made(pretraining: Artifacts, *, start: Path | None = None, max_tokens: int = 10_000, **options: Any) -> Any:
    """DiffCSE with options of its difference prediction."""
    variant = EDITING if options.get("task") != "masked" else Variant(EDITING.objective, EDITING.views)
    return pretraining.objective(variant, start=start, max_tokens=max_tokens, difference=DifferenceConfig(**options))


def edited(objective: Any, rows: list[int] = ROWS) -> Any:
    """A batch of texts as they are edited."""
    batch = objective.eval().collate(visits(rows))
    return batch._replace(edits=objective.difference.edit(objective, batch.edits))


# SimCSE


@pytest.mark.parametrize("duplicates", ["mask", "count"])
def test_the_contrast_is_that_of_a_plain_loop(duplicates: Any) -> None:
    """-log of e^(cos / t) of the sibling over that of all second views, t = .05. Texts that say the same count once,
    and never beside the row's own, but where duplicates count."""
    vectors = torch.randn(8, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keys = torch.tensor([7, 8, 7, 9])
    found = cross_entropy(view_scores(vectors, keys, duplicates), temperature=0.05)
    counted = {"count": [[0, 1, 2, 3]] * 4, "mask": [[0, 1, 3], [0, 1, 3], [1, 2, 3], [0, 1, 3]]}[duplicates]
    for row in range(4):
        cosines = {
            j: float(vectors[row] @ vectors[4 + j] / (vectors[row].norm() * vectors[4 + j].norm())) for j in range(4)
        }
        total = sum(math.exp(cosines[j] / 0.05) for j in counted[row])
        assert float(found[row]) == pytest.approx(math.log(total) - cosines[row] / 0.05)


def test_views_differ_by_dropout_alone(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    start = toy.started(tmp_path / "shaky", toy.retriever_config(encoder, dropout=0.1))
    objective = pretraining.objective(SIMCSE, start=start, projector=ProjectorConfig(kind="none"))
    batch = objective.collate(visits(ROWS))
    assert torch.equal(*batch.texts.ids.chunk(2))
    first, second = objective.eval().encode(batch).vectors.chunk(2)
    torch.testing.assert_close(first, second)
    assert torch.equal(first, objective.model.pooled(batch.texts, "document").chunk(2)[0])
    first, second = objective.train().encode(batch).vectors.chunk(2)
    assert ((first - second).abs().max(1).values > 1e-3).all()


def test_the_projector_with_batchnorm_is_the_papers() -> None:
    """Appendix A.1, in a loop over its two layers; in evaluation the running means."""
    torch.manual_seed(0)
    projector = Projector(6, "batchnorm")
    vectors = torch.randn(16, 6)

    def normal(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return (values - mean) / (variance + 1e-5).sqrt()

    first, second = (layer.weight for layer in projector.layers if isinstance(layer, nn.Linear))
    hidden = vectors @ first.T
    inner = normal(hidden, hidden.mean(0), hidden.var(0, unbiased=False)).relu() @ second.T
    expected = normal(inner, inner.mean(0), inner.var(0, unbiased=False))
    torch.testing.assert_close(projector.train()(vectors), expected)
    assert [tuple(layer.shape) for layer in (first, second)] == [(12, 6), (6, 12)]
    before = projector.layers[1].running_mean.clone()
    projector.eval()(vectors)
    assert torch.equal(projector.layers[1].running_mean, before)
    torch.testing.assert_close(before, 0.1 * hidden.mean(0))
    alone, together = projector(vectors[:3]), projector(vectors)[:3]
    torch.testing.assert_close(alone, together)


@pytest.mark.parametrize("kind", ["batchnorm", "tanh", "none"])
def test_poolers_are_a_choice(pretraining: Artifacts, kind: Any) -> None:
    """Tables 2.5: by default tanh in SimCSE, BatchNorm in DiffCSE."""
    objective = pretraining.objective(SIMCSE, projector=ProjectorConfig(kind=kind)).train()
    assert objective.encode(objective.collate(visits(ROWS))).vectors.shape == (8, 32)
    assert pretraining.objective(SIMCSE).projector.kind == "tanh"
    assert pretraining.objective(EDITING).projector.kind == "batchnorm"


# Edits


@pytest.mark.parametrize("replaced_by", ["samples", "argmax"])
def test_edits_are_the_generators(pretraining: Artifacts, replaced_by: str) -> None:
    """By Hugging Face's whole model: samples at masked tokens, or as released the most probable token at all places
    but the first."""
    objective = made(pretraining, replaced_by=replaced_by, max_tokens=60)
    generator = AutoModelForMaskedLM.from_pretrained(str(pretraining.language_model / "model")).eval()
    edits = edited(objective).edits
    with torch.no_grad():
        probabilities = generator(input_ids=edits.read, attention_mask=edits.attention).logits.double().softmax(-1)
    expected = edits.ids.clone()
    for row, place in edits.attention.nonzero().tolist():
        if replaced_by == "argmax" and place > 0:
            expected[row, place] = probabilities[row, place].argmax()
        elif replaced_by == "samples" and edits.masked[row, place]:
            below = probabilities[row, place].cumsum(-1) <= edits.draws[row, place]
            expected[row, place] = int(below.sum())
    assert torch.equal(edits.edited, expected)
    assert torch.equal(edits.edited[:, 0], edits.ids[:, 0])
    untouched = ~edits.masked
    assert torch.equal(edits.edited[untouched], edits.ids[untouched]) == (replaced_by == "samples")


def test_either_view_has_masks_of_its_own(pretraining: Artifacts) -> None:
    """Drawn from (seed, row, visit), whatever stands beside; no special tokens and no padding."""
    objective = made(pretraining)
    batch = objective.collate(visits(range(40)))
    first, second = batch.edits.masked.chunk(2)
    assert not torch.equal(first, second)
    assert not (batch.edits.masked & torch.isin(batch.edits.ids, SPECIAL)).any()
    assert batch.edits.masked.sum() / batch.edits.attention.sum() == pytest.approx(0.3, abs=0.05)
    pair = objective.collate(visits([9, 4])).edits
    width = min(pair.masked.shape[1], first.shape[1])
    for of_batch, of_pair in zip(batch.edits[4:7], pair[4:7], strict=True):  # masked, read, draws
        assert torch.equal(of_batch[[4, 44], :width], of_pair[[1, 3], :width])
    later = objective.collate([visits([4])[0]._replace(visit=v) for v in range(6)]).edits.masked
    assert len(later.unique(dim=0)) > 3


def test_the_generators_dropout_is_an_option(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """The public code leaves it on. The generator is not trained, and in no checkpoint."""
    shaky = toy.started(tmp_path / "shaky", toy.language_model_config(encoder, dropout=0.5))
    for released in (False, True):
        objective = pretraining.objective(
            EDITING, generator=shaky, difference=DifferenceConfig(generator_dropout=released)
        )
        assert not any("generator" in name for name in objective.state_dict())
        assert not any(parameter.requires_grad for parameter in objective.frozen("generator").parameters())
        edits = objective.train().collate(visits(ROWS)).edits
        twice = [objective.difference.edit(objective, edits).edited for _ in range(2)]
        assert torch.equal(*twice) != released


# What the discriminator predicts


def naive(objective: Any, batch: Any, vectors: Tensor) -> list[list[float]]:
    """By text the log-probability of what is predicted at each place, one place at a time, with nothing of ours but
    the weights. Padding is there only where it counts."""
    config, part, edits = objective.difference.config, objective.difference, batch.edits
    found = []
    for row in range(len(edits.ids)):
        length = int(edits.attention[row].sum())
        shown = edits.ids.shape[1] if config.places == "all" else length
        read, before = edits.edited[row : row + 1, :shown], edits.ids[row, :shown]
        hidden = part.discriminator.embeddings(input_ids=read).clone()
        hidden[0, 0] = vectors[row]
        unread = torch.arange(shown) >= length
        for layer in part.discriminator.decoder.layers.encoder.layer:
            hidden = layer(hidden, attention_mask=torch.zeros(1, 1, 1, shown).masked_fill(unread, -1e30))
        values = []
        for place in range(shown):
            special = place == 0 or place >= length - 1
            state = hidden[0, place]
            if config.places == "text" and special:
                continue
            if config.task == "detection":
                score = part.head.score(state)
                values.append(math.log(torch.sigmoid(score if read[0, place] != before[place] else -score)))
            elif config.task == "replaced" or edits.masked[row, place]:
                scores = part.head.model.cls.predictions.decoder(part.head.model.cls.predictions.transform(state))
                values.append(float(scores.softmax(-1)[before[place]].log()))
        found.append(values)
    return found


@pytest.mark.parametrize("name", list(TASKS))
def test_losses_are_those_of_a_plain_loop(pretraining: Artifacts, name: str) -> None:
    """Over tokens of the text, of which neither special tokens nor padding are, or over all places as released."""
    objective = made(pretraining, **TASKS[name], max_tokens=60)
    batch = edited(objective)
    with torch.no_grad():
        representations = objective.encode(batch)
        found = objective.terms(representations, batch)["negative_log_likelihood (discriminator)"]
        expected = naive(objective, batch, representations.vectors)
    values = [-np.mean(text) for text in expected if text]
    if TASKS[name].get("average") != "texts":
        values = -np.concatenate(expected)
        assert found.rows == len(values)
    if TASKS[name].get("places") == "all":
        assert len(values) == batch.edits.ids.numel()
    assert float(found.value) / found.rows == pytest.approx(np.sum(values) / found.rows, rel=1e-4)


@pytest.mark.parametrize(("name", "classes"), [("detection", 2), ("detection, at all places", 2), ("corrective LM", 0)])
def test_a_head_that_knows_nothing_has_the_loss_of_a_guess(pretraining: Artifacts, name: str, classes: int) -> None:
    """log 2, and log V over the vocabulary, whatever texts there are and however wide the batch is."""
    objective = made(pretraining, **TASKS[name])
    head = objective.difference.head
    parameters = list(head.parameters())
    if not classes:
        scores = head.model.cls.predictions
        parameters, classes = [*scores.transform.LayerNorm.parameters(), scores.bias], scores.bias.numel()
    for parameter in parameters:
        nn.init.zeros_(parameter)
    batch = edited(objective)
    with torch.no_grad():
        found = objective.terms(objective.encode(batch), batch)["negative_log_likelihood (discriminator)"]
    assert float(found.value) / found.rows == pytest.approx(math.log(classes), rel=1e-5)


def test_weights_are_converted_as_documented(pretraining: Artifacts) -> None:
    """The paper's sum over tokens, and the released mean over positions where those without text have no loss, are the
    mean over tokens times what `DifferenceConfig` says."""
    objective = made(pretraining)
    batch = edited(objective)
    with torch.no_grad():
        likelihoods = objective.encode(batch).likelihoods
    text = batch.edits.text
    share, count = float(text.float().mean()), int(text.sum())
    mean = float(negative_log_likelihood(objective.difference.scores(likelihoods, batch.edits)).mean())
    released = -float(likelihoods.sum()) / text.numel()
    assert released == pytest.approx(share * mean)
    by_text = made(pretraining, average="texts").difference.scores(likelihoods, batch.edits)
    assert float(negative_log_likelihood(by_text, over="sum").sum()) == pytest.approx(count * mean, rel=1e-5)


@pytest.mark.parametrize("name", ["detection", "conditional MLM", "corrective LM"])
def test_nothing_is_predicted_but_text(pretraining: Artifacts, name: str) -> None:
    """And padding changes nothing: texts by themselves have the losses that they have in a batch."""
    objective = made(pretraining, **TASKS[name])
    batch = edited(objective, list(range(12)))
    where = objective.difference.predicted(batch.edits)
    assert not (where & torch.isin(batch.edits.ids, SPECIAL)).any()
    assert where.any()
    with torch.no_grad():
        together = objective.encode(batch).likelihoods
        assert not together[~where].any()
        for row in (2, 7):
            alone = objective.encode(objective.collate(visits([row]))).likelihoods
            width = min(alone.shape[1], together.shape[1])
            torch.testing.assert_close(alone[:, :width], together[[row, 12 + row], :width], rtol=1e-4, atol=1e-5)


# The bottleneck


def test_the_discriminator_sees_the_text_through_its_vector_alone(
    pretraining: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient reaches the encoder's last layer at position 0 and nowhere else; with that vector cut off, no
    parameter of the encoder at all, embeddings included."""
    objective = made(pretraining).eval()
    seen: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Any) -> None:
        output.last_hidden_state.retain_grad()
        seen.append(output.last_hidden_state)

    handle = objective.model.tower("document").register_forward_hook(keep)
    name = "negative_log_likelihood (discriminator)"

    def backward() -> dict[str, Tensor | None]:
        objective.zero_grad()
        batch = objective.collate(visits(ROWS))
        objective.terms(objective.encode(batch), batch)[name].value.backward()
        return {key: parameter.grad for key, parameter in objective.model.named_parameters()}

    through = backward()
    assert all(gradient is not None for gradient in through.values())
    (states,) = seen
    assert states.grad is not None
    assert (states.grad[:, 0].abs().sum(-1) > 0).all()
    assert not states.grad[:, 1:].any()
    handle.remove()
    pooled = objective.model.pooled
    monkeypatch.setattr(objective.model, "pooled", lambda *given: pooled(*given).detach())
    assert all(gradient is None for gradient in backward().values())
    assert all(p.grad is not None and p.grad.any() for p in objective.difference.head.parameters())


def test_the_discriminator_begins_as_the_encoder_and_goes_its_own_way(pretraining: Artifacts) -> None:
    objective = made(pretraining)
    encoder, part = objective.model.tower("document"), objective.difference.discriminator
    pairs = [(part.embeddings, encoder.embeddings), (part.decoder.layers.encoder, encoder.encoder)]
    for own, of_encoder in pairs:
        for one, other in zip(own.parameters(), of_encoder.parameters(), strict=True):
            assert torch.equal(one, other)
            assert one is not other


def test_without_the_contrastive_loss(pretraining: Artifacts) -> None:
    """Table 2.3: leave its term out."""
    objective = pretraining.objective(Variant("diffcse", ("discriminator",), generator=True)).train()
    batch = objective.collate(visits(ROWS))
    assert list(objective.terms(objective.encode(batch), batch)) == ["negative_log_likelihood (discriminator)"]


# Training


@pytest.mark.parametrize("name", list(DIFFCSE))
def test_the_gradient_in_pieces_is_that_of_one_pass(pretraining: Artifacts, name: str) -> None:
    assert checked(pretraining.objective(DIFFCSE[name], max_tokens=60, recompute=True)) < 1e-4


def test_training_lowers_every_loss(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    start = toy.started(tmp_path / "shaky", toy.retriever_config(encoder, dropout=0.05))
    contrast, edits = EDITING.losses
    losses = [{**contrast, "options": {"temperature": 0.05}}, {**edits, "weight": 0.2}]
    run(made(pretraining, start=start), tmp_path / "a", EDITING, updates=30, learning_rate=2e-3, losses=losses)
    found = lines(tmp_path / "a")
    for term in (key for key in found[0] if key.endswith(")")):
        first, last = (sum(line[term] for line in part) for part in (found[:4], found[-4:]))
        assert last < 0.9 * first, term


def test_killed_and_resumed_is_as_never_killed(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """With dropout, parts of a batch, and BatchNorm's running means."""
    start = toy.started(tmp_path / "shaky", toy.retriever_config(encoder, dropout=0.1))
    options = {"updates": 3, "accumulate": 2, "precision": "bf16"}
    run(made(pretraining, start=start), tmp_path / "a", EDITING, **options)
    with pytest.raises(Interrupted):
        run(made(pretraining, start=start), tmp_path / "b", EDITING, stop=2, **options)
    (checkpoint,) = (tmp_path / "b/checkpoints").glob("update-000002")
    assert "projector.layers.1.running_mean" in load_file(checkpoint / "weights.safetensors")
    run(made(pretraining, start=start), tmp_path / "b", EDITING, **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_the_export_is_the_encoder_without_projector_or_discriminator(pretraining: Artifacts, tmp_path: Path) -> None:
    """It loads in sentence-transformers, with equal vectors."""
    from sentence_transformers import SentenceTransformer

    objective = pretraining.objective(EDITING).eval()
    with torch.no_grad():
        for parameter in objective.model.parameters():
            parameter.add_(0.01)
    objective.save(tmp_path / "model")
    start = load_file(pretraining.retriever / "model/model.safetensors")
    assert load_file(tmp_path / "model/model.safetensors").keys() == start.keys()
    texts = ["bara comi xq7", "dutol"]
    peer = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    read = peer.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        encoder = objective.model.tower("document")
        own = encoder(**{key: read[key] for key in ("input_ids", "attention_mask")}).last_hidden_state[:, 0]
    torch.testing.assert_close(torch.from_numpy(peer.encode(texts)), own)


# DPR with DiffCSE


@pytest.fixture(scope="module")
def grouped(pretraining: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """The same over groups."""
    return Artifacts(
        pretraining.data, pretraining.tokens, pretraining.retriever, pretraining.language_model,
        toy.write_groups(tmp_path_factory.mktemp("groups") / "rows", groups(24)),
    )  # fmt: skip


SIDES = ("query discriminator", "document discriminator")
RETRIEVER = Variant("diffcse_retriever", ("batch", *SIDES), generator=True)


def test_a_retriever_learns_its_own_terms_and_the_edits(grouped: Artifacts, pretraining: Artifacts) -> None:
    """Over the batch what it is without edits; over either side what a plain loop finds of each text."""
    objective = grouped.objective(RETRIEVER).eval()
    plain = grouped.objective(Variant("retriever", ("batch",))).eval()
    batch = objective.collate(visits(range(6)))
    with torch.no_grad():
        representations = objective.encode(batch)
        terms = objective.terms(representations, batch)
        alone = plain.collate(visits(range(6)))
        (expected,) = plain.terms(plain.encode(alone), alone).values()
        torch.testing.assert_close(terms["cross_entropy (batch)"].value, expected.value)
        vectors = dict(zip(SIDES, representations.vectors, strict=True))
        for side, edits in zip(SIDES, (batch.queries, batch.documents), strict=True):
            whole = batch._replace(queries=objective.difference.edit(objective, edits))
            single = type("Batch", (), {"edits": whole.queries})
            found = -np.concatenate(naive(objective, single, vectors[side][edits.vector]))
            term = terms[f"negative_log_likelihood ({side})"]
            assert term.rows == len(found)
            assert float(term.value) == pytest.approx(found.sum(), rel=1e-4)
    assert len(batch.documents.ids) == int(batch.groups.where.sum()) == 18
    assert set(objective.judge(representations, batch)) == {"RR", "accuracy"}
    assert objective.operations(batch) > plain.operations(alone)


def test_a_retrievers_gradient_in_pieces(grouped: Artifacts) -> None:
    assert checked(grouped.objective(RETRIEVER, max_tokens=60, recompute=True)) < 1e-4


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": "all", "average": "texts"}, "places: all: the released mean"),
        ({"places": "all", "task": "replaced"}, "places: all: the released mean"),
        ({"rate": 0.0}, "greater than 0"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DifferenceConfig(**options)


def test_what_cannot_be_trained_is_refused(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """A generator of another vocabulary reads past its embeddings, as in the public code's first issue."""
    with pytest.raises(UserError, match="generator: `task: masked` has none, and the others need one"):
        pretraining.objective(Variant("diffcse", EDITING.views))
    with pytest.raises(UserError, match="generator: `task: masked` has none"):
        pretraining.objective(EDITING, difference=DifferenceConfig(task="masked"))
    other = toy.started(tmp_path / "generator", toy.language_model_config(toy.write_encoder(tmp_path / "x", "roberta")))
    with pytest.raises(UserError, match="its vocabulary is another than the retriever's"):
        pretraining.objective(EDITING, generator=other)
    for name, options in {"towers": {"towers": "separate"}, "projection": {"projection": 8}}.items():
        start = toy.started(tmp_path / name, toy.retriever_config(encoder, **options))
        with pytest.raises(UserError, match=f"{name}: .*: one encoder of sentences is trained"):
            pretraining.objective(SIMCSE, start=start)
    with pytest.raises(UserError, match="losses: over: 'discriminator': simcse accepts batch"):
        pretraining.objective(Variant("simcse", ("discriminator",)))
