"""DiffCSE on texts, measured on labelled sentences, and DPR with DiffCSE, in whole runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.support import tiny, toy
from tests.support.pretrainings import LIKELIHOOD
from tests.support.sentence_sets import sentence_sets
from tests.support.sources import write
from tests.support.tiny import Said
from tests.support.trainings import lines

CONTRAST = {"function": tiny.CROSS_ENTROPY, "over": "batch", "options": {"temperature": 0.05}}


def over(*discriminators: str) -> list[dict[str, Any]]:
    """Losses of retrieval and of differences."""
    return [CONTRAST, *({"function": LIKELIHOOD, "over": name, "weight": 0.005} for name in discriminators)]


@pytest.fixture
def generator(encoder: Path) -> dict[str, Any]:
    return {"model": {"model": str(encoder), "layers": 1, "document_tokens": 24, "dropout": 0.0}}


@pytest.fixture
def tree(encoder: Path, generator: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """DiffCSE on a file of sentences, with two trainings of a moment."""
    small = tiny.dpr(tmp_path, encoder)
    texts = tmp_path / "texts.txt"
    rng = np.random.default_rng(0)
    write(texts, *(toy.some_text(rng, 6) for _ in range(40)))
    return {
        "recipe": "diffcse",
        "seeds": [1, 2],
        "data": {"format": "lines", "path": str(texts)},
        "retriever": {**small["retriever"], "dropout": 0.1},
        "encode": small["encode"],
        "pretrain": {
            "objective": "diffcse",
            "generator": generator,
            "train": {**tiny.training(updates=2, batch=8), "losses": over("discriminator")},
        },
        **sentence_sets(tmp_path),
    }


def test_the_encoder_learns_from_texts_and_is_measured_on_sentences(tree: dict[str, Any], tmp_path: Path) -> None:
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    rows = place.metrics()["rows"]
    assert {(row["system"], row["seed"]) for row in rows} == {
        (name, seed) for name in ("start model", "retriever") for seed in (1, 2)
    }
    compared = [metric for metric in place.metrics()["comparisons"] if metric["measure"] == "Spearman"]
    assert {(item["system"], item["baseline"]) for item in compared} == {("retriever", "start model")}
    training = place.artifact("pre-training (seed 1)")
    assert {key for key in lines(training)[0] if key.endswith(")")} == {
        "cross_entropy (batch)",
        "negative_log_likelihood (discriminator)",
    }
    saved, start = (
        load_file(item / "model/model.safetensors") for item in (training, place.artifact("start retriever"))
    )
    assert saved.keys() == start.keys()
    assert place("export", str(tmp_path / "out")) == 0
    card = (tmp_path / "out" / "retriever" / "README.md").read_text()
    for part in (
        "# texts.txt: retriever\n",
        "The collection texts.txt:\n\n- 40 documents",
        "| texts.txt | this model |\n",
        "On Pairs, 24 queries of the split test:",
        "On Words, 18 queries of the split all:",
        "On Pairs, positive pairs, 8 queries",
        "Averages over the sets:\n\n| system | Spearman | Pearson | acc",
    ):
        assert part in card, part
    assert "| Pairs" not in card


def test_simcse_needs_no_generator(tree: dict[str, Any], tmp_path: Path, said: Said) -> None:
    tree["pretrain"] = {"objective": "simcse", "train": {**tree["pretrain"]["train"], "losses": over()}}
    assert tiny.place(tmp_path / "place", tree)("plan") == 0
    assert "generator" not in said()[0]


@pytest.mark.parametrize("objective", ["simcse", "diffcse"])
def test_the_checkpoint_that_is_best_on_rated_pairs_is_kept(
    tree: dict[str, Any], tmp_path: Path, objective: str
) -> None:
    """By Spearman's correlation as the step `similarity` finds it with the model that is kept."""
    dev = tree["similarity"]["Pairs dev"]
    train = {
        **tiny.training(updates=6, batch=8),
        "learning_rate": 0.01,
        "losses": over("discriminator"),
        "validate_on_dev": {"every": 1, "measure": "Spearman"},
    }
    tree["pretrain"] |= {"objective": objective, "rated": dev["data"], "train": train}
    if objective == "simcse":
        tree["pretrain"] |= {"generator": None, "train": {**train, "losses": over()}}
    tree |= {"seeds": [1], "transfer": {}, "similarity": {"Pairs dev": dev}}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    looks = [line["dev Spearman"] for line in lines(place.artifact("pre-training")) if "dev Spearman" in line]
    assert len(set(looks)) > 2
    (kept,) = (
        row["value"] for row in place.metrics()["rows"] if (row["system"], row["measure"]) == ("retriever", "Spearman")
    )
    assert kept == pytest.approx(max(looks), abs=1e-6)
    labels = [step["label"] for step in place.metrics()["steps"]]
    assert {"data", "tokens", "Pairs dev: data", "Pairs dev: tokens"} <= set(labels)
    assert len(set(labels)) == len(labels)


