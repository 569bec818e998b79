"""Models and the token stores that they read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig
from sparring.components.retrieval.lucene import RM3Config
from sparring.components.sources.base import AnySource
from sparring.workflows.stages.collection import Collection
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.steps.tokenize import TokenizeConfig
from sparring.workflows.store.dag import graph

SOURCE = {"format": "beir", "path": "data/toy"}


def config(**more: Any) -> CollectionConfig:
    return CollectionConfig(data=TypeAdapter(AnySource).validate_python(SOURCE), **more)


@pytest.fixture
def collection() -> Collection:
    return Collection(config())


def dual(**more: Any) -> DualEncoderConfig:
    return DualEncoderConfig(model="models/toy", **more)


def test_models_that_read_the_same_share_a_token_store(collection: Collection) -> None:
    retriever = collection.initial_model("one", dual())
    ranker = collection.initial_model("two", CrossEncoderConfig(model="models/toy"), objective="ranker")
    assert retriever.tokens is ranker.tokens is collection.tokens
    assert (retriever.objective, ranker.objective) == ("retriever", "ranker")
    assert collection.tokens.label == "tokens"


@pytest.mark.parametrize("alternative", [{"model": "models/other"}, {"revision": "v2"}, {"query_prompt": "question: "}])
def test_another_tokenizer_or_prompt_has_a_token_store_of_its_own(
    collection: Collection, alternative: dict[str, str]
) -> None:
    first = collection.initial_model("one", dual())
    config = DualEncoderConfig(**{"model": "models/toy", **alternative})
    second = collection.initial_model("two", config, objective="my_package.my_objective")
    assert second.tokens.fingerprint != first.tokens.fingerprint
    assert second.tokens.label == "my_objective tokens"
    assert collection.tokens is first.tokens  # the first model's


def test_a_trained_model_keeps_its_tokens_and_objective(collection: Collection) -> None:
    begun, second = (collection.initial_model(label, dual(seed=seed)) for seed, label in enumerate(("one", "two")))
    after = begun.after(second.step)
    assert (after.step, after.tokens, after.objective) == (second.step, begun.tokens, begun.objective)


def test_a_model_from_elsewhere_reads_this_collection(collection: Collection) -> None:
    trained = collection.initial_model("one", dual()).step
    place = Collection(config(tokens=TokenizeConfig(max_tokens=7)))
    model = place.foreign_retriever(trained)
    assert model.step is trained
    assert model.tokens.inputs["model"] is trained
    assert place.data in graph([model.tokens])


def test_a_collection_without_a_model_has_no_tokens(collection: Collection) -> None:
    with pytest.raises(RuntimeError, match="call initial_model first"):
        assert collection.tokens


def test_a_model_may_not_read_more_than_is_kept(collection: Collection) -> None:
    with pytest.raises(ValueError, match=r"one: document_tokens: 600: only 512 tokens of a text are kept"):
        collection.initial_model("one", dual(document_tokens=600))


def test_bm25_and_answers_stand_on_the_collection(collection: Collection, tmp_path: Path) -> None:
    ranking = collection.bm25("train", "test")
    assert ranking.inputs["index"].fingerprint == collection.bm25_index.fingerprint
    answering = collection.answering(ranking, ["train", "test"])
    assert answering.label == "bm25 ranking (train, test) answers"
    assert answering.inputs["ranking"] is ranking


def test_feedback_filters_terms_of_english_alone() -> None:
    """Anserini's filter keeps a to z, which is next to nothing of other languages."""
    for language, kept in {"en": True, "ru": False, "de": False}.items():
        feedback = Collection(config(bm25={"index": {"language": language}})).with_feedback(RM3Config())
        assert feedback.ranking("test").inputs["rm3"].filter_terms is kept
