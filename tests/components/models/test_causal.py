"""Retrievers and rankers from causal language models, and from encoders with an attention of their own: the vectors and
scores of transformers and sentence-transformers on what was exported, wherever padding is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer, tokenizer_digest
from sparring.components.data.tokens import Tokens
from sparring.components.files import write_json
from sparring.components.models import inference, pretrained, special_tokens
from sparring.components.models.configs import CrossEncoderConfig
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder, pool
from tests.support import toy
from tests.support.errors import refused

DRAW = np.random.default_rng(0)
TEXTS = [toy.some_text(DRAW, words) for words in (1, 2, 3, 5, 8, 13, 21)]
PAIRS = [(TEXTS[i], TEXTS[j]) for i, j in [(0, 1), (1, 4), (2, 6), (5, 0), (6, 5), (3, 3)]]
END = {"qwen3": "<|im_end|>", "mistral": "</s>", "llama": "</s>"}
TEMPLATE = "query: {query} document: {document} relevant:"
KIND = pytest.mark.parametrize("kind", toy.CAUSAL)
EACH = pytest.mark.parametrize("kind", [*toy.CAUSAL, "modernbert"])


@pytest.fixture(scope="module")
def models(toys: Path) -> dict[str, Path]:
    """With the head that predicts tokens, as causal language models come."""
    return {
        kind: toy.write_encoder(toys / "causal" / kind, kind, seed=2, head=kind in toy.CAUSAL)
        for kind in [*toy.CAUSAL, "modernbert"]
    }


def vectors(model: DualEncoder, folder: Path, texts: Sequence[str]) -> Tensor:
    """By way of token ids, as the steps make them."""
    tokenizer = load_tokenizer(folder)
    tokens = Tokens.of(tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    batch = Template.of(tokenizer).texts(tokens, np.arange(len(texts)), model.max_tokens("document"))
    with torch.no_grad():
        return model.eval()(batch, "document")


def scores(model: CrossEncoder, folder: Path) -> Tensor:
    """Of the pairs above, likewise."""
    tokenizer, count = load_tokenizer(folder), np.arange(len(PAIRS))
    sides = [
        Tokens.of(tokenizer(list(texts), add_special_tokens=False)["input_ids"]) for texts in zip(*PAIRS, strict=True)
    ]
    batch = Template.of(tokenizer).pairs(*sides, np.stack([count, count], 1), model.config.pair_tokens)
    with torch.no_grad():
        return model.eval()(batch)


def exported(model: Any, tokenizer: Any, folder: Path) -> Path:
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    model.save(folder / "model", folder / "tokenizer")
    return folder / "model"


def retriever(models: dict[str, Path], kind: str, folder: Path, **options: Any) -> tuple[DualEncoder, Path]:
    model, tokenizer = DualEncoder.start(toy.retriever_config(models[kind], **{"document_tokens": 40, **options}))
    return model, exported(model, tokenizer, folder)


def ranker(models: dict[str, Path], kind: str, folder: Path, **options: Any) -> tuple[CrossEncoder, Path]:
    model, tokenizer = CrossEncoder.start(toy.ranker_config(models[kind], **{"pair_tokens": 90, **options}))
    return model, exported(model, tokenizer, folder)


# Retrievers


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("qwen3", "usual"),
        ("mistral", "ended"),
        ("llama", "mean"),
        ("modernbert", "usual"),
        ("modernbert", "mean"),
        ("qwen3", "ended"),
        ("qwen3", "towers"),
    ],
)
def test_vectors_are_sentence_transformers_with_padding_on_either_side(
    models: dict[str, Path], tmp_path: Path, kind: str, mode: str
) -> None:
    """Of the model as it began, as it was saved, and as a new one begins from it."""
    from sentence_transformers import SentenceTransformer

    options: dict[str, Any] = {
        "usual": {},
        "mean": {"pooling": "mean"},
        "ended": {"end_token": END.get(kind, "[SEP]"), "similarity": "cosine"},
        "towers": {"towers": "separate", "projection": 8},
    }[mode]
    model, folder = retriever(models, kind, tmp_path, **options)
    usual = "last" if kind in toy.CAUSAL else "cls"
    assert model.config.pooling == options.get("pooling", usual)
    wanted = vectors(model, folder, TEXTS)
    torch.testing.assert_close(vectors(DualEncoder.load(folder), folder, TEXTS), wanted, rtol=0, atol=1e-6)
    again, _ = DualEncoder.start(toy.retriever_config(folder, document_tokens=None, dropout=None))
    torch.testing.assert_close(vectors(again, folder, TEXTS), wanted, rtol=0, atol=1e-6)
    expected = SentenceTransformer(str(folder), device="cpu")
    for side in ("left", "right"):
        for module in expected.modules():
            if hasattr(module, "processor"):
                module.processor.padding_side = side
        np.testing.assert_allclose(expected.encode(TEXTS), wanted.numpy(), rtol=0, atol=1e-5)


@KIND
def test_vectors_are_transformers_with_padding_on_either_side(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """By the pooling of the model cards of Qwen3-Embedding and E5-Mistral, where texts are padded on the left."""
    from transformers import AutoModel, AutoTokenizer

    model, folder = retriever(models, kind, tmp_path, end_token=END[kind])
    expected, wanted = AutoModel.from_pretrained(str(folder)).eval(), vectors(model, folder, TEXTS)
    for side in ("left", "right"):
        tokenizer = AutoTokenizer.from_pretrained(str(folder), padding_side=side)
        inputs = tokenizer(TEXTS, padding=True, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            states = expected(**inputs).last_hidden_state
        ends = inputs["attention_mask"].sum(1) - 1
        last = states[:, -1] if side == "left" else states[torch.arange(len(TEXTS)), ends]
        torch.testing.assert_close(last, wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(pool(states, inputs["attention_mask"], "last"), wanted, rtol=0, atol=1e-5)


def test_the_last_token_by_hand() -> None:
    hidden = torch.arange(12.0).view(2, 3, 2)
    for mask in ([[1, 1, 0], [1, 1, 1]], [[0, 1, 0], [0, 1, 1]]):
        assert pool(hidden, torch.tensor(mask), "last").tolist() == [[2, 3], [10, 11]]
    assert pool(hidden.bfloat16(), torch.ones(2, 3), "last").dtype == torch.float32


@KIND
def test_an_end_token_closes_every_text_also_one_that_is_cut(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    _, folder = retriever(models, kind, tmp_path, end_token=END[kind])
    tokenizer = load_tokenizer(folder)
    end = tokenizer.convert_tokens_to_ids(END[kind])
    template, begin = Template.of(tokenizer), [] if kind == "qwen3" else [1]
    assert (template.before, template.after) == (begin, [end])
    tokens = Tokens.of(tokenizer(TEXTS, add_special_tokens=False)["input_ids"])
    batch = template.texts(tokens, np.arange(len(TEXTS)), 12)
    cut = tokenizer(TEXTS, truncation=True, max_length=12)["input_ids"]
    for ids, mask, wanted in zip(batch.ids, batch.mask, cut, strict=True):
        assert ids[mask.bool()].tolist() == wanted
        assert wanted[-1] == end
        assert wanted.count(end) == 1
    again, _ = DualEncoder.start(toy.retriever_config(folder, end_token=END[kind], document_tokens=None))
    assert again.config.end_token == END[kind]
    assert special_tokens.ended_by(tokenizer, END[kind]) is tokenizer  # not twice


@KIND
def test_a_causal_token_sees_those_before_it_and_a_bidirectional_one_all(
    models: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """Also once saved, and in sentence-transformers; with padding or without, on which the mask's form depends."""
    from sentence_transformers import SentenceTransformer

    texts = ["bara comi", "bara fera"]  # of the same length
    for attention, pooling in (("causal", "last"), ("bidirectional", "mean")):
        model, folder = retriever(models, kind, tmp_path / attention, attention=attention)
        assert model.config.pooling == pooling
        expected = SentenceTransformer(str(folder), device="cpu")
        for tower in (model.tower("query"), DualEncoder.load(folder).tower("query"), expected[0].model):
            ids = load_tokenizer(folder)(texts, padding=True, return_tensors="pt")["input_ids"]
            for padding in (0, 3):
                mask = functional.pad(torch.ones_like(ids), (0, padding))
                with torch.no_grad():
                    states = tower.eval()(input_ids=functional.pad(ids, (0, padding)), attention_mask=mask)[0]
                same = torch.allclose(states[0, 1], states[1, 1], rtol=0, atol=1e-5)
                assert same == (attention == "causal"), (attention, padding)
        result = expected.encode(TEXTS)
        np.testing.assert_allclose(result, vectors(model, folder, TEXTS).numpy(), rtol=0, atol=1e-5)


