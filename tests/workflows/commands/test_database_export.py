"""`export --to URL` sends a run's system, or an exported one, and writes a program that finds what `search` finds."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.systems.databases.sqlite import SQLite
from sparring.workflows.command_line import main
from tests.support import databases, deployed, searching, tiny
from tests.support.tiny import Place, Said

pytest.importorskip("sqlite_vec")


@pytest.fixture(scope="module")
def run(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run with many systems."""
    place = tiny.place(tmp_path_factory.mktemp("deployed"), deployed.config(beir, encoder))
    assert place("run") == 0
    return place


@pytest.fixture(scope="module")
def folder(run: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a retriever with a ranker."""
    folder = tmp_path_factory.mktemp("exported") / "out"
    assert run("export", str(folder), "--system", "ranker over retriever") == 0
    return folder / "system"


def queries(run: Place) -> list[str]:
    """The texts of some queries."""
    return pq.read_table(run.artifact("data") / "queries.parquet")["text"].to_pylist()[:3]


def printed(program: Path, texts: list[str], folder: Path) -> list[list[str]]:
    """The ids that a program prints for each query, without our modules."""
    folder.mkdir()
    shutil.copyfile(program, folder / "example.py")
    return searching.by_examples([(folder, texts, 12)])[0]


def rows(file: Path, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table, in order of their ids."""
    connection = sqlite3.connect(file)
    result = connection.execute(f'SELECT * FROM "{table}" ORDER BY id').fetchall()
    connection.close()
    return result


def test_an_exported_system_is_sent(run: Place, folder: Path, tmp_path: Path, said: Said) -> None:
    file, program = tmp_path / "a.db", tmp_path / "ask.py"
    said()
    words = ["export", str(folder), "--to", f"sqlite:///{file}", "--name", "shop", "--example", str(program)]
    assert main(words) == 0
    assert said()[0].splitlines() == [
        f"sqlite:///{file} shop (ranker over retriever): 40 documents sent, 0 unchanged, 0 deleted",
        f'{program}: python {program} "QUERY"',
    ]
    texts = queries(run)
    expected = searching.by_systems([(folder, texts, 12)])[0]
    assert printed(program, texts, tmp_path / "there") == [[hit["doc_id"] for hit in hits] for hits in expected]
    before = rows(file, "shop")
    assert main(words) == 0
    assert "0 documents sent, 40 unchanged, 0 deleted" in said()[0]
    assert rows(file, "shop") == before


def test_a_runs_system_is_sent_as_its_folder_is(run: Place, folder: Path, tmp_path: Path, said: Said) -> None:
    """From the table and the stored vectors, and from the lines and the FAISS index: the same rows."""
    file, program = tmp_path / "a.db", tmp_path / "ask.py"
    options = ["--to", f"sqlite:///{file}", "--example", str(program)]
    assert run("export", "--system", "ranker over retriever", *options) == 0
    table = said()[0].split()[1]
    assert main(["export", str(folder), *options, "--name", table]) == 0
    assert "0 documents sent, 40 unchanged, 0 deleted" in said()[0]


def test_bm25_becomes_the_databases_full_text(run: Place, tmp_path: Path, said: Said) -> None:
    """Fused with the system's weights, and reranked."""
    for name in (deployed.MIXED, "BM25", deployed.FUSED):
        file, program = tmp_path / "a.db", tmp_path / "ask.py"
        file.unlink(missing_ok=True)
        options = ["--system", name, "--to", f"sqlite:///{file}", "--name", "shop", "--example", str(program)]
        assert run("export", *options) == 0
        assert SQLite.full_text in said()[0]
        lists = printed(program, queries(run), tmp_path / name)
        assert all(len(ids) == len(set(ids)) > 0 for ids in lists)


def test_a_stopped_command_is_repeated(
    run: Place, folder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.db"
    words = ["export", str(folder), "--to", f"sqlite:///{file}", "--name", "shop", "--example", str(tmp_path / "a.py")]
    write, batches = SQLite.write, list[int]()

    def stop(self: SQLite, batch: Any, digests: Any) -> None:
        if len(batches) == 2:
            raise KeyboardInterrupt
        batches.append(len(batch.ids))
        write(self, batch, digests)

    monkeypatch.setattr(SQLite, "rows", 7)
    with monkeypatch.context() as patch:
        patch.setattr(SQLite, "write", stop)
        assert main(words) == 130
    assert not (tmp_path / "a.py").exists()
    said()
    assert main(words) == 0
    assert "26 documents sent, 14 unchanged, 0 deleted" in said()[0]


def test_no_output_has_the_password(run: Place, folder: Path, tmp_path: Path, said: Said) -> None:
    program, url = tmp_path / "ask.py", "elasticsearch+http://me:swordfish@{}"
    with databases.search_server() as server:
        words = ["export", str(folder), "--name", "shop", "--example", str(program), "--to", url.format(server.host)]
        assert main(words) == 0
        host = server.host
        server.refusing = 1
        server.rows["shop"].clear()
        assert main(words) == 1
    assert main(words) == 1  # nobody answers
    out, err = said()
    assert host in out
    assert host in err
    assert err.count("failed: ") == 2
    for text in (out, err, program.read_text()):
        assert not {word for word in ("swordfish", "me:", "me@") if word in text}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["out", "--to", "sqlite:///a.db"], "DIRECTORY"),
        (["--to", "sqlite:///a.db", "--onnx"], "--onnx"),
        (["--to", "sqlite:///a.db", "--onnx-precision", "int8"], "--onnx-precision"),
        (["--to", "a.db"], "--to"),
        (["--to", "sqlite:///a.db", "--system", "no such"], "--system"),
        (["--to", "sqlite:///a.db", "--name", "A B"], "--name"),
        (["--to", "sqlite:///a.db", "--system", deployed.NEIGHBOURS], "--to"),
        (["--to", "sqlite:///no/such/folder/a.db"], "sqlite:///no/such/folder/a.db"),
        ([], "DIRECTORY"),
        (["out", "--name", "shop"], "--name"),
    ],
)
def test_mistakes(
    run: Place, words: list[str], key: str, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert run("export", *words) in (1, 2)
    assert said()[1].removeprefix("error: ").removeprefix("failed: ").startswith(f"{key}: ")
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_folder_deletes_nothing(folder: Path, tmp_path: Path, said: Said) -> None:
    """A line less than the system has documents."""
    copy, file = tmp_path / "copy", tmp_path / "a.db"
    shutil.copytree(folder, copy)
    words = ["export", str(copy), "--to", f"sqlite:///{file}", "--name", "shop", "--example", str(tmp_path / "a.py")]
    assert main(words) == 0
    lines = (copy / "documents.jsonl").read_text().splitlines()
    (copy / "documents.jsonl").write_text("\n".join(lines[:-1]))
    assert main(words) == 2
    assert len(rows(file, "shop")) == len(lines) == 40
    (copy / "documents.jsonl").write_text("\n".join([json.dumps({"_id": "x"}), *lines[1:]]))
    assert main(words) == 2
    assert "documents.jsonl:1: no document" in said()[1]


def test_parsing_the_command_imports_no_client() -> None:
    code = "from sparring.workflows import command_line; command_line.parser(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tiny.ROOT)
    assert not {"psycopg", "qdrant_client", "lancedb", "sqlite_vec"} & set(done.stdout.split())
