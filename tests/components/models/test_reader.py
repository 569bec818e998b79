"""Fusion-in-Decoder: what many passages in a row are, against T5 itself, and in any order and pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from sparring.components.data.batches import Batch
from sparring.components.models.reader import Reader, ReaderInputs, answer_questions
from sparring.components.models.reader_configs import ReaderConfig
from sparring.workflows.steps.tokenize import TemplatedConfig, TokenizeConfig, tokenize
from tests.support import toy
from tests.support.errors import refused
from tests.support.writers import write_generator

QUESTIONS = [np.array([[0, 3], [0, 9], [0, 4]]), np.array([[5, 2]]), np.empty((0, 2), int), np.array([[7, 1], [7, 8]])]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Any:
    """A start reader, the collection's tokens for it, and what it reads."""
    folder = tmp_path_factory.mktemp("reader")
    write_generator(folder / "pretrained", seed=1, words=True)
    start = toy.started(
        folder / "start", ReaderConfig(model=str(folder / "pretrained"), passage_tokens=28, answer_tokens=12)
    )
    (folder / "tokens").mkdir()
    tokenize(folder / "tokens", toy.INLINE, data=data, model=start, config=TokenizeConfig())
    reader = Reader.load(start / "model").eval()
    return start, reader, ReaderInputs.stored(reader, folder / "tokens", start / "model")


def joined(made: Any, questions: list[np.ndarray], tokens: int = 10_000) -> Any:
    _, reader, readings = made
    counts = torch.tensor([len(pairs) for pairs in questions])
    with torch.inference_mode():
        return reader.encode_passages(readings.batch(np.concatenate(questions)), counts, tokens=tokens)


def targets() -> Batch:
    ids = torch.tensor([[7, 8, 9, 3], [11, 3, 0, 0], [20, 21, 3, 0]])
    return Batch(ids, (ids > 0).long())


def test_what_it_reads(made: Any, data: Path) -> None:
    """`question: ... context: ...`, through Hugging Face's own tokenizer, and cut to the length asked for."""
    _, reader, readings = made
    texts = pq.read_table(data / "documents.parquet").to_pylist()
    requests = pq.read_table(data / "queries.parquet")["text"].to_pylist()
    pairs = np.array([[0, 3], [4, 8], [5, 20]])
    batch = readings.batch(pairs)
    for row, (query, document) in enumerate(pairs.tolist()):
        passage = f"{texts[document]['title']} {texts[document]['text']}".strip()
        whole = reader.tokenizer(f"question: {requests[query]} context: {passage}")["input_ids"]
        result = batch.ids[row][batch.mask[row] > 0].tolist()
        assert len(result) == readings.lengths(pairs)[row] == min(28, len(whole))
        assert result == (whole if len(whole) <= 28 else [*whole[:27], whole[-1]])
    assert (readings.lengths(pairs) == 28).any()


def test_the_template_of_the_released_code(data: Path, tmp_path: Path) -> None:
    """`question:Q title: T context: P`, as one text through Hugging Face's own tokenizer. Its tokens are no others'."""
    write_generator(tmp_path / "pretrained", seed=1, words=True)
    config = ReaderConfig(model=str(tmp_path / "pretrained"), passage_tokens=60, template="fid")
    start = toy.started(tmp_path / "start", config)
    for name, mode in {"tokens": TemplatedConfig(template="fid"), "plain": TokenizeConfig()}.items():
        (tmp_path / name).mkdir()
        tokenize(tmp_path / name, toy.INLINE, data=data, model=start, config=mode)
    reader = Reader.load(start / "model")
    readings = ReaderInputs.stored(reader, tmp_path / "tokens", start / "model")
    texts = pq.read_table(data / "documents.parquet").to_pylist()
    requests = pq.read_table(data / "queries.parquet")["text"].to_pylist()
    pairs = np.array([[0, 3], [4, 8], [5, 20]])
    batch = readings.batch(pairs)
    for row, (query, document) in enumerate(pairs.tolist()):
        passage = f"title: {texts[document]['title']} context: {texts[document]['text']}"
        whole = reader.tokenizer(f"question:{requests[query]} {passage}")["input_ids"]
        assert batch.ids[row][batch.mask[row] > 0].tolist() == whole
        assert readings.lengths(pairs)[row] == len(whole) < 60
    with refused("plain", "other-tokenizer"):
        ReaderInputs.stored(reader, tmp_path / "plain", start / "model")


