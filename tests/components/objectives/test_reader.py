"""A reader's training: the loss of a batch, pieces, that it learns, and the same with two workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.config import UserError
from sparring.components.models.reader import Reader
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.objectives.reader import ReaderObjective
from sparring.components.training.objective import ObjectiveInputs
from sparring.components.training.self_check import SelfCheckError
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.read import reading_groups
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.errors import refused
from tests.support.trainings import assert_close, break_gradients, checked, lines, visits
from tests.support.writers import write_generator

LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory, data: Path) -> dict[str, Path]:
    """A start reader, groups of three passages with their answers, and all tokens."""
    folder = tmp_path_factory.mktemp("learning")
    write_generator(folder / "pretrained", words=True)
    start = toy.started(
        folder / "start", ReaderConfig(model=str(folder / "pretrained"), passage_tokens=24, answer_tokens=8)
    )
    requests = toy.with_answers(folder / "data", data)
    ranking = toy.write_ranking(
        folder / "ranking", {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(1 + i % 4)] for i in range(24)}
    )
    for name in ("rows", "tokens", "answer tokens"):
        (folder / name).mkdir()
    reading_groups(
        folder / "rows", toy.INLINE, data=requests, ranking=ranking, split="train", passages=3, visits=2, seed=[1]
    )
    tokenize(folder / "tokens", toy.INLINE, data=requests, model=start, config=TokenizeConfig())
    tokenize(folder / "answer tokens", toy.INLINE, data=folder / "rows", model=start, config=TokenizeConfig())
    return {"start": start, "data": requests, **{name: folder / name for name in ("rows", "tokens", "answer tokens")}}


def objective(places: dict[str, Path], *, max_tokens: int = 10_000, recompute: bool = False) -> ReaderObjective:
    return ReaderObjective(
        ObjectiveInputs(
            model=places["start"] / "model",
            rows=places["rows"],
            data=places["data"],
            tokens=places["tokens"],
            losses=toy.train_config(losses=[{"function": LIKELIHOOD}]).losses,
            max_tokens=max_tokens,
            recompute=recompute,
        ),
        answer_tokens=places["answer tokens"],
    )


def test_the_loss_and_its_gradient_in_any_pieces(learning: dict[str, Path]) -> None:
    whole, pieces = objective(learning), objective(learning, max_tokens=40, recompute=True)
    rows = [0, 3, 5, 17]
    for item in (whole, pieces):
        item.eval()
        batch = item.collate(visits(rows))
        ((total, count),) = item.terms(item.encode(batch), batch).values()
        assert count == 4
        total.backward()
        assert item.operations(batch) > 0
    for (name, a), (_, b) in zip(whole.named_parameters(), pieces.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=1e-4, msg=name)
    # Question by question, by the reader itself.
    batch, wanted = whole.collate(visits(rows)), 0.0
    parts = batch.passages.ids.split(batch.counts.tolist()), batch.passages.mask.split(batch.counts.tolist())
    for row, (ids, mask) in enumerate(zip(*parts, strict=True)):
        item = whole.model.encode_passages(type(batch.passages)(ids, mask), torch.tensor([len(ids)]), tokens=10_000)
        target = type(batch.targets)(batch.targets.ids[row][None], batch.targets.mask[row][None])
        likely = whole.model.log_likelihoods(item, target)
        wanted -= likely.sum().item() / int(target.mask.sum())
    assert total.item() == pytest.approx(wanted, rel=1e-4)


def test_the_check_before_the_first_step_holds_pieces_against_what_was_not_cut(
    learning: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    single = objective(learning, recompute=True)
    assert checked(single) < 1e-4
    break_gradients(monkeypatch)
    with pytest.raises(SelfCheckError, match=": the gradient has norm"):
        checked(single)


def test_groups_and_answers_go_together(learning: dict[str, Path]) -> None:
    single = objective(learning)
    answers = pq.read_table(learning["rows"] / "documents.parquet")["text"].to_pylist()
    batch = single.collate(visits([1, len(answers) - 1]))
    for row, position in ((0, 1), (1, len(answers) - 1)):
        ids = batch.targets.ids[row][batch.targets.mask[row] > 0]
        assert single.model.tokenizer.decode(ids, skip_special_tokens=True) == answers[position]


def test_it_learns(learning: dict[str, Path], tmp_path: Path, ray: Machine) -> None:
    """The loss falls; two workers come to the same as one."""

    def losses(name: str, machine: Machine, **config: Any) -> list[float]:
        (tmp_path / name).mkdir()
        options = toy.train_config(batch=8, log_every=1, losses=[{"function": LIKELIHOOD}], clip=1.0, **config)
        train(
            tmp_path / name,
            machine,
            objective="reader",
            rows=learning["rows"],
            dev=None,
            data=learning["data"],
            tokens=learning["tokens"],
            start=learning["start"],
            seed=[1],
            config=options,
            answer_tokens=learning["answer tokens"],
        )
        return [line["negative_log_likelihood (group)"] for line in lines(tmp_path / name)]

    many = losses("many", toy.INLINE, updates=12, learning_rate=2e-2)
    assert many[-1] < 0.8 * many[0]
    for name, machine in (("one", toy.INLINE), ("two", ray)):
        losses(name, machine, updates=3, learning_rate=1e-3)
    assert_close(tmp_path / "one", tmp_path / "two")
    assert Reader.load(tmp_path / "many" / "model").config.passage_tokens == 24


def test_mistakes_are_named(learning: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there are 40 answers for \d+ groups"):
        objective({**learning, "answer tokens": learning["tokens"]})
    losses: Any = toy.train_config(losses=[{"function": LIKELIHOOD, "over": "batch"}]).losses
    with refused("losses", "unknown-view"):
        ReaderObjective(
            ObjectiveInputs(
                model=learning["start"] / "model",
                rows=learning["rows"],
                data=learning["data"],
                tokens=learning["tokens"],
                losses=losses,
                max_tokens=9,
                recompute=False,
            ),
            answer_tokens=learning["answer tokens"],
        )
    (tmp_path / "none").mkdir()
    ranking = toy.write_ranking(tmp_path / "ranking", {"q0": ["d1"]})
    with pytest.raises(UserError, match="no query has both an answer and a passage"):
        reading_groups(
            tmp_path / "none",
            toy.INLINE,
            data=learning["data"],
            ranking=ranking,
            split="train",
            passages=3,
            visits=1,
            seed=[1],
        )
