"""An encoder of sentences on sets with labels, in a whole run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import stats

from sparring.components.config import UserError
from sparring.components.data.tables import read
from sparring.components.data.vectors import DocumentVectors
from sparring.components.evaluation.measures import PER_QUERY
from sparring.components.evaluation.result_table import table
from sparring.workflows.experiments import loading
from tests.support import tiny, toy
from tests.support.sentence_sets import sentence_sets
from tests.support.sources import write


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sets")
    small = tiny.dpr(folder, encoder)
    return {"recipe": "sentences", "retriever": small["retriever"], "encode": small["encode"], **sentence_sets(folder)}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]) -> tiny.Place:
    place = tiny.place(tmp_path_factory.mktemp("sentences"), tree)
    assert place("run") == 0
    return place


def test_each_measure_has_its_sets_and_its_average(played: tiny.Place) -> None:
    rows = {(row["measure"], row["collection"]): row for row in played.metrics()["rows"]}
    assert set(rows) == {
        *((measure, name) for measure in ("Spearman", "Pearson") for name in ("Pairs", "Pairs dev", "average")),
        *(("accuracy", name) for name in ("Words", "Same", "average")),
        *((measure, "Pairs, positive pairs") for measure in ("R@1", "R@5")),
    }
    assert {row["system"] for row in rows.values()} == {"retriever"}
    assert rows["Spearman", "average"]["value"] == rows["Spearman", "Pairs"]["value"]
    both = [rows["accuracy", name]["value"] for name in ("Words", "Same")]
    assert rows["accuracy", "average"]["value"] == pytest.approx(np.mean(both))
    counts = {name: row["queries"] for (_, name), row in rows.items()}
    assert counts == {"Pairs": 24, "Pairs dev": 10, "Words": 18, "Same": 10, "Pairs, positive pairs": 8, "average": 28}
    assert [rows[key]["split"] for key in (("accuracy", "Words"), ("accuracy", "Same"))] == ["all", "test"]
    means = {(metric["measure"], metric["collection"]): metric for metric in played.metrics()["means"]}
    assert all(
        value["low"] < value["value"] < value["high"] for value in means.values() if value["measure"] == "Spearman"
    )


def test_the_correlation_is_that_of_the_stored_vectors(played: tiny.Place) -> None:
    data = played.artifact("Pairs: data")
    examples = pq.read_table(data / "examples.parquet").to_pylist()
    ids = pq.read_table(data / "documents.parquet")["doc_id"].to_pylist()
    held = DocumentVectors(played.artifact("Pairs: retriever vectors"))
    vectors = dict(zip(ids, held[np.arange(len(ids))].astype(np.float64), strict=True))
    cosines = [
        vectors[example["first"]]
        @ vectors[example["second"]]
        / np.linalg.norm(vectors[example["first"]])
        / np.linalg.norm(vectors[example["second"]])
        for example in examples
    ]
    row = next(
        metric
        for metric in played.metrics()["rows"]
        if (metric["measure"], metric["collection"]) == ("Spearman", "Pairs")
    )
    expected = stats.spearmanr(np.round(cosines, 6), [example["score"] for example in examples]).statistic
    assert row["value"] == pytest.approx(expected)
    values = read(played.artifact("Pairs: retriever similarity") / "per_query.parquet", PER_QUERY)
    assert values["query_id"].to_pylist()[:24] == [example["example_id"] for example in examples]


def test_a_sentence_does_not_find_itself(played: tiny.Place) -> None:
    ranking = pq.read_table(played.artifact("Pairs: retriever ranking (test)") / "ranking.parquet").to_pylist()
    assert len(ranking) == 8 * 5
    assert not [row for row in ranking if row["query_id"] == row["doc_id"]]


def test_a_word_and_sameness_are_learned(played: tiny.Place) -> None:
    rows = {row["collection"]: row["value"] for row in played.metrics()["rows"] if row["measure"] == "accuracy"}
    assert rows["Words"] > 0.8
    assert rows["Same"] > 0.7
    record = json.loads((played.artifact("Words: retriever transfer") / "artifact.json").read_text())["summary"]
    assert (record["classes"], record["examples"], len(record["inverse_penalties"])) == (2, 18, 3)


def test_tables_and_report(played: tiny.Place) -> None:
    lines = table(played.metrics()).splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [
        "Spearman",
        "Pearson",
        "accuracy",
        "Pairs, positive pairs, test split: 8 queries",
        "Pairs dev, dev split: 10 queries",
    ]
    assert [line.split()[0] for line in lines[3:5]] == ["Pairs", "average"]
    page = (played.runs / "tiny/report.html").read_text()
    assert page.count('<h2 id="cosine-similarity') == 2
    assert "rated 4 to 5: 8 pairs, mean" in page
    assert "Spearman over collections" in page


def test_the_set_can_be_searched_and_exported(played: tiny.Place, tmp_path: Path, said: tiny.Said) -> None:
    assert played("search", "bara comi", "-k", "2") == 0
    assert "test-" in said()[0]
    assert played("export", str(tmp_path / "out")) == 0
    assert (tmp_path / "out/rankings/retriever.trec").exists()


def test_two_encoders_are_compared(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Pair by pair and example by example, as any two systems."""
    files = {}
    itself = {key: value for key, value in tree.items() if key != "transfer"}
    itself["similarity"] = {"Pairs": {**tree["similarity"]["Pairs"], "retrieve": []}}
    for pooling in ("cls", "mean"):
        files[pooling] = str(tmp_path / f"{pooling}.yaml")
        tiny.write(Path(files[pooling]), {**itself, "retriever": {**tree["retriever"], "pooling": pooling}})
    report = {"recipe": "compare", "experiments": files, "baseline": "cls", "systems": ["retriever"]}
    place = tiny.place(tmp_path / "place", report)
    assert place("run") == 0
    rows = {
        (metric["measure"], metric["system"]): metric["value"]
        for metric in place.metrics()["rows"]
        if metric["split"] == "test"
    }
    compared = {metric["measure"]: metric for metric in place.metrics()["comparisons"]}
    for measure in ("Spearman", "Pearson"):
        difference = rows[measure, "mean: retriever"] - rows[measure, "cls: retriever"]
        assert compared[measure]["difference"] == pytest.approx(difference)
        assert compared[measure]["low"] < difference < compared[measure]["high"]
        assert 0 < compared[measure]["p"] <= 1


