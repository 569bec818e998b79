"""Collections of ir_datasets."""

from pathlib import Path

import pytest

from sparring.components.config import UserError
from tests.support.sources import source, without_place, write


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
    result = source(format="ir_datasets", dataset="sparring")
    assert list(result.read_documents()) == [
        ("a", "", "first document", "sparring: document 1"),
        ("b", "", "second document", "sparring: document 2"),
    ]
    assert without_place(result.read_queries()) == [("p", "first?", [], "dev")]
    assert without_place(result.read_qrels()) == [("p", "b", 2, "dev")]
    named = source(format="ir_datasets", dataset="sparring", splits={"test": "sparring/dev"})
    assert without_place(named.read_qrels()) == [("p", "b", 2, "test")]
    docs.unlink()
    with pytest.raises(UserError, match=r"sparring: ir_datasets cannot read its docs: FileNotFoundError: .*docs\.tsv"):
        list(result.read_documents())
    with pytest.raises(UserError, match="nonesuch: ir_datasets has no dataset with this id"):
        list(source(format="ir_datasets", dataset="nonesuch").read_documents())
    with pytest.raises(UserError, match="sparring: this dataset of ir_datasets has no queries"):
        list(source(format="ir_datasets", dataset="sparring", splits={"test": "sparring"}).read_queries())
