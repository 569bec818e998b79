"""Encoders from directories: found or refused with a clear error, cut to layers, and written again."""

from __future__ import annotations

import copy
import importlib.machinery
import importlib.util
import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BartConfig,
    BertConfig,
    FNetConfig,
    LongT5Config,
    MPNetConfig,
    T5Config,
    T5EncoderModel,
)

from sparring.components.config import UserError
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.models import configs, pretrained, saved, seeding
from sparring.components.models.bottleneck import Decoder
from sparring.components.models.capabilities import lacks_dropout
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.layers import check_length, check_padding, keep_layers
from sparring.components.models.shape import dimensions_of
from tests.support import toy
from tests.support.errors import refused


def config(model: Any, **options: Any) -> Any:
    return toy.retriever_config(model, **{"dropout": None, **options})


def states(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state


@pytest.fixture(scope="module")
def deep(toys: Path) -> Path:
    """Four layers, so that a cut has something to cut."""
    return toy.write_encoder(toys / "deep", num_hidden_layers=4)


@pytest.mark.parametrize("kind", ["whole", "shapes alone"])
@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (
            "vocab_size",
            200,
            r"embeddings\.word_embeddings\.weight has the shape \[\d+, 32\] instead of \[200, 32\]",
        ),
        ("hidden_size", 64, r"has the shape \[\d+\] instead of \[\d+\]"),
        ("num_hidden_layers", 3, r"encoder\.layer\.2\.\S+ is missing"),
        ("num_hidden_layers", 1, r"encoder\.layer\.1\.\S+ is not part of that"),
    ],
)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_weights_that_do_not_fit_the_config_are_refused(
    encoder: Path, tmp_path: Path, key: str, value: int, says: str, pooling: str, kind: str
) -> None:
    """Weights that are missing would be random numbers."""
    shutil.copytree(encoder, tmp_path / "own")
    details = tmp_path / "own" / "config.json"
    details.write_text(json.dumps({**json.loads(details.read_text()), key: value}))
    wanted = toy.ranker_config(tmp_path / "own", pooling=pooling, dropout=None)
    mistake = pytest.raises(UserError, match=rf"model: \S+: the weights do not match config\.json: .*{says}")
    with pretrained.shapes_alone() if kind != "whole" else nullcontext(), mistake:
        CrossEncoder.start(wanted)


@pytest.mark.parametrize("kind", ["SequenceClassification", "TokenClassification"])
def test_a_head_of_several_labels_is_refused_for_a_ranker(encoder: Path, tmp_path: Path, kind: str) -> None:
    """A new head can be put on its encoder; a head of one label, or none, fits."""
    auto = getattr(transformers, f"AutoModelFor{kind}")
    shutil.copytree(encoder, tmp_path / "own")
    wanted = toy.ranker_config(tmp_path / "own", pooling="cls", dropout=None)
    with pretrained.shapes_alone():
        CrossEncoder.start(wanted)
    for labels in (1, 3):
        details = transformers.AutoConfig.from_pretrained(encoder, num_labels=labels)
        auto.from_config(details).save_pretrained(tmp_path / "own")
        batch = pytest.raises(UserError, match=r"own: the head gives 3 scores per pair, but a ranker needs one")
        for making in (pretrained.shapes_alone, nullcontext):
            with making(), batch if labels > 1 else nullcontext():
                CrossEncoder.start(wanted)
    CrossEncoder.start(wanted.model_copy(update={"pooling": "first"}))


