"""Encoding a corpus, and refreshing all that hangs on it, against what a user would do instead and against the floor.

make bench ARGS="-k 'encode or refresh'"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from sparring.components.compute import roofline
from sparring.components.compute.precision import autocast
from sparring.components.data.batches import token_batches
from sparring.components.data.tables import RANKING
from sparring.components.files import replacing
from sparring.workflows.distributed.limits import cores
from sparring.workflows.steps.encode import EncodeConfig, Encoder, encode_documents, encode_queries
from sparring.workflows.steps.search import SearchConfig, search
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.benchmarks.conftest import AT_ONCE, LENGTH, QUERY_LENGTH, ROOT, World
from tests.benchmarks.measure import HEAD, PAIRS, Compared, by_turns, seconds_of
from tests.benchmarks.table import machine, write

K = 200


def test_encode(few_of_each: tuple[str, World]) -> None:
    name, few = few_of_each
    texts = few.documents()
    rows = np.arange(len(texts))
    encoder = an_encoder(few)

    def ours() -> np.ndarray:
        return encoder.represent("document", rows)[0]

    def with_tokens() -> np.ndarray:
        tokenize(few.place("tokens"), few.machine, data=few.data, model=few.retriever, config=TokenizeConfig())
        return ours()

    peer = theirs(few)
    plain = lambda: peer.encode(texts, batch_size=AT_ONCE[few.device], show_progress_bar=False)  # noqa: E731

    def fast() -> np.ndarray:
        with autocast(few.precision, few.device):
            return plain()

    wanted = plain()
    vectors = ours()
    close = float((vectors * wanted).sum(1).min())
    job, tokens = "encode a corpus", int(encoder.lengths("document", rows).sum())
    share = 0.6 if few.device == "cpu" else 0.45
    table = [
        *(
            [by_turns(ours, plain).row(job, "sentence-transformers, fp32", "texts/s", len(texts), 4)]
            if few.precision == "bf16"
            else []
        ),
        by_turns(ours, fast).row(job, f"sentence-transformers, {few.precision}", "texts/s", len(texts), 1.3),
        by_turns(with_tokens, fast).row(
            "tokenise all and encode", f"sentence-transformers, {few.precision}", "texts/s", len(texts), 1
        ),
        share_of_roofline(encoder, few.precision, ours, rows).row(job, "the floor", "texts/s", len(texts), share),
    ]
    lines = [
        f"{len(texts):,} texts of {tokens / len(texts):.0f} tokens on average, {LENGTH} at most. "
        f"Smallest cosine of a vector with its fp32 one: {close:.5f}.",
        "The floor is the time of the layers' matrix products alone for the tokens there are, by turns with ours.",
        machine(ROOT),
    ]
    write(f"Encoding {name}", 'make bench ARGS="-k test_encode"', HEAD, table, lines)


def share_of_roofline(encoder: Encoder, precision: str, subject: Callable[[], Any], rows: np.ndarray) -> Compared:
    """Ours against the products alone; the ratio is the share of the floor that is reached."""
    operations = encoder.inference.products.operations(encoder.lengths("document", rows))
    tokens, device = encoder.inference.batch_tokens, encoder.inference.device.type
    seconds = []
    for _ in range(PAIRS):
        roofline._rate.cache_clear()
        rate = encoder.inference.products.rate(tokens=tokens, device=device, precision=precision)
        seconds.append((seconds_of(subject), operations / rate))
    return Compared(seconds)


def an_encoder(world: World, **options: Any) -> Encoder:
    """The worker of the step that encodes."""
    cuda = world.machine.cuda
    return Encoder(
        tokens=world.tokens,
        model=world.retriever / "model",
        config=EncodeConfig(**options),
        batch_tokens=world.machine.batch_tokens,
        cuda=cuda,
        threads=cores(),
    )


def theirs(world: World) -> Any:
    """The same model in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores())
    return SentenceTransformer(str(world.retriever / "model"), device=world.device)


