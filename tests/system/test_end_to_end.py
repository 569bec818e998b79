"""Whole runs of whole recipes on a toy collection: BM25, both models, every step, the files at the end."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from safetensors.numpy import load_file

from sparring.components.evaluation.significance import THE_METHOD, THIS_TRAINING
from sparring.workflows.experiments import loading
from sparring.workflows.report.verdict import in_prose
from sparring.workflows.store.dag import graph
from tests.support import tiny, toy
from tests.support.asking import asked
from tests.support.tiny import Place, Said


def systems(place: Place) -> list[str]:
    """Those that a run measured, in order."""
    return list(dict.fromkeys(row["system"] for row in place.metrics()["rows"]))


def value(place: Place, system: str, measure: str) -> float:
    """A measure of a system."""
    values = [r["value"] for r in place.metrics()["rows"] if (r["system"], r["measure"]) == (system, measure)]
    assert len(values) == 1
    return float(values[0])


def copy_of_beginning(played: Place, place: Place, *more: str) -> None:
    """What needs Java is done already: it is the same in every run of the collection."""
    for label in ("data", "bm25 index", *more):
        shutil.copytree(played.artifact(label), place.store / played.artifact(label).name)
    wanted = {node.name for node in graph(loading.read(place.config, [], place.runs).wanted)}
    for ranking in played.store.glob("lucene_search-*"):
        if ranking.name in wanted:
            shutil.copytree(ranking, place.store / ranking.name)


def predictions(place: Place, ranker: str, group: dict[str, Any]) -> list[float]:
    """What sentence-transformers computes for the documents of a group with a ranker of the run."""
    from sentence_transformers import CrossEncoder

    data = place.artifact("data")
    query = {row["query_id"]: row["text"] for row in pq.read_table(data / "queries.parquet").to_pylist()}
    documents = pq.read_table(data / "documents.parquet").to_pylist()
    text = {row["doc_id"]: f"{row['title']} {row['text']}".strip() for row in documents}
    model = CrossEncoder(str(place.artifact(ranker) / "model"), device="cpu", local_files_only=True)
    pairs = [(query[group["query_id"]], text[doc_id]) for doc_id in group["doc_ids"]]
    return [float(score) for score in model.predict(pairs)]


UNTRAINED = ["start model", "BM25 + start model, reciprocal", "BM25 + start model, interpolated"]


# In one process


def test_what_has_a_gpu(played: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where models run, and where vectors are compared; never where texts are read or Java runs."""
    assert asked("demo.yaml", monkeypatch, tmp_path, played) == {
        "tokenize": ("map", False),
        "mine": ("map", False),
        "lucene_index": ("its own", False),
        "lucene_search": ("java", False),
        "encode_documents": ("map", True),
        "encode_queries": ("map", True),
        "search": ("map", True),
        "score_groups": ("score", True),
        "rerank": ("score", True),
        "train": ("train", True),
    }


def test_ar2_leaves_every_artifact_of_its_plan(played: Place) -> None:
    wanted = loading.read(played.config, [], played.runs).wanted
    assert {path.name for path in played.store.iterdir()} == {node.name for node in graph(wanted)}
    metrics = played.metrics()
    assert [step["label"] for step in metrics["steps"]] == [node.label for node in graph(wanted)]
    assert all(step["executed"] and step["seconds"] >= 0 for step in metrics["steps"])
    for folder in played.store.iterdir():  # and nothing else lies around
        assert not list(folder.glob(".*"))
        assert not list(folder.glob("progress.json"))
        assert not list(folder.glob("checkpoints"))
        assert not list(folder.glob("failure.txt"))


def test_ar2_measures_what_the_paper_compares(played: Place) -> None:
    rows = played.metrics()["rows"]
    assert {(row["collection"], row["split"], row["seed"], row["queries"]) for row in rows} == {("toy", "test", 1, 4)}
    assert {row["measure"] for row in rows} == {"RR@10", "Success@5", "R@100"}
    rounds = {row["system"]: row["round"] for row in rows}
    assert (rounds["BM25"], rounds["warm retriever"], rounds["retriever 1"]) == (None, 0, 1)
    compared = {(comparison["system"], comparison["baseline"]) for comparison in played.metrics()["comparisons"]}
    assert {("retriever 1", "warm retriever"), ("retriever 1", "control: ance")} <= compared
    for comparison in played.metrics()["comparisons"]:
        score, baseline = (
            value(played, comparison["system"], comparison["measure"]),
            value(played, comparison["baseline"], comparison["measure"]),
        )
        assert comparison["difference"] == pytest.approx(score - baseline)
        assert 0 < comparison["p"] <= 1


