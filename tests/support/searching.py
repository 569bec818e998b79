"""A process that searches with exported systems: Java, once started, would stay for all other tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.tiny import ROOT, Place

SYSTEMS = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from sparring.components.systems.system import LoadedSystem

sys.setswitchinterval(1e-6)  # threads alternate often, so that a race shows
answers = []
for folder, texts, k in json.loads(sys.argv[1]):
    system = LoadedSystem.load(Path(folder), threads=1)
    found = system.search(texts, k)
    with ThreadPoolExecutor(4) as pool:
        alone = [hits for hits, in pool.map(lambda text: system.search([text], k), texts)]
    assert [[hit.doc_id for hit in hits] for hits in alone] == [[hit.doc_id for hit in hits] for hits in found]
    answers.append([[hit._asdict() for hit in hits] for hits in found])
assert "ray" not in sys.modules
print(json.dumps(answers))
"""

OPENED = """
import json, sys, traceback
from pathlib import Path
from sparring.components.config import UserError
from sparring.components.systems.system import LoadedSystem

outcomes = []
for folder, texts, k in json.loads(sys.argv[1]):
    try:
        found = LoadedSystem.load(Path(folder), threads=1).search(texts, k)
        outcomes.append([[hit.doc_id for hit in hits] for hits in found])
    except UserError as error:
        outcomes.append(str(error))
    except Exception:
        outcomes.append(f"{folder}: {traceback.format_exc()}")
print(json.dumps(outcomes))
"""

EXAMPLES = """
import contextlib, functools, io, json, os, runpy, sys

if any(os.path.exists(os.path.join(folder, name)) for folder, *_ in json.loads(sys.argv[1])
       for name in ("retriever", "ranker")):
    import sentence_transformers  # a model is loaded once, not for each query

    for kind in ("SentenceTransformer", "CrossEncoder"):
        load = functools.cache(getattr(sentence_transformers, kind))
        setattr(sentence_transformers, kind, lambda name, load=load, **how: load(os.path.abspath(name), **how))
answers = []
for folder, texts, k in json.loads(sys.argv[1]):
    lists = []
    for text in texts:
        sys.argv = ["example.py", text, str(k)]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            runpy.run_path(os.path.join(folder, "example.py"), run_name="__main__")
        lists.append([line.split("\\t")[0] for line in said.getvalue().splitlines() if line])
    answers.append(lists)
assert not {"components", "workflows", "ray"} & set(sys.modules)
print(json.dumps(answers))
"""

Asked = list[tuple[Path, list[str], int]]
"""Folders, with queries and the number of documents for each."""


RUNS = """
import json, sys
import sparring

config, store, runs, names, texts, k = json.loads(sys.argv[1])
answers = {}
for name in names:
    system = sparring.load(config, system=name, threads=1, device="cpu", store=store, runs=runs)
    together = system.answer(texts, k)
    alone = [system.answer(text, k) for text in texts[:2]]
    assert [answered.answer for answered in alone] == [answered.answer for answered in together[:2]]
    assert [[hit.doc_id for hit in answered.hits] for answered in alone] == [
        [hit.doc_id for hit in answered.hits] for answered in together[:2]
    ]
    answers[name] = [
        [answered.answer, [[hit.doc_id, hit.score] for hit in answered.hits]] for answered in together
    ]
print(json.dumps(answers))
"""


def by_runs(place: Place, names: list[str], texts: list[str], k: int) -> dict[str, list[Any]]:
    """Answers of a run's systems: for each query the reader's answer, and the ids with scores."""
    argument = [str(place.config), str(place.store), str(place.runs), names, texts, k]
    command = [sys.executable, "-c", RUNS, json.dumps(argument)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def by_systems(asked: Asked) -> list[list[list[dict[str, Any]]]]:
    """What `LoadedSystem.search` finds: for each folder and query the hits. All queries at once give the documents that
    each alone gives, asked from several threads."""
    return _said(SYSTEMS, asked, ROOT)


def opened(asked: Asked) -> list[Any]:
    """For each folder the ids that `LoadedSystem.search` finds, or the message of the error: of no UserError the
    traceback."""
    return _said(OPENED, asked, ROOT)


def by_examples(asked: Asked) -> list[list[list[str]]]:
    """What the folders' own programs print: for each folder and query the ids. No module of ours is to be found."""
    return _said(EXAMPLES, asked, Path("/"))


def _said(program: str, asked: Asked, where: Path) -> Any:
    argument = json.dumps([(str(folder), texts, k) for folder, texts, k in asked])
    command = [sys.executable, "-c", program, argument]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
