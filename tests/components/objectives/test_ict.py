"""The inverse cloze task, and crops: which part of a document asks, and what it is to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.tables import DOCUMENTS, QRELS, QUERIES
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.objectives.ict import ENDS, clozed, cropped
from sparring.components.objectives.parts.config import ClozeConfig
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.support import toy
from tests.support.pretrainings import VARIANTS, Artifacts
from tests.support.trainings import visits

END = np.asarray([9, 99])


def test_a_sentence_is_taken_out_of_its_text() -> None:
    sentences = [1, 2, 3, 9], [4, 5, 6, 7, 99], [1, 2, 3, 4]
    drawn = [clozed(np.concatenate(sentences), END, 0.0, np.random.default_rng(seed)) for seed in range(30)]
    result = sorted({(tuple(sentence.tolist()), tuple(rest.tolist())) for sentence, rest in drawn})
    first, second, third = map(tuple, sentences)
    assert result == sorted([(first, second + third), (second, first + third), (third, first + second)])


def test_what_is_too_short_for_a_sentence_belongs_to_the_one_before() -> None:
    """As between the dots of an abbreviation, and a dot alone at the end; the first takes what is behind it."""
    text = np.asarray([1, 2, 3, 9, 4, 9, 5, 9, 6, 7, 8, 9, 9])
    drawn = [clozed(text, END, 0.0, np.random.default_rng(seed)) for seed in range(30)]
    assert {tuple(sentence.tolist()) for sentence, _ in drawn} == {(1, 2, 3, 9, 4, 9, 5, 9), (6, 7, 8, 9, 9)}
    for text in ([1, 9, 2, 9, 3, 4, 9], [1, 9, 2, 3, 4, 5, 9]):
        sentence, _ = clozed(np.asarray(text), END, 0.0, np.random.default_rng(0))
        assert sentence.tolist() == text


def test_now_and_then_the_text_keeps_it() -> None:
    """Lee et al. (2019) remove it from 90 % of the examples, so that matching words is learnt too."""
    text = np.asarray([1, 2, 3, 9, 4, 5, 6, 9])
    kept = [len(clozed(text, END, 0.1, np.random.default_rng(seed))[1]) == 8 for seed in range(2000)]
    assert np.mean(kept) == pytest.approx(0.1, abs=0.02)


def test_a_text_of_one_sentence_keeps_it() -> None:
    for text in ([1, 2, 3], [1, 2, 9], [9], []):
        sentence, rest = clozed(np.asarray(text, np.int64), END, 0.0, np.random.default_rng(0))
        assert sentence.tolist() == rest.tolist() == text


def test_crops_are_spans_of_a_twentieth_to_a_half() -> None:
    """Uniform in length and place (Izacard et al., 2022), and never empty but of an empty text."""
    text = np.arange(200)
    crops = [cropped(text, np.random.default_rng(seed)) for seed in range(2000)]
    assert all(crop.tolist() == list(range(crop[0], crop[0] + len(crop))) for crop in crops)
    lengths = [len(crop) for crop in crops]
    assert (min(lengths), max(lengths)) == (10, 100)
    assert np.mean(lengths) == pytest.approx(55, abs=2)
    assert np.mean([crop[0] / (200 - len(crop)) for crop in crops]) == pytest.approx(0.5, abs=0.02)
    for few in ([], [7], [7, 8]):
        assert len(cropped(np.asarray(few, np.int64), np.random.default_rng(0))) == min(len(few), 1)


@pytest.fixture
def collection(tmp_path: Path, pretraining: Artifacts) -> Artifacts:
    """Documents of two sentences each, two of which say the same; nobody asked anything."""
    same = "bara comi bami. dutol fera gimi cora"
    texts = [same, "lora gimi fera. gimi bami comi cora", same]
    rows: dict[str, Any] = {"doc_id": ["a", "b", "c"], "title": [""] * 3, "text": texts}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(rows, schema=DOCUMENTS), tmp_path / "data" / "documents.parquet")
    for name, schema in (("queries", QUERIES), ("qrels", QRELS)):
        pq.write_table(schema.empty_table(), tmp_path / "data" / f"{name}.parquet")
    (tmp_path / "tokens").mkdir()
    tokenize(
        tmp_path / "tokens", toy.INLINE, data=tmp_path / "data", model=pretraining.retriever, config=TokenizeConfig()
    )
    return Artifacts(tmp_path / "data", tmp_path / "tokens", pretraining.retriever, pretraining.language_model)


def test_sentences_find_their_documents(collection: Artifacts) -> None:
    """Over the batch, without the copy of the row's own document; nothing is read of queries."""
    objective = collection.objective(VARIANTS["ICT"], cloze=ClozeConfig(keep=0.0)).eval()
    batch = objective.collate(visits(range(3)))
    for row in range(3):
        sentence, rest = (part.ids[row][part.mask[row].bool()].tolist() for part in (batch.queries, batch.documents))
        whole = objective.store.documents[row].tolist()
        assert len(sentence) + len(rest) - 4 == len(whole)
        assert sorted(sentence[1:-1] + rest[1:-1]) == sorted(whole)
    queries, documents = objective.encode(batch)
    (term,) = objective.terms((queries, documents), batch).values()
    scores = queries[:2] @ documents[:2].T
    expected = torch.nn.functional.cross_entropy(scores, torch.arange(2), reduction="none")
    result = objective.terms((queries[:2], documents[:2]), objective.collate(visits(range(2))))
    torch.testing.assert_close(next(iter(result.values())).value, expected.sum())
    assert term.rows == 3
    assert set(objective.judge((queries, documents), batch)) == {"RR", "accuracy"}


