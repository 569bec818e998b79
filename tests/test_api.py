"""`import sparring`: what notebooks and services call."""

from __future__ import annotations

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sparring
from sparring.components.yaml_files import read_yaml
from tests.support import tiny
from tests.support.tiny import ROOT, Place

SCRIPT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor

before = list(sys.path)
import sparring

assert sys.modules.keys().isdisjoint({"torch", "ray", "transformers", "numpy"}), "import sparring alone is light"
run = sparring.run("mine.yaml", sets={"k": 9}, cluster="inline.yaml")
again = sparring.read("mine.yaml", sets={"k": 9})
assert (again.metrics, again.folder) == (run.metrics, run.folder)
assert run.report.is_file()
system = run.load(threads=1)
texts = sys.argv[1:]
one_by_one = [system.search(text, k=5) for text in texts]
with ThreadPoolExecutor(4) as pool:
    assert list(pool.map(lambda text: system.search(text, k=5), texts)) == one_by_one
together = system.search(texts, k=5)  # whose vectors may differ in the last bit
assert [[hit.doc_id for hit in hits] for hits in together] == [[hit.doc_id for hit in hits] for hits in one_by_one]
assert system.search([], k=5) == []
named = sparring.load("mine.yaml", sets={"k": 9}, system="retriever", threads=1, device="cpu")
vectors = named.embed(texts)
alone = named.embed(texts[0])
document = named.embed([hit.text for hit in one_by_one[0]], "document")
mistakes = []
for mistake in (
    lambda: named.rerank("a", ["b"]), lambda: named.embed(texts, "passage"), lambda: named.search(3),
    lambda: sparring.read("mine.yaml"), lambda: sparring.load("mine.yaml", sets={"k": 9}, system="none"),
    lambda: sparring.load("mine.yaml"), lambda: sparring.nothing,
):
    try:
        mistake()
    except (sparring.UserError, AttributeError) as error:
        mistakes.append(str(error))
bare = [name for name in ("components", "workflows") if name in sys.modules]
assert [folder for folder in sys.path if folder not in before] == [], "the caller's path stays as it was"
print(json.dumps({
    "verdict": str(run.verdict), "rows": len(run.rows), "table": str(run),
    "hits": [hit.doc_id for hit in one_by_one[0]],
    "shapes": [vectors.shape, alone.shape, document.shape], "same": bool((abs(vectors[0] - alone) < 1e-5).all()),
    "mistakes": mistakes, "bare": bare, "ray": "ray" in sys.modules and sys.modules["ray"].is_initialized(),
}))
"""


@pytest.fixture
def folder(tmp_path: Path, beir: Path, encoder: Path) -> Path:
    """A user's folder with an experiment, which is not the repository's."""
    tiny.write(tmp_path / "mine.yaml", {**tiny.dpr(beir, encoder), "k": 10})
    tiny.write(tmp_path / "inline.yaml", tiny.INLINE)
    return tmp_path


def called(folder: Path, script: str, *words: str) -> dict[str, Any]:
    """What a script prints at its end, run as a file of a folder."""
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-W", "error", "script.py", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if "sparring" not in _installed() else dict(os.environ)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _installed() -> set[str]:
    from importlib.metadata import packages_distributions

    return set(packages_distributions())


def test_a_notebook_runs_reads_and_searches(folder: Path) -> None:
    text = called(folder, SCRIPT, "barami comi", "domu", "barami")
    assert text["rows"] > 0
    assert "BM25" in text["table"]
    assert len(text["hits"]) == 5
    (texts, width), alone, (result, _) = text["shapes"]
    assert (texts, alone, result) == (3, [width], 5)
    assert text["same"]
    assert text["bare"] == []
    assert text["ray"] is False
    reranked, side, query, unfinished, unnamed, unmade, unknown = text["mistakes"]
    assert reranked == "rerank: 'retriever' has no ranker. Load a system that has one."
    assert side == "embed: side is 'passage'. Use 'query' or 'document'."
    assert query == "search: queries must be a string or a list of strings."
    assert unfinished == "mine.yaml: its run is not finished. Run it first: sparring.run('mine.yaml')."
    assert "none" in unnamed
    assert "sparring.run('mine.yaml')" in unmade
    assert unknown == "module 'sparring' has no attribute 'nothing'"


RERANK = """
import json, sys
import sparring

system = sparring.load(sys.argv[1], threads=1)
texts = ["barami comi", "domu", "barami comi"]
ranked = system.rerank("barami", texts)
print(json.dumps({"ranked": ranked, "none": system.rerank("barami", [])}))
"""


def test_documents_are_reranked(played: Place, tmp_path: Path) -> None:
    (row,) = [name for name in {row["system"] for row in played.metrics()["rows"]} if name == "ranker over retriever 1"]
    assert played("export", str(tmp_path / "out"), "--system", row) == 0
    text = called(tmp_path, RERANK, "out/system")
    assert text["none"] == []
    places, scores = zip(*text["ranked"], strict=True)
    assert sorted(places) == [0, 1, 2]
    assert list(scores) == sorted(scores, reverse=True)
    by_place = dict(text["ranked"])
    assert by_place[0] == by_place[2]
    assert places.index(0) < places.index(2)


def test_every_public_name_is_documented_and_typed() -> None:
    for name in sparring.__all__:
        assert getattr(sparring, name).__doc__, name
    assert (ROOT / "sparring" / "py.typed").exists()
    assert set(sparring.__all__) <= set(dir(sparring))


def test_the_example_in_the_docstring_is_right(folder: Path) -> None:
    """With another config and folder than a reader has."""
    examples = doctest.DocTestParser().get_examples(sparring.__doc__ or "")
    (folder / "my-collection.yaml").write_text((folder / "mine.yaml").read_text())
    lines = "".join(example.source for example in examples).splitlines()
    *lines, last = [line.replace('.yaml")', '.yaml", cluster="inline.yaml")') for line in lines]
    assert last == 'system = sparring.load("out/system")'
    export = ["sparring", "export", "my-collection.yaml", "out"]
    text = 'print(json.dumps({"k": len(system.search("x", 5))}))'
    before = ["import json, subprocess, sys", *lines, f"subprocess.run([sys.executable, '-m', *{export}], check=True)"]
    script = "\n".join([*before, last, text])
    assert called(folder, script)["k"] >= 0
    assert read_yaml(folder / "my-collection.yaml")["recipe"] == "dpr"