BART = {
    "vocab_size": 40,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
KINDS: dict[str, Any] = {"dense": DualEncoder, "cross_encoder": CrossEncoder}
IDS = torch.tensor([[2, 50, 60, 70, 3]])


@pytest.mark.parametrize(("layers", "kept"), [(2, [0, 1]), (1, [0]), ([0, 3], [0, 3]), ([2], [2]), (4, [0, 1, 2, 3])])
def test_a_cut_keeps_the_layers_that_were_asked_for(deep: Path, layers: Any, kept: list[int]) -> None:
    whole, cut = pretrained.encoder(config(deep)), pretrained.encoder(config(deep, layers=layers))
    assert cut.config.num_hidden_layers == len(kept) == len(cut.encoder.layer)
    before, after = dict(whole.named_parameters()), dict(cut.named_parameters())
    for name, value in after.items():
        _, _, rest = name.partition("encoder.layer.")
        if rest:
            index, _, part = rest.partition(".")
            name = f"encoder.layer.{kept[int(index)]}.{part}"
        assert torch.equal(value, before[name])


def test_the_first_layers_compute_what_they_computed(deep: Path) -> None:
    """The states after two of four layers are those of the whole model on its way."""
    whole, cut = pretrained.encoder(config(deep)), pretrained.encoder(config(deep, layers=2))
    with torch.no_grad():
        way = whole.eval()(input_ids=IDS, attention_mask=torch.ones_like(IDS), output_hidden_states=True).hidden_states
    torch.testing.assert_close(states(cut, IDS), way[2])
    assert len(way) == 5


def test_a_cut_model_is_written_and_read_with_its_layers(deep: Path, tmp_path: Path) -> None:
    cut = pretrained.encoder(config(deep, layers=[0, 2]))
    saved.save_tower(cut, tmp_path / "cut", deep, 48)
    again = saved.load_encoder(tmp_path / "cut")
    assert again.config.num_hidden_layers == 2
    assert torch.equal(states(again, IDS), states(cut, IDS))
    assert not torch.equal(states(again, IDS), states(pretrained.encoder(config(deep, layers=2)), IDS))


@pytest.mark.parametrize("layers", [0, 5, -1, [], [0, 4], [-1], [1, 1]])
def test_layers_that_are_not_there_are_refused(deep: Path, layers: Any) -> None:
    with refused("layers", "too-many-layers"):
        pretrained.encoder(config(deep, layers=layers))


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "t5"])
def test_families_are_read_cut_written_and_read_again(tmp_path: Path, kind: str) -> None:
    folder = toy.write_encoder(tmp_path / kind, kind)
    cut = pretrained.encoder(config(folder, layers=1))
    assert cut.config.num_hidden_layers == 1
    saved.save_tower(cut, tmp_path / "again", folder, 48)
    assert torch.equal(states(saved.load_encoder(tmp_path / "again"), IDS), states(cut, IDS))
    tokenizer = load_tokenizer(tmp_path / "again")
    text = "bara nami xq7 lotol"
    assert tokenizer(text)["input_ids"] == pretrained.tokenizer(config(folder))(text)["input_ids"]


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert", "t5"])
def test_weights_are_read_whole_in_fp32(tmp_path: Path, kind: str) -> None:
    """Also where they were stored in half precision."""
    folder = toy.write_encoder(tmp_path / kind, kind)
    before = saved.load_encoder(folder)
    before.to(torch.bfloat16).save_pretrained(str(folder))
    read = pretrained.encoder(config(folder))
    assert {value.dtype for value in read.parameters()} == {torch.float32}
    for (name, a), (_, b) in zip(before.named_parameters(), read.named_parameters(), strict=True):
        assert torch.equal(a.float(), b), name


def test_no_pooler_is_trained_that_no_vector_goes_through(encoder: Path) -> None:
    assert not [name for name, _ in pretrained.encoder(config(encoder)).named_parameters() if "pooler" in name]


def test_of_t5_the_encoder_alone_is_read(tmp_path: Path) -> None:
    """And its first layer, which knows the relative positions for all, is never cut away."""
    folder = toy.write_encoder(tmp_path / "t5", "t5")
    read = pretrained.encoder(config(folder))
    assert type(read).__name__ == "T5EncoderModel"
    assert not [name for name, _ in read.named_parameters() if "decoder" in name]
    with refused("layers", "needs-first-layer"):
        pretrained.encoder(config(folder, layers=[1]))


def test_dropout_is_set_or_left(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**options: Any) -> set[float]:
        model = pretrained.encoder(config(encoder, **options))
        return {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)}

    assert found() == {0.1}
    assert found(dropout=0.0) == {0.0}
    assert found(dropout=0.3) == {0.3}
    assert pretrained.encoder(config(encoder, dropout=0.3)).config.attention_probs_dropout_prob == 0.3
    second = toy.write_encoder(tmp_path / "distilbert", "distilbert")
    distilled = pretrained.encoder(config(second, dropout=0.3)).config
    assert (distilled.dropout, distilled.attention_dropout) == (0.3, 0.3)
    t5 = pretrained.encoder(config(toy.write_encoder(tmp_path / "t5", "t5"), dropout=0.3))
    assert {module.p for module in t5.modules() if isinstance(module, torch.nn.Dropout)} == {0.3}
    monkeypatch.setattr(pretrained, "DROPOUTS", ("hidden_dropout_prob",))
    with refused("model", "fixed-by-model"):
        pretrained.encoder(config(second, dropout=0.0))


