"""Multi-vector retrieval as a kind in one file: a text is its tokens' vectors, compared by MaxSim (ColBERT, Khattab and
Zaharia, 2020, section 3.3, Eq. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from sparring.components.config import UserError
from sparring.components.data.batches import Batch
from sparring.components.data.ragged import Ragged
from sparring.components.files import write_json
from sparring.components.models import pretrained, saved
from sparring.components.models.configs import TextEncoderConfig
from sparring.components.models.seeding import seeded
from sparring.components.models.shape import ModelShape
from sparring.components.models.text_encoder import Side, TextEncoder, represent
from sparring.components.retrieval import topk
from sparring.components.retrieval.kind import RetrieverKind, Rows
from sparring.components.retrieval.stage import StoredStage

PROJECTION = "1_Dense"
WEIGHTS = "model.safetensors"
ST = "sentence_transformers"


class Config(TextEncoderConfig):
    """An encoder with a projection of its tokens' states."""

    kind: Literal["tests.support.multi_vector_kind"] = "tests.support.multi_vector_kind"
    width: int = Field(8, ge=1)
    """Dimensions of a token's vector."""


class Model(TextEncoder):
    """Vectors of tokens, of length 1. The last number of each says whether there is a token."""

    def __init__(self, config: Config, encoder: Any) -> None:
        super().__init__()
        self.config, self.encoder = config, encoder
        with seeded(config.seed):
            self.projection = nn.Linear(encoder.config.hidden_size, config.width, bias=False)

    @classmethod
    def start(cls, config: Config) -> tuple[Self, Any]:
        """Begin from an encoder, with a new projection."""
        return cls(config, pretrained.encoder(config)), pretrained.tokenizer(config)

    @classmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load what `save` wrote."""
        model = cls(saved.load_config(Config, folder), saved.load_encoder(folder, frozen=frozen))
        saved.load_weights(model.projection, folder / PROJECTION / WEIGHTS, prefix="linear.")
        return model

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """Represent texts as (N, L, width + 1), where L is the longest length of a text of this side."""
        states = self.encoder(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
        with torch.autocast(states.device.type, enabled=False):
            vectors = functional.normalize(self.projection(states.float()), dim=-1)
        mask = batch.mask.unsqueeze(-1).float()
        whole = torch.cat([vectors * mask, mask], -1)
        return functional.pad(whole, (0, 0, 0, self.max_tokens(side) - whole.shape[1]))

    def score(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Sum the best cosines of a query's tokens: (Q, N)."""
        cosines = torch.einsum("qid,njd->qnij", queries[..., :-1], documents[..., :-1])
        return _maxsim(cosines, queries[:, None, :, -1], documents[None, :, None, :, -1])

    def score_lists(self, queries: Tensor, documents: Tensor) -> Tensor:
        """Sum the best cosines of a query's tokens: (Q, C)."""
        cosines = torch.einsum("qid,qcjd->qcij", queries[..., :-1], documents[..., :-1])
        return _maxsim(cosines, queries[:, None, :, -1], documents[:, :, None, :, -1])

    def tower(self, side: Side) -> Any:
        """Return the one encoder."""
        return self.encoder

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it for `MultiVectorEncoder(folder)`."""
        saved.save_tower(self.encoder, folder, tokenizer_from, self.config.document_tokens)
        (folder / PROJECTION).mkdir(exist_ok=True)
        saved.save_weights(self.projection, folder / PROJECTION / WEIGHTS, prefix="linear.")
        settings = {
            "in_features": self.projection.in_features,
            "out_features": self.config.width,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "module_input_name": "token_embeddings",
        }
        write_json(folder / PROJECTION / "config.json", settings)
        parts = {
            "2_Normalize": {"module_input_name": "token_embeddings"},
            "3_MultiVectorMask": {"skiplist_words": []},
        }
        for name, config in parts.items():
            (folder / name).mkdir(exist_ok=True)
            write_json(folder / name / "config.json", config)
        modules = [
            ("", f"{ST}.base.modules.transformer.Transformer"),
            (PROJECTION, f"{ST}.base.modules.dense.Dense"),
            ("2_Normalize", f"{ST}.base.modules.normalize.Normalize"),
            ("3_MultiVectorMask", f"{ST}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"),
        ]
        saved.save_modules(folder, modules, {"model_type": "MultiVectorEncoder"}, self.config)


def _maxsim(cosines: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
    """(..., L, M) cosines of tokens to (...) scores. The masks are 1 for a token and 0 for padding."""
    return (cosines.masked_fill(document_mask == 0, -2.0).amax(-1) * query_mask).sum(-1)


LINES = """\
import numpy as np
from sentence_transformers import MultiVectorEncoder
(retriever := MultiVectorEncoder(stage["retriever"])).max_seq_length = stage["query_tokens"]
query_vectors = np.asarray(retriever.encode_query([query])[0]).astype(stage["vectors"]).astype("float32")
sums = []
for file_name in json.load(open(f"{stage['rows']}/documents.json")):
    with open(f"{stage['rows']}/{file_name}", "rb") as file:
        ends, vectors = np.load(file), np.load(file).astype("float32")
    sums += [float((query_vectors @ vectors[a:b].T).max(1).sum()) for a, b in zip(ends, ends[1:])]
