"""Every format reads what its files say, and says where they are wrong."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.config import Config, UserError, parse
from components.digests import sha256
from components.sources.base import AnySource, Source, declared, formats, locate
from components.sources.reading import Item, fields, read_array, read_lines
from components.sources.records import UNJUDGED, Bad


class Recipe(Config):
    """A config with a source."""

    data: AnySource


def write(path: Path, *lines: str) -> Path:
    """Write a text file, or a compressed one by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def beir(folder: Path, *, gz: str = "") -> Path:
    """A BEIR folder with three documents, three queries and two splits."""
    rows = [{"_id": "d1", "title": "One", "text": "first"}, {"_id": "d2", "text": "second\u2028line"}]
    write(folder / f"corpus.jsonl{gz}", *map(json.dumps, rows), json.dumps({"_id": 3, "title": "Three", "text": ""}))
    queries = [
        {"_id": "q1", "text": "one?", "metadata": {"answers": ["1", "I"]}},
        {"_id": "q2", "text": "two?"},
        {"_id": "q3", "text": "?"},
    ]
    write(folder / f"queries.jsonl{gz}", *map(json.dumps, queries))
    write(folder / "qrels" / f"train.tsv{gz}", "query-id\tcorpus-id\tscore", "q1\td1\t1")
    write(folder / "qrels" / f"test.tsv{gz}", "query-id\tcorpus-id\tscore", "q2\td2\t2", "q2\t3\t0")
    return folder


def source(**keys: Any) -> Source:
    """A declared source."""
    found: Source = declared(keys)
    return found


def without_place(records: Any) -> list[tuple[Any, ...]]:
    """Records as plain tuples."""
    return [tuple(record)[:-1] for record in records]


# Declarations


