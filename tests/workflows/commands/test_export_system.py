"""`export` writes a system as a folder, which `search` and the folder's program take: both find what the run found."""

from __future__ import annotations

import errno
import io
import json
import shlex
import shutil
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.files import remove
from sparring.components.retrieval import index
from sparring.components.systems import config as configs
from sparring.components.systems import example
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.system import Answered, Hit, LoadedSystem
from sparring.workflows.command_line import main
from sparring.workflows.commands import system_folder
from tests.support import deployed, searching, tiny
from tests.support.errors import refused
from tests.support.tiny import Place, Said


@pytest.fixture(scope="module")
def run(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run with many systems."""
    place = tiny.place(tmp_path_factory.mktemp("deployed"), deployed.config(beir, encoder))
    assert place("run") == 0
    return place


def asked(run: Place) -> dict[str, str]:
    """The queries of the test split, by id."""
    rows = pq.read_table(run.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    return {row["query_id"]: row["text"] for row in rows}


def ranked(run: Place, label: str) -> dict[str, list[tuple[str, float]]]:
    """The run's own ranking: ids with scores, by query."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for row in pq.read_table(run.artifact(label) / "ranking.parquet").to_pylist():
        lists.setdefault(row["query_id"], []).append((row["doc_id"], row["score"]))
    return lists


LABELS = {
    "BM25": "bm25 ranking (test)",
    "retriever": "retriever ranking (test)",
    "ranker over retriever": f"{deployed.PRIOR} (test)",  # the same scores, to which others are added
    deployed.PRIOR: f"{deployed.PRIOR} with priors (test)",
}
NAMES = [
    "BM25",
    "retriever",
    "fusion",
    deployed.FUSED,
    deployed.MIXED,
    "ranker over retriever",
    deployed.PRIOR,
    deployed.NEIGHBOURS,
    deployed.THREE,
    deployed.TWICE,
    deployed.OVER_NEIGHBOURS,
]
WEIGHTS = {"weight": 0.5, "priors": {"dense": 3.0, "lexical": 0.25}}


def test_a_system_finds_what_the_run_found(run: Place, exported: Callable[[str], Path]) -> None:
    queries = asked(run)
    answers = searching.by_systems([(exported(name) / "system", list(queries.values()), 10) for name in NAMES])
    for name, result in zip(NAMES, answers, strict=True):
        itself = ranked(run, LABELS.get(name, name))
        for query, hits in zip(queries, result, strict=True):
            wanted = itself.get(query, [])[:10]
            assert [hit["doc_id"] for hit in hits] == [doc_id for doc_id, _ in wanted], name
            assert [hit["score"] for hit in hits] == pytest.approx([score for _, score in wanted], abs=1e-4)


def test_its_vectors_are_those_of_the_run(run: Place, exported: Callable[[str], Path]) -> None:
    """To the last bit, in the order of the documents."""
    folder, vectors = exported("retriever") / "system", run.artifact("retriever vectors")
    itself = np.concatenate([np.load(vectors / name) for name in json.loads((vectors / "documents.json").read_text())])
    index = faiss.read_index(str(folder / "index.faiss"))
    assert np.array_equal(index.reconstruct_n(0, index.ntotal), itself)
    ids = [json.loads(line)["_id"] for line in (folder / "documents.jsonl").read_text().splitlines()]
    assert ids == pq.read_table(run.artifact("data") / "documents.parquet")["doc_id"].to_pylist()


def changed(folder: Path, to: Path, documents: int = 40, **stages: Any) -> Path:
    """The same folder with other stages, and the program that these have. A stage that is None is left out."""
    shutil.copytree(folder, to, symlinks=True)
    tree = {**json.loads((folder / "system.json").read_text()), "documents": documents}
    tree["stages"] = {name: stage for name, stage in {**tree["stages"], **stages}.items() if stage is not None}
    (to / "system.json").write_text(json.dumps(tree))
    (to / "example.py").write_text(example.example(SystemConfig.model_validate(tree)))
    return to


def test_its_program_finds_the_same_with_the_border_s_own_tools(
    run: Place, exported: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every fusion, with the ranker alone and with weights, and lists alone. Queries are longer than they are read."""
    ranker = json.loads((exported(deployed.FUSED) / "system" / "system.json").read_text())["stages"]["ranker"]
    words_first, dense_first = {"of": ["lexical", "dense"]}, {"of": ["dense", "lexical"]}
    fusions: dict[str, dict[str, Any] | None] = {
        "interleave": {"how": "interleave", "depth": 12, **dense_first},
        "reciprocal": {"how": "reciprocal", "depth": 15, "c": 2.0, "weight": 0.3, **words_first},
        "max-min": {"how": "interpolate", "weight": 0.4, "depth": 15, **words_first},
        "none": {"how": "interpolate", "weight": 0.9, "normalise": "none", "depth": 15, **dense_first},
        "weights": None,
    }
    folders = [
        changed(
            exported(deployed.FUSED) / "system",
            tmp_path / name,
            fusion=None if fusion is None else {"kind": "fused", **fusion},
            ranker={**ranker, **WEIGHTS, "of": "dense" if fusion is None else "fusion"},
        )
        for name, fusion in fusions.items()
    ]
    folders += [exported(name) / "system" for name in NAMES]
    queries = [" ".join([text] * 3) for text in list(asked(run).values())[:2]]
    wanted = [(folder, queries, 12) for folder in folders]
    result = [[[hit["doc_id"] for hit in hits] for hits in lists] for lists in searching.by_systems(wanted)]
    assert searching.by_examples(wanted) == result
    same = 2  # a ranker twice, and over the same documents in the order of neighbours
    assert len({str(lists) for lists in result}) == len(result) - same
    for folder in folders:
        stages = json.loads((folder / "system.json").read_text())["stages"]
        assert lines_of_code((folder / "example.py").read_text()) <= 12 + 14 * len(stages)


def lines_of_code(program: str) -> int:
    """Lines that say something, each of several that are one counted once."""
    tokens = tokenize.generate_tokens(io.StringIO(program).readline)
    return sum(token.type == tokenize.NEWLINE for token in tokens) - 1  # the docstring


def test_a_folder_in_place_of_a_config(run: Place, exported: Callable[[str], Path], said: Said) -> None:
    """It prints what the config prints: documents, titles, texts and scores."""
    query = next(iter(asked(run).values()))
    assert run("search", query, "-k", "12", "--system", "ranker over retriever") == 0
    before = said()[0]
    folder = exported("ranker over retriever") / "system"
    said()
    assert search(run, folder, query, "-k", "12") == 0
    assert said()[0] == before


def search(run: Place, folder: Path, *words: str) -> int:
    """`search` of a folder, with a store that is not there."""
    return main(["--store", "/nowhere", "search", str(folder), "--cluster", str(run.folder / "inline.yaml"), *words])


def test_scores_of_all_stages_are_printed(
    run: Place, exported: Callable[[str], Path], said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"lexical": 12.345, "dense": 0.5, "fusion": 0.0323, "ranker": -1.0}
    hit = Hit("d1", 0.7, scores, "A title", "Its text.")
    monkeypatch.setattr(LoadedSystem, "answer", lambda *_, **__: [Answered(None, [hit])])
    assert search(run, exported("retriever") / "system", "bara") == 0
    assert said()[0].endswith("1. A title  (0.700: BM25 12.35, retriever 0.500, ranker -1.00)  d1\n   Its text.\n")


def test_the_system_of_an_export_is_the_best_on_dev_unless_named(
    run: Place, played: Place, tmp_path: Path, said: Said
) -> None:
    for place in (run, played):
        candidates = json.loads((place.artifact("selection") / "selection.json").read_text())["candidates"]
        name = max(candidates, key=lambda single: single["value"])["system"]
        to = tmp_path / name
        assert place("export", str(to)) == 0
        assert f'{to}/system ({name}): python -m workflows search {shlex.quote(f"{to}/system")} "QUERY"' in said()[0]
        assert json.loads((to / "system" / "system.json").read_text())["name"] == name


def test_the_best_that_cannot_be_exported_is_passed_over(run: Place, tmp_path: Path) -> None:
    place = run.copy(tmp_path / "copy")
    path = place.artifact("selection") / "selection.json"
    output = json.loads(path.read_text())
    for item in output["candidates"]:
        item["value"] = {deployed.COMPUTED: 3.0, "retriever": 2.0}.get(item["system"], 0.0)
    path.write_text(json.dumps(output))
    assert place("export", str(tmp_path / "out")) == 0
    assert json.loads((tmp_path / "out" / "system" / "system.json").read_text())["name"] == "retriever"


def test_exported_twice_it_is_the_same(run: Place, exported: Callable[[str], Path], tmp_path: Path) -> None:
    assert run("export", str(tmp_path / "again"), "--system", deployed.FUSED) == 0
    assert tiny.contents(tmp_path / "again" / "system") == tiny.contents(exported(deployed.FUSED) / "system")


def test_the_card_says_what_it_is(run: Place, exported: Callable[[str], Path]) -> None:
    text = (exported(deployed.FUSED) / "system" / "README.md").read_text()
    value = next(row["value"] for row in run.metrics()["rows"] if row["system"] == deployed.FUSED)
    for part in (
        "# ranker over fusion\n",
        "40 documents (toy)",
        "1. `lexical`: BM25 lists 20 documents (k1 0.9, b 0.4).",
        "(reciprocal)",
        "4. `ranker`: the ranker reorders the first 10 documents of `fusion`, by its scores alone.",
        f"| RR@10 | {value:.4f} |",
        f"by `python -m workflows run {run.config}`",
        "The start model is made of noise.",
        "python example.py",
    ):
        assert part in text, part
    text = (exported(deployed.NEIGHBOURS) / "system" / "README.md").read_text()
    assert "2. `neighbours`: the first 10 documents of `dense` are reranked by reciprocal nearest neighbours" in text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no such", "no system is called 'no such'; accepted: retriever, BM25, fusion, "),
        (deployed.WEIGHED, f"'{deployed.WEIGHED}' cannot be deployed: neighbours: weight: got '"),
        (deployed.COMPUTED, f"'{deployed.COMPUTED}' cannot be deployed: its ranking is made of its own steps; "),
    ],
)
def test_a_system_that_cannot_be_exported(run: Place, tmp_path: Path, said: Said, name: str, says: str) -> None:
    assert run("export", str(tmp_path / "out"), "--system", name) == 2
    assert said()[1].startswith(f"error: --system: {says}")
    assert list(tmp_path.iterdir()) == []


def test_dropped_vectors_are_named(run: Place, tmp_path: Path, said: Said) -> None:
    copy = run.copy(tmp_path / "copy")
    record = copy.artifact("retriever vectors") / "artifact.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "dropped": ["documents-*.npy"]}))
    assert copy("export", str(tmp_path / "out")) == 2
    assert said()[1].startswith("error: files of the step 'retriever vectors' were dropped; make them again: ")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("write error in x: 0 != 5 (No space left on device)"),
    ],
)
def test_a_full_disk_leaves_nothing(
    run: Place, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any) -> None:
        raise error

    monkeypatch.setattr(system_folder.documents, "write", full)
    assert run("export", str(tmp_path / "out")) == 2
    assert said()[1] == f"error: {tmp_path / 'out'}: the disk is full; nothing was exported\n"
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_folder_that_loads(run: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The description is written when all else is there; before it, the folder is none."""
    seen = []

    def look(path: Path, value: dict[str, Any]) -> None:
        seen.append(SystemConfig.model_validate(value).parts)
        assert all((path.parent / part).exists() for part in (*seen[0], "README.md", "example.py"))
        with refused("system", "missing-file"):
            configs.read(path.parent)

    monkeypatch.setattr(system_folder, "write_json", look)
    assert run("export", str(tmp_path / "out")) == 0
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "k=3"], "--set: an exported system searches as its system.json says; accepted: with a config"),
        (["-k", "41"], "-k: got 41, but the collection has 40 documents. Use 1 to 40."),
    ],
)
def test_words_that_a_folder_does_not_take(
    run: Place, exported: Callable[[str], Path], said: Said, words: list[str], says: str
) -> None:
    folder = exported("retriever") / "system"
    said()
    assert search(run, folder, "bara", *words) == 2
    assert said()[1] == f"error: {says}\n"


