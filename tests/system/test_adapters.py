"""AR2 on adapters: both players over one frozen model, from the start models to what is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparring.components.models import adapters
from sparring.components.models.configs import BASE, CrossEncoderConfig
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from sparring.workflows.commands.shared_arguments import opened
from sparring.workflows.systems import library
from tests.support import tiny, toy
from tests.support.tiny import Place, Said

WORDS = toy.WORDS[:6]
# peft asks transformers for a property that has another name now.
PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def ar2(beir: Path, encoder: Path, **retriever: Any) -> dict[str, Any]:
    """AR2 whose players have adapters of one form; the ranker begins from the warm retriever's."""
    tree = tiny.ar2(beir, encoder)
    tree["retriever"]["model"] |= {"adapter": {"rank": 2}, **retriever}
    tree["ranker"]["model"] |= {"adapter": {"rank": 2}}
    tree["ranker"]["encoder"] = "warm retriever"
    for player in ("retriever", "ranker"):
        tree[player]["game"]["train"] |= {"carry": "all"}
    tree["controls"] = {}
    return tree


@pytest.fixture(scope="module")
def game(tmp_path_factory: pytest.TempPathFactory, beir: Path, encoder: Path) -> Place:
    place = tiny.place(tmp_path_factory.mktemp("adapters"), ar2(beir, encoder))
    assert place("run") == 0
    return place


def test_no_artifact_has_the_frozen_model(game: Place, encoder: Path) -> None:
    trained = ["start retriever", "warm retriever", "retriever 1", "start ranker", "warm ranker", "ranker 1"]
    for label in trained:
        files = sorted((game.artifact(label) / "model").rglob("*.safetensors"))
        names = {name for file in files for name in load_file(file)}
        assert names <= {"linear.weight", "linear.bias", *(name for name in names if "lora_" in name)}
        assert (game.artifact(label) / "model" / BASE).is_file()
    b = [load_file(game.artifact(label) / "model" / adapters.WEIGHTS) for label in trained[:3]]
    assert not any(torch.equal(b[1][name], b[2][name]) for name in b[1])  # each phase has moved it


