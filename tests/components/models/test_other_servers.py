"""Exported folders, as transformers alone and other servers read them.

text-embeddings-inference, vLLM and Infinity do not run here. Their published loading code has rules: the files and keys
that they read. The rules here are those of text-embeddings-inference 1.9 (router, backends/candle), vLLM 0.33
(transformers_utils/config.py, layers/pooler/activations.py, entrypoints/pooling/scoring) and Infinity 0.0.77
(inference/select_model.py, transformer/crossencoder/torch.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer, save_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.files import read_json, write_json
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from tests.support import toy

DRAW = np.random.default_rng(4)
LENGTHS = [(1, 2), (3, 5), (2, 80), (70, 9), (7, 7)]
PAIRS = [(toy.some_text(DRAW, a), toy.some_text(DRAW, b)) for a, b in LENGTHS]
LIMIT = 60
TEMPLATE = "query: {query} document: {document}"
ENDED = f"{TEMPLATE}</s>"
"""Ends with the token that Llama and Mistral, which have none for padding, are padded with."""
IDENTITY = "torch.nn.modules.linear.Identity"
RANKERS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "bert": ("bert", {}, None),
    "roberta": ("roberta", {}, None),
    "xlm-roberta": ("xlm-roberta", {}, None),
    "distilbert": ("distilbert", {}, None),
    "deberta-v2": ("deberta-v2", {}, None),
    "modernbert": ("modernbert", {"classifier_pooling": "cls"}, None),
    "modernbert, mean": ("modernbert", {"classifier_pooling": "mean"}, None),
    "qwen3": ("qwen3", {}, TEMPLATE),
    "llama": ("llama", {}, TEMPLATE),
    "llama, ended": ("llama", {}, ENDED),
    "mistral, ended": ("mistral", {}, ENDED),
}
"""Kind of model, its sizes and the template of pairs, by name."""


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Save a model as the step `start` does."""
    save_tokenizer(tokenizer, folder / "tokenizer")
    model.save(folder / "model", folder / "tokenizer")
    return folder / "model"


def ranker(tmp_path: Path, name: str) -> tuple[CrossEncoder, Path]:
    """Start and save a ranker whose scores are far from each other and from 0."""
    kind, sizes, template = RANKERS[name]
    encoder = toy.write_encoder(tmp_path / "encoder", kind, seed=2, **sizes)
    config = toy.ranker_config(encoder, dropout=None, pooling="cls", pair_tokens=LIMIT, template=template)
    model, tokenizer = CrossEncoder.start(config)
    with torch.no_grad():
        for part, weight in model.backbone.named_parameters():
            if part.startswith(("classifier", "pre_classifier", "score", "head.dense")):
                weight.mul_(20).add_(0.3 * (weight.ndim == 1))
    return model, saved(model, tokenizer, tmp_path)


def scores(model: CrossEncoder, folder: Path) -> Tensor:
    """Score the pairs from token ids, as the steps do."""
    tokenizer, count = load_tokenizer(folder), np.arange(len(PAIRS))
    sides = [
        Tokens.of(tokenizer(list(texts), add_special_tokens=False)["input_ids"]) for texts in zip(*PAIRS, strict=True)
    ]
    batch = Template.of(tokenizer).pairs(*sides, np.stack([count, count], 1), model.config.pair_tokens)
    with torch.no_grad():
        return model.eval()(batch)


