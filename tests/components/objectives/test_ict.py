"""The inverse cloze task, and crops: which part of a document asks, and what it is to find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from components.data.tables import DOCUMENTS, QRELS, QUERIES
from components.objectives.ict import clozed, cropped
from components.training.pretraining import ClozeConfig
from tests.support import toy
from tests.support.pretrainings import VARIANTS, Artifacts
from tests.support.trainings import visits
from workflows.steps.tokenize import TokenizeConfig, tokenize

END = np.asarray([9, 99])


def test_a_sentence_is_taken_out_of_its_text() -> None:
    text = np.asarray([1, 2, 9, 3, 99, 4, 5])
    drawn = [clozed(text, END, 0.0, np.random.default_rng(seed)) for seed in range(30)]
    found = {(tuple(sentence.tolist()), tuple(rest.tolist())) for sentence, rest in drawn}
    assert found == {((1, 2, 9), (3, 99, 4, 5)), ((3, 99), (1, 2, 9, 4, 5)), ((4, 5), (1, 2, 9, 3, 99))}


def test_now_and_then_the_text_keeps_it() -> None:
    """Lee et al. (2019) remove it from 90 % of the examples, so that matching words is learnt too."""
    text = np.asarray([1, 9, 2, 9])
    kept = [len(clozed(text, END, 0.1, np.random.default_rng(seed))[1]) == 4 for seed in range(2000)]
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
    """Documents of three sentences each, two of which say the same; nobody asked anything."""
    texts = ["bara comi. dutol! fera", "lora. gimi bami? cora", "bara comi. dutol! fera"]
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
    found = objective.terms((queries[:2], documents[:2]), objective.collate(visits(range(2))))
    torch.testing.assert_close(next(iter(found.values())).value, expected.sum())
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
