"""Training data of Tevatron, FlagEmbedding and sentence-transformers: read, and written as their loaders read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.sources import flagembedding, sentence_transformers, tevatron
from sparring.components.sources.records import Bad, Document
from sparring.components.sources.training_groups import Given, GroupSource, text_id
from tests.support.sources import source, without_place

PARIS, ROME, BERLIN = "Paris is in France.", "Rome has seven hills.", "Berlin is on the Spree."


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def lines(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(folder: Path, kind: str, file: str = "train.jsonl", **keys: Any) -> GroupSource:
    result = source(format=kind, path=str(folder), groups={"train": file}, **keys)
    assert isinstance(result, GroupSource)
    return result


def offered(found: GroupSource) -> list[tuple[Any, ...]]:
    """What is offered to each query, by texts."""
    texts = {d.doc_id: d.text for d in found.read_documents() if isinstance(d, Document)}
    requests = {q.query_id: q.text for q in found.read_queries() if not isinstance(q, Bad)}
    return [(requests[g.query_id], [texts[d] for d in g.doc_ids], g.targets, g.teacher) for g in found.read_groups()]


def passage(number: int, text: str, **more: Any) -> dict[str, Any]:
    return {"docid": str(number), "title": "", "text": text, **more}


def test_tevatrons_older_rows_have_their_passages(tmp_path: Path) -> None:
    """A passage that stands in two rows is one document; scores of all passages are a teacher's."""
    lines(
        tmp_path / "train.jsonl",
        {
            "query_id": 7,
            "query": "where?",
            "positive_passages": [passage(1, PARIS, score=9.5)],
            "negative_passages": [passage(2, ROME, score=1), passage(3, BERLIN, score=-2.0)],
        },
        {
            "query_id": "8",
            "query": "hills?",
            "positive_passages": [passage(2, ROME)],
            "negative_passages": [passage(1, PARIS)],
        },
        {"query_id": "9", "query": "alone?", "positive_passages": [passage(2, ROME)], "negative_passages": None},
    )
    result = read(tmp_path, "tevatron")
    assert without_place(result.read_documents()) == [("1", "", PARIS), ("2", "", ROME), ("3", "", BERLIN)]
    assert without_place(result.read_qrels()) == [
        ("7", "1", 1, "train"),
        ("8", "2", 1, "train"),
        ("9", "2", 1, "train"),
    ]
    assert offered(result) == [
        ("where?", [PARIS, ROME, BERLIN], [1.0, 0.0, 0.0], [9.5, 1.0, -2.0]),
        ("hills?", [ROME, PARIS], [1.0, 0.0], None),
        ("alone?", [ROME], [1.0], None),
    ]


def test_tevatrons_newer_rows_have_ids_of_a_corpus(tmp_path: Path) -> None:
    lines(
        tmp_path / "train.jsonl",
        {
            "query_id": "7",
            "query_text": "where?",
            "query_image": None,
            "positive_document_ids": ["1"],
            "negative_document_ids": ["3"],
        },
    )
    pq.write_table(pa.table({"docid": ["1", "2", "3"], "text": [PARIS, ROME, BERLIN]}), tmp_path / "corpus.parquet")
    result = read(tmp_path, "tevatron", corpus="corpus.parquet")
    assert offered(result) == [("where?", [PARIS, BERLIN], [1.0, 0.0], None)]
    assert list(result.files()) == ["train.jsonl", "corpus.parquet"]