def test_a_retriever_that_sentence_transformers_made_comes_in(models: dict[str, Path], tmp_path: Path) -> None:
    """And a ranker by the logits of tokens, which lacks what tells where a query ends."""
    from sentence_transformers import CrossEncoder as TheirRanker
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.cross_encoder.modules import LogitScore
    from sentence_transformers.sentence_transformer.modules import Pooling

    reads = Transformer(str(models["qwen3"]), max_seq_length=40)
    expected = SentenceTransformer(modules=[reads, Pooling(32, "lasttoken"), Normalize()], device="cpu")
    expected.save_pretrained(str(tmp_path / "theirs"))
    source = toy.retriever_config(tmp_path / "theirs", document_tokens=None)
    model, tokenizer = DualEncoder.start(source)
    assert (model.config.pooling, model.config.similarity, model.config.document_tokens) == ("last", "cosine", 40)
    result = vectors(model, exported(model, tokenizer, tmp_path), TEXTS)
    np.testing.assert_allclose(expected.encode(TEXTS), result.numpy(), rtol=0, atol=1e-5)

    reads = Transformer(str(models["qwen3"]), transformer_task="text-generation", max_seq_length=300)
    scoring = TheirRanker(modules=[reads, LogitScore(*reads.tokenizer.convert_tokens_to_ids(["y", "n"]))], device="cpu")
    scoring.save_pretrained(str(tmp_path / "ranker"))
    actual, tokenizer = CrossEncoder.start(toy.ranker_config(tmp_path / "ranker", template="{query}|{document}:"))
    assert (actual.config.pooling, actual.config.true_token, actual.config.false_token) == ("token", "y", "n")