@pytest.mark.parametrize("model", ["./nowhere", "/nowhere/at/all", "~/nowhere-at-all", "runs/a/b"])
def test_a_directory_that_is_not_there_is_named(model: str) -> None:
    with refused("model", "missing-folder"):
        configs.locate_model(model)


def test_a_directory_without_a_model_is_named(tmp_path: Path, encoder: Path) -> None:
    with refused("model", "no-model"):
        pretrained.encoder(config(tmp_path))
    half = tmp_path / "half"
    half.mkdir()
    shutil.copyfile(encoder / "config.json", half / "config.json")
    with refused("model", "not-loadable"):
        pretrained.encoder(config(half))
    shutil.copyfile(encoder / "model.safetensors", half / "model.safetensors")
    pretrained.encoder(config(half))


def test_a_package_that_is_not_installed_is_named() -> None:
    with refused("model", "missing-package"):
        configs.locate_model("package:surely-not-there")
    for name in ("a.b", "pyarrow.compute", "", ".", "a b"):
        with refused("model", "missing-package"):
            configs.locate_model(f"package:{name}")
    with refused("model", "no-model"):
        configs.locate_model("package:pyarrow")


def test_a_package_that_carries_a_model_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.write_encoder(tmp_path / "some_model" / "model")
    spec = importlib.machinery.ModuleSpec("some_model", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "some_model")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "some_model" else None)
    assert configs.locate_model("package:some-model") == str(tmp_path / "some_model" / "model")
    assert pretrained.encoder(config("package:some-model")).config.num_hidden_layers == 2


def test_a_hubs_id_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a directory of the same name comes first."""
    monkeypatch.chdir(tmp_path)
    assert configs.locate_model("some/model") == "some/model"
    assert configs.locate_model("some-model") == "some-model"
    toy.write_encoder(tmp_path / "some" / "model")
    assert configs.locate_model("some/model") == str(tmp_path / "some" / "model")


def test_weights_of_a_module_by_themselves(tmp_path: Path) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    saved.save_weights(first, tmp_path / "head.safetensors", prefix="linear.")
    saved.load_weights(second, tmp_path / "head.safetensors", prefix="linear.")
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_a_seeded_block_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    with seeding.seeded(7):
        first = torch.randn(2)
    after = torch.randn(2)
    with seeding.seeded(7):
        assert torch.equal(torch.randn(2), first)
    torch.manual_seed(3)
    assert torch.equal(torch.randn(2), after)


def test_layers_whose_biases_lie_beside_them_may_begin_anywhere() -> None:
    """MPNet's: SimLM's decoder begins as the last two layers. T5's first layer holds those of all."""
    shape = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    model = AutoModel.from_config(MPNetConfig(num_hidden_layers=4, **shape))
    assert keep_layers(copy.deepcopy(model), [2, 3]).config.num_hidden_layers == 2
    decoder = Decoder(model, 2, "last")
    vectors, states = torch.randn(3, 16), torch.randn(3, 5, 16)
    assert decoder(vectors, states, torch.ones(3, 5)).shape == (3, 5, 16)
    with refused("decoder_layers", "too-many-layers"):
        Decoder(model, 5, "last")
    t5 = T5EncoderModel(T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2))
    with refused("layers", "needs-first-layer"):
        keep_layers(t5, [1, 2])


@pytest.mark.parametrize("kind", ["XLM", "Bart"])
def test_layers_that_lie_in_several_lists_are_not_cut(kind: str) -> None:
    """XLM has a list for each part of a layer; BART's decoder would keep all of its own."""
    sizes: dict[str, Any] = {
        "XLM": {"emb_dim": 16, "n_layers": 2, "n_heads": 2},
        "Bart": BART | {"encoder_layers": 2, "decoder_layers": 2},
    }
    model = AutoModel.from_config(getattr(transformers, f"{kind}Config")(**{"vocab_size": 40, **sizes[kind]}))
    says = f"^layers: got 1, .*{kind.lower()} models cannot be selected: there are [2-9] lists of 2 layers"
    with pytest.raises(UserError, match=says):
        keep_layers(model, 1)