def test_flagembeddings_rows(tmp_path: Path) -> None:
    """Texts have no ids, so a text is itself wherever it stands. A row's prompt counts where its format is given."""
    row = {
        "query": "where?",
        "pos": [PARIS],
        "neg": [ROME, PARIS],
        "pos_scores": [2],
        "neg_scores": [0.5, 2.0],
        "prompt": "Find it: ",
        "type": "normal",
    }
    lines(tmp_path / "train.jsonl", row, {"query": "hills?", "pos": [ROME], "neg": []})
    result = read(tmp_path, "flagembedding")
    assert [document.text for document in result.read_documents() if isinstance(document, Document)] == [PARIS, ROME]
    assert offered(result) == [
        ("where?", [PARIS, ROME, PARIS], [1.0, 0.0, 0.0], [2.0, 0.5, 2.0]),
        ("hills?", [ROME], [1.0], None),
    ]
    report = read(tmp_path, "flagembedding", query_instruction_format="Instruct: {}\nQuery: {}")
    assert next(iter(report.read_queries())).text == "Instruct: Find it: \nQuery: where?"  # type: ignore[union-attr]
    (tmp_path / "array.json").write_text(json.dumps([row]))
    assert offered(read(tmp_path, "flagembedding", "array.json")) == offered(result)[:1]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"anchor": ["a"], "positive": [PARIS]}, ([PARIS], [1.0], None)),
        ({"q": ["a"], "p": [PARIS], "n": [ROME], "dataset_name": ["x"]}, ([PARIS, ROME], [1.0, 0.0], None)),
        (
            {"anchor": ["a"], "positive": [PARIS], "negative_1": [ROME], "negative_2": [None], "scores": [[0.9, 0.2]]},
            ([PARIS, ROME], [1.0, 0.0], [0.9, 0.2]),
        ),
        ({"query": ["a"], "docs": [[ROME, PARIS]], "labels": [[0, 1]]}, ([ROME, PARIS], [0.0, 1.0], None)),
        ({"query": ["a"], "docs": [[ROME, PARIS]], "scores": [[3.0, 1.0]]}, ([ROME, PARIS], [1.0, 0.0], [3.0, 1.0])),
        ({"query": ["a"], "answer": [ROME], "label": [0]}, ([ROME], [0.0], None)),
        ({"sentence1": ["a"], "sentence2": [ROME], "score": [4.5]}, ([ROME], [1.0], [4.5])),
    ],
)
def test_tables_of_sentence_transformers(tmp_path: Path, columns: dict[str, Any], expected: Any) -> None:
    """As JSON lines, as Parquet, and as a folder of `datasets`."""
    table = datasets.Dataset.from_dict(columns)
    table.to_parquet(tmp_path / "train.parquet")
    table.save_to_disk(tmp_path / "saved")
    lines(tmp_path / "train.jsonl", *table)
    for file in ("train.parquet", "saved", "train.jsonl"):
        assert offered(read(tmp_path, "sentence_transformers", file)) == [("a", *expected)]


def test_what_mine_hard_negatives_writes_is_read(tmp_path: Path) -> None:
    """The peer's own columns, in the orders that its function writes them."""
    row = {"query": "a", "answer": PARIS, "negative": ROME, "scores": [0.75, 0.25]}
    lines(tmp_path / "train.jsonl", row)
    assert offered(read(tmp_path, "sentence_transformers")) == [("a", [PARIS, ROME], [1.0, 0.0], [0.75, 0.25])]