def test_the_best_of_both_kinds_lead(played: Place, said: Said) -> None:
    """They were selected on the dev queries, and their comparison is the first."""
    selection = json.loads((played.artifact("selection") / "selection.json").read_text())
    candidates = {candidate["system"]: candidate for candidate in selection["candidates"]}
    assert list(candidates) == systems(played)
    assert {name for name, candidate in candidates.items() if not candidate["trained"]} == {"BM25", *UNTRAINED}
    for trained, role in ((True, "system"), (False, "baseline")):
        best = max(candidate["value"] for candidate in selection["candidates"] if candidate["trained"] is trained)
        assert candidates[selection[role]]["value"] == best
    metrics = played.metrics()
    assert (metrics["leading"]["system"], metrics["leading"]["baseline"]) == (
        selection["system"],
        selection["baseline"],
    )
    assert [metrics["comparisons"][0][role] for role in ("system", "baseline")] == [
        selection["system"],
        selection["baseline"],
    ]
    assert played("show") == 0
    words = " ".join(said()[0].split())
    assert words.endswith(" ".join(metrics["verdict"]["sentences"]))
    assert f"The compared systems were chosen on the {selection['queries']} dev queries." in words
    best = f"The best trained system on the dev queries is {in_prose(selection['system'])}. RR@10 "
    assert metrics["verdict"]["sentences"][0].startswith(best)
    assert best in (played.runs / "tiny" / "report.html").read_text()


