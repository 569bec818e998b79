"""Reading an experiment: the recipe found by name, `--set` paths, the run's place, and which numbers move what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from components.config import UserError
from tests import tiny
from workflows import recipes
from workflows.dag import Step, graph

BEIR, ENCODER = Path("data/toy"), Path("models/toy")


def read(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> recipes.Experiment:
    return recipes.read(tiny.write(tmp_path / "tiny.yaml", tree), list(assignments), Path("runs"))


@pytest.fixture
def ar2() -> dict[str, Any]:
    return tiny.ar2(BEIR, ENCODER)


def test_recipes_are_found_by_name() -> None:
    assert {"ar2", "dpr"} <= set(recipes.names())
    assert not {"dag", "parts", "commands", "cluster", "recipes"} & set(recipes.names())


def test_an_unknown_recipe_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tiny\.yaml: recipe: 'dprr'; accepted: .*ar2.*dpr"):
        read(tmp_path, {"recipe": "dprr"})
    with pytest.raises(UserError, match=r"tiny\.yaml: recipe: \['dpr'\]; accepted"):
        read(tmp_path, {"recipe": ["dpr"]})


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("retriver=1", r"retriver: unknown key; accepted: .*retriever"),
        ("retriever.modl=x", r"retriever\.modl: unknown key; accepted: model, warm, game"),
        ("retriever.model.model_name=x", r"retriever\.model\.model_name: unknown key; accepted: model, revision, "),
        ("controls.ance.batches=1", r"controls\.ance\.batches: unknown key; accepted: steps, batch"),
        ("bm25.index.stemer=x", r"bm25\.index\.stemer: unknown key; accepted: "),
        ("evaluate.entropy.k=3", r"evaluate\.entropy\.k: unknown key; accepted: documents, temperature"),
    ],
)
def test_an_unknown_key_names_the_accepted_ones(
    tmp_path: Path, ar2: dict[str, Any], assignment: str, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        read(tmp_path, ar2, assignment)


def test_a_missing_key_is_named(tmp_path: Path, ar2: dict[str, Any]) -> None:
    del ar2["retriever"]["warm"]["train"]["steps"]
    with pytest.raises(UserError, match=r"tiny\.yaml: retriever\.warm\.train\.steps: Field required"):
        read(tmp_path, ar2)


def test_set_follows_paths_through_keys_and_lists(tmp_path: Path, ar2: dict[str, Any]) -> None:
    config = read(
        tmp_path, ar2, "rounds=2", "retriever.game.train.losses.0.weight=0.5", "search.index=Flat", "seeds=[3, 4]",
        "bm25.search.k1=1.2", "k=7", "k=8",
    ).config  # fmt: skip
    assert config.rounds == 2
    assert config.retriever.game.train.losses[0].weight == 0.5
    assert config.search.index == "Flat"  # a key that the file does not have
    assert config.seeds == [3, 4]
    assert config.bm25.search.k1 == 1.2
    assert config.k == 8  # the last word


def test_set_changes_no_file(tmp_path: Path, ar2: dict[str, Any]) -> None:
    path = tiny.write(tmp_path / "tiny.yaml", ar2)
    before = path.read_text()
    recipes.read(path, ["rounds=2"], Path("runs"))
    assert path.read_text() == before


def test_a_set_value_is_the_same_as_one_in_the_file(tmp_path: Path, ar2: dict[str, Any]) -> None:
    ours = read(tmp_path, ar2, "retriever.game.train.learning_rate=2e-4").outcome.results
    ar2["retriever"]["game"]["train"]["learning_rate"] = 0.0002
    assert ours.fingerprint == read(tmp_path, ar2).outcome.results.fingerprint


def test_the_runs_place(tmp_path: Path, ar2: dict[str, Any]) -> None:
    assert read(tmp_path, ar2).run == Path("runs/tiny")
    assert read(tmp_path, ar2).name == "tiny"
    one, two = read(tmp_path, ar2, "k=7", "rounds=2").run, read(tmp_path, ar2, "rounds=2", "k=7").run
    assert re.fullmatch(r"runs/tiny-[0-9a-f]{6}", str(one))
    assert one == two
    assert one != read(tmp_path, ar2, "k=7").run


def test_what_a_recipe_refuses_is_the_users_mistake(tmp_path: Path, ar2: dict[str, Any]) -> None:
    ar2["controls"]["in_batch"] = None
    with pytest.raises(UserError, match=r"tiny\.yaml: controls: in-batch is played, and in_batch says not how"):
        read(tmp_path, ar2)


# What a number moves


def steps(experiment: recipes.Experiment) -> dict[str, Step]:
    return {node.label: node for node in graph(experiment.wanted)}


def moved(tmp_path: Path, tree: dict[str, Any], *assignments: str) -> set[str]:
    """Labels of the steps that lie elsewhere now."""
    before, after = steps(read(tmp_path, tree)), steps(read(tmp_path, tree, *assignments))
    assert before.keys() == after.keys()
    return {label for label in before if before[label].fingerprint != after[label].fingerprint}


def downstream(nodes: dict[str, Step], *labels: str) -> set[str]:
    """The steps that stand on some, and those themselves."""
    found = {nodes[label].fingerprint for label in labels}
    for node in nodes.values():  # inputs come first
        if any(before.fingerprint in found for before in node.upstream):
            found.add(node.fingerprint)
    return {label for label, node in nodes.items() if node.fingerprint in found}


@pytest.mark.parametrize(
    ("assignment", "first"),
    [
        ("data.path=data/other", ["data"]),
        ("tokens.max_tokens=100", ["tokens"]),
        ("bm25.index.stemmer=none", ["bm25 index"]),
        ("bm25.search.b=0.5", ["bm25 ranking"]),
        ("encode.precision=bf16",
         ["start vectors", "warm retriever vectors", "retriever 1 vectors", "control in-batch 1 vectors",
          "control ance 1 vectors"]),
        ("retriever.model.query_tokens=16", ["start retriever"]),
        ("ranker.model.seed=1", ["start ranker"]),
        ("retriever.warm.train.learning_rate=0.5", ["warm retriever"]),
        ("ranker.warm.mine.depth=9", ["warm ranker groups"]),
        ("retriever.game.mine.depth=9", ["retriever 1 groups"]),
        ("retriever.game.train.learning_rate=0.5", ["retriever 1"]),
        ("judge.precision=bf16", ["judged 1"]),
        ("rerank.depth=5", ["warm ranker over warm retriever", "ranker over retriever 1"]),
        ("controls.ance.learning_rate=0.5", ["control ance 1"]),
    ],
)  # fmt: skip
def test_a_number_moves_exactly_what_stands_on_it(
    tmp_path: Path, ar2: dict[str, Any], assignment: str, first: list[str]
) -> None:
    expected = downstream(steps(read(tmp_path, ar2)), *first)
    assert "results" in expected
    assert moved(tmp_path, ar2, assignment) == expected


def test_players_of_two_tokenizers_have_tokens_of_their_own(tmp_path: Path, ar2: dict[str, Any]) -> None:
    shared, apart = (steps(read(tmp_path, ar2, *more)) for more in ([], ["ranker.model.model=models/other"]))
    assert "ranker tokens" not in shared
    for label in ("warm ranker", "judged 1", "ranker 1", "ranker over retriever 1"):
        assert shared[label].inputs["tokens"] is shared["tokens"]
        assert apart[label].inputs["tokens"] is apart["ranker tokens"]
    for label in ("warm retriever", "retriever 1 groups", "retriever 1", "retriever 1 vectors", "control ance 1"):
        assert apart[label].inputs["tokens"] is apart["tokens"]


@pytest.mark.parametrize("key", ["retriever.model.document_tokens", "ranker.model.pair_tokens"])
def test_a_model_that_reads_more_than_is_kept_is_refused(tmp_path: Path, ar2: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=rf"{key.split('.')[-1]}: 600: no more than 512 are kept of a text"):
        steps(read(tmp_path, ar2, f"{key}=600"))


def test_more_steps_of_training_take_more_groups(tmp_path: Path, ar2: dict[str, Any]) -> None:
    before, after = (steps(read(tmp_path, ar2, *more)) for more in ([], ["retriever.game.train.steps=4"]))
    for label in ("retriever 1 groups", "retriever 1"):
        assert before[label].fingerprint != after[label].fingerprint
    assert (before["retriever 1 groups"].inputs["groups"], after["retriever 1 groups"].inputs["groups"]) == (12, 16)


def test_more_rounds_keep_what_was_played(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """The first round is the same game, whether or not another follows."""
    one, two = read(tmp_path, ar2), read(tmp_path, ar2, "rounds=2")
    kept = {node.fingerprint for node in graph(two.wanted)}
    assert {label for label, node in steps(one).items() if node.fingerprint not in kept} <= {
        "results", "ranker over retriever 1", "ranker over retriever 1 measures", "control in-batch 1 vectors",
        "control in-batch 1 ranking", "control: in-batch measures", "control: ance measures",
    }  # fmt: skip


def test_another_seed_moves_no_beginning(tmp_path: Path, ar2: dict[str, Any]) -> None:
    same = steps(read(tmp_path, ar2)).keys() - moved(tmp_path, ar2, "seeds=[2]")
    assert {"data", "tokens", "bm25 ranking", "BM25 measures", "start vectors", "start model measures"} <= same
    assert "warm retriever" not in same


def test_every_artifact_is_called_what_it_is(tmp_path: Path, ar2: dict[str, Any]) -> None:
    """No two steps of a plan have one label."""
    for assignments in ([], ["rounds=3"], ["seeds=[1,2]"], ["order=paper"], ["rank_every_round=true"]):
        nodes = graph(read(tmp_path, ar2, *assignments).wanted)
        labels = [node.label for node in nodes]
        assert sorted(labels) == sorted(set(labels))