def test_instructions_are_a_prompt(models: dict[str, Path], tmp_path: Path) -> None:
    """`encode_query` puts the task before a query, as our token store does."""
    from sentence_transformers import SentenceTransformer

    task = "Instruct: find what answers it\nQuery:"
    model, folder = retriever(models, "qwen3", tmp_path, end_token="<|im_end|>", query_prompt=task, document_tokens=90)
    expected = SentenceTransformer(str(folder), device="cpu")
    wanted = vectors(model, folder, [task + text for text in TEXTS[:3]])
    np.testing.assert_allclose(expected.encode_query(TEXTS[:3]), wanted.numpy(), rtol=0, atol=1e-5)
    with refused("query_prompt", "unstated-prompt"):
        DualEncoder.start(toy.retriever_config(folder))


@pytest.mark.parametrize("kind", ["qwen3", "modernbert"])
def test_more_than_512_tokens_are_read(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Rotary positions have no table that ends: what the config says the model was made for is the limit."""
    from sentence_transformers import SentenceTransformer

    rng = np.random.default_rng(1)
    text = toy.some_text(rng, 900 if kind == "modernbert" else 180)
    model, folder = retriever(models, kind, tmp_path, pooling="mean", document_tokens=1000)
    assert len(load_tokenizer(folder)(text)["input_ids"]) > 700
    result = vectors(model, folder, [text])
    expected = SentenceTransformer(str(folder), device="cpu")
    assert expected.max_seq_length == 1000
    np.testing.assert_allclose(expected.encode([text]), result.numpy(), rtol=0, atol=1e-5)
    model.config = model.config.model_copy(update={"document_tokens": 512})
    assert (vectors(model, folder, [text]) - result).abs().max() > 1e-3


@EACH
def test_a_retriever_is_asked_in_bf16(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """By its own layers: the fused ones are BERT's."""
    model, folder = retriever(models, kind, tmp_path, similarity="cosine")
    exact = vectors(model, folder, TEXTS)
    ready = inference.ready(model, device=torch.device("cpu"), precision="bf16")
    assert not [part for part in ready.modules() if isinstance(part, inference.FusedLayer)]
    assert (vectors(ready, folder, TEXTS) * exact).sum(-1).min() > 0.99


def test_layers_are_cut(models: dict[str, Path], tmp_path: Path) -> None:
    """With the kinds of attention of those that stay."""
    for kind, layers in (("mistral", [1]), ("qwen3", 1), ("modernbert", 1)):
        model, folder = retriever(models, kind, tmp_path / kind, layers=layers)
        again = DualEncoder.load(folder)
        assert again.tower("query").config.num_hidden_layers == 1
        assert torch.equal(vectors(again, folder, TEXTS), vectors(model, folder, TEXTS))
    with refused("layers", "needs-first-layer"):
        retriever(models, "modernbert", tmp_path / "b", layers=[1])


# Rankers


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("qwen3", "head"),
        ("qwen3", "last"),
        ("qwen3", "token"),
        ("mistral", "head"),
        ("mistral", "one token"),
        ("llama", "token"),
        ("llama", "mean"),
    ],
)
def test_scores_are_sentence_transformers(models: dict[str, Path], tmp_path: Path, kind: str, mode: str) -> None:
    """Of the ranker as it began, as it was saved, and as a new one begins from it; also for pairs that are cut."""
    from sentence_transformers import CrossEncoder as Theirs

    options: dict[str, Any] = {
        "head": {},
        "last": {"pooling": "last"},
        "mean": {"pooling": "mean"},
        "one token": {"true_token": "y"},
        "token": {"pooling": "token", "true_token": "y", "false_token": "n"},
    }[mode]
    model, folder = ranker(models, kind, tmp_path, template=TEMPLATE, **options)
    assert model.config.pooling == {"head": "cls", "last": "last", "mean": "mean"}.get(mode, "token")
    wanted = scores(model, folder)
    assert wanted.std() > 1e-3
    again, _ = CrossEncoder.start(toy.ranker_config(folder, pair_tokens=None, dropout=None))
    assert again.config.template == TEMPLATE
    for second in (CrossEncoder.load(folder), again):
        torch.testing.assert_close(scores(second, folder), wanted, rtol=0, atol=1e-6)
    expected = Theirs(str(folder), device="cpu")
    for batch in (1, len(PAIRS)):
        np.testing.assert_allclose(expected.predict(PAIRS, batch_size=batch), wanted.numpy(), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"template: .* the ranker in .* has"):
        CrossEncoder.start(toy.ranker_config(folder, pair_tokens=None, template="{query} {document}"))


