"""Conversion of checkpoints from the papers' own code: retrievers of DPR, AR2, ANCE and CODER, and readers of
Fusion-in-Decoder (FiD).

A checkpoint is a table of weights by name. The prefix of a name tells which encoder the weight belongs to. Models that
a hub has as plain encoders (coCondenser, SimLM, TAS-B) need no conversion: write their name in `retriever.model`.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sparring.components.config import UserError, listing
from sparring.components.data.tokenizers import save_tokenizer
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.dual_encoder import DualEncoder
from sparring.components.models.reader import Reader
from sparring.components.models.reader_configs import ReaderConfig

FIRST = "embeddings.word_embeddings.weight"
"""Name of a weight that every encoder here has. The prefix before it in a checkpoint is the encoder's place."""
UNUSED = re.compile(r"(pooler|cls|classifier)\.|(.*\.)?position_ids$|.*EncDecAttention\.relative_attention_bias")
"""Names of weights that have no effect."""
WRAPPED = re.compile(r"encoder\.encoder\.(?:block\.(\d+)\.module\.)?")
"""Prefix of weights of T5's encoder in FiD's code, which wraps the layers."""
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""Additional names of T5's token embeddings, which a file may omit."""


class Layout(NamedTuple):
    """The places of encoders in a paper's checkpoints. Each field is the end of a name's prefix."""

    query: str = ""
    document: str = ""
    shared: str = ""
    head: bool = False
    """True if a linear layer and layer normalization come after pooling, as in ANCE."""


LAYOUTS = {
    "dpr": Layout(query="question_model.", document="ctx_model."),
    "dpr-hub": Layout(query="question_encoder.bert_model.", document="ctx_encoder.bert_model."),
    "ar2-ict": Layout(query="query_model.language_model.", document="context_model.language_model."),
    "ance": Layout(shared="roberta.", head=True),
    "coder": Layout(query="encoder."),
}
"""Layouts by the name of their source. AR2's retrievers, and ANCE's for questions, have DPR's layout. CODER's has only
the query encoder."""

HEADS = {"embeddingHead.": "linear", "norm.": "norm"}
"""Our names of the layers after pooling, by ANCE's names."""


def weights_in(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint by name. Raise UserError unless it is in safetensors format.

    The papers' code pickles its checkpoints, and opening a pickle can execute any code.
    """
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path}: there is no such file", code="missing-file")
    try:
        return load_file(path)
    except SafetensorError:
        raise UserError(
            f"{path}: this file is not in safetensors format. docs/pages/methods/index.md shows how to convert a "
            "checkpoint that you trust."
        ) from None


def retriever(paths: list[Path], config: DualEncoderConfig) -> tuple[DualEncoder, Any, str]:
    """Load a retriever with the weights of a checkpoint. Return it with its tokenizer and the name of its layout.

    `config.model` is the encoder that the checkpoint was trained from. It provides the shape and the tokenizer, and for
    CODER the document encoder. Two paths are the two encoders of a retriever. Raise UserError if the layout is not in
    `LAYOUTS`, or if the shape differs.
    """
    weights = {name: value for path in paths for name, value in weights_in(path).items()}
    name, layout = _layout_of(weights, paths)
    form: dict[str, Any] = {"towers": "shared" if layout.shared else "separate", "pooling": "cls", "similarity": "dot"}
    stated = {key: value for key in form if (value := getattr(config, key)) is not None}
    if layout.head:
        form |= {"projection": len(_under(weights, "norm.")["weight"]), "projection_norm": True}
    model, tokenizer = DualEncoder.start(config.model_copy(update=form | stated))
    for side in model.towers:
        if place := getattr(layout, side):
            _fill(model.towers[side], _under(weights, place), f"the {side}'s encoder", paths)
    if layout.head:
        head = model.projections["shared"]
        for prefix, attribute in HEADS.items():
            _fill(getattr(head, attribute), _under(weights, prefix), prefix.rstrip("."), paths)
    return model, tokenizer, name


def has_reader(paths: list[Path]) -> bool:
    """Return True if a checkpoint is a reader of FiD."""
    return len(paths) == 1 and any(WRAPPED.match(name) for name in weights_in(paths[0]))


def reader(path: Path, config: ReaderConfig) -> tuple[Reader, Any]:
    """Load a reader with the weights of a FiD checkpoint. Return it with its tokenizer.

    `config.model` is the T5 that the checkpoint was trained from. FiD's code puts `title:` before a passage's title. To
    read passages so, set `template: fid`.
    """
    weights = {
        WRAPPED.sub(lambda match: f"encoder.block.{match[1]}." if match[1] else "encoder.", name, count=1): value
        for name, value in weights_in(path).items()
    }
    weights |= {name: weights["shared.weight"] for name in TIED if name not in weights and "shared.weight" in weights}
    model, tokenizer = Reader.start(config)
    _fill(model.model, weights, "the reader", [path])
    return model, tokenizer


def _layout_of(weights: dict[str, Tensor], paths: list[Path]) -> tuple[str, Layout]:
    """Return the layout whose encoders are all present. If there are several, return the one with most encoders."""
    places = [name.removesuffix(FIRST) for name in weights if name.endswith(FIRST)]

    def has(place: str) -> bool:
        return any(name == place or name.endswith(f".{place}") for name in places)

    layouts = {
        name: layout
        for name, layout in LAYOUTS.items()
        if all(has(place) for place in (layout.query, layout.document, layout.shared) if place)
        and (not layout.head or any(name.startswith("embeddingHead.") for name in weights))
    }
    if not layouts:
        if places == [""]:
            raise UserError(
                f"{listing(map(str, paths))}: this is a plain encoder and needs no conversion. Write its path in "
                "`retriever.model`."
            )
        content = f"encoders at {listing(places)}" if places else "no encoder"
        raise UserError(
            f"{listing(map(str, paths))}: the file has {content}. Use a checkpoint of {listing(LAYOUTS)}.",
            code="unknown-layout",
        )
    return max(layouts.items(), key=lambda entry: sum(map(bool, entry[1])))


def _under(weights: dict[str, Tensor], place: str) -> dict[str, Tensor]:
    """Return the weights below a place, without its prefix. The place can be nested (`model_dict.question_model.`)."""
    pattern = re.compile(rf"(?:.*\.)?{re.escape(place)}")
    deep = min((len(match.group()) for name in weights if (match := pattern.match(name))), default=0)
    return {
        name[deep:]: value
        for name, value in weights.items()
        if (name[:deep] == place or name[:deep].endswith(f".{place}"))
    }


def _fill(module: nn.Module, weights: dict[str, Tensor], part: str, paths: list[Path]) -> None:
    """Load weights into a module. Raise UserError if names or shapes differ."""
    kept = {name: value.float() for name, value in weights.items() if not UNUSED.match(name)}
    state = {name: value for name, value in module.state_dict().items() if not UNUSED.match(name)}
    wrong = sorted(state.keys() ^ kept.keys()) or [name for name in state if state[name].shape != kept[name].shape]
    if wrong:
        raise UserError(
            f"{listing(map(str, paths))}: the shape of {part} differs from the model ({wrong[0]}). Use the model that "
            "the checkpoint was trained from."
        )
    module.load_state_dict(kept, strict=False)


def write(model: DualEncoder | Reader, tokenizer: Any, folder: Path) -> None:
    """Write a retriever for `retriever.model` and sentence-transformers, or a reader for `reader.model`."""
    with tempfile.TemporaryDirectory() as place:
        save_tokenizer(tokenizer, Path(place))
        model.save(folder, Path(place))
