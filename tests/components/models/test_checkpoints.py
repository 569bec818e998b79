"""Checkpoints of the papers' code come in as they are: their vectors are those of a plain loop by that code."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.models import checkpoints
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.reader import Reader
from sparring.components.models.reader_configs import ReaderConfig
from sparring.workflows.command_line import main
from tests.support import tiny, toy
from tests.support.errors import refused
from tests.support.tiny import ROOT

TEXTS = ["bara comi", "dutol feven gira", "lomi"]


class Theirs(nn.Module):
    """An encoder and its head with weights of its own."""

    def __init__(self, folder: Path, seed: int, *, head: int | None = None, pooler: bool = True) -> None:
        from transformers import AutoModel

        super().__init__()
        torch.manual_seed(seed)
        self.encoder = AutoModel.from_pretrained(str(folder), add_pooling_layer=pooler).eval()
        for weight in self.encoder.parameters():
            weight.data.normal_(0, 0.2)
        self.head = nn.Sequential() if head is None else nn.Sequential(nn.Linear(32, head), nn.LayerNorm(head))
        for weight in self.head.parameters():
            weight.data.normal_(0, 0.5)

    def forward(self, batch: Batch) -> Tensor:
        """The first token's state of each text by itself, through the head."""
        rows = [
            self.encoder(input_ids=ids[mask.bool()][None]).last_hidden_state[:, 0]
            for ids, mask in zip(batch.ids, batch.mask, strict=True)
        ]
        return self.head(torch.cat(rows))


def saved(state: Any, path: Path) -> None:
    """As the papers' code writes it, made safetensors of as the documentation says."""
    pickled, script = path.with_suffix(".pickled"), path.with_suffix(".py")
    torch.save(state, pickled)  # noqa: TID251
    page = (ROOT / "docs" / "pages" / "methods" / "checkpoints.md").read_text()
    script.write_text(re.findall(r"```python\n(.*?)```", page, re.S)[-1])
    with mock.patch.object(sys, "argv", [script.name, str(pickled), str(path)]):
        runpy.run_path(str(script))


def under(place: str, module: nn.Module) -> dict[str, Tensor]:
    return {place + name: value for name, value in module.state_dict().items()}


def read(folder: Path, tokenizer: Any) -> tuple[DualEncoder, Batch]:
    result = tokenizer(TEXTS, padding=True, return_tensors="pt")
    return DualEncoder.load(folder).eval(), Batch(result["input_ids"], result["attention_mask"])


def converted(tmp_path: Path, base: Path, *paths: Path) -> tuple[DualEncoder, Batch]:
    """What the command makes of a checkpoint, opened again."""
    words = ["convert", *map(str, paths), str(tmp_path / "folder"), "--model", str(base), "--document-tokens", "32"]
    assert main(words) == 0
    from transformers import AutoTokenizer

    inside = tmp_path / "folder"
    tokenizer = AutoTokenizer.from_pretrained(str(inside if (inside / "config.json").exists() else inside / "query"))
    return read(inside, tokenizer)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy.write_encoder(tmp_path_factory.mktemp("checkpoints") / "bert")


@pytest.mark.parametrize("layout", ["dpr", "ar2", "ict", "hub"])
@torch.inference_mode()
def test_two_towers_are_theirs(bert: Path, tmp_path: Path, layout: str) -> None:
    """DPR's and AR2's files, those that AR2 begins from, and DPR's two folders of the hub."""
    query, document = Theirs(bert, 1), Theirs(bert, 2)
    state = {**under("question_model.", query.encoder), **under("ctx_model.", document.encoder)}
    paths = [tmp_path / "one"]
    if layout == "dpr":
        rest = {
            "optimizer_dict": {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}},
            "epoch": 7,
            "encoder_params": {"do_lower_case": True},
        }
        saved({"model_dict": state, **rest}, paths[0])
    elif layout == "ar2":
        saved({"model_dict": {f"module.{name}": value for name, value in state.items()}, "offset": 0}, paths[0])
    elif layout == "ict":
        towers = {"query_model": query, "context_model": document}
        saved(
            {"model": {key: {"language_model": item.encoder.state_dict()} for key, item in towers.items()}},
            paths[0],
        )
    else:
        paths = [tmp_path / "question", tmp_path / "ctx"]
        for path, first in zip(paths, (query, document), strict=True):
            path.mkdir()
            name = {"question": "question_encoder", "ctx": "ctx_encoder"}[path.name]
            save_file(under(f"{name}.bert_model.", first.encoder), path / "model.safetensors")
    model, batch = converted(tmp_path, bert, *paths)
    torch.testing.assert_close(model(batch, "query"), query(batch))
    torch.testing.assert_close(model(batch, "document"), document(batch))
    assert (model.config.towers, model.config.pooling, model.config.similarity) == ("separate", "cls", "dot")