def test_crops_of_a_document_find_each_other(collection: Artifacts) -> None:
    """One is read as a query and one as a document, others at each visit."""
    objective = collection.objective(VARIANTS["ICT"], cloze=ClozeConfig(pairs="crops"))
    batch = objective.collate(visits(range(3)))
    for row in range(3):
        whole = objective.store.documents[row].tolist()
        for part in (batch.queries, batch.documents):
            crop = part.ids[row][part.mask[row].bool()].tolist()[1:-1]
            assert any(whole[start : start + len(crop)] == crop for start in range(len(whole)))
    again = [objective.collate([visits([0])[0]._replace(visit=visit)]).documents.ids.tolist() for visit in range(20)]
    assert len({str(ids) for ids in again}) > 3


@pytest.fixture
def prompted(tmp_path: Path, encoder: Path, collection: Artifacts) -> Artifacts:
    """The same for a retriever with prompts."""
    prompts = {"query_prompt": "gimi gimi ", "document_prompt": "lora "}
    retriever = toy.started(tmp_path / "prompted", toy.retriever_config(encoder, **prompts))
    (tmp_path / "prompted-tokens").mkdir()
    tokenize(tmp_path / "prompted-tokens", toy.INLINE, data=collection.data, model=retriever, config=TokenizeConfig())
    return Artifacts(collection.data, tmp_path / "prompted-tokens", retriever, collection.language_model)


@pytest.mark.parametrize("pairs", ["sentences", "crops"])
def test_each_side_stands_behind_its_prompt(collection: Artifacts, prompted: Artifacts, pairs: Any) -> None:
    """The document's stood before a query that was its first sentence, and nowhere where it was cut away."""
    plain, second = (item.objective(VARIANTS["ICT"], cloze=ClozeConfig(pairs=pairs)) for item in (collection, prompted))
    batches = [item.collate(visits(range(3))) for item in (plain, second)]
    tokenizer = load_tokenizer(prompted.retriever / "model")
    for side, prompt in {"queries": "gimi gimi", "documents": "lora"}.items():
        without, behind = (getattr(batch, side) for batch in batches)
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        for row in range(3):
            actual, expected = (part.ids[row][part.mask[row].bool()].tolist() for part in (behind, without))
            assert actual == [expected[0], *before, *expected[1:]]


def test_sentences_end_in_other_scripts_too() -> None:
    assert set("\u3002\uff01\uff1f\u061f\u0964.!?") <= set(ENDS)
