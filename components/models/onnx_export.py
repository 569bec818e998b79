"""Export of encoders as ONNX files, in fp32, fp16 or int8.

The file is `onnx/model.onnx` in each encoder's folder, where sentence-transformers expects it. Pooling, projection and
the score of late interaction stay in the modules of sentence-transformers. The extra `onnx` in pyproject.toml has the
packages that write and read the file.

sentence-transformers itself exports through `optimum-onnx`. Its newest version (0.1.0) needs transformers before 4.58,
so it cannot be installed next to transformers 5. It does not compare the file with the model either, as this module
does.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

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
Precision = Literal["fp32", "fp16", "int8"]
"""Precision of the file's weights. `int8`: matrices have 8 bits, and states are rounded as they come (dynamic
quantisation)."""
TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 0.02, "int8": 0.2}
"""Maximum difference of a vector component or score, relative to the largest value or 1, whichever is higher. For int8
it only tells a broken file: measure the ranking."""
TEXTS = ["a", "What is it?", "one two three four five six seven", "B-25, c. 1940"]
"""Texts on which the model and the file are compared."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LARGEST = 1.9e9
"""Maximum size in bytes of weights inside the ONNX file. Larger weights go to `model.onnx_data`."""


def check_packages() -> None:
    """Raise UserError if a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        names = f"package{'s' if len(missing) > 1 else ''} {' and '.join(missing)}"
        raise UserError(f"--onnx: this option needs the {names}. Install: pip install {' '.join(missing)}")


def export_retriever(folder: Path, precision: Precision = "fp32") -> float:
    """Write the encoders of a retriever's folder as ONNX. Return the largest difference from the model's vectors.

    Raise UserError if the difference is more than the precision's rounding error.
    """
    model = DualEncoder.load(folder).eval()
    if model.config.pooling == "first_last":
        raise UserError(
            "--onnx: this retriever pools the states of its first and last layers (pooling: first_last), but an ONNX "
            "encoder returns only those of the last. Export it without --onnx."
        )
    tokenizer = load_tokenizer(folder)
    texts, difference = Template.of(tokenizer), 0.0
    for name, tower in model.towers.items():
        _write(tower, _folder(folder, name), "last_hidden_state", segments=texts.segments, precision=precision)
    sides: tuple[Side, ...] = get_args(Side)
    for side in sides:
        prompt = getattr(model.config, f"{side}_prompt")
        tokens = Tokens.of(tokenizer([prompt + text for text in TEXTS], add_special_tokens=False)["input_ids"])
        batch = texts.texts(tokens, np.arange(len(TEXTS)), model.max_tokens(side))
        with torch.inference_mode():
            expected = model(batch, side)
            name = "shared" if "shared" in model.towers else side
            encoder, model.towers[name] = model.towers[name], _Runtime(_folder(folder, name))
            difference = max(difference, _difference(model(batch, side), expected, f"of a {side}", precision))
            model.towers[name] = encoder
    return difference


def _folder(folder: Path, tower: str) -> Path:
    """Return the folder of a tower's encoder."""
    return folder if tower == "shared" else folder / tower


def export_ranker(folder: Path, precision: Precision = "fp32") -> float:
    """Write the encoder of a ranker's folder as ONNX. Return the largest difference from the model's scores.

    A sequence classifier is written with its head. Raise UserError if the difference is more than the precision's
    rounding error.
    """
    model = CrossEncoder.load(folder).eval()
    tokenizer = load_tokenizer(folder)
    template = Template.of(tokenizer)
    output = "logits" if model.config.pooling == "cls" else "last_hidden_state"
    _write(model.backbone, folder, output, segments=template.segments, precision=precision)
    tokens = Tokens.of(tokenizer(TEXTS, add_special_tokens=False)["input_ids"])
    pairs = np.array([(i, (i + 1) % len(TEXTS)) for i in range(len(TEXTS))])
    batch = template.pairs(tokens, tokens, pairs, model.config.pair_tokens)
    with torch.inference_mode():
        expected = model(batch)
        model.backbone = _Runtime(folder)
        return _difference(model(batch), expected, "of a pair", precision)