@KIND
def test_the_score_is_the_difference_of_two_logits(models: dict[str, Path], tmp_path: Path, kind: str) -> None:
    """Those behind the text that the template makes, by transformers alone: Qwen3-Reranker's and monoT5's way."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, folder = ranker(models, kind, tmp_path, template=TEMPLATE, true_token="y", false_token="n", pair_tokens=400)
    expected, tokenizer = AutoModelForCausalLM.from_pretrained(str(folder)), AutoTokenizer.from_pretrained(models[kind])
    yes, no = tokenizer.convert_tokens_to_ids(["y", "n"])
    for (query, document), score in zip(PAIRS, scores(model, folder), strict=True):
        ids = tokenizer(TEMPLATE.format(query=query, document=document), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = expected(ids).logits[0, -1]
        torch.testing.assert_close(score, logits[yes] - logits[no], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", [None, "last"])
def test_a_classifier_keeps_its_head(tmp_path: Path, pooling: str | None) -> None:
    """One of transformers', such as RankLLaMA's, and its scores."""
    from transformers import AutoModelForSequenceClassification

    source = toy.write_encoder(tmp_path / "base", "mistral", seed=3)
    expected = AutoModelForSequenceClassification.from_pretrained(str(source), num_labels=1).eval()
    shutil.copytree(source, tmp_path / "classifier")
    expected.save_pretrained(str(tmp_path / "classifier"))
    options = {"template": "query: {query} document: {document}</s>", "pair_tokens": 90, "pooling": pooling}
    model, tokenizer = CrossEncoder.start(toy.ranker_config(tmp_path / "classifier", **options))
    assert model.config.pooling == (pooling or "cls")
    result = scores(model, exported(model, tokenizer, tmp_path))
    for (query, document), score in zip(PAIRS, result, strict=True):
        ids = tokenizer(query, document, truncation=True, max_length=90, return_tensors="pt")["input_ids"]
        assert tokenizer.convert_ids_to_tokens(int(ids[0, -1])) == "</s>"
        with torch.no_grad():
            torch.testing.assert_close(expected(ids).logits[0, 0], score, rtol=0, atol=1e-5)


def test_a_classifier_takes_an_adapter(tmp_path: Path) -> None:
    """What was saved lacked it, and its layers came back as random numbers."""
    from transformers import AutoModelForSequenceClassification

    source = toy.write_encoder(tmp_path / "base", "mistral", seed=3)
    expected = AutoModelForSequenceClassification.from_pretrained(str(source), num_labels=1)
    shutil.copytree(source, tmp_path / "classifier")
    expected.save_pretrained(str(tmp_path / "classifier"))
    options = {"template": "query: {query} document: {document}</s>", "pair_tokens": 90}
    plain, tokenizer = CrossEncoder.start(toy.ranker_config(tmp_path / "classifier", **options))
    model, _ = CrossEncoder.start(toy.ranker_config(tmp_path / "classifier", adapter={"rank": 3}, **options))
    before = scores(plain, exported(plain, tokenizer, tmp_path / "plain"))
    folder = exported(model, tokenizer, tmp_path / "adapted")
    torch.testing.assert_close(scores(model, folder), before)
    loaded = CrossEncoder.load(folder)
    torch.testing.assert_close(scores(loaded, folder), before)
    trained = {
        name.rpartition(".")[0].split(".")[-2 if "lora_" in name else -1]
        for name, weight in loaded.named_parameters()
        if weight.requires_grad
    }
    assert trained == {"lora_A", "lora_B", "score"}
    assert list(folder.glob("**/adapter_model.safetensors"))


def test_a_part_with_an_adapter_is_not_saved_as_a_whole(tmp_path: Path) -> None:
    source = toy.write_encoder(tmp_path / "base", "mistral", seed=3)
    model, _ = CrossEncoder.start(toy.ranker_config(source, adapter={"rank": 3}, pair_tokens=90))
    del model.backbone.body
    with pytest.raises(ValueError, match="a part of the model has an adapter, which would be lost"):
        model.save(tmp_path / "model", source)


@pytest.mark.parametrize(
    ("kind", "template"),
    [(kind, template) for kind in toy.CAUSAL for template in (TEMPLATE, "{query} is: {document}?")]
    + [("qwen3", "q:{query}|{document}<|im_end|>\n"), ("qwen3", "<|im_end|>q: {query}\nd:{document}")],
)
def test_a_pair_is_read_as_the_whole_text_would_be(
    models: dict[str, Path], tmp_path: Path, kind: str, template: str
) -> None:
    """Where every letter is a token, nothing can grow together at the end of a text; spaces before words stay."""
    _, folder = ranker(models, kind, tmp_path, template=template, pair_tokens=200)
    output, plain = load_tokenizer(folder), load_tokenizer(models[kind])
    for query, document in PAIRS:
        whole = template.format(query=query, document=document)
        assert output(query, document)["input_ids"] == plain(whole)["input_ids"]
    assert tokenizer_digest(folder) == tokenizer_digest(exported_again(folder, tmp_path))


def exported_again(folder: Path, tmp_path: Path) -> Path:
    """A ranker that begins from one, exported."""
    model, tokenizer = CrossEncoder.start(toy.ranker_config(folder, pair_tokens=None))
    return exported(model, tokenizer, tmp_path / "again")


@pytest.mark.parametrize("pooling", ["cls", "first", "mean"])
def test_a_modernbert_ranker_is_sentence_transformers(models: dict[str, Path], tmp_path: Path, pooling: str) -> None:
    from sentence_transformers import CrossEncoder as Theirs

    model, folder = ranker(models, "modernbert", tmp_path, pooling=pooling)
    expected = Theirs(str(folder), device="cpu").predict(PAIRS)
    np.testing.assert_allclose(expected, scores(model, folder).numpy(), rtol=0, atol=1e-5)


# What is refused


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("qwen3", {"pooling": "cls"}, "pooling: got cls, but .* sees no other token. Use last or mean"),
        ("modernbert", {"attention": "bidirectional"}, "attention: got bidirectional, but .* is not a causal"),
    ],
)
def test_retrievers_that_cannot_be_are_refused(
    models: dict[str, Path], kind: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        DualEncoder.start(toy.retriever_config(models[kind], **options))


@pytest.mark.parametrize(
    ("kind", "key", "value", "code"),
    [
        ("qwen3", "end_token", "<eos>", "not-one-token"),
        ("qwen3", "document_tokens", 1025, "too-many-tokens"),
        ("modernbert", "query_tokens", 1025, "too-many-tokens"),
    ],
)
def test_a_key_that_a_retriever_cannot_have(
    models: dict[str, Path], kind: str, key: str, value: Any, code: str
) -> None:
    with refused(key, code):
        DualEncoder.start(toy.retriever_config(models[kind], **{key: value}))


def test_a_key_that_a_ranker_cannot_have(models: dict[str, Path]) -> None:
    with refused("true_token", "not-one-token"):
        CrossEncoder.start(toy.ranker_config(models["qwen3"], template=TEMPLATE, true_token="yes"))
    with refused("pair_tokens", "too-many-tokens"):
        CrossEncoder.start(toy.ranker_config(models["llama"], pair_tokens=2000))


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("qwen3", {}, "template: the tokenizer of .* puts nothing between the texts of a pair"),
        (
            "qwen3",
            {"template": TEMPLATE, "pooling": "first"},
            "pooling: got first, but .* sees no other token. Use cls, last",
        ),
        ("qwen3", {"template": TEMPLATE, "pair_tokens": 27}, "pair_tokens: got 27, but 26 special tokens are"),
        ("modernbert", {"pooling": "token", "true_token": "a"}, "pooling: token needs a causal language model"),
    ],
)
def test_rankers_that_cannot_be_are_refused(
    models: dict[str, Path], kind: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        CrossEncoder.start(toy.ranker_config(models[kind], **options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pooling": "token"}, "true_token: `pooling: token` needs it"),
        ({"pooling": "last", "true_token": "yes"}, "true_token and false_token need `pooling: token`"),
        ({"template": "{document} {query}"}, "a text with one {query} followed by one {document}"),
        ({"template": "{query} {text} {document}"}, "a text with one {query} followed by one {document}"),
    ],
)
def test_rankers_that_make_no_sense_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        CrossEncoderConfig(model="m", **options)


def test_a_ranker_by_a_token_needs_the_head(tmp_path: Path) -> None:
    """A retriever's folder has none."""
    source = toy.write_encoder(tmp_path / "base", "qwen3")
    with pytest.raises(UserError, match=r"needs the head of a language model, .* \(lm_head.weight is missing\)"):
        CrossEncoder.start(toy.ranker_config(source, template=TEMPLATE, true_token="y"))