def test_vectors_are_whitened_by_other_texts(tmp_path: Path, tree: dict[str, Any]) -> None:
    """The vectors of the texts that it is fitted to have the mean zero and the identity as their covariance. Every set
    is measured behind the same layer, which sentence-transformers has too."""
    from sentence_transformers import SentenceTransformer

    texts = [toy.some_text(np.random.default_rng(i), 6) for i in range(80)]
    write(tmp_path / "texts.txt", *texts)
    shutil.copytree(tree["retriever"]["model"], tmp_path / "encoder")
    weights = load_file(tmp_path / "encoder" / "model.safetensors")
    draw = torch.Generator().manual_seed(0)
    for name in (name for name in weights if name.endswith("LayerNorm.weight")):  # of ones all states would sum to 0
        weights[name] = 0.5 + torch.rand(len(weights[name]), generator=draw)
    save_file(weights, tmp_path / "encoder" / "model.safetensors", metadata={"format": "pt"})
    retriever = {**tree["retriever"], "model": str(tmp_path / "encoder"), "pooling": "first_last", "similarity": "dot"}
    itself = {**tree, "retriever": retriever, "whiten": {"format": "lines", "path": str(tmp_path / "texts.txt")}}
    itself |= {"similarity": {"Pairs": {**tree["similarity"]["Pairs"], "retrieve": []}}}
    place = tiny.place(tmp_path / "place", itself)
    assert place("run") == 0
    folder = place.artifact("retriever whitened") / "model"
    white = SentenceTransformer(str(folder), device="cpu").encode(texts).astype(np.float64)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(white.T @ white / len(white), np.eye(white.shape[1]), atol=1e-2)
    held = DocumentVectors(place.artifact("Pairs: retriever vectors"))
    result = held[np.arange(len(held))]
    documents = pq.read_table(place.artifact("Pairs: data") / "documents.parquet")["text"].to_pylist()
    expected = SentenceTransformer(str(folder), device="cpu").encode(documents)
    np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)
    assert place("plan", "--set", "retriever.similarity=cosine") == 0
    assert place("run", "--set", "retriever.similarity=cosine") == 2