def test_with_one_passage_it_is_the_model_itself(made: Any) -> None:
    """States, likelihoods and greedy answers are those of Hugging Face's T5 of the same input."""
    start, reader, readings = made
    plain = AutoModelForSeq2SeqLM.from_pretrained(str(start / "model"), dtype=torch.float32).eval()
    pairs = [np.array([[query, document]]) for query, document in ((0, 3), (5, 2), (7, 20))]
    together, wanted = joined(made, pairs), targets()
    with torch.inference_mode():
        result = reader.log_likelihoods(together, wanted)
        for row, first in enumerate(pairs):
            batch = readings.batch(first)
            ids = batch.ids[batch.mask > 0][None]
            states = plain.get_encoder()(input_ids=ids).last_hidden_state[0]
            torch.testing.assert_close(together.states[row][together.mask[row] > 0], states, rtol=1e-4, atol=1e-5)
            itself = wanted.ids[row][wanted.mask[row] > 0][None]
            logits = plain(input_ids=ids, labels=itself).logits.log_softmax(-1)
            alone = logits.gather(-1, itself.unsqueeze(-1)).reshape(-1)
            torch.testing.assert_close(result[row][wanted.mask[row] > 0], alone, rtol=1e-4, atol=1e-4)
            assert (result[row][wanted.mask[row] == 0] == 0).all()
            out = plain.generate(ids, do_sample=False, num_beams=1, max_new_tokens=9)[0]
            text = answer_questions(reader, readings, [first], new_tokens=9, batch_tokens=100, device="cpu")
            assert text == [reader.tokenizer.decode(out, skip_special_tokens=True).strip()]


def test_several_passages_are_their_states_in_a_row(made: Any) -> None:
    """Each passage is encoded as if it were alone: the first token's likelihood by hand, from the decoder."""
    _, reader, readings = made
    questions = [QUESTIONS[0], QUESTIONS[3]]
    together = joined(made, questions)
    for row, pairs in enumerate(questions):
        with torch.inference_mode():
            parts = []
            for pair in pairs:
                batch = readings.batch(pair[None])
                parts.append(reader.model.get_encoder()(input_ids=batch.ids[batch.mask > 0][None]).last_hidden_state[0])
        torch.testing.assert_close(together.states[row][together.mask[row] > 0], torch.cat(parts), rtol=1e-4, atol=1e-5)
    assert int(together.mask.sum()) == sum(int(readings.lengths(pairs).sum()) for pairs in questions)


def test_neither_the_order_of_passages_nor_pieces_nor_neighbours_make_a_difference(made: Any) -> None:
    _, reader, readings = made
    questions = [QUESTIONS[0], QUESTIONS[1], QUESTIONS[3]]
    with torch.inference_mode():
        result = reader.log_likelihoods(joined(made, questions), targets())
        turned = reader.log_likelihoods(joined(made, [pairs[::-1] for pairs in questions], tokens=30), targets())
    torch.testing.assert_close(turned, result, rtol=1e-4, atol=1e-4)
    assert result[0, 0] != pytest.approx(result[1, 0].item(), abs=1e-3)  # other passages say other things

    def said(order: list[np.ndarray], batch_tokens: int) -> list[str]:
        return answer_questions(reader, readings, order, new_tokens=6, batch_tokens=batch_tokens, device="cpu")

    texts = said(QUESTIONS, 10_000)
    assert texts[2] == ""  # nothing to read
    assert said(QUESTIONS[::-1], 40)[::-1] == texts


def test_an_encoder_makes_a_reader(data: Path, encoder: Path, tmp_path: Path) -> None:
    """Its weights begin both sides. It learns to write an answer, and writes it, without a warning."""
    config = ReaderConfig(model=str(encoder), passage_tokens=40, template="fid", dropout=0.0)
    start = toy.started(tmp_path / "start", config)
    (tmp_path / "tokens").mkdir()
    tokenize(tmp_path / "tokens", toy.INLINE, data=data, model=start, config=TemplatedConfig(template="fid"))
    reader = Reader.load(start / "model")
    readings = ReaderInputs.stored(reader, tmp_path / "tokens", start / "model")
    pairs, wanted = np.array([[0, 3], [0, 9]]), toy.WORDS[0]
    encoded = reader.tokenizer([wanted], return_tensors="pt")
    answers = Batch(encoded["input_ids"], encoded["attention_mask"])
    optimizer = torch.optim.AdamW(reader.parameters(), 0.01)
    losses = []
    for _ in range(40):
        states = reader.encode_passages(readings.batch(pairs), torch.tensor([2]), tokens=1_000)
        loss = -reader.log_likelihoods(states, answers).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]
    text = answer_questions(reader.eval(), readings, [pairs], new_tokens=12, batch_tokens=1_000, device="cpu")
    assert text == [wanted]


def test_it_loads_again(made: Any, tmp_path: Path) -> None:
    start, reader, _ = made
    reader.save(tmp_path / "again", start / "model")
    again = Reader.load(tmp_path / "again")
    assert again.config == reader.config
    for (name, a), (_, b) in zip(again.named_parameters(), reader.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_reader_is_not_cut() -> None:
    with pytest.raises(ValueError, match="a reader always keeps all its layers"):
        ReaderConfig(model="x", layers=2)
