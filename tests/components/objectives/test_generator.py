"""A generator's training: the loss of a batch, ties, pieces, and that it learns to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.expansion.targets import TargetConfig
from sparring.components.models.generator import Generator
from sparring.components.models.generator_configs import GenerateConfig, GeneratorConfig
from sparring.components.objectives.generator import GeneratorObjective
from sparring.components.training.objective import ObjectiveInputs
from sparring.components.training.self_check import SelfCheckError
from sparring.workflows.steps.targets import targets
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.trainings import assert_same, break_gradients, checked, lines, updates_of_two_runs, visits
from tests.support.writers import KINDS, architecture, write_generator

LIKELIHOOD = "components.losses.likelihood.negative_log_likelihood"


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Any:
    """A start generator of a kind, targets for it, and their tokens."""
    output: dict[str, Any] = {}

    def of(kind: str) -> dict[str, Path]:
        if kind not in output:
            folder = tmp_path_factory.mktemp(kind)
            write_generator(folder / "pretrained", kind)
            config = GeneratorConfig(
                model=str(folder / "pretrained"),
                architecture=architecture(kind),
                query_tokens=24,
                target_tokens=16,
                dropout=0.0 if kind == "bert" else None,
            )
            start = toy.started(folder / "start", config)
            for name in ("rows", "tokens"):
                (folder / name).mkdir()
            targets(
                folder / "rows",
                toy.INLINE,
                data=data,
                ranking=None,
                splits=["train"],
                leave_out=None,
                mode="tokens",
                config=TargetConfig(kind="sentence", documents="judged"),
            )
            tokenize(folder / "tokens", toy.INLINE, data=folder / "rows", model=start, config=TokenizeConfig())
            output[kind] = {"start": start, "rows": folder / "rows", "tokens": folder / "tokens"}
        return output[kind]

    return of


def objective(places: dict[str, Path], *, max_tokens: int = 10_000, recompute: bool = False) -> GeneratorObjective:
    return GeneratorObjective(
        ObjectiveInputs(
            model=places["start"] / "model",
            rows=places["rows"],
            data=places["rows"],
            tokens=places["tokens"],
            losses=toy.train_config(losses=[{"function": LIKELIHOOD}]).losses,
            max_tokens=max_tokens,
            recompute=recompute,
        ),
    )


# Hugging Face warns that what it makes of an encoder has had another loss once.
@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_hugging_faces_text_by_text(learning: Any, kind: str) -> None:
    """The mean over the texts of the mean over each text's tokens, in any pieces, with the same gradient."""
    places = learning(kind)
    whole, pieces = objective(places), objective(places, max_tokens=60, recompute=True)
    rows = list(range(5))
    for item in (whole, pieces):
        item.eval()
        batch = item.collate(visits(rows))
        ((total, count),) = item.terms(item.encode(batch), batch).values()
        assert count == 5
        total.backward()
    for (name, a), (_, b) in zip(whole.named_parameters(), pieces.named_parameters(), strict=True):
        if a.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=2e-3, atol=1e-4, msg=name)
    if kind == "gpt2":
        return
    batch, wanted = whole.collate(visits(rows)), 0.0
    for row in rows:
        source = batch.inputs.ids[row][batch.inputs.mask[row] > 0][None]
        target = batch.targets.ids[row][batch.targets.mask[row] > 0][None]
        wanted += whole.model.model(input_ids=source, labels=target).loss.item()
    assert total.item() == pytest.approx(wanted, rel=1e-3)


def test_the_check_before_the_first_step_holds_pieces_against_what_was_not_cut(
    learning: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    single = objective(learning("t5"), recompute=True)
    assert checked(single) < 1e-4
    with monkeypatch.context() as patch:
        patch.setattr(
            "sparring.components.objectives.generator.chunk_rows",
            lambda lengths, tokens: [torch.arange(len(lengths)) // 2],
        )
        with pytest.raises(SelfCheckError, match=r"negative_log_likelihood \(group\) is .* and should be"):
            checked(single)
    break_gradients(monkeypatch)
    with pytest.raises(SelfCheckError, match=": the gradient has norm"):
        checked(single)


@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_is_that_of_known_products(learning: Any, kind: str) -> None:
    single = objective(learning(kind))
    operations, rate = single.operations(single.collate(visits([0, 1]))), single.rate(device="cpu", precision="fp32")
    if kind == "gpt2":
        assert (operations, rate) == (None, None)
    else:
        assert operations > 1e5
        assert rate > 1e7


def trained(out: Path, places: dict[str, Path], **config: Any) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    return train(
        out,
        toy.INLINE,
        objective="generator",
        rows=places["rows"],
        dev=None,
        data=places["rows"],
        tokens=places["tokens"],
        start=places["start"],
        seed=[1],
        config=toy.train_config(**{"losses": [{"function": LIKELIHOOD}], "log_every": 1, **config}),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_to_write_a_target(learning: Any, tmp_path: Path, kind: str) -> None:
    """One text learnt by heart is what greedy decoding writes, through the step and its files."""
    places = dict(learning(kind))
    groups = pq.read_table(places["rows"] / "groups.parquet").slice(0, 1)
    single = tmp_path / "one"
    single.mkdir()
    pq.write_table(groups, single / "groups.parquet")
    for name in ("documents", "queries"):
        pq.write_table(pq.read_table(places["rows"] / f"{name}.parquet"), single / f"{name}.parquet")
    long = {"updates": 160, "batch": 1, "learning_rate": 1e-2, "schedule": "constant", "log_every": 20}
    trained(tmp_path / "out", {**places, "rows": single}, **long)
    losses = [line[name] for line in lines(tmp_path / "out") for name in line if name.startswith("negative")]
    assert losses[-1] < 0.3 < losses[0]
    generator = Generator.load(tmp_path / "out" / "model").eval()
    query, document = groups["query_id"][0].as_py(), groups["doc_ids"][0].as_py()[0]
    texts = {row["query_id"]: row["text"] for row in pq.read_table(single / "queries.parquet").to_pylist()}
    wanted = {row["doc_id"]: row["text"] for row in pq.read_table(single / "documents.parquet").to_pylist()}
    result = generator.expansions(
        [texts[query]], GenerateConfig(number=1, new_tokens=40, precision="fp32"), keys=[(1,)], batch_tokens=1_000
    )
    learnt = generator.tokenizer(wanted[document])["input_ids"][: 16 if generator.seq2seq else 17]
    assert result.texts == [[generator.tokenizer.decode(learnt, skip_special_tokens=True)]]


def test_an_interrupted_training_resumes_from_its_checkpoint(
    learning: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With embeddings that stand twice in the model and once in its files."""
    trained(tmp_path / "a", learning("t5"))
    runs = updates_of_two_runs(monkeypatch, lambda: trained(tmp_path / "b", learning("t5")))
    assert runs == ([0, 1], [2, 3])
    assert_same(tmp_path / "a", tmp_path / "b")