def test_the_players_share_a_body_where_both_are_asked(
    game: Place, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`search` finds what the run found, with the frozen model once in memory."""
    results = []
    real = library.Library.system

    def opened_system(self: library.Library, plan: library.Plan) -> Any:
        results.append(real(self, plan))
        return results[-1]

    monkeypatch.setattr(library.Library, "system", opened_system)
    assert game("search", " ".join(WORDS), "-k", "3", "--system", "ranker over retriever 1") == 0
    assert said()[0].count("ranker ") == 3
    parts = results[0]._parts
    players = [parts["dense"].encode._inference._model, parts["ranker"]._inference._model]
    tower, body = (player.base_model for player in players)
    assert tower.get_input_embeddings().weight.data_ptr() == body.get_input_embeddings().weight.data_ptr()
    layers = [part.encoder.layer[0].attention.self.query for part in (tower, body)]
    assert layers[0].base_layer.weight.data_ptr() == layers[1].base_layer.weight.data_ptr()
    assert layers[0].lora_B.default.weight.data_ptr() != layers[1].lora_B.default.weight.data_ptr()


def test_search_finds_what_the_run_found(game: Place) -> None:
    """The run's vectors come of merged weights, those of the search beside a ranker do not."""
    import pyarrow.parquet as pq

    arguments = type("Words", (), {"config": game.config, "store": game.where, "runs": game.runs, "assignments": []})()
    experiment, store = opened(arguments)
    opened_here = library.Library(store, threads=1, models=lambda: {"cuda": False, "batch_tokens": 256})
    system = opened_here.system(library.measured(experiment.outcome.ranked["ranker over retriever 1"], store))
    queries = pq.read_table(game.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    ranking = pq.read_table(game.artifact("retriever 1 ranking (test)") / "ranking.parquet").to_pylist()
    for query, hits in zip(queries, system.search([row["text"] for row in queries], 5), strict=True):
        of_run = {row["doc_id"]: row["score"] for row in ranking if row["query_id"] == query["query_id"]}
        for hit in hits:
            assert hit.scores["dense"] == pytest.approx(of_run[hit.doc_id], abs=1e-5)


@PEFT
@pytest.mark.parametrize("apart", [False, True])
def test_exports_load_in_the_libraries_people_use(game: Place, encoder: Path, tmp_path: Path, apart: bool) -> None:
    from peft import PeftModel
    from sentence_transformers import CrossEncoder as TheirRanker
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    assert game("export", str(tmp_path / "out"), *(["--adapters"] if apart else [])) == 0
    out = tmp_path / "out"
    text = " ".join(WORDS)
    model = DualEncoder.load(game.artifact("retriever 1") / "model").eval()
    reference = SentenceTransformer(str(out / "retriever"), device="cpu")
    ids = reference.tokenize([text])
    with torch.inference_mode():
        states = model.tower("query")(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"])
        vector = torch.nn.functional.normalize(states.last_hidden_state[0].mean(0), dim=-1).numpy()
    np.testing.assert_allclose(reference.encode([text])[0], vector, atol=1e-5)
    assert (out / "retriever" / "model.safetensors").exists() != apart
    assert (out / "retriever" / adapters.CONFIG).exists() == apart
    assert not list((out / "system").rglob(BASE))
    if apart:
        tower: Any = PeftModel.from_pretrained(AutoModel.from_pretrained(encoder), out / "retriever")
        with torch.inference_mode():
            output = tower.eval()(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"])
        torch.testing.assert_close(output.last_hidden_state, states.last_hidden_state)
    else:
        AutoModel.from_pretrained(out / "retriever")
    scores = TheirRanker(str(out / "ranker"), device="cpu").predict([(text, WORDS[0]), (text, WORDS[1])])
    ranker = CrossEncoder.load(game.artifact("ranker 1") / "model")
    assert np.ptp(scores) > 0
    assert ranker.head is not None
    reread = CrossEncoder.load(out / "ranker")
    assert reread.head is not None
    assert torch.equal(ranker.head.weight, reread.head.weight)


def test_an_export_apart_needs_a_base_that_others_can_load(
    tmp_path: Path, beir: Path, encoder: Path, said: Said
) -> None:
    """Of a model whose layers were cut there is no folder; the merged one is whole."""
    tree = tiny.dpr(beir, encoder)
    tree["retriever"] |= {"adapter": {"rank": 2}, "layers": 1}
    place = tiny.place(tmp_path, tree)
    assert place("run") == 0
    said()
    assert place("export", str(tmp_path / "out"), "--adapters") == 2
    assert "--adapters: the adapter's base has layers: 1" in said()[1]
    assert not (tmp_path / "out").exists()
    assert place("export", str(tmp_path / "out")) == 0


@pytest.mark.parametrize("towers", ["shared", "separate"])
def test_peft_cannot_turn_a_causal_model(tmp_path: Path, beir: Path, said: Said, towers: str) -> None:
    """Its base reads in one direction alone, so the adapter over it would give other vectors."""
    tree = tiny.dpr(beir, toy.write_encoder(tmp_path / "decoder", "qwen3"))
    tree["retriever"] |= {"adapter": {"rank": 2}, "attention": "bidirectional", "towers": towers}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    said()
    assert place("export", str(tmp_path / "out"), "--adapters") == 2
    assert "--adapters: the adapter's base has attention: bidirectional" in said()[1]


def test_a_ranker_begins_from_an_export_of_adapters(tmp_path: Path, beir: Path, encoder: Path, said: Said) -> None:
    tree = ar2(beir, encoder)
    tree["ranker"]["model"] |= {"pooling": "cls"}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    assert place("export", str(tmp_path / "out"), "--adapters") == 0
    model, _ = CrossEncoder.start(CrossEncoderConfig(model=str(tmp_path / "out" / "ranker")))
    assert model.config.pooling == "cls"


def test_mistakes_are_named(tmp_path: Path, beir: Path, encoder: Path, said: Said) -> None:
    tree = ar2(beir, encoder)
    tree["ranker"]["model"] |= {"adapter": {"rank": 4}}
    assert tiny.place(tmp_path / "a", tree)("plan") == 2
    assert "ranker.adapter: with ranker.encoder: warm retriever it begins from the retriever's" in said()[1]
    tree = tiny.simlm(beir, encoder)
    tree["retriever"] |= {"adapter": {}}
    assert tiny.place(tmp_path / "b", tree)("plan") == 2
    assert "adapter: simlm trains a copy of the encoder's own layers; accepted: null" in said()[1]
    tree = tiny.dpr(beir, encoder)
    tree["retriever"] |= {"adapter": {"targets": ["q_proj"]}}
    assert tiny.place(tmp_path / "c", tree)("run") == 2
    assert "has no linear layers 'q_proj'. Use some of these: dense, key, query, value" in said()[1]


def test_an_experiment_begins_from_the_adapter_of_another(tmp_path: Path, beir: Path, encoder: Path) -> None:
    """`start_from`: the adapter is carried on."""
    tree = tiny.dpr(beir, encoder)
    tree["retriever"] |= {"adapter": {"rank": 2}}
    first = tiny.place(tmp_path, tree)
    (tmp_path / "first.yaml").write_text(first.config.read_text())
    place = tiny.place(tmp_path, {**tree, "start_from": str(tmp_path / "first.yaml")})
    assert place("run", "--until", "retriever") == 0
    files = sorted(place.store.rglob(f"train-*/model/{adapters.WEIGHTS}"))
    assert len(files) == 2