def test_refresh(few_of_each: tuple[str, World]) -> None:
    import faiss

    name, few = few_of_each
    faiss.omp_set_num_threads(cores())
    table = pq.read_table(few.data / "queries.parquet", filters=[("split", "=", "train")])
    queries, documents = table["text"].to_pylist(), few.documents()
    doc_ids = pq.read_table(few.data / "documents.parquet", columns=["doc_id"])["doc_id"]

    inputs = {"data": few.data, "tokens": few.tokens, "retriever": few.retriever, "config": EncodeConfig()}

    def encoding() -> dict[str, Any]:
        vectors, query_vectors = few.place("vectors"), few.place("queries")
        encode_documents(vectors, few.machine, **inputs)
        encode_queries(query_vectors, few.machine, split="train", **inputs)
        return {"vectors": vectors, "queries": query_vectors}

    def refresh() -> Any:
        encoded, out = encoding(), few.place("ranking")
        search(out, few.machine, data=few.data, **encoded, k=K, config=SearchConfig())
        return out / "ranking.parquet"

    model = theirs(few)

    def padded(texts: list[str], length: int) -> np.ndarray:
        """Tokenised again and padded to the most, in fp32, in the order they come."""
        parts = []
        options = {"padding": "max_length", "truncation": True, "max_length": length, "return_tensors": "pt"}
        for start in range(0, len(texts), 128):
            batch = model.tokenizer(texts[start : start + 128], **options).to(few.device)
            with torch.inference_mode():
                parts.append(model(dict(batch))["sentence_embedding"].cpu().numpy())
        return np.concatenate(parts)

    def reference() -> Any:
        vectors, query_vectors = padded(documents, LENGTH), padded(queries, QUERY_LENGTH)
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        scores, places = index.search(query_vectors, K)
        columns = [
            table["query_id"].take(pa.array(np.repeat(np.arange(len(query_vectors)), K))),
            doc_ids.take(pa.array(places.ravel())),
            pa.array(np.tile(np.arange(1, K + 1, dtype=np.int32), len(query_vectors))),
            pa.array(scores.ravel()),
        ]
        with replacing(few.place("reference") / "ranking.parquet") as path:
            pq.write_table(pa.table(columns, schema=RANKING), path)
        return path.parent / "ranking.parquet"

    shared = overlap(refresh(), reference(), 100)
    alone, whole = by_turns(encoding, refresh), by_turns(refresh, reference)
    rows = [
        [
            "refresh",
            "encoding alone",
            "s",
            f"{alone.theirs:.2f}",
            f"{alone.ours:.2f}",
            f"{alone.ratio:.2f}x as long ({alone.ratios[0]:.2f} to {alone.ratios[-1]:.2f})",
            "<= 1.15x",
            "yes" if alone.ratio <= 1.15 else "no",
        ],
        whole.row("refresh", "tokenise, pad, fp32, flat index", "refreshes/s", 1, 6),
    ]
    lines = [
        f"{len(documents):,} documents and {len(queries):,} queries, whose first {K} documents are written. "
        f"Of the first 100 of a query {shared:.2%} are those of the other side; wanted: 99.5%; reached: "
        f"{'yes' if shared >= 0.995 else 'no'}.",
        machine(ROOT),
    ]
    write(f"Refresh of {name}", 'make bench ARGS="-k test_refresh"', HEAD, rows, lines)


def overlap(ranking: Any, reference: Any, depth: int) -> float:
    """How much of the first documents of each query two rankings share."""
    pairs = []
    for path in (ranking, reference):
        table = pq.read_table(path, filters=[("rank", "<=", depth)])
        pairs.append(set(zip(table["query_id"].to_pylist(), table["doc_id"].to_pylist(), strict=True)))
    return len(pairs[0] & pairs[1]) / len(pairs[0])


def test_batches(few: World) -> None:
    """How much of the tokens in the batches is padding."""
    encoder = an_encoder(few)
    lengths = encoder.lengths("document", np.arange(len(few.documents())))
    batches = token_batches(lengths, encoder.inference.batch_tokens)
    padded = sum(len(batch) * -(-int(lengths[batch].max()) // 8) * 8 for batch in batches)
    print(f"{lengths.sum():,} tokens, {padded:,} with padding ({padded / lengths.sum() - 1:.1%} more)")
