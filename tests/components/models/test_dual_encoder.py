"""The retriever: pooling, towers, and exports that give the same vectors in the libraries people use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models.dual_encoder import DualEncoder, pool
from tests.support import toy

DRAW = np.random.default_rng(0)
# From one word to far beyond the limits, with words that fall to pieces.
TEXTS = [toy.some_text(DRAW, words) for words in (1, 2, 3, 5, 8, 13, 21, 34)]


def ours(model: DualEncoder, folder: Path, written: list[str], side: Any) -> Tensor:
    """Vectors by way of token ids, as the steps make them."""
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    tokens = Tokens.of(tokenizer(written, add_special_tokens=False)["input_ids"])
    with torch.no_grad():
        return model.eval()(template.texts(tokens, np.arange(len(written)), model.max_tokens(side)), side)


def exported(tmp_path: Path, model_folder: Path, **options: Any) -> tuple[DualEncoder, Path]:
    model, _ = DualEncoder.start(toy.retriever_config(model_folder, **options))
    model.save(tmp_path / "model", model_folder)
    return model, tmp_path / "model"


KINDS = ["bert", "roberta", "distilbert", "electra", "t5"]
KIND = pytest.mark.parametrize("kind", KINDS)
POOLING = pytest.mark.parametrize("pooling", ["cls", "mean"])
SIMILARITY = pytest.mark.parametrize("similarity", ["dot", "cosine"])
TOWERS = pytest.mark.parametrize("towers", ["shared", "separate"])


@pytest.fixture(scope="module")
def encoders(toys: Path) -> dict[str, Path]:
    return {kind: toy.write_encoder(toys / "encoders" / kind, kind, seed=2) for kind in KINDS}


def move_apart(model: DualEncoder) -> None:
    """Two towers begin alike; here they must not stay so, or mixing them up would not show."""
    if "query" in model.towers:
        with torch.no_grad():
            for value in model.towers["query"].parameters():
                value.mul_(1.1)


@POOLING
@SIMILARITY
def test_one_tower_gives_the_same_vectors_in_sentence_transformers(
    tmp_path: Path, encoders: dict[str, Path], pooling: str, similarity: str
) -> None:
    from sentence_transformers import SentenceTransformer

    model, folder = exported(tmp_path, encoders["bert"], pooling=pooling, similarity=similarity)
    expected = SentenceTransformer(str(folder), device="cpu")
    wanted = ours(model, folder, TEXTS, "document").numpy()
    assert expected.max_seq_length == 24
    for encode in (expected.encode, expected.encode_document):
        np.testing.assert_allclose(encode(TEXTS), wanted, rtol=0, atol=1e-5)
    assert expected.similarity_fn_name == similarity
    assert expected.get_embedding_dimension() == 32
    short = TEXTS[:3]  # within the limit of both sides
    np.testing.assert_allclose(expected.encode_query(short), ours(model, folder, short, "query").numpy(), atol=1e-5)


@POOLING
@SIMILARITY
def test_two_towers_give_the_same_vectors_through_the_router(
    tmp_path: Path, encoders: dict[str, Path], pooling: str, similarity: str
) -> None:
    from sentence_transformers import SentenceTransformer

    model, _ = DualEncoder.start(
        toy.retriever_config(encoders["bert"], towers="separate", pooling=pooling, similarity=similarity)
    )
    move_apart(model)
    folder = tmp_path / "model"
    model.save(folder, encoders["bert"])
    expected = SentenceTransformer(str(folder), device="cpu")
    queries, documents = (ours(model, folder, TEXTS, side).numpy() for side in ("query", "document"))
    np.testing.assert_allclose(expected.encode_query(TEXTS), queries, rtol=0, atol=1e-5)
    np.testing.assert_allclose(expected.encode_document(TEXTS), documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(expected.encode(TEXTS), documents, rtol=0, atol=1e-5)
    assert np.abs(queries - documents).max() > 1e-3
    if similarity == "cosine":
        np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, rtol=1e-5)


@KIND
def test_other_families_give_the_same_vectors_too(tmp_path: Path, encoders: dict[str, Path], kind: str) -> None:
    from sentence_transformers import SentenceTransformer

    model, folder = exported(tmp_path, encoders[kind], pooling="mean", dropout=None)
    expected = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(
        expected.encode(TEXTS), ours(model, folder, TEXTS, "document").numpy(), rtol=0, atol=1e-5
    )


@TOWERS
def test_prompts_are_exported(tmp_path: Path, encoders: dict[str, Path], towers: str) -> None:
    """`encode_query` and `encode_document` put them before the texts by themselves."""
    from sentence_transformers import SentenceTransformer

    prompts = {"query_prompt": "bara: ", "document_prompt": "comi "}
    model, folder = exported(tmp_path, encoders["bert"], towers=towers, query_tokens=24, **prompts)
    expected = SentenceTransformer(str(folder), device="cpu")
    for encode, prompt, side in (
        (expected.encode_query, "bara: ", "query"),
        (expected.encode_document, "comi ", "document"),
    ):
        wanted = ours(model, folder, [prompt + text for text in TEXTS], side).numpy()
        np.testing.assert_allclose(encode(TEXTS), wanted, rtol=0, atol=1e-5)
        assert np.abs(wanted - ours(model, folder, TEXTS, side).numpy()).max() > 1e-3


@TOWERS
@POOLING
def test_towers_load_with_transformers_alone(
    tmp_path: Path, encoders: dict[str, Path], towers: str, pooling: str
) -> None:
    from transformers import AutoModel, AutoTokenizer

    model, _ = DualEncoder.start(toy.retriever_config(encoders["bert"], towers=towers, pooling=pooling))
    move_apart(model)
    folder = tmp_path / "model"
    model.save(folder, encoders["bert"])
    for side, limit in (("query", 8), ("document", 24)):
        place = folder if towers == "shared" else folder / side
        tokenizer = AutoTokenizer.from_pretrained(str(place))
        loaded = AutoModel.from_pretrained(str(place)).eval()
        inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        with torch.no_grad():
            states = loaded(**inputs).last_hidden_state
        result = pool(states, inputs["attention_mask"], pooling)
        torch.testing.assert_close(result, ours(model, folder, TEXTS, side), rtol=0, atol=1e-5)


@TOWERS
@POOLING
@SIMILARITY
def test_what_is_saved_loads_as_it_was(
    tmp_path: Path, encoders: dict[str, Path], towers: str, pooling: str, similarity: str
) -> None:
    """And once more from there, with the tokenizer of the saved one."""
    model, _ = DualEncoder.start(
        toy.retriever_config(encoders["bert"], towers=towers, pooling=pooling, similarity=similarity, layers=1)
    )
    move_apart(model)
    model.save(tmp_path / "one", encoders["bert"])
    again = DualEncoder.load(tmp_path / "one")
    again.save(tmp_path / "two", tmp_path / "one")
    third = DualEncoder.load(tmp_path / "two")
    assert again.config == third.config == model.config
    for side in ("query", "document"):
        wanted = ours(model, tmp_path / "one", TEXTS, side)
        assert torch.equal(ours(again, tmp_path / "one", TEXTS, side), wanted)
        assert torch.equal(ours(third, tmp_path / "two", TEXTS, side), wanted)


@TOWERS
def test_an_export_begins_another_model(tmp_path: Path, encoders: dict[str, Path], towers: str) -> None:
    """`model: <export>` of one tower, and of either of two."""
    _, folder = exported(tmp_path, encoders["bert"], towers=towers)
    for place in [folder] if towers == "shared" else [folder / "query", folder / "document"]:
        model, _ = DualEncoder.start(toy.retriever_config(place))
        assert model.towers["shared"].config.num_hidden_layers == 2


def test_two_towers_begin_alike_and_are_two(encoders: dict[str, Path]) -> None:
    first, _ = DualEncoder.start(toy.retriever_config(encoders["bert"]))
    two, _ = DualEncoder.start(toy.retriever_config(encoders["bert"], towers="separate"))
    assert sum(p.numel() for p in two.parameters()) == 2 * sum(p.numel() for p in first.parameters())
    queries, documents = (dict(two.towers[side].named_parameters()) for side in ("query", "document"))
    for name, value in queries.items():
        assert torch.equal(value, documents[name])
        assert value.data_ptr() != documents[name].data_ptr()


def test_vectors_do_not_depend_on_what_is_padded_beside_them(encoders: dict[str, Path]) -> None:
    for kind, place in encoders.items():
        model, _ = DualEncoder.start(toy.retriever_config(place, pooling="mean", dropout=None))
        together = ours(model, place, TEXTS, "document")
        alone = torch.cat([ours(model, place, [text], "document") for text in TEXTS])
        torch.testing.assert_close(together, alone, rtol=0, atol=2e-6, msg=kind)


FIGURE_2 = {
    "SDE": {"towers": "shared"},
    "ADE": {"towers": "separate"},
    "ADE-SPL": {"towers": "separate", "share": ["projection"]},
    "ADE-STE": {"towers": "separate", "share": ["embedder"]},
    "ADE-FTE": {"towers": "separate", "share": ["embedder", "projection"], "freeze": ["embedder"]},
}
"""The dual encoders of Moiseev et al.'s Figure 2, and those with shared and frozen token embeddings it grew from."""