def test_the_accuracy_that_penalties_are_chosen_by_is_measured(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Of all examples where they are cross-validated, of train where there is no dev; nothing of test examples."""
    itself = {key: value for key, value in tree.items() if key != "similarity"}
    place = tiny.place(tmp_path / "place", {**itself, "classifier": {"folds": 3, "measures": ["dev accuracy"]}})
    assert place("run") == 0
    rows = {row["collection"]: row for row in place.metrics()["rows"]}
    assert {row["measure"] for row in rows.values()} == {"dev accuracy"}
    assert {name: row["queries"] for name, row in rows.items()} == {"Words": 18, "Same": 24, "average": 42}
    for name in ("Words", "Same"):
        record = json.loads((place.artifact(f"{name}: retriever transfer") / "artifact.json").read_text())["summary"]
        assert rows[name]["value"] == pytest.approx(record["dev_accuracy"])
    assert rows["average"]["value"] == pytest.approx((rows["Words"]["value"] + rows["Same"]["value"]) / 2)
    report = {**itself, "classifier": {"inverse_penalties": [1.0], "measures": ["dev accuracy"]}}
    with pytest.raises(UserError, match="dev accuracy: a penalty is chosen by it, and inverse_penalties has 1"):
        loading.read(tiny.write(tmp_path / "one.yaml", report), [], tmp_path)


def test_alignment_and_uniformity_stand_beside_a_papers(tmp_path: Path, tree: dict[str, Any]) -> None:
    """As the report's section has them, in their own unit."""
    columns = [
        {"measure": measure, "collection": "Pairs", "unit": "number", "values": {"retriever": value}}
        for measure, value in {"alignment": 0.177, "uniformity": -2.313}.items()
    ]
    itself = {key: value for key, value in tree.items() if key != "transfer"}
    expected = {"source": "Chuang et al. (2022), Table 2.11", "of": columns}
    place = tiny.place(tmp_path / "place", {**itself, "expected": expected})
    assert place("run") == 0
    result = json.loads((place.artifact("Pairs: retriever similarity") / "similarity.json").read_text())
    rows = {row["measure"]: row for row in place.metrics()["expected"]["rows"]}
    for measure, value in {"alignment": 0.177, "uniformity": -2.313}.items():
        assert rows[measure]["expected"] == value
        assert rows[measure]["value"] == result[measure]
        assert "which has no interval" in rows[measure]["sentence"]


def test_sets_of_one_name_are_the_same_sentences(tmp_path: Path, tree: dict[str, Any]) -> None:
    """Ids are numbers of lines, which tell no sentences apart; and part of a correlation is none."""
    itself = {key: value for key, value in tree.items() if key != "transfer"}
    pairs = {"dev": {**tree["similarity"]["Pairs dev"], "split": "dev"}, "test": tree["similarity"]["Pairs"]}
    files = {
        split: str(
            tiny.write(tmp_path / f"{split}.yaml", {**itself, "similarity": {"Pairs": {**item, "retrieve": []}}})
        )
        for split, item in pairs.items()
    }
    again = {"file": files["test"], "sets": [f"similarity.Pairs.data.path={tmp_path}/other.{{split}}.tsv"]}
    report = {
        "recipe": "compare",
        "baseline": "test",
        "systems": ["retriever"],
        "experiments": {**files, "other": again},
    }
    with pytest.raises(UserError, match="measured on different data, which both call 'Pairs'; accepted: the same, or"):
        loading.read(tiny.write(tmp_path / "both.yaml", report), [], tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"experiment": "x.yaml", "retriever": None, "seeds": [1], "sets": ["seeds=[4]"]},
            "sets: seeds: the key `seeds` sets them too; accepted: one of the two",
        ),
        ({"similarity": {}, "transfer": {}}, "no sets; accepted: one or more in `similarity` or `transfer`"),
        ({"experiment": "x.yaml"}, "say either `retriever` or `experiment`"),
        ({"sets": ["k=5"]}, "sets: they are of an `experiment`, and there is none; accepted: left out"),
        ({"transfer": {"Pairs": 0}}, "'Pairs' stands for something else too"),
        ({"transfer": {"average": 0}}, "'average' stands for something else too"),
        (
            {"transfer": {"X": {"data": {"format": "beir", "path": "x"}}}},
            "the format 'beir' has no labelled sentences. Use",
        ),
        ({"similarity": {"X": {"retrieve": ["AP"]}}}, "measure 'AP': accepted: a measure by judgements with a cutoff"),
    ],
)
def test_mistakes(tmp_path: Path, tree: dict[str, Any], change: dict[str, Any], says: str) -> None:
    forward = {"data": {"format": "tsv", "path": "x.tsv"}}
    full = {
        key: {name: {**forward, **(item or {})} for name, item in value.items()}
        if key in ("similarity", "transfer")
        else value
        for key, value in change.items()
    }
    with pytest.raises(UserError) as caught:
        loading.read(tiny.write(tmp_path / "bad.yaml", {**tree, **full}), [], tmp_path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_are_no_scores(tmp_path: Path, tree: dict[str, Any], said: tiny.Said) -> None:
    """Which a file's header says, so it is found when the file has been read."""
    wrong = {"similarity": {"X": {"data": tree["transfer"]["Words"]["data"], "split": "all"}}, "transfer": {}}
    assert tiny.place(tmp_path / "one", {**tree, **wrong})("run") == 2
    assert "the sentences have labels, not scores. Use them in the section `transfer`." in said()[1]
    wrong = {"similarity": {}, "transfer": {"X": {"data": tree["similarity"]["Pairs"]["data"], "split": "dev"}}}
    assert tiny.place(tmp_path / "two", {**tree, **wrong})("run") == 2
    assert "the split 'dev' has no labelled sentences. Use one of these splits: test" in said()[1]
    pairs = {"similarity": {"X": {**tree["similarity"]["Pairs"]}}, "transfer": {}}
    pairs["similarity"]["X"]["data"] = {**pairs["similarity"]["X"]["data"], "positive": 6}
    assert tiny.place(tmp_path / "four", {**tree, **pairs})("run") == 2
    assert "have some: (none); of rated pairs those count whose score is `data.positive` or more" in said()[1]
    flat = tmp_path / "flat.tsv"
    flat.write_text("score\tsentence1\tsentence2\n3\tone\ttwo\n3\tthree\tfour\n")
    wrong = {"similarity": {"X": {"data": {"format": "tsv", "path": str(flat)}, "split": "all"}}, "transfer": {}}
    assert tiny.place(tmp_path / "three", {**tree, **wrong})("run") == 2
    assert "the split 'all' has 2 pairs, rated 3. Provide pairs with different ratings." in said()[1]


def test_an_encoder_without_a_ranking_is_exported(tmp_path: Path, tree: dict[str, Any], said: tiny.Said) -> None:
    """Sets of pairs alone have nothing to search."""
    pairs = {name: {**item, "retrieve": []} for name, item in tree["similarity"].items()}
    place = tiny.place(tmp_path, {**tree, "similarity": pairs, "transfer": {}})
    assert place("run") == 0
    said()
    assert place("export", str(tmp_path / "out")) == 0
    assert said()[0] == f'{tmp_path}/out/retriever (retriever): SentenceTransformer("{tmp_path}/out/retriever")\n'
    card = (tmp_path / "out" / "retriever" / "README.md").read_text()
    assert "On Pairs, 24 queries of the split test:\n\n| system | Spearman | Pearson |" in card
    assert "Nothing was trained: this is the start model." in card
    assert "this model |" not in card


def test_too_few_sentences_to_retrieve_from_are_told_by_the_key(
    tmp_path: Path, tree: dict[str, Any], said: tiny.Said
) -> None:
    """Nobody has set a `k`."""
    write(tmp_path / "few.tsv", "score\tsentence1\tsentence2", "5\ta b\ta c", "0\td e\tf g")
    few = {"data": {"format": "tsv", "path": str(tmp_path / "few.tsv")}, "split": "all", "retrieve": ["R@5"]}
    place = tiny.place(tmp_path / "place", {**tree, "similarity": {"Few": few}, "transfer": {}})
    assert place("run") == 2
    assert "the collection has 4 documents. Use 1 to 4. (If sentences are retrieved, k is the l" in said()[1]
