"""Adapters: what is trained, kept and merged, one body under many, and the same numbers in peft's own hands."""

from __future__ import annotations

import gc
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.models import adapters, inference
from sparring.components.models.configs import BASE
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.generator import Generator
from sparring.components.models.generator_configs import GeneratorConfig
from tests.support import toy
from tests.support.errors import refused
from tests.support.processors import NEEDS_BF16

CPU = torch.device("cpu")
# peft asks transformers for a property that has another name now.
PEFT = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def a_batch(rows: int = 5, width: int = 12) -> Batch:
    """Texts of several lengths."""
    lengths = torch.arange(width, width - rows, -1)
    mask = (torch.arange(width) < lengths[:, None]).long()
    ids = torch.randint(5, 40, (rows, width), generator=torch.Generator().manual_seed(1))
    return Batch(ids * mask, mask, torch.zeros_like(ids))


def moved(model: Any) -> Any:
    """A model after some training: all that can be trained is elsewhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        for weight in model.parameters():
            if weight.requires_grad:
                nn.init.normal_(weight, std=0.1)
    return model.eval()


def retriever(folder: Path, **options: Any) -> DualEncoder:
    """One whose adapter is a trained one's."""
    config = toy.retriever_config(folder, **{"pooling": "mean", "adapter": {"rank": 3, "alpha": 6}, **options})
    return moved(DualEncoder.start(config)[0])


def ranker(folder: Path, **options: Any) -> CrossEncoder:
    """Likewise."""
    return moved(CrossEncoder.start(toy.ranker_config(folder, **{"adapter": {"rank": 3}, **options}))[0])


def asked(model: Any, *side: Any) -> Tensor:
    with torch.inference_mode():
        return model(a_batch(), *side)


def words(tower: Any) -> int:
    """Where a tower's token embeddings lie in memory."""
    return int(tower.get_input_embeddings().weight.data_ptr())


def test_the_product_is_that_of_the_paper(encoder: Path) -> None:
    """W + (alpha / rank) B A in every linear layer of the layers (Hu et al., 2022, Eq. 3), and W before training."""
    plain = DualEncoder.start(toy.retriever_config(encoder, pooling="mean"))[0].eval()
    fresh = DualEncoder.start(toy.retriever_config(encoder, pooling="mean", adapter={}))[0].eval()
    assert torch.equal(asked(fresh, "query"), asked(plain, "query"))
    model = retriever(encoder)
    factors = dict(model.towers["shared"].named_parameters())
    for name, layer in plain.towers["shared"].encoder.named_modules():
        if isinstance(layer, nn.Linear):
            a, b = (factors[f"encoder.{name}.lora_{letter}.default.weight"] for letter in "AB")
            assert (a.shape, b.shape) == ((3, layer.in_features), (layer.out_features, 3))
            layer.weight.data += 6 / 3 * b.detach() @ a.detach()
    torch.testing.assert_close(asked(model, "query"), asked(plain, "query"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "first", "mean", "maxsim"])
