"""Learned sparse retrieval as a kind in one file: a text is its vocabulary's terms with learned weights (SPLADE-max,
Formal et al., 2021). Rows are stored as CSR arrays. An index is the transposed arrays, one file for each of documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from transformers import AutoModelForMaskedLM

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
from sparring.components.retrieval.kind import IndexFile, IndexOptions, RetrieverKind, Rows, VectorIndex
from sparring.components.retrieval.stage import StoredStage


class Config(TextEncoderConfig):
    """A masked language model whose head gives the weights."""

    kind: Literal["tests.support.sparse_kind"] = "tests.support.sparse_kind"


class Model(TextEncoder):
    """Weights of terms: the highest of all positions, log(1 + relu(logit)). Texts are compared by inner product."""

    def __init__(self, config: Config, encoder: Any) -> None:
        super().__init__()
        self.config, self.encoder = config, encoder

    @classmethod
    def start(cls, config: Config) -> tuple[Self, Any]:
        """Begin from a masked language model, or an encoder with a new head."""
        with seeded(config.seed):
            return cls(config, pretrained.read(AutoModelForMaskedLM, config)), pretrained.tokenizer(config)

    @classmethod
    def load(cls, folder: Path, *, frozen: bool = False) -> Self:
        """Load what `save` wrote."""
        return cls(saved.load_config(Config, folder), saved.load_masked_language_model(folder))

    def forward(self, batch: Batch, side: Side) -> Tensor:
        """Weigh the terms of the vocabulary: (N, V)."""
        logits = self.encoder(input_ids=batch.ids, attention_mask=batch.mask).logits.float()
        weights: Tensor = torch.log1p(torch.relu(logits) * batch.mask.unsqueeze(-1)).amax(1)
        return weights

    def tower(self, side: Side) -> Any:
        """Return the one encoder."""
        return self.encoder

    def save(self, folder: Path, tokenizer_from: Path) -> None:
        """Write it for `SparseEncoder(folder)`."""
        saved.save_tower(self.encoder, folder, tokenizer_from, self.config.document_tokens)
        write_json(folder / "sentence_bert_config.json", {"transformer_task": "fill-mask"})
        (folder / "1_SpladePooling").mkdir(exist_ok=True)
        write_json(folder / "1_SpladePooling" / "config.json", {"pooling_strategy": "max"})
        modules = [
            ("", "sentence_transformers.base.modules.transformer.Transformer"),
            ("1_SpladePooling", "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"),
        ]
        saved.save_modules(folder, modules, {"model_type": "SparseEncoder"}, self.config)


LINES = """\
import numpy as np
from sentence_transformers import SparseEncoder
(retriever := SparseEncoder(stage["retriever"])).max_seq_length = stage["query_tokens"]
query_weights = retriever.encode_query([query], convert_to_sparse_tensor=False)[0].numpy().astype(stage["vectors"])
products = []
for file_name in json.load(open(f"{stage['rows']}/documents.json")):
    with open(f"{stage['rows']}/{file_name}", "rb") as file:
        ends, terms, weights = (np.load(file) for _ in range(3))
    products += [float(query_weights[terms[a:b]].astype("float32") @ weights[a:b]) for a, b in zip(ends, ends[1:])]
ranked = sorted(zip(documents, products), key=lambda hit: (-hit[1], hit[0]))
scores["NAME"] = dict(ranked[: stage["k"]])
"""


class Stage(StoredStage):
    """Documents with the largest inner products of weights."""

    kind: Literal["tests.support.sparse_kind"] = "tests.support.sparse_kind"

    def lines(self, system: Any, name: str) -> str:
        """Compare the query's weights with all documents'."""
        return LINES


class Sparse(RetrieverKind):
    """Terms and their weights."""

    config = Config
    stage = Stage
    loader = "SparseEncoder"

    def model(self) -> type[Model]:
        """Return the masked language model."""
        return Model

    def check_export(self, folder: Path) -> None:
        """Compare weights with those of sentence-transformers."""
        from sentence_transformers import SparseEncoder

        texts = ["what is it", "one two three"]
        vectors = represent(Model.load(folder).eval(), folder, texts, "document")
        reference = SparseEncoder(str(folder), device="cpu", local_files_only=True)
        weights = reference.encode_document(texts, convert_to_sparse_tensor=False, show_progress_bar=False)
        if not torch.allclose(vectors, weights, atol=1e-5):
            raise UserError("the exported retriever gives other weights in sentence-transformers")

    def keep(self, representations: npt.NDArray[np.float32], dtype: str) -> Rows:
        """Keep the terms whose weights are not 0, and the weights."""
        terms = np.broadcast_to(np.arange(representations.shape[1], dtype=np.int32), representations.shape)
        return Ragged.of(representations > 0, terms, representations.astype(dtype))

    def numbers(self, config: Any, shape: ModelShape, tokens: float) -> float:
        """Expect three terms a token, each with two numbers."""
        return 6 * tokens

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
        """Multiply the queries' matrix with that of all documents."""
        return _best(queries, _matrix(Ragged.joined(cast(Sequence[Ragged], documents))).T, order, k)

    def check_index(self, factory: str, documents: Rows | None = None) -> None:
        """Accept inverted lists."""
        if factory != "inverted":
            raise UserError(f"search.index: {factory}: a sparse retriever has no such index. Use inverted.")

    def index_files(self, factory: str, documents: int) -> list[IndexFile]:
        """Build an index for every ten documents at most."""
        return IndexFile("", 0, documents).cut(10, "index.{:05d}.npy")

    def build_index(
        self,
        path: Path,
        documents: Sequence[Rows],
        index: VectorIndex,
        *,
        threads: int,
        on_added: Callable[[int], None],
    ) -> None:
        """Write the documents of each term, and the term's weights in them."""
        matrix = _matrix(Ragged.joined(cast(Sequence[Ragged], documents))).tocsc()
        Ragged(matrix.indptr.astype(np.int64), (matrix.indices, matrix.data)).save(path)
        on_added(matrix.shape[0])

    def open_index(
        self, path: Path, *, folder: Path, options: IndexOptions, threads: int, gpu: bool
    ) -> Callable[[Rows, topk.Keys, int], topk.Keys]:
        """Open the lists of each term."""
        lists = Ragged.open(path)
        return lambda queries, order, k: _best(queries, _matrix(lists, len(order)), order, k)


def _matrix(rows: Ragged, columns: int | None = None) -> Any:
    """A CSR matrix, as wide as its last column says unless `columns` are named."""
    numbers, values = rows.values
    width = columns if columns is not None else int(numbers.max(initial=-1)) + 1
    return csr_matrix((values.astype(np.float32), numbers, rows.offsets), shape=(len(rows), width))


def _best(queries: Rows, lists: Any, order: topk.Keys, k: int) -> topk.Keys:
    """The keys of the k best documents, by a matrix of terms and documents."""
    matrix = _matrix(cast(Ragged, queries))
    terms = min(matrix.shape[1], lists.shape[0])  # terms that one side lacks count for nothing
    scores = (matrix[:, :terms] @ lists[:terms]).toarray()
    return topk.merge([topk.keys(scores, np.asarray(order)[None, :])], k)


Kind = Sparse
