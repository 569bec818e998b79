"""DiffCSE: its losses against plain loops, what the discriminator sees, what is saved."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.objectives.parts.config import DifferenceConfig
from tests.support import toy
from tests.support.errors import refused
from tests.support.pretrainings import DIFFCSE, LIKELIHOOD, Artifacts, Variant, edited, run
from tests.support.trainings import Interrupted, assert_same, checked, groups, lines, visits

EDITING = DIFFCSE["DiffCSE"]
ROWS = [0, 3, 5, 8]
NARROW = [3, 5, 8]
"""Of these the longest is not as long as the batch is wide."""
SPECIAL = torch.tensor([0, 2, 3])  # [PAD], [CLS], [SEP] of the toy vocabulary

TASKS = {
    "detection": {},
    "detection, over texts": {"average": "texts"},
    "detection, at all places": {"places": "all"},
    "conditional MLM": {"task": "masked"},
    "conditional MLM, masked as BERT": {"task": "masked", "masked_as": "bert"},
    "corrective LM": {"task": "replaced"},
    "insertion": {"edits": ["insert"], "insertion_rate": 0.4},
    "insertion, at all places": {"edits": ["insert"], "places": "all"},
    "deletion": {"edits": ["delete"], "deletion_rate": 0.4},
    "all three": {"edits": ["replace", "insert", "delete"]},
    "next text": {"edits_of": "next"},
    "same and next text": {"edits_of": "both"},
    "conditional MLM of same and next text": {"edits_of": "both", "task": "masked"},
    "as released": {"replaced_by": "argmax", "places": "all", "masked_as": "bert", "generator_dropout": True},
}


# What the discriminator predicts


def naive(objective: Any, batch: Any, vectors: Tensor) -> list[list[float]]:
    """By text the log-probability of what is predicted at each place, one place at a time, with nothing of ours but
    the weights. Padding is there only where it counts."""
    config, part, edits = objective.difference.config, objective.difference, batch.edits
    result = []
    for row in range(len(edits.ids)):
        length = int(edits.attention[row].sum())
        shown = int(edits.attention.sum(-1).max()) if config.places == "all" else length
        read, before = edits.edited[row : row + 1, :shown], edits.ids[row, :shown]
        hidden = part.discriminator.embeddings(input_ids=read).clone()
        hidden[0, 0] = vectors[edits.vector[row]]
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
                changed = edits.marked[row, place] or read[0, place] != before[place]
                values.append(math.log(torch.sigmoid(score if changed else -score)))
            elif config.task == "replaced" or edits.masked[row, place]:
                scores = part.head.model.cls.predictions.decoder(part.head.model.cls.predictions.transform(state))
                values.append(float(scores.softmax(-1)[before[place]].log()))
        result.append(values)
    return result


@pytest.mark.parametrize("name", list(TASKS))
def test_losses_are_those_of_a_plain_loop(pretraining: Artifacts, name: str) -> None:
    """Over tokens of the text, of which neither special tokens nor padding are, or over all places as released."""
    objective = pretraining.diffcse(**TASKS[name], max_tokens=60)
    everywhere = TASKS[name].get("places") == "all"
    batch = edited(objective, NARROW if everywhere else ROWS)
    with torch.no_grad():
        representations = objective.encode(batch)
        result = objective.terms(representations, batch)["negative_log_likelihood (discriminator)"]
        expected = naive(objective, batch, representations.vectors)
    values = [-np.mean(text) for text in expected if text]
    if TASKS[name].get("average") != "texts":
        values = -np.concatenate(expected)
        assert result.rows == len(values)
    if everywhere:
        assert len(values) == len(batch.edits.ids) * int(batch.edits.attention.sum(-1).max())
    assert float(result.value) / result.rows == pytest.approx(np.sum(values) / result.rows, rel=1e-4)


@pytest.mark.parametrize(("name", "classes"), [("detection", 2), ("detection, at all places", 2), ("corrective LM", 0)])
def test_a_head_that_knows_nothing_has_the_loss_of_a_guess(pretraining: Artifacts, name: str, classes: int) -> None:
    """log 2, and log V over the vocabulary, whatever texts there are and however wide the batch is."""
    objective = pretraining.diffcse(**TASKS[name])
    head = objective.difference.head
    parameters = list(head.parameters())
    if not classes:
        scores = head.model.cls.predictions
        parameters, classes = [*scores.transform.LayerNorm.parameters(), scores.bias], scores.bias.numel()
    for parameter in parameters:
        nn.init.zeros_(parameter)
    batch = edited(objective, ROWS)
    with torch.no_grad():
        result = objective.terms(objective.encode(batch), batch)["negative_log_likelihood (discriminator)"]
    assert float(result.value) / result.rows == pytest.approx(math.log(classes), rel=1e-5)


def losses_of(pretraining: Artifacts, term: dict[str, Any], **options: Any) -> tuple[float, Any]:
    """A term's part of the loss of a batch whose discriminator is sure of special tokens and padding, and the edits."""
    losses = [{"function": LIKELIHOOD, "over": "discriminator", **term}]
    objective = pretraining.diffcse(losses=losses, **options)
    batch = edited(objective, NARROW)
    with torch.no_grad():
        representations = objective.encode(batch)
        assert representations.likelihoods[~batch.edits.text].any() == (options.get("places") == "all")
        sure = representations._replace(likelihoods=representations.likelihoods * batch.edits.text)
        (result,) = objective.terms(sure, batch).values()
    return float(result.value) / (result.rows or 1), batch.edits