@pytest.mark.parametrize("kind", ["bert", "t5"])
@pytest.mark.parametrize("towers", FIGURE_2)
@SIMILARITY
def test_projected_vectors_are_the_same_in_sentence_transformers(
    tmp_path: Path, encoders: dict[str, Path], kind: str, towers: str, similarity: str
) -> None:
    """Of the query and the document side, and of the model read again and written again."""
    from sentence_transformers import SentenceTransformer

    # sentence-transformers knows one limit of a shared tower.
    options = {**FIGURE_2[towers], "pooling": "mean", "similarity": similarity, "projection": 20, "query_tokens": 24}
    model, _ = DualEncoder.start(toy.retriever_config(encoders[kind], **options))
    move_apart(model)
    model.save(tmp_path / "one", encoders[kind])
    DualEncoder.load(tmp_path / "one").save(tmp_path / "two", tmp_path / "one")
    queries, documents = (ours(model, tmp_path / "one", TEXTS, side).numpy() for side in ("query", "document"))
    for folder in (tmp_path / "one", tmp_path / "two"):
        expected = SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(expected.encode_query(TEXTS), queries, rtol=0, atol=1e-5)
        np.testing.assert_allclose(expected.encode_document(TEXTS), documents, rtol=0, atol=1e-5)
        assert expected.similarity_fn_name == similarity
    assert queries.shape[1] == documents.shape[1] == 20
    again = DualEncoder.load(tmp_path / "two")
    np.testing.assert_allclose(ours(again, tmp_path / "two", TEXTS, "query").numpy(), queries, rtol=0, atol=1e-6)
    assert (np.abs(queries - documents).max() > 1e-3) == (towers != "SDE")


