"""The token store: every text's tokens in the table's order, and which documents say the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import QRELS, QUERIES, document_text
from sparring.components.data.token_store import TokenStore
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models.configs import DualEncoderConfig
from sparring.workflows.steps import tokenize as module
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.support import tiny, toy
from tests.support.power_cut import PowerCut, cut_power


def test_tokens_are_those_of_the_models_tokenizer(data: Path, tokens: Path, retriever: Path) -> None:
    tokenizer = load_tokenizer(retriever / "model")
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    written = [document_text(row["title"], row["text"]) for row in documents]
    queries = pq.read_table(data / "queries.parquet")["text"].to_pylist()
    for name, texts in (("documents", written), ("queries", queries)):
        store = Tokens.open(tokens, name)
        assert len(store) == len(texts)
        for i, text in enumerate(texts):
            assert store[i].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("texts", [1, 7, 1_000])
def test_a_row_group_in_pieces_is_the_whole_one(
    tmp_path: Path, data: Path, tokens: Path, retriever: Path, monkeypatch: pytest.MonkeyPatch, texts: int
) -> None:
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", texts)
    tokenize(tmp_path, toy.INLINE, data=data, model=retriever, config=TokenizeConfig())
    for name in ("documents", "queries"):
        for part in ("ids", "offsets", "same"):
            file = f"{name}.{part}.npy"
            np.testing.assert_array_equal(np.load(tmp_path / file), np.load(tokens / file))


def test_a_vocabulary_may_leave_numbers_out(tmp_path: Path, data: Path, retriever: Path) -> None:
    """As one whose added tokens begin at a round number; how many there are says nothing of the largest."""
    begun = shutil.copytree(retriever, tmp_path / "begun")
    rules = json.loads((begun / "model" / "tokenizer.json").read_text())
    rules["model"]["vocab"] = {
        token: number + 70_000 * token.isalpha() for token, number in rules["model"]["vocab"].items()
    }
    (begun / "model" / "tokenizer.json").write_text(json.dumps(rules))
    tokenize(tmp_path, toy.INLINE, data=data, model=begun, config=TokenizeConfig())
    tokenizer, store = load_tokenizer(begun / "model"), Tokens.open(tmp_path, "queries")
    assert store.ids.max() > 70_000
    for i, text in enumerate(pq.read_table(data / "queries.parquet")["text"].to_pylist()):
        assert store[i].tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_collection_without_queries(tmp_path: Path, data: Path, tokens: Path, retriever: Path) -> None:
    """Documents are tokenised as with queries."""
    shutil.copytree(data, tmp_path / "data")
    for name, schema in (("queries", QUERIES), ("qrels", QRELS)):
        pq.write_table(schema.empty_table(), tmp_path / "data" / f"{name}.parquet")
    out = tmp_path / "out"
    out.mkdir()
    summary = tokenize(out, toy.INLINE, data=tmp_path / "data", model=retriever, config=TokenizeConfig())
    assert summary["queries"] == {"texts": 0, "tokens": 0}
    assert len(Tokens.open(out, "queries")) == 0
    for part in ("ids", "offsets", "same"):
        np.testing.assert_array_equal(np.load(out / f"documents.{part}.npy"), np.load(tokens / f"documents.{part}.npy"))


def test_prompts_stand_before_the_texts(tmp_path: Path, data: Path, encoder: Path) -> None:
    """What they make of a text and of the tokens of another retriever without them (Tevatron's `query_prefix`)."""
    config = toy.retriever_config(encoder, query_prompt="bara: ", document_prompt="comi, ")
    begun = toy.started(tmp_path / "begun", config)
    tokenize(tmp_path, toy.INLINE, data=data, model=begun, config=TokenizeConfig())
    tokenizer = load_tokenizer(begun / "model")
    for name, prompt in (("documents", "comi, "), ("queries", "bara: ")):
        texts = pq.read_table(data / f"{name}.parquet").to_pylist()
        written = [document_text(row["title"], row["text"]) if name == "documents" else row["text"] for row in texts]
        store = Tokens.open(tmp_path, name)
        for i, text in enumerate(written):
            assert store[i].tolist() == tokenizer(prompt + text, add_special_tokens=False)["input_ids"]


def test_tokens_are_of_one_prompt(tmp_path: Path, tokens: Path, retriever: Path, encoder: Path) -> None:
    other_retriever = toy.started(tmp_path / "other", toy.retriever_config(encoder, query_prompt="bara: "))
    assert len(TokenStore(tokens, retriever / "model").queries) == 24
    with pytest.raises(UserError, match="these tokens were made with a different tokenizer"):
        TokenStore(tokens, other_retriever / "model")


def test_a_model_that_reads_more_than_is_kept_is_refused(tmp_path: Path, data: Path, encoder: Path) -> None:
    """Also where the length is the model's own, which no config states."""
    toy.started(tmp_path / "export", toy.retriever_config(encoder, document_tokens=60))
    config = DualEncoderConfig(model=str(tmp_path / "export" / "model"))
    begun = toy.started(tmp_path / "begun", config)
    with pytest.raises(
        UserError, match=r"document_tokens: 60: only 59 tokens of a text are kept; raise tokens.max_tokens"
    ):
        tokenize(tmp_path, toy.INLINE, data=data, model=begun, config=TokenizeConfig(max_tokens=59))


def test_documents_with_the_same_text_are_known(tokens: Path) -> None:
    same = np.load(tokens / "documents.same.npy")
    wanted = np.arange(40)
    wanted[30], wanted[31] = 0, 1
    assert same.tolist() == wanted.tolist()


def test_queries_with_the_same_text_are_known(data: Path, tokens: Path) -> None:
    queries = pq.read_table(data / "queries.parquet")["text"].to_pylist()
    same = np.load(tokens / "queries.same.npy")
    assert same.tolist() == [queries.index(text) for text in queries]


def test_long_texts_are_cut_and_short_ones_are_not(tmp_path: Path, data: Path, tokens: Path, encoder: Path) -> None:
    short = toy.started(tmp_path / "short", toy.retriever_config(encoder, query_tokens=5, document_tokens=5))
    summary = tokenize(tmp_path, toy.INLINE, data=data, model=short, config=TokenizeConfig(max_tokens=5))
    whole, cut = Tokens.open(tokens, "documents"), Tokens.open(tmp_path, "documents")
    assert [cut[i].tolist() for i in range(40)] == [whole[i][:5].tolist() for i in range(40)]
    assert max(whole.lengths()) > 5
    assert summary["documents"] == {"texts": 40, "tokens": int(np.minimum(whole.lengths(), 5).sum())}
    assert summary["queries"]["texts"] == 24


def test_any_number_of_row_groups_gives_the_same_store(tmp_path: Path, tokens: Path, retriever: Path) -> None:
    data = toy.write_data(tmp_path / "data", row_group=1000)
    (tmp_path / "out").mkdir()
    tokenize(tmp_path / "out", toy.INLINE, data=data, model=retriever, config=TokenizeConfig())
    for name in (
        "documents.ids",
        "documents.offsets",
        "documents.same",
        "queries.ids",
        "queries.offsets",
        "queries.same",
    ):
        assert np.array_equal(np.load(tmp_path / "out" / f"{name}.npy"), np.load(tokens / f"{name}.npy")), name


def test_a_tokenizer_of_two_towers_is_found(tmp_path: Path, data: Path, tokens: Path, encoder: Path) -> None:
    model = toy.started(tmp_path / "towers", toy.retriever_config(encoder, towers="separate"))
    (tmp_path / "out").mkdir()
    tokenize(tmp_path / "out", toy.INLINE, data=data, model=model, config=TokenizeConfig())
    assert np.array_equal(np.load(tmp_path / "out/documents.ids.npy"), np.load(tokens / "documents.ids.npy"))


def test_interrupted_tokenizing_does_only_what_is_left(
    tmp_path: Path, data: Path, tokens: Path, retriever: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(worker: Any, task: dict[str, Any], path: Path) -> str:
        return path.name[1:].rpartition(".")[0]  # without what marks it as half-written

    with monkeypatch.context() as power:
        first = cut_power(power, module.Tokenizer, "__call__", after=2, note=part)
        with pytest.raises(PowerCut):
            tokenize(tmp_path, toy.INLINE, data=data, model=retriever, config=TokenizeConfig())
    again = cut_power(monkeypatch, module.Tokenizer, "__call__", after=None, note=part)
    tokenize(tmp_path, toy.INLINE, data=data, model=retriever, config=TokenizeConfig())
    assert first == ["part-documents-00000", "part-documents-00001"]
    assert again == ["part-documents-00002", "part-queries-00000"]
    assert tiny.kept(tmp_path).keys() == tiny.kept(tokens).keys()
    assert np.array_equal(np.load(tmp_path / "documents.ids.npy"), np.load(tokens / "documents.ids.npy"))
