"""Exact search for the k documents of every query whose packed bits differ least from the query's.

Keys, ties and merging are those of `components.retrieval.topk`. A score is the inner product of the bits as 1 and -1:
the number of dimensions less twice that of the places.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring.components.retrieval import topk

# Documents of a block, and counters in memory at once: FAISS has k for each possible distance of each query. They
# change no result.
BLOCK = 2**20
COUNTERS = 2**20


def top_k(
    queries: npt.NDArray[np.uint8],
    documents: Sequence[npt.NDArray[np.uint8]],
    order: topk.Keys | None,
    k: int,
    *,
    dimensions: int,
    threads: int,
) -> topk.Keys:
    """Return (Q, min(k, number of documents)) keys of the k best documents of each query, best first.

    `queries` (Q, B) and `documents`, arrays of consecutive rows, are bits packed as bytes. `order` has the tie rank of
    each row. If None, ties are in row order.
    """
    import faiss

    faiss.omp_set_num_threads(threads)
    best: topk.Keys = np.empty((len(queries), 0), np.int64)
    start = 0
    for block in _blocks(documents):
        ranks = np.arange(start, start + len(block)) if order is None else np.asarray(order[start : start + len(block)])
        start += len(block)
        if not len(queries) or not k:
            continue
        # Among documents as near as the last, FAISS's counters keep the first: those of the lowest tie ranks.
        sorted_rows = np.argsort(ranks)
        codes, ranks = np.ascontiguousarray(block[sorted_rows]), ranks[sorted_rows]
        count = min(k, len(block))
        many = max(1, COUNTERS // (count * (8 * block.shape[1] + 1)))
        keys = []
        for first in range(0, len(queries), many):
            part = np.ascontiguousarray(queries[first : first + many])
            distances, rows = faiss.knn_hamming(part, codes, count, variant="mc")
            keys.append(topk.keys((dimensions - 2 * distances).astype(np.float32), ranks[rows]))
        best = topk.merge([best, np.concatenate(keys)], k)
    return best if len(queries) else np.empty((0, min(k, start)), np.int64)


def _blocks(documents: Sequence[npt.NDArray[np.uint8]]) -> Sequence[npt.NDArray[np.uint8]]:
    """Join shards into blocks, because a short block costs almost as much as a long one."""
    parts: list[npt.NDArray[np.uint8]] = []
    count, blocks = 0, []
    for shard in documents:
        for start in range(0, len(shard), BLOCK):
            parts.append(shard[start : start + BLOCK])
            count += len(parts[-1])
            if count >= BLOCK:
                blocks.append(np.concatenate(parts))
                parts, count = [], 0
    return [*blocks, np.concatenate(parts)] if parts else blocks