def test_masked_language_modelling_can_stand_beside_simcse(tree: dict[str, Any], tmp_path: Path, encoder: Path) -> None:
    """With the first tokens of each text; sets are measured whole, by vectors of the encoder alone."""
    losses = [*over(), {"function": LIKELIHOOD, "over": "masked", "weight": 0.1}]
    tree |= {"seeds": [1], "transfer": {}}
    tree["pretrain"] = {
        "objective": "simcse",
        "masking": {"rate": 0.15, "unit": "tokens"},
        "text_tokens": 8,
        "head": {"model": str(encoder), "document_tokens": 24},
        "train": {**tree["pretrain"]["train"], "losses": losses},
    }
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    assert {key for key in lines(place.artifact("pre-training"))[0] if key.endswith(")")} == {
        "cross_entropy (batch)",
        "negative_log_likelihood (masked)",
    }
    saved, start = (
        load_file(place.artifact(name) / "model/model.safetensors") for name in ("pre-training", "start retriever")
    )
    assert saved.keys() == start.keys()


def test_insertions_and_deletions_are_options(tree: dict[str, Any], tmp_path: Path) -> None:
    """Of the edits that DiffCSE detects, and of copies that are negatives of SimCSE; deletions ask no generator."""
    tree |= {"seeds": [1], "transfer": {}}
    generator = tree["pretrain"].pop("generator")
    detecting = {**tree["pretrain"], "difference": {"edits": ["delete"], "edits_of": "both"}}
    contrasting = {
        "objective": "simcse",
        "augmentation": {"role": "negative", "edits": ["insert"]},
        "generator": generator,
        "train": {**detecting["train"], "losses": over()},
    }
    tree["pretrain"] = [detecting, contrasting]
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    assert [len(lines(place.artifact(f"pre-training {i}"))) for i in (1, 2)] == [2, 2]


def test_masked_language_modelling_can_come_first(tree: dict[str, Any], tmp_path: Path) -> None:
    """From random weights: each phase goes on from the one before it, and each is measured."""
    masked = {
        "bottleneck": {"task": "masked"},
        "train": {**tiny.training(updates=2, batch=8), "losses": [{"function": LIKELIHOOD, "over": "encoder"}]},
    }
    tree |= {"seeds": [1], "pretrain": [masked, tree["pretrain"]]}
    tree["retriever"] |= {"weights": "random"}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    models = [
        place.artifact(name) / "model/model.safetensors"
        for name in ("start retriever", "pre-training 1", "pre-training 2")
    ]
    start, first, second = (load_file(path)["encoder.layer.0.attention.self.query.weight"] for path in models)
    pretrained = load_file(Path(tree["retriever"]["model"]) / "model.safetensors")
    assert not start.equal(pretrained["encoder.layer.0.attention.self.query.weight"])
    assert not first.equal(start)
    assert not second.equal(first)
    assert {row["system"] for row in place.metrics()["rows"]} == {"start model", "pre-training 1", "retriever"}


def test_seeds_can_share_a_training(tree: dict[str, Any], tmp_path: Path, said: Said) -> None:
    """A phase or a generator with a seed of its own."""

    def masked(view: str) -> dict[str, Any]:
        return {**tiny.training(updates=2, batch=8), "losses": [{"function": LIKELIHOOD, "over": view}]}

    first = {"seed": 7, "bottleneck": {"task": "masked"}, "train": masked("encoder")}
    tree["pretrain"]["generator"] |= {"seed": 7, "train": masked("tokens")}
    tree |= {"seeds": [1, 2], "pretrain": [first, tree["pretrain"]]}
    assert tiny.place(tmp_path / "place", tree)("plan") == 0
    labels = [line.split("  ")[0] for line in said()[0].splitlines() if "  train  " in line]
    assert labels == ["pre-training 1", "generator", "pre-training 2 (seed 1)", "pre-training 2 (seed 2)"]