class _Encoder(nn.Module):
    """An encoder whose forward pass takes positional tensors and returns a tensor."""

    def __init__(self, model: Any, output: str) -> None:
        super().__init__()
        self.model, self.output = model, output

    def forward(self, *inputs: Tensor) -> Tensor:
        """Compute the output for input ids, mask and, if the model uses them, segments."""
        result: Tensor = self.model(**dict(zip(INPUTS, inputs, strict=False)))[self.output]
        return result


class _Runtime(nn.Module):
    """An encoder that runs a folder's ONNX file in ONNX Runtime."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        runtime = importlib.import_module("onnxruntime")
        self.session = runtime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])

    def forward(self, **inputs: Tensor) -> Any:
        """Compute the output of a Hugging Face model. Without segments, all tokens belong to the first text."""
        inputs.setdefault("token_type_ids", torch.zeros_like(inputs["input_ids"]))
        names = [node.name for node in self.session.get_inputs()]
        (output,) = self.session.get_outputs()
        (values,) = self.session.run(None, {name: inputs[name].numpy() for name in names})
        return _Output(**{output.name: torch.from_numpy(values)})


class _Output:
    def __init__(self, **tensors: Tensor) -> None:
        vars(self).update(tensors)


def _write(model: Any, folder: Path, output: str, *, segments: bool, precision: Precision) -> None:
    """Write an encoder's file, for batches of any size and length."""
    (folder / FILE).parent.mkdir(exist_ok=True)
    names = INPUTS if segments else INPUTS[:2]
    # Two texts of different lengths, so that the exporter takes no dimension for constant.
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    example = tuple({"attention_mask": mask}.get(name, torch.zeros_like(mask)) for name in names)
    dynamic = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    size = sum(value.nbytes for value in model.state_dict().values())
    with _silent():
        try:
            program: Any = torch.onnx.export(
                _Encoder(model, output).eval(),
                example,
                dynamo=True,
                input_names=list(names),
                output_names=[output],
                dynamic_shapes=(tuple(dynamic for _ in names),),
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            kind = model.config.model_type
            raise UserError(
                f"--onnx: torch cannot write {kind} models as ONNX ({reason}). Export it without --onnx."
            ) from error
        if precision == "fp32":
            program.save(str(folder / FILE), external_data=size > LARGEST)
            return
        with tempfile.TemporaryDirectory() as place:
            whole = Path(place) / "model.onnx"
            program.save(str(whole), external_data=size > LARGEST)
            _rounded(whole, folder / FILE, precision, size)


def _rounded(whole: Path, to: Path, precision: Precision, size: int) -> None:
    """Write a file in fp16 or int8, from a file in fp32 whose weights have `size` bytes."""
    onnx = importlib.import_module("onnx")
    model = onnx.load(str(whole))
    if precision == "int8":
        quantization = importlib.import_module("onnxruntime.quantization")
        # onnxruntime transposes the weights of a head, whose shapes as noted here would then be wrong.
        del model.graph.value_info[:]
        # With one scale for a whole matrix, MiniLM's vectors had cosines down to .87 with ours, with a scale for each
        # column .97. Products of processors without VNNI would overflow without the reduced range.
        quantization.quantize_dynamic(
            model,
            to,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            use_external_data_format=size / 4 > LARGEST,
        )
        return
    float16 = importlib.import_module("onnxruntime.transformers.float16")
    halved = float16.convert_float_to_float16(model, keep_io_types=True)
    onnx.save_model(halved, str(to), save_as_external_data=size / 2 > LARGEST, location=f"{to.name}_data")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence the exporter, which warns about unknown operators and axis names."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _difference(values: Tensor, expected: Tensor, side: str, precision: Precision) -> float:
    """Return the largest difference. Raise UserError if it is more than the precision's rounding error."""
    difference, largest = float((values - expected).abs().max()), float(expected.abs().max())
    if not difference <= TOLERANCES[precision] * max(1.0, largest):
        where = f"{side} by {difference:.2g}"
        instead = "Export it without --onnx." if precision == "fp32" else "Use --onnx-precision fp32."
        raise UserError(
            f"--onnx: ONNX Runtime and the model differ in the output {where}, more than {TOLERANCES[precision]:g}. "
            f"{instead}"
        )
    return difference
