"""Encoders as ONNX files, for ONNX Runtime, where sentence-transformers looks for them: `onnx/model.onnx` beside each
encoder. What follows it (pooling, projection, the score of late interaction) stays where it is.

The packages that write and read the file are those of the extra `onnx` in pyproject.toml.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn

from sparring.components.config import UserError
from sparring.components.data.template import Template
from sparring.components.data.tokenizers import load_tokenizer
from sparring.components.data.tokens import Tokens
from sparring.components.models.cross_encoder import CrossEncoder
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.text_encoder import Side

FILE = "onnx/model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
TOLERANCE = 1e-4
"""How far a number of a vector, or a score, may be from ours, of the largest (at least of 1)."""
TEXTS = ["a", "What is it?", "one two three four five six seven", "B-25, c. 1940"]
"""What both are tried with, together in one batch."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LARGEST = 1.9e9
"""Bytes of weights that fit into one file; those of more lie beside it, in `model.onnx_data`."""


def check_packages() -> None:
    """UserError where a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        what = f"package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}"
        raise UserError(f"--onnx: needs the {what}; install: pip install {' '.join(missing)}")


def export_retriever(folder: Path) -> float:
    """Write the encoders of a retriever's folder beside their weights; how far their vectors are from ours.

    UserError where that is more than a rounding error.
    """
    model = DualEncoder.load(folder).eval()
    if model.config.pooling == "first_last":
        raise UserError(
            "--onnx: the retriever reads the states of its first layer (pooling: first_last), and the "
            "exported encoder gives those of the last alone; accepted: no --onnx"
        )
    tokenizer = load_tokenizer(folder)
    texts, apart = Template.of(tokenizer), 0.0
    for name, tower in model.towers.items():
        _write(tower, _place(folder, name), "last_hidden_state", segments=texts.segments)
    sides: tuple[Side, ...] = get_args(Side)
    for side in sides:
        prompt = getattr(model.config, f"{side}_prompt")
        tokens = Tokens.of(tokenizer([prompt + text for text in TEXTS], add_special_tokens=False)["input_ids"])
        batch = texts.texts(tokens, np.arange(len(TEXTS)), model.max_tokens(side))
        with torch.inference_mode():
            ours = model(batch, side)
            own = "shared" if "shared" in model.towers else side
            encoder, model.towers[own] = model.towers[own], _Runtime(_place(folder, own))
            apart = max(apart, _apart(model(batch, side), ours, f"of a {side}"))
            model.towers[own] = encoder
    return apart


def _place(folder: Path, tower: str) -> Path:
    """Where a tower's encoder lies."""
    return folder if tower == "shared" else folder / tower


def export_ranker(folder: Path) -> float:
    """Write the encoder of a ranker's folder, of a sequence classifier with its head; how far scores are from ours."""
    model = CrossEncoder.load(folder).eval()
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    output = "logits" if model.config.pooling == "cls" else "last_hidden_state"
    _write(model.backbone, folder, output, segments=template.segments)
    tokens = Tokens.of(tokenizer(TEXTS, add_special_tokens=False)["input_ids"])
    pairs = np.array([(i, (i + 1) % len(TEXTS)) for i in range(len(TEXTS))])
    batch = template.pairs(tokens, tokens, pairs, model.config.pair_tokens)
    with torch.inference_mode():
        ours = model(batch)
        model.backbone = _Runtime(folder)
        return _apart(model(batch), ours, "of a pair")


class _Encoder(nn.Module):
    """An encoder whose forward pass has plain arguments and one tensor as its result."""

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *inputs: Tensor) -> Tensor:
        """The output for input ids, mask and perhaps segments."""
        result: Tensor = self.model(**dict(zip(INPUTS, inputs, strict=False)))[self.output]
        return result


class _Runtime(nn.Module):
    """What ONNX Runtime makes of a folder's file, in place of the encoder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        runtime = importlib.import_module("onnxruntime")
        self.session = runtime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])

    def forward(self, **inputs: Tensor) -> Any:
        """The output, as a Hugging Face model has it. Segments that are not given are those of one text."""
        inputs.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
        names = [one.name for one in self.session.get_inputs()]
        (output,) = self.session.get_outputs()
        (values,) = self.session.run(None, {name: inputs[name].numpy() for name in names})
        return _Output(**{output.name: torch.from_numpy(values)})


class _Output:
    def __init__(self, **tensors: Tensor) -> None:
        vars(self).update(tensors)


def _write(model: Any, folder: Path, output: str, *, segments: bool) -> None:
    """Write an encoder's file, for batches of any size and length."""
    (folder / FILE).parent.mkdir(exist_ok=True)
    names = INPUTS if segments else INPUTS[:2]
    # Of two texts of unequal lengths, so that nothing is taken for constant.
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    example = tuple({"attention_mask": mask}.get(name, torch.zeros_like(mask)) for name in names)
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    size = sum(value.nbytes for value in model.state_dict().values())
    with _silent():
        try:
            program: Any = torch.onnx.export(
                _Encoder(model, output).eval(),
                example,
                dynamo=True,
                input_names=list(names),
                output_names=[output],
                dynamic_shapes=(tuple(free for _ in names),),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            why = str(error.__cause__ or error).strip().splitlines()[0]
            raise UserError(f"--onnx: torch cannot write a {model.config.model_type} model as ONNX: {why}") from error
        program.save(str(folder / FILE), external_data=size > LARGEST)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Torch tells of every operator that it does not know, and of names of axes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _apart(theirs: Tensor, ours: Tensor, of: str) -> float:
    """The largest difference; UserError where it is no rounding error."""
    apart = float((theirs - ours).abs().max())
    if not apart <= TOLERANCE * max(1.0, float(ours.abs().max())):
        raise UserError(f"--onnx: ONNX Runtime gives other numbers: {of} by {apart:.2g}; accepted: {TOLERANCE:g}")
    return apart