def test_masked_tokens_are_not_for_decoders(models: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"qwen3 models do not predict masked tokens. Use an encoder"):
        pretrained.masked_language_model(toy.language_model_config(models["qwen3"]))


def test_a_ranker_with_a_chat_template_must_say_its_own(models: dict[str, Path], tmp_path: Path) -> None:
    """As sentence-transformers writes one; `template` is then what the chat's template makes of a pair."""
    _, folder = ranker(models, "qwen3", tmp_path, template=TEMPLATE, true_token="y", false_token="n")
    (folder / "sparring.json").unlink()
    details = {"method": "forward", "method_output_name": "logits"}
    modes = {"text": details, "message": {**details, "format": "flat"}}
    config = {"transformer_task": "text-generation", "modality_config": modes, "module_output_name": "causal_logits"}
    write_json(folder / "sentence_bert_config.json", config)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(models["qwen3"] / name, folder / name)
    with pytest.raises(UserError, match=r"reads pairs by a chat template. Sparring accepts it only with the same"):
        CrossEncoder.start(toy.ranker_config(folder))
    model, _ = CrossEncoder.start(toy.ranker_config(folder, template=TEMPLATE, pair_tokens=90))
    assert (model.config.pooling, model.config.true_token, model.config.false_token) == ("token", "y", "n")
    with pytest.raises(UserError, match=r"true_token is 'y', but the config has 'm'. Sparring accepts 'y', or null"):
        CrossEncoder.start(toy.ranker_config(folder, template=TEMPLATE, true_token="m"))