def expected_scores(folder: Path, pairs: list[tuple[str, str]]) -> Tensor:
    """Score pairs in one batch with transformers alone, which are cut as its tokenizer says."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    loaded = AutoModelForSequenceClassification.from_pretrained(str(folder)).eval()
    inputs = tokenizer(*map(list, zip(*pairs, strict=True)), padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return loaded(**inputs).logits[:, 0]


@pytest.mark.parametrize("name", RANKERS)
def test_transformers_and_cross_encoder_alone_give_a_rankers_scores(tmp_path: Path, name: str) -> None:
    """Without code in the folder, in a batch with padding, and of pairs that are cut."""
    from sentence_transformers import CrossEncoder as Theirs

    model, folder = ranker(tmp_path, name)
    wanted = scores(model, folder)
    assert wanted.std() > 0.01
    assert max(len(ids) for ids in load_tokenizer(folder)(*map(list, zip(*PAIRS, strict=True)))["input_ids"]) > LIMIT
    torch.testing.assert_close(scores(CrossEncoder.load(folder), folder), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(expected_scores(folder, PAIRS), wanted, rtol=0, atol=1e-4)
    for pair, score in zip(PAIRS, wanted, strict=True):
        torch.testing.assert_close(expected_scores(folder, [pair])[0], score, rtol=0, atol=1e-4)
    result = Theirs(str(folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(result, wanted.numpy(), rtol=0, atol=1e-4)
    again, _ = CrossEncoder.start(toy.ranker_config(folder, pair_tokens=None, dropout=None))
    assert again.config.pooling == "cls"
    torch.testing.assert_close(scores(again, folder), wanted, rtol=0, atol=1e-5)
    assert read_json(folder / "config.json")["id2label"].keys() == {"0"}
    assert "auto_map" not in read_json(folder / "config.json")
    assert list(folder.rglob("*.py")) == []


@pytest.mark.parametrize("name", RANKERS)
def test_servers_find_a_ranker_by_its_keys(tmp_path: Path, name: str) -> None:
    _, folder = ranker(tmp_path, name)
    config = read_json(folder / "config.json")
    limits, tokenizer = read_json(folder / "sentence_bert_config.json"), read_json(folder / "tokenizer_config.json")
    [architecture] = config["architectures"]
    # text-embeddings-inference and Infinity: a classifier with one label is a ranker.
    assert architecture.endswith("ForSequenceClassification")
    assert len(config["id2label"]) == len(config["label2id"]) == 1
    assert isinstance(config["max_position_embeddings"], int)
    assert (folder / "tokenizer.json").is_file()
    assert (folder / "model.safetensors").is_file()
    # text-embeddings-inference and vLLM cut here. Older versions of vLLM need both keys.
    assert limits["max_seq_length"] == LIMIT
    assert "do_lower_case" in limits
    # Infinity asks only the tokenizer.
    assert tokenizer["model_max_length"] == LIMIT
    # vLLM would otherwise return the sigmoid of the score.
    assert config["sentence_transformers"]["activation_fn"] == IDENTITY
    assert config.get("problem_type") is None
    # vLLM would otherwise join the texts of a pair, or make a classifier from two tokens of a vocabulary.
    assert config.get("use_sep_token", True)
    assert config.get("use_pad_token", True)
    assert not config.keys() & {"method", "classifier_from_token"}


def test_a_models_own_code_is_not_named_where_it_is_not_written(tmp_path: Path) -> None:
    """A hub's folder names code of its own that transformers does not need any more."""
    encoder = toy.write_encoder(tmp_path / "encoder")
    named = {"auto_map": {"AutoModel": "somebody/their-code--modeling.TheirModel"}}
    write_json(encoder / "config.json", read_json(encoder / "config.json") | named)
    model, tokenizer = CrossEncoder.start(toy.ranker_config(encoder))
    assert "auto_map" not in read_json(saved(model, tokenizer, tmp_path / "ranker") / "config.json")


@pytest.mark.parametrize(
    "keys",
    [
        {"pooling": "mean", "similarity": "cosine", "query_prompt": "bara: "},
        {"pooling": "cls", "similarity": "dot"},
        {"pooling": "mean", "similarity": "cosine", "projection": 8},
        {"pooling": "mean", "similarity": "dot", "projection": 8, "projection_bias": True},
    ],
)
def test_servers_find_a_retrievers_pooling_and_projection(tmp_path: Path, encoder: Path, keys: dict[str, Any]) -> None:
    model, tokenizer = DualEncoder.start(toy.retriever_config(encoder, **keys))
    folder = saved(model, tokenizer, tmp_path)
    modules = {entry["type"].rpartition(".")[2]: entry for entry in read_json(folder / "modules.json")}
    # text-embeddings-inference knows four types of modules by these names, and otherwise ignores the projection.
    assert all(entry["type"] == f"sentence_transformers.models.{kind}" for kind, entry in modules.items())
    assert modules.keys() <= {"Transformer", "Pooling", "Dense", "Normalize"}
    # It reads this place alone, and needs both keys. vLLM takes the one that is true.
    assert modules["Pooling"]["path"] == "1_Pooling"
    pooling = read_json(folder / "1_Pooling" / "config.json")
    assert pooling["pooling_mode_cls_token"] == (keys["pooling"] == "cls")
    assert pooling["pooling_mode_mean_tokens"] == (keys["pooling"] == "mean")
    assert [key for key, value in pooling.items() if value is True] == [
        "pooling_mode_cls_token" if keys["pooling"] == "cls" else "pooling_mode_mean_tokens"
    ]
    # vLLM normalizes vectors where this module is.
    assert ("Normalize" in modules) == (keys["similarity"] == "cosine")
    assert ("Dense" in modules) == ("projection" in keys)
    if "Dense" in modules:
        dense = read_json(folder / modules["Dense"]["path"] / "config.json")
        weights = load_file(folder / modules["Dense"]["path"] / "model.safetensors")
        assert (dense["in_features"], dense["out_features"]) == (32, 8)
        assert dense["bias"] == keys.get("projection_bias", False)
        assert dense["activation_function"] == IDENTITY
        assert weights.keys() == ({"linear.weight", "linear.bias"} if dense["bias"] else {"linear.weight"})
    # Both cut texts here; positions exist for all tokens.
    limits, config = read_json(folder / "sentence_bert_config.json"), read_json(folder / "config.json")
    assert limits.keys() >= {"max_seq_length", "do_lower_case"}
    assert limits["max_seq_length"] == model.config.document_tokens <= config["max_position_embeddings"]
    assert config["architectures"] == ["BertModel"]
    # text-embeddings-inference finds prompts by name; a prompt that is null would be refused.
    description = read_json(folder / "config_sentence_transformers.json")
    assert description["prompts"] == {"query": keys.get("query_prompt", ""), "document": ""}
    assert description["similarity_fn_name"] == keys["similarity"]