def test_the_towers_of_figure_2_share_what_they_should(encoders: dict[str, Path]) -> None:
    def made(name: str, **options: Any) -> tuple[DualEncoder, int]:
        config = toy.retriever_config(encoders["t5"], pooling="mean", projection=8, **FIGURE_2[name], **options)
        model, _ = DualEncoder.start(config)
        return model, sum(p.numel() for p in model.parameters())

    (first, alone), (two, apart), (shared, spl) = made("SDE"), made("ADE"), made("ADE-SPL")
    words = first.tower("query").get_input_embeddings().weight
    assert apart == 2 * alone
    assert spl == apart - 32 * 8
    assert made("ADE-STE")[1] == apart - words.numel()
    assert not torch.equal(two.projections["query"].weight, two.projections["document"].weight)
    alike, _ = made("ADE", projections="alike")
    assert torch.equal(alike.projections["query"].weight, alike.projections["document"].weight)
    assert alike.projections["query"].weight is not alike.projections["document"].weight
    assert torch.equal(alike.projections["query"].weight, two.projections["query"].weight)
    assert list(shared.projections) == ["shared"]
    frozen, _ = made("ADE-FTE")
    at_rest = {name for name, value in frozen.named_parameters() if not value.requires_grad}
    assert len(at_rest) == 1
    assert frozen.tower("query").get_input_embeddings() is frozen.tower("document").get_input_embeddings()
    assert not torch.equal(made("SDE", seed=1)[0].projections["shared"].weight, first.projections["shared"].weight)


