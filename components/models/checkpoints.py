"""Checkpoints of the papers' own code as models of ours: DPR's, AR2's, ANCE's and CODER's retrievers, and the readers
of Fusion-in-Decoder (FiD).

Each is a table of weights by name, and the part of a name before the encoder's own says whose weights they are. Those
that a hub has as plain encoders (coCondenser, SimLM, TAS-B) need nothing of this: `retriever.model` takes their name.
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
"""A weight that every encoder here has: what stands before it in a checkpoint is the encoder's place there."""
UNUSED = re.compile(r"(pooler|cls|classifier)\.|(.*\.)?position_ids$|.*EncDecAttention\.relative_attention_bias")
"""Weights that nothing depends on."""
WRAPPED = re.compile(r"encoder\.encoder\.(?:block\.(\d+)\.module\.)?")
"""How FiD's code names a weight of T5's encoder, whose layers it wraps."""
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""T5's token embeddings under their other names, which a file may leave out."""


class Layout(NamedTuple):
    """Where a paper's code has its encoders, each by how its place in a checkpoint ends."""

    query: str = ""
    document: str = ""
    shared: str = ""
    head: bool = False
    """Whether a linear layer and layer normalization come after pooling, as in ANCE."""


LAYOUTS = {
    "dpr": Layout(query="question_model.", document="ctx_model."),
    "dpr-hub": Layout(query="question_encoder.bert_model.", document="ctx_encoder.bert_model."),
    "ar2-ict": Layout(query="query_model.language_model.", document="context_model.language_model."),
    "ance": Layout(shared="roberta.", head=True),
    "coder": Layout(query="encoder."),
}
"""By the name of whose they are. AR2's retrievers and ANCE's of questions are DPR's. CODER's has the query's encoder
alone."""

HEADS = {"embeddingHead.": "linear", "norm.": "norm"}
"""What ANCE calls the layers after pooling, and what ours are called."""


def weights_in(path: Path) -> dict[str, Tensor]:
    """Read every tensor of a checkpoint by its name. UserError unless it is in safetensors: the papers' code pickles
    its checkpoints, and opening a pickle executes what it says.
    """
    path = path / "model.safetensors" if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"{path}: there is no such file", code="missing-file")
    try:
        return load_file(path)
    except SafetensorError:
        raise UserError(
            f"{path}: is not in safetensors; docs/pages/methods/index.md has a few lines that make such a "
            "file of a checkpoint that you trust"
        ) from None


def retriever(paths: list[Path], config: DualEncoderConfig) -> tuple[DualEncoder, Any, str]:
    """Load a retriever with the weights of a checkpoint. Return it with its tokenizer and the name of its layout.

    `config.model` is the encoder that the checkpoint was trained from: its shape, its tokenizer and, for CODER's, the
    documents' encoder. Two paths are the two encoders of a retriever. UserError if the layout is none of `LAYOUTS`, or
    if the shape differs.
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
    """Check whether a checkpoint is one of FiD's."""
    return len(paths) == 1 and any(WRAPPED.match(name) for name in weights_in(paths[0]))


def reader(path: Path, config: ReaderConfig) -> tuple[Reader, Any]:
    """Load a reader with the weights of FiD's checkpoint. Return it with its tokenizer.

    `config.model` is the T5 that it was trained from. FiD's code puts `title:` before a passage's title, and ours does
    not.
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
    """Return the layout whose encoders are all present, the largest if there is a choice."""
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
                f"{listing(map(str, paths))}: an encoder as it is; `retriever.model` takes it, without convert"
            )
        content = f"encoders at {listing(places)}" if places else "no encoder"
        raise UserError(
            f"{listing(map(str, paths))}: {content}; accepted: the checkpoints of {listing(LAYOUTS)}",
            code="unknown-layout",
        )
    return max(layouts.items(), key=lambda entry: sum(map(bool, entry[1])))


def _under(weights: dict[str, Tensor], place: str) -> dict[str, Tensor]:
    """Return the weights below a place, by their names there. A place may lie deeper (`model_dict.question_model.`)."""
    pattern = re.compile(rf"(?:.*\.)?{re.escape(place)}")
    deep = min((len(match.group()) for name in weights if (match := pattern.match(name))), default=0)
    return {
        name[deep:]: value
        for name, value in weights.items()
        if (name[:deep] == place or name[:deep].endswith(f".{place}"))
    }


def _fill(module: nn.Module, weights: dict[str, Tensor], part: str, paths: list[Path]) -> None:
    """Load weights into a module. UserError if they are not exactly its own."""
    kept = {name: value.float() for name, value in weights.items() if not UNUSED.match(name)}
    state = {name: value for name, value in module.state_dict().items() if not UNUSED.match(name)}
    wrong = sorted(state.keys() ^ kept.keys()) or [name for name in state if state[name].shape != kept[name].shape]
    if wrong:
        raise UserError(
            f"{listing(map(str, paths))}: {part} has another shape than the model ({wrong[0]}); accepted: "
            "the model that it was trained from"
        )
    module.load_state_dict(kept, strict=False)


def write(model: DualEncoder | Reader, tokenizer: Any, folder: Path) -> None:
    """Write a model as `retriever.model` and sentence-transformers take it, or as `reader.model` does."""
    with tempfile.TemporaryDirectory() as place:
        save_tokenizer(tokenizer, Path(place))
        model.save(folder, Path(place))