@pytest.mark.parametrize("lost", ["retriever", "index.faiss", "ranker", "documents.jsonl"])
def test_a_folder_that_lacks_a_part(
    run: Place, exported: Callable[[str], Path], tmp_path: Path, said: Said, lost: str
) -> None:
    folder = tmp_path / "system"
    shutil.copytree(exported("ranker over retriever") / "system", folder)
    remove(folder, lost)
    said()
    assert search(run, folder, "bara") == 2
    assert said()[1] == f"error: {folder}: no {lost}, which system.json names; export the system again\n"


def test_a_cut_model_is_found_before_anything_is_opened(exported: Callable[[str], Path], tmp_path: Path) -> None:
    """`serve` opens models in other processes, whose errors come late."""
    folder = tmp_path / "system"
    shutil.copytree(exported("ranker over retriever") / "system", folder)
    weights = folder / "ranker" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(
        UserError, match=rf"^{weights}: not a safetensors file, or truncated: .*; export the system again$"
    ):
        configs.read(folder)


def test_a_folder_of_other_documents(run: Place, exported: Callable[[str], Path], tmp_path: Path, said: Said) -> None:
    folder, second = changed(exported("retriever") / "system", tmp_path / "a", documents=39), tmp_path / "b"
    said()
    assert search(run, folder, "bara") == 2
    counted = "40 documents, and the system has 39; export the system again"
    assert said()[1] == f"error: {folder}/documents.jsonl: {counted}\n"
    shutil.copytree(exported("retriever") / "system", second)
    faiss.write_index(faiss.IndexFlatIP(8), str(second / "index.faiss"))
    assert search(run, second, "bara") == 2
    assert said()[1].startswith(f"error: {second}/index.faiss: 0 vectors, and the system has 40 documents")