GROUPS = [
    Given(
        "7",
        "where?",
        ["1", "2", "3"],
        [Document(str(i), t, x, "") for i, t, x in [(1, "Paris", PARIS), (2, "", ROME), (3, "", BERLIN)]],
        [1.0, 0.0, 0.0],
        [2.0, 0.5, -1.0],
        "",
        "",
    ),
    Given(
        "8",
        "hills?",
        ["2", "1", "3"],
        [Document(str(i), t, x, "") for i, t, x in [(2, "", ROME), (1, "Paris", PARIS), (3, "", BERLIN)]],
        [1.0, 0.0, 0.0],
        [3.0, 1.5, 0.0],
        "",
        "",
    ),
]
WRITERS = {
    "tevatron": tevatron.write_groups,
    "flagembedding": flagembedding.write_groups,
    "sentence_transformers": sentence_transformers.write_groups,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_what_is_written_is_read(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](GROUPS, tmp_path, "train")
    result = offered(read(tmp_path, kind, path.name))
    first = PARIS if kind == "tevatron" else f"Paris {PARIS}"  # it alone has titles
    assert result == [
        ("where?", [first, ROME, BERLIN], [1.0, 0.0, 0.0], [2.0, 0.5, -1.0]),
        ("hills?", [ROME, first, BERLIN], [1.0, 0.0, 0.0], [3.0, 1.5, 0.0]),
    ]


def test_tevatrons_corpus_is_written_and_read(tmp_path: Path) -> None:
    tevatron.write_groups_and_corpus(GROUPS, tmp_path, "train")
    result = read(tmp_path, "tevatron", corpus="train-corpus.jsonl")
    assert [(requests, texts) for requests, texts, _, _ in offered(result)] == [
        ("where?", [f"Paris {PARIS}", ROME, BERLIN]),
        ("hills?", [ROME, f"Paris {PARIS}", BERLIN]),
    ]


def test_the_fields_that_tevatron_and_flagembedding_read(tmp_path: Path) -> None:
    """Both load with `datasets`, and index rows as their `__getitem__` does."""

    def loaded(path: Path) -> Any:
        return datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))

    row = loaded(tevatron.write_groups(GROUPS, tmp_path, "older"))[0]
    chosen = row["positive_passages"][0]
    assert (row["query"], chosen["title"] + " " + chosen["text"], chosen["score"]) == ("where?", f"Paris {PARIS}", 2.0)
    assert [item["docid"] for item in row["negative_passages"]] == ["2", "3"]
    row = loaded(tevatron.write_groups_and_corpus(GROUPS, tmp_path, "newer"))[1]
    corpus = loaded(tmp_path / "newer-corpus.jsonl")
    places = {docid: position for position, docid in enumerate(corpus.select_columns(["docid"])["docid"])}
    assert row["query_text"] == "hills?"
    assert corpus[places[row["positive_document_ids"][0]]]["text"] == ROME
    assert corpus[places[row["negative_document_ids"][0]]]["text"] == f"Paris {PARIS}"
    row = loaded(flagembedding.write_groups(GROUPS, tmp_path, "flag"))[0]
    assert (row["query"], row["pos"], row["neg"]) == ("where?", [f"Paris {PARIS}"], [ROME, BERLIN])
    assert (row["pos_scores"], row["neg_scores"]) == ([2.0], [0.5, -1.0])