def test_the_encoder_of_each_seed_can_be_used_elsewhere(
    tree: dict[str, Any], beir: Path, encoder: Path, tmp_path: Path, said: Said
) -> None:
    """By the recipe `sentences`, and as what a retriever's training begins from."""
    trained = str(tiny.write(tmp_path / "trained.yaml", tree))
    requests = {"recipe": "sentences", "experiment": trained, "seeds": [1, 2], **sentence_sets(tmp_path)}
    assert tiny.place(tmp_path / "measured", requests)("plan") == 0
    report = said()[0]
    assert len(re.findall(r"^pre-training \(seed \d\)  ", report, re.M)) == 2
    assert "Pairs: retriever (seed 2) vectors" in report
    begins = {**tiny.dpr(beir, encoder), "start_from": trained, "retriever": tree["retriever"]}
    assert tiny.place(tmp_path / "begun", begins)("plan") == 0
    assert "trained: pre-training" in said()[0]


@pytest.fixture
def dpr(beir: Path, encoder: Path, generator: dict[str, Any]) -> dict[str, Any]:
    """DPR with DiffCSE, a training of a moment."""
    small = tiny.dpr(beir, encoder)
    losses = over("query discriminator", "document discriminator")
    return {
        **small,
        "negatives": {"negatives": 0},
        "difference": {},
        "generator": generator,
        "train": {**tiny.training(updates=2, batch=8), "losses": losses},
    }


def test_dpr_with_diffcse_saves_a_retriever_without_its_discriminator(dpr: dict[str, Any], tmp_path: Path) -> None:
    place = tiny.place(tmp_path, dpr)
    assert place("run") == 0
    assert {key for key in lines(place.artifact("retriever"))[0] if key.endswith(")")} == {
        "cross_entropy (batch)",
        "negative_log_likelihood (query discriminator)",
        "negative_log_likelihood (document discriminator)",
    }
    saved, start = (
        load_file(place.artifact(name) / "model/model.safetensors") for name in ("retriever", "start retriever")
    )
    assert saved.keys() == start.keys()


def test_ar2_warms_up_with_diffcse(dpr: dict[str, Any], beir: Path, encoder: Path, tmp_path: Path, said: Said) -> None:
    """The game goes on without differences, from the retriever that they made."""
    game = tiny.ar2(beir, encoder)
    warm = {"difference": {}, "generator": dpr["generator"]}
    game["retriever"]["warm"] |= {
        **warm,
        "train": {**game["retriever"]["warm"]["train"], "losses": dpr["train"]["losses"]},
    }
    place = tiny.place(tmp_path, game)
    assert place("run", "--until", "retriever 1") == 0
    assert "negative_log_likelihood (query discriminator)" in lines(place.artifact("warm retriever"))[0]
    assert {key for key in lines(place.artifact("retriever 1"))[0] if key.endswith(")")} == {"distillation (group)"}
    warm, played = (
        load_file(place.artifact(name) / "model/model.safetensors") for name in ("warm retriever", "retriever 1")
    )
    assert warm.keys() == played.keys()
    assert not all(warm[name].equal(played[name]) for name in warm)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pretrain.generator=null", "generator: null, and tokens are to be replaced"),
        ("pretrain.difference.task=masked", "generator: nothing here asks it"),
        ("pretrain.train.losses.0.over=group", "the objective diffcse accepts batch, discriminator"),
        (
            "pretrain.cloze={keep: 0.2}",
            "cloze: the objective diffcse does not read it; accepted: projector, difference",
        ),
        ("pretrain.objective=ict", "does not read it; accepted: cloze"),
        ("retriever.dropout=0", "retriever.dropout: 0: views of a text differ by dropout"),
        ("retriever.truncate=8", "retriever.truncate: 8: whole vectors are learnt; accepted: null"),
        (
            "pretrain.train.losses.1={function: components.losses.listwise.cross_entropy, over: discriminator}",
            "reads scores of candidates, but `over: discriminator` of the objective diffcse has scores of tokens. Use",
        ),
        (
            "pretrain.train.losses.0={function: components.losses.likelihood.negative_log_likelihood, over: batch}",
            "reads scores of tokens, but `over: batch` of the objective diffcse has scores of candidates. Use",
        ),
        (
            "pretrain.train.losses.0={function: components.losses.in_batch.both_directions, over: batch}",
            "and `over: batch` of the objective diffcse has none. Use another loss.",
        ),
        (
            "pretrain.train.losses=[{function: components.losses.listwise.cross_entropy, over: batch}]",
            "train.losses: none is over `discriminator`, without which diffcse is simcse",
        ),
        ("pretrain.head={model: somewhere}", "head: `difference.task: detection` predicts no tokens; accepted: null"),
        ("pretrain.rated={format: tsv, path: x.tsv}", "rated: `train.validate_on_dev: {measure: Spearman}` and rated"),
        ("pretrain.train.validate_on_dev={every: 1, measure: Spearman}", "rated: `train.validate_on_dev: {measure: Sp"),
        (
            "pretrain.train.validate_on_dev={every: 1}",
            "measure: got 'RR', which the objective diffcse does not have. Use one of these: Spearman, loss.",
        ),
        ("pretrain.rated={format: lines, path: x.txt}", "the format 'lines' has no labelled sentences. Use senteval"),
        ("pretrain.train.validate_on_dev={every: 1, measure: loss}", "(seed 1): validate_on_dev: no documents are"),
        (
            "pretrain.generator.train={updates: 2, losses: [{function: components.losses.likelihood."
            "negative_log_likelihood, over: tokens}], validate_on_dev: {every: 1, measure: loss}}",
            "generator (seed 1): validate_on_dev: no documents are held out from it; accepted: null",
        ),
        ("pretrain.text_tokens=99", "text_tokens: 99: the retriever reads 24 tokens of a text"),
        ("pretrain.masking={}", "masking: the objective diffcse does not read it; accepted: projector, difference"),
        ("pretrain.train.batch=1", "train.batch: 1: a text is told from the others of its batch"),
        ("retriever.towers=separate", "towers: got separate, but a sentence encoder is one tower"),
        ("retriever.projection=4", "projection: got 4, but a sentence encoder is one tower"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    tree: dict[str, Any], tmp_path: Path, said: Said, change: str, message: str
) -> None:
    assert tiny.place(tmp_path / "place", tree)("plan", "--set", change) == 2
    assert message in said()[1]