def test_without_dev_queries_nothing_is_selected(
    played: Place, beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    """The weights of fusions are the defaults, and the table says so."""
    folder = tmp_path / "toy"
    shutil.copytree(beir, folder)
    (folder / "qrels" / "dev.tsv").unlink()
    tree = {**tiny.dpr(folder, encoder), "train": None, "search": {"index": "Flat"}}
    tree["retriever"]["layers"] = 1
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    said()
    assert systems(place) == [
        "BM25",
        "start model",
        "whole start model",
        "BM25 + whole start model, reciprocal",
        "BM25 + whole start model, interpolated",
    ]
    for fitted in place.store.glob("fit_fusion-*/fusion.json"):
        record = json.loads(fitted.read_text())
        assert (record["chosen"]["weight"], record["chosen"]["c"], record["queries"], record["tried"]) == (
            0.5,
            60.0,
            0,
            [],
        )
    assert place("show") == 0
    words = " ".join(said()[0].split())
    assert "No separate queries chose these systems: no query of 'dev' is judged, so weights of fusions are" in words


def test_unlike_players_play(played: Place, beir: Path, toys: Path, tmp_path: Path, encoder: Path) -> None:
    """Two towers of one layer under a ranker of two, each player with a tokenizer of its own.

    The ranker's scores are those of the model that was exported, on the texts.
    """
    tree = tiny.ar2(beir, encoder)
    tree["retriever"]["model"] |= {"towers": "separate", "layers": 1}
    tree["ranker"]["model"]["model"] = str(toy.write_encoder(toys / "bytes", "roberta"))
    tree["controls"] = {}
    place = tiny.place(tmp_path, tree)
    copy_of_beginning(played, place)
    assert place("run") == 0
    judged = pq.read_table(place.artifact("judged 1") / "groups.parquet").to_pylist()[0]
    assert judged["teacher"] == pytest.approx(predictions(place, "ranker 1", judged), abs=1e-5)


def test_bm25_finds_documents_by_their_words(played: Place) -> None:
    """Queries are the first words of their documents: Lucene must find most of them."""
    assert value(played, "BM25", "RR@10") > 0.4
    ranking = pq.read_table(played.artifact("bm25 ranking (test)") / "ranking.parquet").to_pydict()
    assert set(ranking["query_id"]) <= {f"q{i}" for i in range(24)}
    assert max(ranking["rank"]) <= 20


def test_the_teacher_has_not_seen_its_groups(played: Place) -> None:
    """The retriever's groups of a round are other draws than those its ranker was fitted on."""
    ranker = pq.read_table(played.artifact("ranker 1 groups") / "groups.parquet")
    retriever = pq.read_table(played.artifact("retriever 1 groups") / "groups.parquet")
    judged = pq.read_table(played.artifact("judged 1") / "groups.parquet")
    assert ranker["doc_ids"].to_pylist() != retriever["doc_ids"].to_pylist()
    assert judged.drop(["teacher"]) == retriever.drop(["teacher"])
    assert retriever["teacher"].null_count == len(retriever)
    assert [len(row) for row in judged["teacher"].to_pylist()] == [4] * len(judged)


def test_dpr(played: Place, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """With the negatives of BM25, whose ranking of the test queries another run had already."""
    place = tiny.place(tmp_path, tiny.dpr(beir, encoder))
    copy_of_beginning(played, place)
    assert place("run") == 0
    assert systems(place) == ["BM25", *UNTRAINED, "retriever"]
    executed = {step["label"]: step["executed"] for step in place.metrics()["steps"]}
    assert not executed["data"]
    assert not executed["bm25 index"]
    assert executed["retriever"]
    assert value(place, "BM25", "RR@10") == value(played, "BM25", "RR@10")
    assert value(place, "start model", "RR@10") == value(played, "start model", "RR@10")


def test_training_teaches(beir: Path, encoder: Path, played: Place, tmp_path: Path) -> None:
    """A retriever of two random layers learns which words its queries share with their documents."""
    tree = tiny.dpr(beir, encoder)
    tree["train"] |= {"updates": 60, "batch": 16, "learning_rate": 5e-3}
    tree["train"]["losses"][0]["options"] = {"temperature": 0.1}
    tree["negatives"] = {"negatives": 0}
    tree["evaluate"] = {"split": "train", "measures": ["RR@10"]}
    place = tiny.place(tmp_path, tree)
    copy_of_beginning(played, place)
    assert place("run", "--until", "retriever measures") == 0
    assert place("run", "--until", "start model measures") == 0
    records = [json.loads(path.read_text()) for path in place.store.glob("evaluate-*/artifact.json")]
    measured = {record["label"]: record["summary"]["measures"]["RR@10"] for record in records}
    assert measured["retriever measures"] > measured["start model measures"] + 0.3
    note = loading.read(place.config, [], place.runs).outcome.note
    assert note.endswith("The measured queries, of `train`, are those that it learnt from.")


@pytest.mark.parametrize("factory", ["Flat", "HNSW8"])
def test_with_an_index(played: Place, beir: Path, encoder: Path, tmp_path: Path, factory: str) -> None:
    """An index that finds everything gives the same measures as exact search, and goes out with the export."""
    import faiss

    tree = {**tiny.dpr(beir, encoder), "search": {"index": factory}, "train": None}
    place = tiny.place(tmp_path / "place", tree)
    copy_of_beginning(played, place)
    assert place("run") == 0
    assert systems(place) == ["BM25", *UNTRAINED]
    lead = place.metrics()["leading"]
    assert (lead["system"], lead["baseline"], lead["why"]) == ("start model", "BM25", "no system was trained")
    assert value(place, "start model", "RR@10") == pytest.approx(value(played, "start model", "RR@10"))
    assert place("export", str(tmp_path / "out")) == 0
    assert faiss.read_index(str(tmp_path / "out" / "index.faiss")).ntotal == 40


def test_two_seeds_are_two_games_on_one_beginning(played: Place, tmp_path: Path) -> None:
    place = played.copy(tmp_path / "seeds")
    assert place("run", "--set", "seeds=[1,2]", "--set", "controls.include=[]") == 0
    run = next(path.name for path in place.runs.iterdir() if path.name != "tiny")
    metrics = place.metrics(run)
    assert {row["seed"] for row in metrics["rows"] if row["system"] == "retriever 1"} == {1, 2}
    assert {tuple(comparison["seeds"]) for comparison in metrics["comparisons"]} == {(1, 2)}
    assert {comparison["test"] for comparison in metrics["comparisons"]} == {THIS_TRAINING, THE_METHOD}
    values = {(r["system"], r["measure"]): r["value"] for r in metrics["rows"] if r["seed"] == 1}
    assert all(
        values[row["system"], row["measure"]] == row["value"]
        for row in played.metrics()["rows"]
        if not row["system"].startswith("control")
    )
    executed = [step["label"] for step in metrics["steps"] if step["executed"]]
    assert all("(seed 2)" in label or "measures" in label or label in ("selection", "results") for label in executed)


def test_in_the_papers_order_the_retriever_learns_before_the_ranker(played: Place, tmp_path: Path) -> None:
    """Round 1 as in Algorithm 1: the warm ranker teaches the retriever, whose ranking the ranker then learns from."""
    place = played.copy(tmp_path / "order")
    tree = yaml.safe_load(place.config.read_text())
    tiny.write(place.config, {**tree, "order": "paper", "controls": {}})
    assert place("run") == 0
    executed = [step["label"] for step in place.metrics()["steps"] if step["executed"]]
    assert executed.index("retriever 1 ranking (train)") < executed.index("ranker 1 groups")
    assert executed.index("judged 1") < executed.index("ranker 1")
    # In both orders the retriever's groups are the same, drawn from the warm ranking; their teacher is not.
    assert "retriever 1 groups" not in executed
    scores = {run: pq.read_table(run.artifact("judged 1") / "groups.parquet")["teacher"] for run in (played, place)}
    assert scores[played] != scores[place]
    judged = pq.read_table(place.artifact("judged 1") / "groups.parquet").to_pylist()[0]
    assert judged["teacher"] == pytest.approx(predictions(place, "warm ranker", judged), abs=1e-5)
    # The ranker's groups are of another ranking than in the released order.
    groups = [pq.read_table(run.artifact("ranker 1 groups") / "groups.parquet") for run in (played, place)]
    assert groups[0] != groups[1]
    ranking = pq.read_table(place.artifact("retriever 1 ranking (train)") / "ranking.parquet").to_pylist()
    listed = {(row["query_id"], row["doc_id"]) for row in ranking if row["rank"] <= 12}  # 10 and a query's positives
    for row in groups[1].to_pylist():
        mined = [doc for doc, target in zip(row["doc_ids"], row["targets"], strict=True) if target == 0]
        assert {(row["query_id"], doc_id) for doc_id in mined} <= listed


def test_experiments_on_one_board(played: Place, tmp_path: Path) -> None:
    """What was played is not played again, and every row and step says whose it is."""
    place = played.copy(tmp_path / "board")
    base, derived = tmp_path / "one.yaml", tmp_path / "other.yaml"
    place.config.rename(base)
    tiny.write(derived, {"base": "one.yaml", "retriever": {"game": {"mine": {"negatives": 1}}}})
    tiny.write(
        place.config,
        {
            "recipe": "compare",
            "experiments": {"AR2": str(base), "fewer": str(derived)},
            "baseline": "AR2",
            "systems": ["retriever 1"],
            "other_systems": ["BM25", "warm retriever"],
        },
    )
    assert place("run") == 0
    assert systems(place) == ["BM25", "warm retriever", "AR2: retriever 1", "fewer: retriever 1"]
    assert value(place, "AR2: retriever 1", "RR@10") == value(played, "retriever 1", "RR@10")
    executed = {step["label"] for step in place.metrics()["steps"] if step["executed"]}
    assert executed - {"results"} == {
        f"fewer: {label}"
        for label in (
            "retriever 1 groups",
            "judged 1",
            "retriever 1",
            "retriever 1 vectors",
            "retriever 1 queries (test)",
            "retriever 1 ranking (test)",
            "retriever 1 measures",
        )
    }


# Through Ray


RAY: dict[str, Any] = {"mode": "ray", "retries": 0, "map": {"workers": 2, "threads": 1}}


@pytest.mark.usefixtures("ray")
def test_dpr_through_ray_is_the_same(
    played: Place, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One training worker of one thread, and encoding cut among two workers: the same bits as in one process."""
    monkeypatch.setattr(
        "sparring.workflows.commands.shared_arguments.leave", lambda: None
    )  # the session serves other tests too
    tree = {**tiny.dpr(beir, encoder), "negatives": {"negatives": 0}}
    inline, place = tiny.place(tmp_path / "inline", tree), tiny.place(tmp_path / "ray", tree, **RAY)
    for target in (inline, place):
        copy_of_beginning(played, target, "start retriever", "tokens")
        assert target("run", "--until", "retriever vectors") == 0
    names = [path.name for path in inline.store.glob("[et][nr]*")]
    assert sorted(name.partition("-")[0] for name in names) == ["encode_documents", "train"]
    for name in names:
        files, expected = tiny.contents(place.store / name), tiny.contents(inline.store / name)
        same = [file for file in expected if file.endswith((".npy", ".safetensors"))]
        assert same
        assert {file: files[file] for file in same} == {file: expected[file] for file in same}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray")
def test_ar2_through_ray_with_two_training_workers(
    played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers share each batch: the same gradient but for rounding, and so the same rankings but for ties."""
    monkeypatch.setattr("sparring.workflows.commands.shared_arguments.leave", lambda: None)
    tree = yaml.safe_load(played.config.read_text())
    place = tiny.place(tmp_path, tree, **RAY, train={"workers": 2, "threads": 1})
    assert place("run") == 0
    assert systems(place) == systems(played)
    values = {(row["system"], row["measure"]): row["value"] for row in played.metrics()["rows"]}
    for row in place.metrics()["rows"]:
        assert row["value"] == pytest.approx(values[row["system"], row["measure"]], abs=0.05)
    again = place.metrics()["rows"]
    assert place("run") == 0
    assert place.metrics()["rows"] == again
    assert not any(step["executed"] for step in place.metrics()["steps"])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray")
def test_steps_at_once_give_the_same(played: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both controls, the game, BM25 and all that is measured, as processors come free: every bit is the same."""
    monkeypatch.setattr("sparring.workflows.commands.shared_arguments.leave", lambda: None)
    pool = {"workers": 1, "threads": 1}
    place = tiny.place(
        tmp_path, yaml.safe_load(played.config.read_text()), **{**RAY, "map": pool}, train=pool, parallel_steps=3
    )
    assert place("run") == 0
    assert tiny.results(place.store) == tiny.results(played.store)
    spans = sorted((record["started"], record["seconds"]) for record in tiny.records(place.store))
    assert any(later < began + seconds for (began, seconds), (later, _) in itertools.pairwise(spans))


def test_behind_a_closed_gate_the_retriever_stays_as_it_is(
    played: Place, beir: Path, tmp_path: Path, encoder: Path, said: tiny.Said
) -> None:
    """The toy's ranker begins from the warm retriever, has the rankings' scores beside its own, and is not good enough
    for a gate that nothing opens."""
    tree = tiny.ar2(beir, encoder)
    tree["ranker"] |= {"encoder": "warm retriever", "prior": {"scores": ["retriever", "bm25"]}}
    tree |= {"gate": {"level": 1e-9}, "evaluate": {"split": "train", "select": "test"}, "controls": {}}
    place = tiny.place(tmp_path, tree)
    copy_of_beginning(played, place)
    assert place("run") == 0
    printed = "".join(said())
    assert "The retriever learns nothing in this round, and stays as it was: RR@10 is" in printed
    assert "4 queries of test" in printed
    assert "ranker.warm.train.updates" in printed
    assert "added to the ranker's" not in printed, "they are already"
    note = "teacher 1 gate: The retriever learns nothing in this round, and stays as it was: RR@10 is"
    assert note in printed.partition("Higher is better")[2], "said below the table too"
    assert note in (place.runs / "tiny" / "report.html").read_text()
    assert len(pq.read_table(place.artifact("judged 1") / "groups.parquet")) == 0
    weights = [place.artifact(label) / "model" / "model.safetensors" for label in ("warm retriever", "retriever 1")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert value(place, "retriever 1", "RR@10") == value(place, "warm retriever", "RR@10")
    assert place("export", str(tmp_path / "out")) == 0
    card = (tmp_path / "out/retriever/README.md").read_text()
    recipe = card.partition("1. warm retriever: 3 updates of")[2]
    assert "\n2. retriever 1: no update, as its round was not played\n" in recipe
    assert set(json.loads((place.artifact("teacher 1 weights") / "weights.json").read_text())) == {
        "ranker",
        "retriever",
        "bm25",
    }
    started, warm = (place.artifact(label) / "model" for label in ("start ranker", "warm retriever"))
    names = {"layer.0.attention.self.query.weight", "embeddings.word_embeddings.weight"}
    start_weights, warm_weights = (load_file(path / "model.safetensors") for path in (started, warm))
    assert all(
        any(name.endswith(end) and (start_weights[name] == warm_weights[name]).all() for name in start_weights)
        for end in names
    )
