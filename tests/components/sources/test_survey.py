"""What a survey finds of a collection, against counting it naively."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError, parse
from sparring.components.models.capabilities import LIMIT, can_be_read, has_token_types, longest, token_counter
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.sources import beir as beir_format
from sparring.components.sources import survey as surveys
from sparring.components.sources.survey import survey
from tests.support import hub, toy


def source(folder: Path) -> beir_format.Source:
    return parse(beir_format.Source, {"format": "beir", "path": str(folder)}, where="test")


def words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_a_survey_is_a_naive_count(beir: Path, data: Path) -> None:
    result = survey(source(beir), "", queries=words, documents=words)
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    queries = pq.read_table(data / "queries.parquet").to_pylist()
    qrels = [row for row in pq.read_table(data / "qrels.parquet").to_pylist() if row["relevance"] > 0]
    assert result.documents == len(documents)
    assert result.asked == len(queries)
    for split in ("train", "dev", "test"):
        assert result.queries[split] == len({row["query_id"] for row in qrels if row["split"] == split})
    assert result.relevant == pytest.approx(len(qrels) / len({row["query_id"] for row in qrels}), abs=0.005)
    assert result.graded == (len({row["relevance"] for row in qrels}) > 1)
    lengths = [len(f"{row['title']} {row['text']}".split()) for row in documents]
    enough = result.document_tokens or 0
    assert sum(length <= enough for length in lengths) >= 0.95 * len(lengths) > sum(n < enough for n in lengths)


def test_splits_without_a_relevant_document_are_told_apart(beir: Path, tmp_path: Path) -> None:
    itself = shutil.copytree(beir, tmp_path / "own")
    file = itself / "qrels" / "test.tsv"
    head, *rows = file.read_text().splitlines()
    file.write_text("".join(f"{line}\n" for line in [head, *(row.rpartition("\t")[0] + "\t0" for row in rows)]))
    result = survey(source(itself), "", queries=words, documents=words)
    assert result.unjudged == ["test"]
    assert sorted(result.queries) == ["dev", "train"]


def test_judgements_without_any_query_are_refused(beir: Path, tmp_path: Path) -> None:
    """Else it would be as if nobody had asked, until the collection is read."""
    itself = shutil.copytree(beir, tmp_path / "own")
    (itself / "queries.jsonl").write_text("")
    with pytest.raises(
        UserError, match=r"\.tsv:2: there is no query .*, nor any other .*There are no usable queries\.$"
    ):
        survey(source(itself), "", queries=words, documents=words)


@pytest.mark.parametrize("dropped", [False, True])
def test_records_that_cannot_be_used_are_refused(beir: Path, tmp_path: Path, dropped: bool) -> None:
    """Else numbers would be chosen for a collection that nobody has judged. One is too many, unless bad ones are
    dropped; then there must be good ones."""
    itself = shutil.copytree(beir, tmp_path / "own")
    for file in (itself / "qrels").glob("*.tsv"):
        head, *rows = file.read_text().splitlines()
        file.write_text("".join(f"{line}\n" for line in [head, *(row.rpartition("\t")[0] + "\tx" for row in rows)]))
    report = source(itself).model_copy(update={"on_bad": "drop" if dropped else "fail"})
    ending = ". The collection has no usable judgement." if dropped else ". Fix the record, or set data.on_bad: drop."
    with pytest.raises(UserError, match=rf"\.tsv:2: relevance that is not an integer \(got 'x', .*\){ending}$"):
        survey(report, "", queries=words, documents=words)
    (itself / "qrels" / "train.tsv").write_text((beir / "qrels" / "train.tsv").read_text())
    if dropped:
        assert [*survey(report, "", queries=words, documents=words).queries] == ["train"]


def test_it_reads_the_first_documents_alone(beir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "DOCUMENTS", 7)
    monkeypatch.setattr(surveys, "TEXTS", 3)
    counted: list[str] = []

    def count(texts: list[str]) -> list[int]:
        counted.extend(texts)
        return words(texts)

    assert survey(source(beir), "", queries=words, documents=count).documents == 7
    assert len(counted) == 3


def test_without_a_tokenizer_there_are_no_lengths(beir: Path) -> None:
    result = survey(source(beir), "", queries=None, documents=words)
    assert result.query_tokens is None
    assert result.document_tokens


def test_tokens_are_counted_as_the_model_reads_them(encoder: Path) -> None:
    from transformers import AutoTokenizer

    config, tokenizer = DualEncoderConfig(model=str(encoder)), AutoTokenizer.from_pretrained(encoder)
    texts = ["barami cotol", "a", "barami " * 30]
    count = token_counter(config, "du: ")
    assert count is not None
    assert count(texts) == [len(tokenizer(f"du: {text}")["input_ids"]) for text in texts]
    assert longest(config) == 64  # of the tokenizer; there are 96 positions


def test_a_models_limit_is_the_least_that_its_files_name(tmp_path: Path) -> None:
    config = DualEncoderConfig(model=str(tmp_path))
    report = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(report))
    assert longest(config) == 512
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    assert longest(config) == 256
    assert longest(DualEncoderConfig(model="somebody/some-model")) == LIMIT
    assert token_counter(config) is None


@pytest.mark.parametrize("kind", ["bert", "electra", "roberta"])
def test_token_types_are_those_that_a_ranker_gets(tmp_path: Path, kind: str) -> None:
    """What is said to have them can have a ranker with `maxsim`, which refuses others."""
    folder = toy.write_encoder(tmp_path / kind, kind)
    assert has_token_types(DualEncoderConfig(model=str(folder))) == (kind != "roberta")
    if kind != "roberta":
        CrossEncoder.start(toy.ranker_config(folder, pooling="maxsim"))
    assert not has_token_types(DualEncoderConfig(model="someone/of-a-hub"))


def test_a_model_of_a_hub_is_read_in_its_cache(tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.look_in_cache_alone(tmp_path, monkeypatch)
    hub.put_in_cache(tmp_path, "someone/a-model", encoder)
    config = DualEncoderConfig(model="someone/a-model")
    assert can_be_read(config)
    assert has_token_types(config)
    assert longest(config) == 64
    assert token_counter(config) is not None
    assert not can_be_read(DualEncoderConfig(model="someone/another"))