def test_a_ranker_trains_its_adapter_and_its_head(encoder: Path, tmp_path: Path, pooling: str) -> None:
    model = ranker(encoder, pooling=pooling)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" not in name}
    head = {
        "cls": {
            f"backbone.{part}.{subject}"
            for part in ("bert.pooler.dense", "classifier")
            for subject in ("weight", "bias")
        },
        "maxsim": set(),
    }.get(pooling, {"head.weight", "head.bias"})
    assert trained == head
    model.save(tmp_path / "ranker", encoder)
    batch = a_batch()._replace(segments=(torch.arange(12) > 5).long() * a_batch().mask)
    loaded = CrossEncoder.load(tmp_path / "ranker").eval()
    with torch.inference_mode():
        assert torch.equal(loaded(batch), model(batch))
    adapters.merge(loaded)
    with torch.inference_mode():
        torch.testing.assert_close(loaded(batch), model(batch), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra", "t5"])
def test_what_is_saved_is_the_adapter_alone(toys: Path, tmp_path: Path, kind: str) -> None:
    folder = toy.write_encoder(toys / "adapted" / kind, kind)
    model = retriever(folder, towers="separate", projection=8, dropout=None)
    model.towers["document"].requires_grad_(False)  # as CODER keeps it: it belongs to the model all the same
    model.save(tmp_path / "model", folder)
    saved = list((tmp_path / "model").rglob("*.safetensors"))
    assert sorted(path.relative_to(tmp_path / "model").as_posix() for path in saved) == [
        "document/adapter_model.safetensors",
        "document_dense/model.safetensors",
        "query/adapter_model.safetensors",
        "query_dense/model.safetensors",
    ]
    assert all("lora_" in name for path in saved[:1] for name in load_file(tmp_path / "model/query" / adapters.WEIGHTS))
    loaded = DualEncoder.load(tmp_path / "model").eval()
    for side in ("query", "document"):
        assert torch.equal(asked(loaded, side), asked(model, side))


def test_towers_and_players_stand_on_one_body(encoder: Path, tmp_path: Path) -> None:
    """Two towers, a ranker of another class, and what is loaded: one model in memory, until nobody needs it."""
    gc.collect()
    model, second = retriever(encoder, towers="separate"), ranker(encoder, pooling="cls", adapter={"rank": 2})
    model.save(tmp_path / "model", encoder)
    loaded = DualEncoder.load(tmp_path / "model")
    towers = [*model.towers.values(), *loaded.towers.values(), second.backbone]
    assert len({words(tower.base_model) for tower in towers}) == 1
    places = [{weight.data_ptr() for _, weight in adapters._frozen(tower)} for tower in towers]
    assert all(place == places[0] for place in places)
    itself = [{weight.data_ptr() for weight in tower.parameters() if weight.requires_grad} for tower in towers]
    assert all(not item & two for i, item in enumerate(itself) for two in itself[:i])
    assert words(model.with_separate_towers().towers["query"]) == words(model.towers["query"])
    assert len([key for key in adapters._bodies if key[0] == str(encoder)]) == 1
    del model, second, loaded, towers
    gc.collect()
    assert not [key for key in adapters._bodies if key[0] == str(encoder)]


def test_other_layers_or_another_model_is_another_body(toys: Path, encoder: Path) -> None:
    second = toy.write_encoder(toys / "another body", seed=5)
    models = [retriever(encoder), retriever(encoder, layers=1), retriever(second), retriever(encoder, weights="random")]
    assert len({words(model.towers["shared"]) for model in models}) == len(models)


def test_what_one_does_to_a_body_leaves_the_others_as_they_are(encoder: Path) -> None:
    """Merging, another precision, another adapter's training."""
    models = [retriever(encoder) for _ in range(3)]
    before = asked(models[0], "query")
    adapters.merge(models[1])
    models[2].to_dtype(torch.bfloat16)
    assert torch.equal(asked(models[0], "query"), before)
    torch.testing.assert_close(asked(models[1], "query"), before, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_models_that_are_asked_share_a_body_in_their_precision(encoder: Path, tmp_path: Path, precision: str) -> None:
    retriever(encoder, similarity="cosine").save(tmp_path / "retriever", encoder)
    ranker(encoder, pooling="mean").save(tmp_path / "ranker", encoder)
    options: dict[str, Any] = {"precision": precision, "batch_tokens": 100, "cuda": False, "threads": 1}
    apart = inference.Inference(DualEncoder, tmp_path / "retriever", merge=False, **options)
    second = inference.Inference(CrossEncoder, tmp_path / "ranker", merge=False, **options)
    merged = inference.Inference(DualEncoder, tmp_path / "retriever", **options)
    tower, body = apart._model.tower("query"), second._model.base_model
    assert words(tower) == words(body)
    exact = asked(DualEncoder.load(tmp_path / "retriever").eval(), "query")
    far = {"fp32": 1e-6, "bf16": 2e-2}[precision]
    for model in (apart, merged):
        torch.testing.assert_close(asked(model._model, "query"), exact, rtol=0, atol=far)


@NEEDS_BF16
@pytest.mark.usefixtures("bf16")
def test_merged_layers_are_fused(encoder: Path, tmp_path: Path) -> None:
    retriever(encoder).save(tmp_path / "retriever", encoder)
    options: dict[str, Any] = {"precision": "bf16", "batch_tokens": 100, "cuda": False, "threads": 1}
    model = inference.Inference(DualEncoder, tmp_path / "retriever", **options)._model
    assert all(isinstance(item, inference.FusedLayer) for item in model.tower("query").encoder.layer)


def test_a_ranker_begins_from_the_adapter_of_a_retriever(encoder: Path, tmp_path: Path) -> None:
    """Over the same body; a ranker without an adapter begins from the merged weights."""
    begun = retriever(encoder)
    begun.save(tmp_path / "retriever", encoder)
    for pooling in ("cls", "mean"):
        after = CrossEncoder.start(
            toy.ranker_config(tmp_path / "retriever", pooling=pooling, adapter={"rank": 3, "alpha": 6})
        )[0].eval()
        whole = CrossEncoder.start(toy.ranker_config(tmp_path / "retriever", pooling=pooling))[0].eval()
        assert words(after.base_model) == words(begun.towers["shared"])
        assert not any("lora_" in name for name, _ in whole.named_parameters())
        assert all(weight.requires_grad for weight in whole.parameters())
        ids = {"input_ids": a_batch().ids, "attention_mask": a_batch().mask}
        with torch.inference_mode():
            expected = begun.tower("query")(**ids).last_hidden_state
            for model in (after, whole):
                torch.testing.assert_close(model.base_model(**ids).last_hidden_state, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=r"adapter: .* already has a different adapter, .*rank=3.*\. Use this one"):
        CrossEncoder.start(toy.ranker_config(tmp_path / "retriever", adapter={"rank": 4}))


@PEFT
def test_peft_loads_it_over_the_base(encoder: Path, tmp_path: Path) -> None:
    """A tower by `AutoModel`, a classifier with its head by `AutoModelForSequenceClassification`."""
    from peft import PeftModel
    from transformers import AutoModel, AutoModelForSequenceClassification

    model, second = retriever(encoder, towers="separate"), ranker(encoder, pooling="cls")
    model.save(tmp_path / "retriever", encoder)
    second.save(tmp_path / "ranker", encoder)
    ids = {"input_ids": a_batch().ids, "attention_mask": a_batch().mask, "token_type_ids": a_batch().segments}
    expected: Any = PeftModel.from_pretrained(AutoModel.from_pretrained(encoder), tmp_path / "retriever/query")
    classifier = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=1)
    scorer: Any = PeftModel.from_pretrained(classifier, tmp_path / "ranker")
    with torch.inference_mode():
        states = model.tower("query")(**ids).last_hidden_state
        torch.testing.assert_close(expected.eval()(**ids).last_hidden_state, states)
        torch.testing.assert_close(scorer.eval()(**ids).logits.squeeze(-1), asked(second))
        torch.testing.assert_close(expected.merge_and_unload()(**ids).last_hidden_state, states, rtol=1e-5, atol=1e-5)


def test_a_base_that_changed_or_went_is_named(encoder: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(encoder, base)
    retriever(base).save(tmp_path / "retriever", base)
    report = json.loads((tmp_path / "retriever" / BASE).read_text())
    assert report["model"] == str(base)
    assert list(report["sha256"]) == ["model.safetensors"]
    shutil.copyfile(toy.write_encoder(tmp_path / "other", seed=9) / "model.safetensors", base / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors of the adapter's base .* has changed since"):
        DualEncoder.load(tmp_path / "retriever")
    (base / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors of the adapter's base .* is gone"):
        DualEncoder.load(tmp_path / "retriever")
    shutil.rmtree(base)
    with refused("model", "missing-folder"):
        DualEncoder.load(tmp_path / "retriever")


def test_targets_are_layers_that_the_model_has(encoder: Path) -> None:
    model = retriever(encoder, adapter={"targets": ["query", "value"]})
    assert {name.split(".")[-4] for name, item in model.named_parameters() if item.requires_grad} == {
        "query",
        "value",
    }
    with pytest.raises(
        UserError, match=r"adapter\.targets: .* has no linear layers 'q_proj'\. Use some of these: dense, key, query"
    ):
        retriever(encoder, adapter={"targets": ["q_proj"]})


@pytest.mark.parametrize(("kind", "architecture"), [("t5", "seq2seq"), ("gpt", "causal")])
def test_a_generator_has_one_too(tmp_path: Path, kind: str, architecture: Any) -> None:
    folder = tmp_path / kind
    if kind == "t5":
        toy.write_encoder(folder, kind)
    else:
        import transformers

        tokenizer = toy.bert_tokenizer()
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.LlamaConfig(**sizes, vocab_size=len(tokenizer), num_key_value_heads=2)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    config = GeneratorConfig(model=str(folder), architecture=architecture, adapter={"rank": 2})
    model = moved(Generator.start(config)[0])
    assert all("lora_" in name for name, weight in model.named_parameters() if weight.requires_grad)
    model.save(tmp_path / "saved", folder)
    loaded = Generator.load(tmp_path / "saved").eval()
    batch = (a_batch().ids, a_batch().mask)
    with torch.inference_mode():
        assert torch.equal(loaded.log_likelihoods(batch, batch), model.log_likelihoods(batch, batch))
    assert sum(path.stat().st_size for path in (tmp_path / "saved").rglob("*.safetensors")) < 40_000


def test_a_decoder_made_of_an_encoder_has_no_frozen_base(encoder: Path) -> None:
    with pytest.raises(UserError, match=r"adapter: .* is an encoder, and a decoder made from it has new layers"):
        Generator.start(GeneratorConfig(model=str(encoder), adapter={}))