ranked = sorted(zip(documents, sums), key=lambda hit: (-hit[1], hit[0]))
scores["NAME"] = dict(ranked[: stage["k"]])
"""


class Stage(StoredStage):
    """Documents with the largest sums of best cosines."""

    kind: Literal["tests.support.multi_vector_kind"] = "tests.support.multi_vector_kind"

    def lines(self, system: Any, name: str) -> str:
        """Compare the query's vectors with all documents'."""
        return LINES


class MultiVector(RetrieverKind):
    """A vector for each token."""

    config = Config
    stage = Stage
    loader = "MultiVectorEncoder"

    def model(self) -> type[Model]:
        """Return the encoder with its projection."""
        return Model

    def check_export(self, folder: Path) -> None:
        """Compare vectors with those of sentence-transformers."""
        from sentence_transformers import MultiVectorEncoder

        texts = ["what is it", "one two three"]
        rows = represent(Model.load(folder).eval(), folder, texts, "document").numpy()
        reference = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
        for row, expected in zip(rows, reference.encode_document(texts, show_progress_bar=False), strict=True):
            vectors = row[row[:, -1] > 0, :-1]
            if vectors.shape != expected.shape or not np.allclose(vectors, expected, atol=1e-5):
                raise UserError("the exported retriever gives other vectors in sentence-transformers")

    def keep(self, representations: npt.NDArray[np.float32], dtype: str) -> Rows:
        """Keep the vectors of tokens."""
        return Ragged.of(representations[..., -1] > 0, representations[..., :-1].astype(dtype))

    def numbers(self, config: Any, shape: ModelShape, tokens: float) -> float:
        """Count a vector for each token."""
        return tokens * float(config.width)

    def top_k(
        self,
        queries: Rows,
        documents: Sequence[Rows],
        order: topk.Keys,
        k: int,
        *,
        folder: Path,
        device: str,
        threads: int,
    ) -> topk.Keys:
        """Multiply all tokens of the queries with all of the documents."""
        query_rows, document_rows = cast(Ragged, queries), Ragged.joined(cast(Sequence[Ragged], documents))
        cosines = query_rows.values[0].astype(np.float32) @ document_rows.values[0].astype(np.float32).T
        best = np.maximum.reduceat(cosines, document_rows.offsets[:-1], axis=1)
        scores = np.add.reduceat(best, query_rows.offsets[:-1], axis=0)
        return topk.merge([topk.keys(scores, np.asarray(order)[None, :])], k)


Kind = MultiVector