def test_sentence_transformers_trains_on_what_is_written(tmp_path: Path, retriever: Path) -> None:
    """Its own loader, collator and loss: n-tuples with scores, which its distillation learns from."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
    from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss

    path = sentence_transformers.write_groups(GROUPS, tmp_path, "train")
    table = datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert table.column_names == ["anchor", "positive", "negative_1", "negative_2", "scores"]
    model = SentenceTransformer(str(retriever / "model"), device="cpu")
    batch = SentenceTransformerDataCollator(model.preprocess)([dict(row) for row in table])
    assert batch["label"].tolist() == [[2.0, 0.5, -1.0], [3.0, 1.5, 0.0]]
    features = [
        {key.removeprefix(f"{name}_"): value for key, value in batch.items() if key.startswith(f"{name}_")}
        for name in table.column_names[:-1]
    ]
    assert float(DistillKLDivLoss(model)(features, batch["label"]).detach()) > 0


def test_a_scored_group_without_negatives_keeps_its_positive(tmp_path: Path) -> None:
    """Its score was compared with the least label of a relevant text."""
    alone = GROUPS[1]._replace(doc_ids=["2"], documents=GROUPS[1].documents[:1], targets=[1.0], teacher=[0.25])
    path = sentence_transformers.write_groups([alone], tmp_path, "train")
    assert offered(read(tmp_path, "sentence_transformers", path.name)) == [("hills?", [ROME], [1.0], [0.25])]


def test_groups_of_several_sizes_make_no_table(tmp_path: Path) -> None:
    short = GROUPS[1]._replace(doc_ids=["2"], documents=GROUPS[1].documents[:1], targets=[1.0], teacher=[3.0])
    with pytest.raises(UserError, match="The groups differ in their numbers of negatives"):
        sentence_transformers.write_groups([GROUPS[0], short], tmp_path, "train")
    assert not (tmp_path / "train.parquet").exists()


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("tevatron", {"query": "a", "positive_passages": [], "negative_passages": []}, "expected query_id"),
        ("tevatron", {"query_id": "1", "positive_document_ids": [], "negative_document_ids": []}, "need `corpus`"),
        ("tevatron", {"query_id": "1", "query": "a", "positive_passages": ["x"], "negative_passages": []}, "objects"),
        ("tevatron", {"query_id": "1", "query": "a", "positive_passages": {}}, "positive_passages must be a list"),
        ("flagembedding", {"query": "a", "pos": PARIS}, "pos must be a list"),
        ("flagembedding", {"query": "a", "pos": None}, "expected query, pos and neg"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": ROME}, "neg must be a list"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": [3]}, "must be text"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": [ROME], "pos_scores": [1], "neg_scores": []}, "be as"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": [], "pos_scores": ["high"]}, "got 'high'"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": [], "pos_scores": [10**400]}, "got 1000"),
        ("flagembedding", {"query": "a", "pos": [PARIS], "neg": [], "pos_scores": [1e39]}, "got 1e+39"),
        ("sentence_transformers", {"text": "a", "label": 1}, "two columns of text"),
        ("sentence_transformers", {"a": "x", "b": None}, "a query without a text after it"),
        (
            "sentence_transformers",
            {"anchor": "x", "positive": None, "negative": "y"},
            "the positive, 'positive', is null",
        ),
        ("sentence_transformers", {"a": "x", "b": []}, "a query without a text after it"),
        (
            "sentence_transformers",
            {"a": "x", "b": "y", "c": "z", "label": 0.4},
            "expected one for each text after the query",
        ),
        ("sentence_transformers", {"positive": "x", "query": "y"}, "'positive' is column 1 of the texts. Name"),
        ("sentence_transformers", {"query_id": "x", "text": "y"}, "'query_id' is a column of ids, not of texts. Name"),
    ],
)
def test_a_bad_row_is_named_once(tmp_path: Path, kind: str, row: dict[str, Any], reason: str) -> None:
    lines(tmp_path / "train.jsonl", {}, row)
    result = read(tmp_path, kind)
    bad = [document for document in result.read_documents() if isinstance(document, Bad)]
    assert len(bad) == 2
    assert bad[1].place == f"{tmp_path}/train.jsonl:2"
    assert reason in str(bad[1])
    assert not list(result.read_queries()) + list(result.read_qrels()) + list(result.read_groups())


def test_a_split_may_have_several_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for number, name in enumerate(("a.jsonl", "b/1.jsonl", "b/2.jsonl")):
        lines(tmp_path / name, {"query": f"query {number}", "pos": [PARIS], "neg": [ROME]})
    result = source(format="flagembedding", path=str(tmp_path), groups={"train": ["a.jsonl", "b/*.jsonl"]})
    assert [query.text for query in result.read_queries()] == ["query 0", "query 1", "query 2"]  # type: ignore[union-attr]
    assert list(result.files()) == ["a.jsonl", "b/1.jsonl", "b/2.jsonl"]
    with pytest.raises(UserError, match=r"/b: the folder is not a dataset of `save_to_disk`\. .* such as b/\*\.jsonl"):
        list(source(format="flagembedding", path=str(tmp_path), groups={"train": "b"}).read_queries())
    with pytest.raises(ValueError, match="at least 1 item"):
        source(format="flagembedding", path=str(tmp_path), groups={"train": []})


def test_triplets_may_be_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(f"anchor,positive,negative\na,{PARIS},{ROME}\n")
    assert offered(read(tmp_path, "sentence_transformers", "train.csv")) == [("a", [PARIS, ROME], [1.0, 0.0], None)]


def test_an_id_with_two_texts_is_bad(tmp_path: Path) -> None:
    rows = [
        {"query_id": str(i), "query": "a", "positive_passages": [passage(1, text)], "negative_passages": []}
        for i, text in enumerate([PARIS, ROME])
    ]
    lines(tmp_path / "train.jsonl", *rows)
    (bad,) = (document for document in read(tmp_path, "tevatron").read_documents() if isinstance(document, Bad))
    assert bad.reason == "duplicate document id"


def test_a_text_has_one_id() -> None:
    assert text_id(PARIS) == text_id(PARIS) != text_id(ROME)