def test_rated_pairs_are_of_one_split(tree: dict[str, Any], tmp_path: Path, said: Said) -> None:
    """That of the validation: else test pairs would choose the checkpoint."""
    pairs = {**tree["similarity"]["Pairs dev"]["data"]}
    train = {**tree["pretrain"]["train"], "validate_on_dev": {"every": 1, "measure": "Spearman"}}
    tree["pretrain"] |= {"rated": pairs, "train": train}
    place = tiny.place(tmp_path / "place", tree)
    assert place("plan", "--set", "pretrain.rated.splits=[test]") == 2
    assert "rated.splits: test; accepted: [dev], or another split in train.validate_on_dev.split" in said()[1]
    assert place("run", "--set", "pretrain.rated.splits=null") == 2
    assert "rated: the pairs have the splits dev, test. Choose one in `rated.splits`." in said()[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("generator=null", "generator: null, and tokens are to be replaced"),
        ("difference=null", "generator: nothing here asks it"),
        ("train.losses=[{function: components.losses.listwise.cross_entropy, over: batch}]", "difference: no loss is"),
    ],
)
def test_mistakes_of_dpr_with_diffcse(
    dpr: dict[str, Any], tmp_path: Path, said: Said, change: str, message: str
) -> None:
    assert tiny.place(tmp_path / "place", dpr)("plan", "--set", change) == 2
    assert message in said()[1]


@pytest.mark.parametrize(
    ("kinds", "reads", "sizes", "message"),
    [
        (("bert", "roberta"), 24, {}, "differs from the retriever's. Use a masked language model with"),
        (("bert", "bert"), 48, {"max_position_embeddings": 32}, "reads at most 32 tokens, and the retriever's docum"),
        (("roberta", "roberta"), 24, {}, "unit: words: where they begin is known of WordPiece tokenizers alone, and"),
    ],
)
def test_a_generator_that_does_not_fit_is_told_with_the_plan(
    tree: dict[str, Any],
    tmp_path: Path,
    said: Said,
    kinds: tuple[str, str],
    reads: int,
    sizes: dict[str, int],
    message: str,
) -> None:
    """Not by the training after its own."""
    retriever, generator = (
        toy.write_encoder(tmp_path / name / kind, kind, **(sizes if name == "g" else {}))
        for name, kind in zip("rg", kinds, strict=True)
    )
    tree["retriever"] |= {"model": str(retriever), "document_tokens": reads}
    tree["pretrain"]["generator"]["model"]["model"] = str(generator)
    place = tiny.place(tmp_path / "place", tree)
    assert place("plan") == 2
    assert message in said()[1]