def test_a_format_is_a_file() -> None:
    expected = ["beir", "docstrings", "dpr", "huggingface", "ir_datasets", "msmarco", "parquet"]
    assert formats() == expected


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"format": "bier"}, "c.yaml: data: unknown format 'bier'; accepted: beir, docstrings, dpr, "),
        ({"path": "x"}, "c.yaml: data: no format; accepted: beir, "),
        (
            {"format": "beir", "path": "x", "pth": 1},
            "c.yaml: data.pth: unknown key; accepted: format, on_bad, sha256, ",
        ),
        ({"format": "beir"}, "c.yaml: data.path: Field required"),
        ({"format": "beir", "path": "x", "on_bad": "skip"}, "c.yaml: data.on_bad: Input should be 'fail' or 'drop'"),
        ({"format": "beir", "path": "x", "sha256": {"a": "b"}}, "c.yaml: data.sha256.a: String should match pattern"),
        (
            {"format": "parquet", "path": "x", "columns": {"docs": {}}},
            "c.yaml: data.columns.docs: unknown key; accepted: documents, queries, qrels",
        ),
        (
            {"format": "dpr", "path": "x", "retriever": {"dev": "a"}, "questions": {"dev": "b"}},
            "c.yaml: data: split 'dev' is in both retriever and questions",
        ),
        (
            {"format": "huggingface", "documents": {"path": "x", "dataset": "y"}, "queries": {"path": "z"}},
            "c.yaml: data.documents: give either dataset (on the hub) or path (a folder)",
        ),
        (3, "c.yaml: data: Input should be a valid dictionary"),
    ],
)
def test_a_wrong_declaration_is_one_clear_line(tree: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(Recipe, {"data": tree}, where="c.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_declaration_is_dumped_with_all_its_keys() -> None:
    recipe = parse(Recipe, {"data": {"format": "docstrings", "packages": ["numpy"]}}, where="c.yaml")
    dumped = recipe.model_dump(mode="json")
    assert dumped["data"]["packages"] == ["numpy"]
    assert dumped["data"]["min_text_words"] == 20
    assert parse(Recipe, dumped, where="c.yaml") == recipe


def test_declaring_imports_nothing_heavy() -> None:
    trees = [
        {"format": "docstrings", "packages": ["numpy"]},
        {"format": "huggingface", "documents": {"path": "x"}, "queries": {"path": "x"}},
        {"format": "ir_datasets", "dataset": "vaswani"},
    ]
    code = f"""if True:
        import sys
        from components.sources.base import declared
        for tree in {trees!r}:
            declared(tree).missing()
        print([name for name in ("torch", "datasets", "ray", "pandas", "ir_datasets") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_environment_moves_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    assert locate("data/squad") == Path("data/squad")
    monkeypatch.setenv("SPARRING_DATA", str(tmp_path))
    assert locate("data/squad") == tmp_path / "squad"
    assert locate("other/data/squad") == Path("other/data/squad")
    assert locate("/data/squad") == Path("/data/squad")


def test_what_is_missing_is_named_without_reading(tmp_path: Path) -> None:
    missing = source(format="beir", path=str(tmp_path / "no"), splits=["test"]).missing()
    assert missing == [str(tmp_path / "no" / name) for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv")]
    assert source(format="beir", path=str(beir(tmp_path / "yes", gz=".gz"))).missing() == []
    assert source(format="docstrings", packages=["numpy", "nonesuch"]).missing() == ["the package nonesuch"]
    table = {"path": str(tmp_path / "no")}
    assert source(format="huggingface", documents=table, queries=table).missing() == [str(tmp_path / "no")]


# BEIR


@pytest.mark.parametrize("gz", ["", ".gz"])
def test_beir(tmp_path: Path, gz: str) -> None:
    found = source(format="beir", path=str(beir(tmp_path, gz=gz)))
    names = [f"corpus.jsonl{gz}", f"queries.jsonl{gz}", f"qrels/test.tsv{gz}", f"qrels/train.tsv{gz}"]
    assert list(found.files()) == names
    assert without_place(found.read_documents()) == [
        ("d1", "One", "first"),
        ("d2", "", "second\u2028line"),
        ("3", "Three", ""),
    ]
    assert without_place(found.read_queries()) == [
        ("q1", "one?", ["1", "I"], "train"),
        ("q2", "two?", [], "test"),
        ("q3", "?", [], UNJUDGED),
    ]
    assert list(found.read_qrels()) == [
        ("q2", "d2", 2, "test", f"{tmp_path}/qrels/test.tsv{gz}:2"),
        ("q2", "3", 0, "test", f"{tmp_path}/qrels/test.tsv{gz}:3"),
        ("q1", "d1", 1, "train", f"{tmp_path}/qrels/train.tsv{gz}:2"),
    ]


def test_beir_reads_chosen_splits_under_our_names(tmp_path: Path) -> None:
    found = source(format="beir", path=str(beir(tmp_path)), splits={"dev": "test"})
    assert list(found.files()) == ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv"]
    assert without_place(found.read_queries()) == [("q2", "two?", [], "dev")]
    assert {record[3] for record in found.read_qrels()} == {"dev"}


# MS MARCO


def msmarco(folder: Path) -> Path:
    """An MS MARCO folder with a training set that has judgements and an evaluation set that has none."""
    write(folder / "collection.tsv", '0\tA "quoted passage', "1\tAnother")
    write(folder / "queries.train.tsv", "10\tfirst query", "11\tsecond query")
    write(folder / "queries.dev.small.tsv.gz", "12\tthird query")
    write(folder / "qrels.train.tsv", "10\t0\t0\t1", "11 0 1 1")
    return folder


def test_msmarco(tmp_path: Path) -> None:
    found = source(format="msmarco", path=str(msmarco(tmp_path)))
    assert without_place(found.read_documents()) == [("0", "", 'A "quoted passage'), ("1", "", "Another")]
    assert without_place(found.read_queries()) == [
        ("12", "third query", [], "dev.small"),
        ("10", "first query", [], "train"),
        ("11", "second query", [], "train"),
    ]
    assert without_place(found.read_qrels()) == [("10", "0", 1, "train"), ("11", "1", 1, "train")]


def test_msmarco_splits_that_are_chosen_need_qrels(tmp_path: Path) -> None:
    found = source(format="msmarco", path=str(msmarco(tmp_path)), splits={"dev": "dev.small"})
    assert found.missing() == [str(tmp_path / "qrels.dev.small.tsv")]


def test_msmarco_documents_have_a_title(tmp_path: Path) -> None:
    write(tmp_path / "collection.tsv", "D1\thttp://x\tTitle\tBody")
    found = source(format="msmarco", path=str(tmp_path), columns=["doc_id", "url", "title", "text"])
    assert without_place(found.read_documents()) == [("D1", "Title", "Body")]


# DPR


def dpr(folder: Path, *, indent: int | None = None) -> Path:
    """Files of DPR where the gold document of the first question is the one about Paris, with the id 2."""
    rows = ["id\ttext\ttitle", '1\t"Berlin is ""the"" capital of Germany."\tBerlin', "2\tParis is in France.\tParis"]
    write(folder / "psgs.tsv", *rows, '3\tRome has seven hills.\t"""Rome"""')
    paris = {"title": "Paris", "text": "Paris is in France.", "passage_id": "2"}
    entries = [
        {
            "question": "where is paris",
            "answers": ["France"],
            "positive_ctxs": [paris, {"title": "Berlin", "text": "", "psg_id": 1}],
            "negative_ctxs": [],
            "hard_negative_ctxs": [paris, {"title": "Rome", "text": "Rome has seven hills.", "passage_id": "3"}],
        },
        {"question": "no gold?", "answers": ["é"], "positive_ctxs": [], "hard_negative_ctxs": []},
    ]
    (folder / "train.json").write_text(json.dumps(entries, indent=indent, ensure_ascii=False))
    write(folder / "test.csv", "who\t['Hilbert', \"O'Neill\"]", 'what\t"[""a \\d""]"')
    return folder


def dpr_source(folder: Path, **keys: Any) -> Source:
    """The source of `dpr`."""
    return source(
        format="dpr",
        path=str(folder),
        documents="psgs.tsv",
        retriever={"train": "train.json"},
        questions={"test": "test.csv"},
        **keys,
    )


@pytest.mark.parametrize("indent", [None, 4])
def test_dpr(tmp_path: Path, indent: int | None) -> None:
    found = dpr_source(dpr(tmp_path, indent=indent))
    assert without_place(found.read_documents()) == [
        ("1", "Berlin", 'Berlin is "the" capital of Germany.'),
        ("2", "Paris", "Paris is in France."),
        ("3", '"Rome"', "Rome has seven hills."),
    ]
    assert without_place(found.read_queries()) == [
        ("train-0", "where is paris", ["France"], "train"),
        ("train-1", "no gold?", ["é"], "train"),
        ("test-0", "who", ["Hilbert", "O'Neill"], "test"),
        ("test-1", "what", ["a \\d"], "test"),
    ]


def test_dpr_straightens_a_questions_apostrophes(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("who\u2019s there\t['it\u2019s me']\n")
    keys = {"format": "dpr", "path": str(tmp_path), "questions": {"test": "q.csv"}}
    (straight,) = source(**keys).read_queries()
    (typed,) = source(**keys, straight_apostrophes=False).read_queries()
    assert (straight.text, straight.answers) == ("who's there", ["it\u2019s me"])
    assert typed.text == "who\u2019s there"


def test_dpr_gold_and_documents_share_one_id_space(tmp_path: Path) -> None:
    found = dpr_source(dpr(tmp_path), positives=1)
    titles = {record.doc_id: record.title for record in found.read_documents() if not isinstance(record, Bad)}
    gold = next(found.read_qrels())
    assert not isinstance(gold, Bad)
    assert titles[gold.doc_id] == "Paris"


def test_dpr_takes_as_many_contexts_as_it_is_told(tmp_path: Path) -> None:
    folder = dpr(tmp_path)
    judged = [("train-0", "2", 1, "train"), ("train-0", "1", 1, "train"), ("train-0", "3", 0, "train")]
    assert without_place(dpr_source(folder).read_qrels()) == judged[:2]
    assert without_place(dpr_source(folder, positives=1).read_qrels()) == judged[:1]
    assert without_place(dpr_source(folder, hard_negatives=5).read_qrels()) == judged


@pytest.mark.parametrize("answers", ["__import__('os').getcwd()", "['a'", "[" * 3000, "['a'] + ['b']"])
def test_dpr_answers_are_literals_and_nothing_is_run(tmp_path: Path, answers: str) -> None:
    write(tmp_path / "q.csv", f"who\t{answers}")
    (bad,) = source(format="dpr", path=str(tmp_path), questions={"test": "q.csv"}).read_queries()
    assert isinstance(bad, Bad)
    assert bad.reason == "answers that are no literal"
    assert bad.place == f"{tmp_path}/q.csv:1"


def test_dpr_answers_must_be_a_list(tmp_path: Path) -> None:
    write(tmp_path / "q.csv", "who\t'a'")
    (bad,) = source(format="dpr", path=str(tmp_path), questions={"test": "q.csv"}).read_queries()
    assert isinstance(bad, Bad)
    assert bad.reason == "answers that are not a list of texts"


# Text and JSON files


@pytest.mark.parametrize("chunk_chars", [1, 7, 1000])
def test_an_array_is_read_piece_by_piece(tmp_path: Path, chunk_chars: int) -> None:
    values = [{"a": "x\\u00e9 \\n}]" * n, "b": [n, 1.5, None, True, {"c": "]"}]} for n in range(6)]
    path = tmp_path / "a.json"
    path.write_text(" \n" + json.dumps(values, indent=1) + "\n")
    items = list(read_array(path, chunk_chars=chunk_chars))
    assert [item.value for item in items if isinstance(item, Item)] == values
    starts = [n for n, line in enumerate(path.read_text().split("\n"), start=1) if line == " {"]
    assert [item.place for item in items] == [f"{path}:{n}" for n in starts]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}', ":1: expected a JSON array"),
        ('[{"a": 1},\n {"a": 2\n', ":3: not JSON: Expecting ',' delimiter"),
        ('[{"a": 1},\n {"a": "x', ":2: not JSON: Unterminated string"),
        ('[{"a": 1}\n {"a": 2}]', ":2: not JSON: expected , or ]"),
        ('[{"a": 1}', ":1: not JSON: expected , or ]"),
        ('[{"a": nope}, ' + " " * 100 + "]", ":1: not JSON: Expecting value"),
    ],
)
def test_a_broken_array_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        list(read_array(path, chunk_chars=8))
    assert str(caught.value).startswith(f"{path}{message}")


def test_an_array_of_other_things(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[1, {"a": 2}]')
    bad, item = read_array(path)
    assert isinstance(bad, Bad)
    assert isinstance(item, Item)
    path.write_text("[]")
    assert list(read_array(path)) == []


def test_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\n\xff\nsec\xe2\x80\xa8ond")
    first, bad, second = read_lines(path)
    assert first == ("first", f"{path}:1")
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.place) == ("text that is not UTF-8", f"{path}:3")
    assert second == ("sec\u2028ond", f"{path}:4")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        list(read_lines(tmp_path / "none.txt"))
    whole = gzip.compress(b"line\n" * 1000)
    for name, raw in {"cut.gz": whole[:-20], "other.gz": b"no archive"}.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=f"{name}: damaged archive"):
            list(read_lines(tmp_path / name))
        with pytest.raises(UserError, match=f"{name}: cannot be read"):
            list(read_array(tmp_path / name))


def test_cells_may_be_quoted_and_long() -> None:
    assert fields('a\t"b\t""c"""\td') == ["a", 'b\t"c"', "d"]
    assert fields(f'"{"x" * 300_000}"\ty') == ["x" * 300_000, "y"]


# Parquet, Hugging Face, ir_datasets


DOCUMENTS: dict[str, list[Any]] = {"doc_id": ["a", "b"], "title": ["A", None], "text": ["x", "y"]}
QUERIES: dict[str, list[Any]] = {
    "query_id": ["p", "q"],
    "text": ["p?", "q?"],
    "answers": [["1"], None],
    "split": ["train", "test"],
}
QRELS: dict[str, list[Any]] = {
    "query_id": ["p", "q"],
    "doc_id": ["a", "b"],
    "relevance": [1, 2],
    "split": ["train", "test"],
}


def table(columns: dict[str, list[Any]], *, renamed: dict[str, str] | None = None, without: str = "") -> pa.Table:
    """A table, some columns under other names."""
    return pa.table({(renamed or {}).get(name, name): cells for name, cells in columns.items() if name != without})


def test_parquet_of_our_own_tables(tmp_path: Path) -> None:
    for name, columns in {"documents": DOCUMENTS, "queries": QUERIES, "qrels": QRELS}.items():
        pq.write_table(table(columns), tmp_path / f"{name}.parquet")
    found = source(format="parquet", path=str(tmp_path))
    assert list(found.files()) == ["documents.parquet", "queries.parquet", "qrels.parquet"]
    assert list(found.read_documents()) == [
        ("a", "A", "x", f"{tmp_path}/documents.parquet: row 1"),
        ("b", "", "y", f"{tmp_path}/documents.parquet: row 2"),
    ]
    assert without_place(found.read_queries()) == [("p", "p?", ["1"], "train"), ("q", "q?", [], "test")]
    assert without_place(found.read_qrels()) == [("p", "a", 1, "train"), ("q", "b", 2, "test")]
    chosen = source(format="parquet", path=str(tmp_path), splits={"dev": "test"})
    assert without_place(chosen.read_queries()) == [("q", "q?", [], "dev")]
    assert without_place(chosen.read_qrels()) == [("q", "b", 2, "dev")]


def test_parquet_of_other_tables(tmp_path: Path) -> None:
    for part in range(2):
        rows = table({name: cells[part : part + 1] for name, cells in DOCUMENTS.items()}, renamed={"doc_id": "id"})
        pq.write_table(rows, tmp_path / f"part-{part}.parquet")
    pq.write_table(table(QUERIES, without="split"), tmp_path / "queries.parquet")
    pq.write_table(table(QRELS, without="split"), tmp_path / "qrels.parquet")
    keys: dict[str, Any] = {"documents": "part-*.parquet", "columns": {"documents": {"doc_id": "id"}}}
    found = source(format="parquet", path=str(tmp_path), split="test", **keys)
    assert without_place(found.read_documents()) == [("a", "A", "x"), ("b", "", "y")]
    assert without_place(found.read_queries()) == [("p", "p?", ["1"], "test"), ("q", "q?", [], "test")]
    with pytest.raises(UserError, match=r"qrels\.parquet: row 1: no split"):
        list(source(format="parquet", path=str(tmp_path), **keys).read_queries())
    with pytest.raises(UserError, match=r"part-0\.parquet: wrong columns: no column 'doc_id'.*id, title, text"):
        list(source(format="parquet", path=str(tmp_path), documents="part-*.parquet").read_documents())
    wrong = {"documents": {"doc": "id"}}
    with pytest.raises(UserError, match="no column of ours is 'doc'; accepted: doc_id, text, title"):
        list(source(format="parquet", path=str(tmp_path), **(keys | {"columns": wrong})).read_documents())


def test_parquet_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "documents.parquet", "doc_id")
    with pytest.raises(UserError, match=r"documents\.parquet: not a Parquet file"):
        list(source(format="parquet", path=str(tmp_path)).read_documents())


def test_parquet_text_that_is_not_utf8(tmp_path: Path) -> None:
    ids, texts = pa.array(["a", "b"]), pa.array([b"fine", b"\xff"]).view(pa.string())
    pq.write_table(pa.table({"doc_id": ids, "text": texts}), tmp_path / "documents.parquet")
    good, bad = source(format="parquet", path=str(tmp_path)).read_documents()
    assert not isinstance(good, Bad)
    assert isinstance(bad, Bad)
    assert (bad.reason, bad.id) == ("text that is not UTF-8", "b")


def test_huggingface_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    corpus = datasets.Dataset.from_dict({"_id": ["a", "b"], "title": ["A", "B"], "text": ["x", "y"]})
    corpus.save_to_disk(tmp_path / "corpus")
    parts = {"train": {"qid": [1], "did": ["a"], "score": [1]}, "test": {"qid": [2], "did": ["b"], "score": [3]}}
    datasets.DatasetDict({name: datasets.Dataset.from_dict(columns) for name, columns in parts.items()}).save_to_disk(
        tmp_path / "qrels"
    )
    queries = {"query_id": [1, 2, 3], "text": ["one", "two", "three"]}
    datasets.Dataset.from_dict(queries).save_to_disk(tmp_path / "queries")
    columns = {"query_id": "qid", "doc_id": "did", "relevance": "score"}
    keys: dict[str, Any] = {
        "documents": {"path": str(tmp_path / "corpus"), "columns": {"doc_id": "_id"}},
        "queries": {"path": str(tmp_path / "queries")},
        "qrels": {
            split: {"path": str(tmp_path / "qrels"), "split": split, "columns": columns} for split in ("train", "test")
        },
    }
    found = source(format="huggingface", **keys)
    assert any(name.endswith(".arrow") for name in found.files())
    assert without_place(found.read_documents()) == [("a", "A", "x"), ("b", "B", "y")]
    assert without_place(found.read_queries()) == [
        ("1", "one", [], "train"),
        ("2", "two", [], "test"),
        ("3", "three", [], UNJUDGED),
    ]
    assert without_place(found.read_qrels()) == [("1", "a", 1, "train"), ("2", "b", 3, "test")]
    wrong = {"dev": {"path": str(tmp_path / "qrels"), "split": "dev"}}
    with pytest.raises(UserError, match="no split 'dev'; it has train, test"):
        list(source(format="huggingface", **(keys | {"qrels": wrong})).read_qrels())
    with pytest.raises(
        UserError, match="corpus: wrong columns: no column 'doc_id' for doc_id; it has _id, title, text"
    ):
        list(
            source(format="huggingface", **(keys | {"documents": {"path": str(tmp_path / "corpus")}})).read_documents()
        )


def test_ir_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    ir_datasets = pytest.importorskip("ir_datasets")
    docs = write(tmp_path / "docs.tsv", "a\tfirst document", "b\tsecond document")
    queries = write(tmp_path / "queries.tsv", "p\tfirst?")
    qrels = write(tmp_path / "qrels.txt", "p 0 b 2")
    whole = ir_datasets.create_dataset(docs_tsv=str(docs))
    part = ir_datasets.create_dataset(docs_tsv=str(docs), queries_tsv=str(queries), qrels_trec=str(qrels))
    registered = dict(ir_datasets.registry._registered)
    monkeypatch.setattr(ir_datasets.registry, "_registered", registered)
    ir_datasets.registry.register("sparring", whole)
    ir_datasets.registry.register("sparring/dev", part)
    found = source(format="ir_datasets", dataset="sparring")
    assert list(found.read_documents()) == [
        ("a", "", "first document", "sparring: document 1"),
        ("b", "", "second document", "sparring: document 2"),
    ]
    assert without_place(found.read_queries()) == [("p", "first?", [], "dev")]
    assert without_place(found.read_qrels()) == [("p", "b", 2, "dev")]
    named = source(format="ir_datasets", dataset="sparring", splits={"test": "sparring/dev"})
    assert without_place(named.read_qrels()) == [("p", "b", 2, "test")]
    with pytest.raises(UserError, match="nonesuch: ir_datasets knows no such id"):
        list(source(format="ir_datasets", dataset="nonesuch").read_documents())
    with pytest.raises(UserError, match="sparring: this id of ir_datasets has no queries"):
        list(source(format="ir_datasets", dataset="sparring", splits={"test": "sparring"}).read_queries())


# Digests


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "a.txt", "one")
    first = sha256(path)
    cached = tmp_path / "cache" / "digests.json"
    assert list(json.loads(cached.read_text()).values()) == [first]
    cached.write_text(cached.read_text().replace(first, "remembered"))
    assert sha256(path) == "remembered"
    write(path, "another")
    assert sha256(path) not in (first, "remembered")
    cached.write_text("{broken")
    assert len(sha256(path)) == 64
    monkeypatch.setenv("SPARRING_CACHE", str(path / "not a folder"))
    assert len(sha256(path)) == 64