def test_weights_are_converted_as_documented(pretraining: Artifacts) -> None:
    """`DifferenceConfig`: the released mean with lambda is the mean over tokens with lambda times the share of places
    that hold text, and the paper's sum with this weight divided by the number of tokens."""
    documents = [pretraining.diffcse().store.documents[row][:22] for row in NARROW]
    count, longest = 2 * sum(map(len, documents)), max(map(len, documents)) + 2  # of both views; with [CLS] and [SEP]
    weight = 0.005 * count / (2 * len(NARROW) * longest)
    released, edits = losses_of(pretraining, {"weight": 0.005}, places="all")
    assert longest < edits.ids.shape[1]
    actual, _ = losses_of(pretraining, {"weight": weight})
    assert actual == pytest.approx(released, rel=1e-5)
    of_the_paper = {"options": {"over": "sum"}, "reduce": "sum", "weight": weight / count}
    summed, _ = losses_of(pretraining, of_the_paper, average="texts")
    assert summed == pytest.approx(released, rel=1e-5)


@pytest.mark.parametrize(
    "name", ["detection", "conditional MLM", "corrective LM", "insertion", "all three", "same and next text"]
)
def test_nothing_is_predicted_but_text(pretraining: Artifacts, name: str) -> None:
    """And padding changes nothing: texts by themselves have the losses that they have in a batch."""
    objective = pretraining.diffcse(**TASKS[name])
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
            torch.testing.assert_close(alone[:, :width], together[row::12, :width], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whose", ["same", "next", "both"])
def test_the_text_that_is_edited_is_the_next_one(pretraining: Artifacts, whose: str) -> None:
    """Behind either view's vector, with edits of its own. After the last text of the collection comes the first."""
    objective = pretraining.diffcse(edits_of=whose)
    edits = objective.collate(visits([38, 39, 4])).edits
    texts = {"same": [38, 39, 4], "next": [39, 0, 5], "both": [38, 39, 4, 39, 0, 5]}[whose]
    views = [text for start in range(0, len(texts), 3) for _ in range(2) for text in texts[start : start + 3]]
    for row, text in enumerate(views):
        expected = objective.store.documents[text][:22]
        assert edits.ids[row][edits.text[row]].tolist() == expected.tolist()
    assert edits.vector.tolist() == [0, 1, 2, 3, 4, 5] * (len(views) // 6)
    by_row = [
        tuple(edits.masked[row].tolist()) for row in range(len(views)) if len(objective.store.documents[views[row]]) > 8
    ]
    assert len(set(by_row)) == len(by_row) > 2


# The bottleneck


def test_the_discriminator_sees_the_text_through_its_vector_alone(
    pretraining: Artifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gradient reaches the encoder's last layer at position 0 and nowhere else; with that vector cut off, no
    parameter of the encoder at all, embeddings included."""
    objective = pretraining.diffcse().eval()
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
    monkeypatch.setattr(objective.model, "pooled", lambda *source: pooled(*source).detach())
    assert all(gradient is None for gradient in backward().values())
    assert all(p.grad is not None and p.grad.any() for p in objective.difference.head.parameters())


def test_the_discriminator_begins_as_the_encoder_and_goes_its_own_way(pretraining: Artifacts) -> None:
    objective = pretraining.diffcse()
    encoder, part = objective.model.tower("document"), objective.difference.discriminator
    pairs = [(part.embeddings, encoder.embeddings), (part.decoder.layers.encoder, encoder.encoder)]
    for actual, of_encoder in pairs:
        for first, second in zip(actual.parameters(), of_encoder.parameters(), strict=True):
            assert torch.equal(first, second)
            assert first is not second


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
    run(pretraining.diffcse(start=start), tmp_path / "a", EDITING, updates=30, learning_rate=2e-3, losses=losses)
    result = lines(tmp_path / "a")
    for term in (key for key in result[0] if key.endswith(")")):
        first, last = (sum(line[term] for line in part) for part in (result[:4], result[-4:]))
        assert last < 0.9 * first, term


def test_killed_and_resumed_is_as_never_killed(pretraining: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """With dropout, parts of a batch, and BatchNorm's running means."""
    start = toy.started(tmp_path / "shaky", toy.retriever_config(encoder, dropout=0.1))
    options = {"updates": 3, "accumulate": 2, "precision": "bf16"}
    run(pretraining.diffcse(start=start), tmp_path / "a", EDITING, **options)
    with pytest.raises(Interrupted):
        run(pretraining.diffcse(start=start), tmp_path / "b", EDITING, stop=2, **options)
    (checkpoint,) = (tmp_path / "b/checkpoints").glob("update-000002")
    assert "projector.layers.1.running_mean" in load_file(checkpoint / "weights.safetensors")
    run(pretraining.diffcse(start=start), tmp_path / "b", EDITING, **options)
    assert_same(tmp_path / "a", tmp_path / "b")


def test_the_export_is_the_encoder_without_projector_or_discriminator(pretraining: Artifacts, tmp_path: Path) -> None:
    """It loads in sentence-transformers, with equal vectors, which are compared as the retriever's are."""
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
        actual = encoder(**{key: read[key] for key in ("input_ids", "attention_mask")}).last_hidden_state[:, 0]
    vectors = peer.encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(vectors, actual)
    assert objective.model.config.similarity == peer.similarity_fn_name
    torch.testing.assert_close(peer.similarity(vectors, vectors), actual @ actual.T)


# DPR with DiffCSE


@pytest.fixture(scope="module")
def grouped(pretraining: Artifacts, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """The same over groups."""
    return Artifacts(
        pretraining.data,
        pretraining.tokens,
        pretraining.retriever,
        pretraining.language_model,
        toy.write_groups(tmp_path_factory.mktemp("groups") / "rows", groups(24)),
    )


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
            whole = batch._replace(queries=objective.difference.editing.edit(objective, edits))
            single = type("Batch", (), {"edits": whole.queries})
            result = -np.concatenate(naive(objective, single, vectors[side]))
            term = terms[f"negative_log_likelihood ({side})"]
            assert term.rows == len(result)
            assert float(term.value) == pytest.approx(result.sum(), rel=1e-4)
    assert len(batch.documents.ids) == int(batch.groups.where.sum()) == 18
    assert set(objective.judge(representations, batch)) == {"RR", "accuracy"}
    assert objective.operations(batch) > plain.operations(alone)


def test_a_retrievers_gradient_in_pieces(grouped: Artifacts) -> None:
    assert checked(grouped.objective(RETRIEVER, max_tokens=60, recompute=True)) < 1e-4


def test_separate_towers_share_a_discriminator(grouped: Artifacts, encoder: Path, tmp_path: Path) -> None:
    """It begins as the document tower. The loss over either side trains that side's tower alone."""
    start = toy.started(tmp_path / "towers", toy.retriever_config(encoder, towers="separate"))
    weights = start / "model/query/model.safetensors"
    save_file({name: value + 0.01 for name, value in load_file(weights).items()}, weights, metadata={"format": "pt"})
    for side, second in (("query", "document"), ("document", "query")):
        variant = Variant("diffcse_retriever", (f"{side} discriminator",), generator=True)
        objective = grouped.objective(variant, start=start)
        actual = next(objective.difference.discriminator.decoder.layers.encoder.parameters())
        begun = {name: next(objective.model.tower(name).encoder.parameters()) for name in ("query", "document")}
        assert torch.equal(actual, begun["document"])
        assert not torch.equal(actual, begun["query"])
        batch = objective.collate(visits(range(4)))
        (term,) = objective.terms(objective.encode(batch), batch).values()
        term.value.backward()
        assert all(p.grad is not None for p in objective.model.tower(side).parameters())
        assert not any(p.grad is not None and p.grad.any() for p in objective.model.tower(second).parameters())


@pytest.mark.parametrize("options", [{"edits": ["delete"]}, {"task": "masked"}, {}], ids=str)
def test_the_gradient_is_checked_where_nothing_is_drawn(
    pretraining: Artifacts, grouped: Artifacts, options: dict[str, Any]
) -> None:
    """A generator's draws may be others where sums are rounded otherwise."""
    difference = DifferenceConfig(**options)
    variants = {pretraining: EDITING, grouped: RETRIEVER}
    for artifacts, variant in variants.items():
        objective = artifacts.objective(
            replace(variant, generator=difference.generates), max_tokens=60, recompute=True, difference=difference
        )
        assert objective.self_check == (not difference.generates)
        assert checked(objective) < 1e-4


# Refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"places": "all", "average": "texts"}, "places: got all, which needs `task: detection`"),
        ({"places": "all", "task": "replaced"}, "places: got all, which needs `task: detection`"),
        ({"rate": 0.0}, "greater than 0"),
        ({"deletion_rate": 1.0}, "less than 1"),
        ({"edits": []}, "at least 1 item"),
        ({"edits": ["insert", "insert"]}, "edits: .* a kind is repeated"),
        ({"edits": ["insert"], "task": "masked"}, "edits: .* inserted tokens have no original token"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DifferenceConfig(**options)


def test_what_cannot_be_trained_is_refused(pretraining: Artifacts, grouped: Artifacts, tmp_path: Path) -> None:
    """A generator of another vocabulary reads past its embeddings, as in the public code's first issue."""
    with refused("generator", "missing-model"):
        pretraining.objective(Variant("diffcse", EDITING.views))
    for options in ({"task": "masked"}, {"edits": ["delete"]}):
        with pytest.raises(UserError, match=r"generator: `task: masked` and `edits: \[delete\]` do not use a"):
            pretraining.objective(EDITING, difference=DifferenceConfig(**options))
    second = toy.started(
        tmp_path / "generator", toy.language_model_config(toy.write_encoder(tmp_path / "x", "roberta"))
    )
    with refused("generator", "other-vocabulary"):
        pretraining.objective(EDITING, generator=second)
    with pytest.raises(UserError, match="edits_of: got next, but candidates of a group have no next text"):
        grouped.objective(RETRIEVER, difference=DifferenceConfig(edits_of="next"))