def test_a_projection_is_taken_before_the_length_and_in_fp32(encoders: dict[str, Path]) -> None:
    model, _ = DualEncoder.start(
        toy.retriever_config(encoders["bert"], pooling="mean", similarity="cosine", projection=5)
    )
    plain, _ = DualEncoder.start(toy.retriever_config(encoders["bert"], pooling="mean"))
    result = ours(model, encoders["bert"], TEXTS, "query")
    wanted = ours(plain, encoders["bert"], TEXTS, "query") @ model.projections["shared"].weight.T
    torch.testing.assert_close(result, torch.nn.functional.normalize(wanted, dim=-1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(model, encoders["bert"], TEXTS, "query").dtype == torch.float32
    assert model.to_dtype(torch.bfloat16).projections["shared"].weight.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"share": ["projection"], "projection": 4}, "`towers: shared` shares everything already"),
        ({"share": ["projection"], "towers": "separate"}, "there is no projection to share"),
        ({"projections": "alike", "towers": "separate"}, "projections: there is no projection"),
        ({"projection": 0}, "greater than or equal to 1"),
    ],
)
def test_towers_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        toy.retriever_config("m", **options)


def test_pooling_by_hand() -> None:
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]], [[3.0, 4.0], [0.0, 0.0], [5.0, 5.0]]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert pool(hidden, mask, "cls").tolist() == [[1, 2], [3, 4]]
    assert pool(hidden, mask, "mean").tolist() == [[2, 3], [3, 4]]
    assert pool(hidden.bfloat16(), mask, "mean").dtype == torch.float32
    assert pool(hidden, torch.zeros(2, 3), "mean").isfinite().all()


def test_each_side_has_its_own_length(encoders: dict[str, Path]) -> None:
    model, _ = DualEncoder.start(toy.retriever_config(encoders["bert"], query_tokens=6, document_tokens=30))
    assert (model.max_tokens("query"), model.max_tokens("document")) == (6, 30)


@KIND
def test_the_first_and_last_layers_states_are_averaged(encoders: dict[str, Path], kind: str, tmp_path: Path) -> None:
    """By hand from Hugging Face's states of all layers, and in sentence-transformers by the path alone."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoModelForTextEncoding

    model, folder = exported(tmp_path, encoders[kind], pooling="first_last", query_tokens=24)
    auto = AutoModelForTextEncoding if kind == "t5" else AutoModel
    plain = auto.from_pretrained(str(encoders[kind])).eval()
    batch = load_tokenizer(folder)(TEXTS, truncation=True, max_length=24, padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    with torch.no_grad():
        layers = plain(**batch, output_hidden_states=True).hidden_states
    states = [layers[1], plain(**batch).last_hidden_state]
    weights = batch["attention_mask"].unsqueeze(-1) / batch["attention_mask"].sum(-1)[:, None, None]
    wanted = sum((state * weights).sum(1) / 2 for state in states)
    result = ours(model, folder, TEXTS, "document")
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    for again in (DualEncoder.load(folder), DualEncoder.load(folder, frozen=True)):
        torch.testing.assert_close(ours(again, folder, TEXTS, "document"), result, rtol=1e-4, atol=1e-5)
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(expected, result, rtol=1e-3, atol=1e-4)


def test_the_first_and_last_layer_are_of_one_encoder(encoders: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match="pooling: first_last needs `towers: shared`"):
        toy.retriever_config(encoders["bert"], pooling="first_last", towers="separate")