def test_a_model_that_reads_padding_is_refused(tmp_path: Path) -> None:
    """FNet's Fourier transform goes over all places. LongT5's encoder is not asked alone."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    fnet, config = AutoModel.from_config(FNetConfig(vocab_size=40, **sizes)), toy.retriever_config("some/model")
    with refused("model", "unsupported-model"):
        check_padding(fnet, config)
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
    with refused("model", "unsupported-model"):
        check_padding(AutoModel.from_config(LongT5Config(vocab_size=40, **t5)), config)
    AutoModel.from_config(FNetConfig(vocab_size=40, **sizes)).save_pretrained(str(tmp_path / "fnet"))
    toy.bert_tokenizer().save_pretrained(str(tmp_path / "fnet"))
    for start in (toy.retriever_config, toy.ranker_config):
        with refused("model", "unsupported-model"):
            KINDS[start(tmp_path / "fnet").kind].start(start(tmp_path / "fnet", dropout=None))


def test_texts_are_cut_at_their_end_by_others_too(tmp_path: Path) -> None:
    """A tokenizer may say that it cuts at the beginning, and those that load an export would."""
    source = toy.write_encoder(tmp_path / "model")
    path = source / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation_side": "left"}))
    assert pretrained.tokenizer(toy.retriever_config(source)).truncation_side == "right"


def test_a_tokenizer_without_a_file_of_its_rules_is_refused(tmp_path: Path) -> None:
    """ByT5's is code that reads bytes."""
    folder = toy.write_encoder(tmp_path / "model", "t5", tokenizer=transformers.ByT5Tokenizer(extra_ids=0))
    with refused("model", "unsupported-tokenizer"):
        pretrained.tokenizer(toy.retriever_config(folder))


def test_a_model_without_some_of_its_weights_is_damaged(tmp_path: Path) -> None:
    """They would be random numbers."""
    folder = toy.write_encoder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if name.endswith("attention.self.query.weight"))
    save_file(
        {name: item for name, item in weights.items() if name != lost},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with refused("model", "damaged-file", lost):
        saved.load_encoder(folder)


@pytest.mark.parametrize("kind", ["bert", "t5", "distilbert"])
def test_whether_two_passes_differ_is_known_of_every_kind(tmp_path: Path, kind: str) -> None:
    folder = toy.write_encoder(tmp_path / kind, kind)
    for dropout in (0.0, 0.1):
        model = pretrained.encoder(toy.retriever_config(folder, dropout=dropout))
        assert pretrained.has_dropout(model) == (dropout > 0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_model_that_drops_nothing_is_known_by_its_files(tmp_path: Path, dropout: float) -> None:
    folder = toy.write_encoder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    report = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config | report))
    assert lacks_dropout(toy.retriever_config(folder)) == (dropout == 0)


def test_a_config_alone_may_say_that_there_is_dropout() -> None:
    """BART has a number where others have a module."""
    assert pretrained.has_dropout(AutoModel.from_config(BartConfig(dropout=0.1, **BART)))
    assert not pretrained.has_dropout(AutoModel.from_config(BartConfig(dropout=0.0, **BART)))


def test_dimensions_are_told_of_a_folder_that_says_them(tmp_path: Path) -> None:
    folder = toy.write_encoder(tmp_path / "model")
    assert dimensions_of(toy.retriever_config(folder)) == 32
    assert dimensions_of(toy.retriever_config(folder, truncate=9)) == 9
    assert dimensions_of(toy.retriever_config("somebody/a-model-of-the-hub")) is None
    modules = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Pooling", "Dense")]
    (folder / "modules.json").write_text(json.dumps(modules))
    assert dimensions_of(toy.retriever_config(folder)) is None
    (folder / "modules.json").write_text("{")
    assert dimensions_of(toy.retriever_config(folder)) is None


def test_padding_counts_where_it_has_positions(tmp_path: Path) -> None:
    """A batch is as wide as a multiple of 8, and BERT has a position for each place of it."""
    model = AutoModel.from_config(
        BertConfig(
            vocab_size=40,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=36,
        )
    )
    check_length(model, toy.retriever_config("model", document_tokens=32), "document_tokens")
    with refused("document_tokens", "too-many-tokens"):
        check_length(model, toy.retriever_config("model", document_tokens=36), "document_tokens")