@torch.inference_mode()
def test_ances_head_is_theirs(tmp_path: Path) -> None:
    """RoBERTa, a linear layer and layer normalization; its file has unused heads too. Other tools give its vectors."""
    from sentence_transformers import SentenceTransformer

    base = toy.write_encoder(tmp_path / "roberta", "roberta")
    expected = Theirs(base, 1, head=24, pooler=False)
    state = {
        **under("roberta.", expected.encoder),
        **under("embeddingHead.", expected.head[0]),
        **under("norm.", expected.head[1]),
        "classifier.dense.weight": torch.ones(2, 2),
        "roberta.pooler.dense.bias": torch.ones(2),
    }
    saved(state, tmp_path / "pytorch_model.bin")
    model, batch = converted(tmp_path, base, tmp_path / "pytorch_model.bin")
    wanted = expected(batch)
    torch.testing.assert_close(model(batch, "query"), wanted)
    torch.testing.assert_close(model(batch, "document"), wanted)
    assert (model.dimensions, model.config.towers, model.config.projection_norm) == (24, "shared", True)
    second = SentenceTransformer(str(tmp_path / "folder"), device="cpu").encode(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(second, wanted, rtol=1e-4, atol=1e-5)
    again, _ = DualEncoder.start(DualEncoderConfig(model=str(tmp_path / "folder")))
    torch.testing.assert_close(again.eval()(batch, "query"), wanted)
    apart = again.with_separate_towers()
    apart.save(tmp_path / "apart", tmp_path / "folder")
    torch.testing.assert_close(DualEncoder.load(tmp_path / "apart").eval()(batch, "document"), wanted)
    two, _ = DualEncoder.start(DualEncoderConfig(model=str(tmp_path / "apart")))
    torch.testing.assert_close(two.eval()(batch, "query"), wanted)


@torch.inference_mode()
def test_coders_query_encoder_stands_beside_its_bases_documents(bert: Path, tmp_path: Path) -> None:
    query = Theirs(bert, 1)
    state = {**under("encoder.", query.encoder), "score_docs.linear.weight": torch.ones(1, 1)}
    saved({"global_step": 5, "state_dict": state, "optimizer": {"state": {}}}, tmp_path / "model_best.pth")
    model, batch = converted(tmp_path, bert, tmp_path / "model_best.pth")
    torch.testing.assert_close(model(batch, "query"), query(batch))
    base, _ = DualEncoder.start(DualEncoderConfig(model=str(bert), pooling="cls", document_tokens=32))
    torch.testing.assert_close(model(batch, "document"), base.eval()(batch, "document"))


@torch.inference_mode()
def test_fids_reader_writes_what_its_t5_writes(tmp_path: Path, said: tiny.Said) -> None:
    """Its code wraps each layer of the encoder; old files have a bias of the decoder that T5 never had."""
    from transformers import AutoModelForSeq2SeqLM

    base = toy.write_encoder(tmp_path / "t5", "t5")
    expected = AutoModelForSeq2SeqLM.from_pretrained(str(base)).eval()
    for weight in expected.parameters():
        weight.data.normal_(0, 0.2)
    state = {}
    for name, value in expected.state_dict().items():
        first, _, rest = name.partition(".")
        rest = re.sub(r"^(block\.\d+)\.", r"\1.module.", rest)
        state[f"encoder.encoder.{rest}" if first == "encoder" else name] = value
    state["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones(2, 2)
    state.pop("lm_head.weight", None)
    (tmp_path / "fid").mkdir()
    save_file({name: value.clone() for name, value in state.items()}, tmp_path / "fid" / "model.safetensors")
    words = ["convert", str(tmp_path / "fid"), str(tmp_path / "folder"), "--model", str(base)]
    assert main([*words, "--query-tokens", "20"]) == 2
    assert said()[1].startswith("error: --query-tokens: a reader cuts a question together with its passage")
    assert main([*words, "--document-tokens", "40"]) == 0
    assert "train: null" in said()[0]
    assert Reader.load(tmp_path / "folder").config.passage_tokens == 40
    actual, _ = Reader.start(ReaderConfig(model=str(tmp_path / "folder")))
    ids = torch.tensor([[5, 6, 7, 8, 1]])
    labels = torch.tensor([[9, 10, 1]])
    torch.testing.assert_close(
        actual.model.eval()(input_ids=ids, labels=labels).logits, expected(input_ids=ids, labels=labels).logits
    )


@pytest.mark.parametrize("cosine", [False, True], ids=["TAS-B and coCondenser", "SimLM"])
@torch.inference_mode()
def test_plain_encoders_of_a_hub_need_no_reader(bert: Path, tmp_path: Path, cosine: bool) -> None:
    """The first token's state, of SimLM with length 1: what `pooling` and `similarity` say."""
    expected = Theirs(bert, 3)
    expected.encoder.save_pretrained(str(tmp_path / "hub"))
    tokenizer = toy.bert_tokenizer()
    tokenizer.save_pretrained(str(tmp_path / "hub"))
    similarity: Any = "cosine" if cosine else "dot"
    config = DualEncoderConfig(model=str(tmp_path / "hub"), pooling="cls", similarity=similarity, document_tokens=32)
    model, _ = DualEncoder.start(config)
    result = tokenizer(TEXTS, padding=True, return_tensors="pt")
    batch = Batch(result["input_ids"], result["attention_mask"])
    wanted = expected(batch)
    torch.testing.assert_close(model.eval()(batch, "query"), nn.functional.normalize(wanted) if cosine else wanted)


def test_what_is_wrong_is_told(bert: Path, tmp_path: Path) -> None:
    config, path = DualEncoderConfig(model=str(bert), document_tokens=32), tmp_path / "a.pt"
    with refused("a.pt", "missing-file"):
        checkpoints.retriever([path], config)
    save_file({"layer.weight": torch.ones(2)}, path)
    with pytest.raises(UserError, match=r"no encoder. Use a checkpoint of dpr"):
        checkpoints.retriever([path], config)
    save_file(under("tower.", Theirs(bert, 1).encoder), path)
    with pytest.raises(UserError, match=r"encoders at tower\.\. Use a"):
        checkpoints.retriever([path], config)
    save_file(under("", Theirs(bert, 1).encoder), path)
    with pytest.raises(UserError, match=r"this is a plain encoder and needs no conversion"):
        checkpoints.retriever([path], config)
    small = toy.write_encoder(tmp_path / "small", num_hidden_layers=1)
    save_file(under("encoder.", Theirs(small, 1).encoder), path)
    with pytest.raises(UserError, match="the shape of the query's encoder differs from the model"):
        checkpoints.retriever([path], config)
    (tmp_path / "empty").mkdir()
    with refused("empty/model.safetensors", "missing-file"):
        checkpoints.retriever([tmp_path / "empty"], config)


def test_a_pickle_is_not_opened(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pt").write_bytes(b"cos\nsystem\n(S'touch exploded'\ntR.")
    with pytest.raises(
        UserError, match=r"a\.pt: this file is not in safetensors format\. docs/pages/methods/index\.md"
    ):
        checkpoints.retriever([tmp_path / "a.pt"], DualEncoderConfig(model=str(bert), document_tokens=32))
    assert not (tmp_path / "exploded").exists()