def test_the_run_s_own_index_with_the_numbers_that_it_was_searched_with(
    beir: Path, encoder: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its vectors are those by which the run found neighbours; an index that has none is refused for these."""
    tree = deployed.config(beir, encoder)
    tree |= {"search": {"index": "IVF8,Flat", "probes": 3}, "encode": {**tree["encode"], "vectors": "float16"}}
    place = tiny.place(tmp_path / "ivf", tree)
    assert place("run") == 0
    for name, label in (("retriever", "retriever ranking (test)"), (deployed.NEIGHBOURS, deployed.NEIGHBOURS)):
        to = tmp_path / name
        assert place("export", str(to), "--system", name) == 0
        assert faiss.extract_index_ivf(faiss.read_index(str(to / "system" / "index.faiss"))).nprobe == 3
        system, itself = LoadedSystem.load(str(to / "system"), threads=1), ranked(place, label)
        for query, text in list(asked(place).items())[:4]:
            hits = system.search([text], 20)[0]
            assert [hit.doc_id for hit in hits] == [doc_id for doc_id, _ in itself[query]]
            assert [hit.score for hit in hits] == pytest.approx([score for _, score in itself[query]], abs=1e-5)
        wanted = [(to / "system", list(asked(place).values())[:2], 12)]
        (lists,) = searching.by_systems(wanted)
        assert searching.by_examples(wanted) == [[[hit["doc_id"] for hit in hits] for hits in lists]]
    monkeypatch.setattr(index, "holds_vectors", lambda _: False)
    said()
    assert place("export", str(tmp_path / "no"), "--system", deployed.NEIGHBOURS) == 2
    out, error = said()
    assert (out, error.count("\n")) == ("", 1)
    assert "search.index: IVF8,Flat holds no document's vector as it is" in error
