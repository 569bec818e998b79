"""The rows of a collection's vectors a block at a time, on a processor or on a GPU.

Blocks are whole segments of consecutive rows, as far as there are enough. The first ones are short: every document of
them enters a list. On a GPU a block is read and copied while the one before is worked on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # imported where vectors are multiplied: a driver that only merges does not pay for it
    import torch

Parts = list[npt.NDArray]

BLOCK, GPU_BLOCK = 2048, 32_768
"""Most rows of a block. A GPU is fastest with larger blocks. None of these numbers changes a result."""
FIRST_BLOCK = 256
SEGMENT = 32


def largest(device: str) -> int:
    """Return the most rows of a block on a device."""
    return BLOCK if device == "cpu" else GPU_BLOCK


def read(documents: Sequence[npt.NDArray], device: str) -> Iterator[torch.Tensor]:
    """Yield the rows of consecutive arrays in blocks: in float32, or on a GPU in their own type."""
    blocks = _blocks(documents, largest(device))
    return map(_on_cpu, blocks) if device == "cpu" else _on_gpu(blocks, device)


def _blocks(documents: Sequence[npt.NDArray], most: int) -> Iterator[Parts]:
    """Divide the rows of all shards into blocks of whole segments, each of one or more parts, and a remainder. The
    first blocks are short, because all of their documents enter a list.

    A block may begin in one shard and end in another, because a short block costs almost as much as a long one.
    """
    parts: Parts = []
    count = seen = 0
    for shard in documents:
        start = 0
        while start < len(shard):
            wanted = _whole_segments(min(most, max(FIRST_BLOCK, seen)))
            parts.append(shard[start : start + wanted - count])
            start, count = start + len(parts[-1]), count + len(parts[-1])
            if count == wanted:
                yield parts
                seen, count, parts = seen + count, 0, []
    if count:
        rest = np.concatenate(parts)
        yield [rest[: _whole_segments(count)]]
        if _whole_segments(count) < count:
            yield [rest[_whole_segments(count) :]]


def _whole_segments(count: int) -> int:
    """Round a count down to whole segments. A count below one segment stays as it is."""
    return count // SEGMENT * SEGMENT or count


def _on_cpu(parts: Parts) -> torch.Tensor:
    """Convert a block to float32."""
    import torch

    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return torch.from_numpy(np.require(rows, requirements="W")).float()  # torch takes no read-only memory


def _on_gpu(blocks: Iterator[Parts], device: str) -> Iterator[torch.Tensor]:
    """Copy blocks to the GPU in their own type. The next block is read and copied while one is in use."""
    import torch

    stream = torch.cuda.Stream(device)

    def copied(parts: Parts) -> tuple[torch.Tensor, torch.cuda.Event]:
        kind = torch.float16 if all(part.dtype == np.float16 for part in parts) else torch.float32
        held = torch.empty((sum(map(len, parts)), parts[0].shape[1]), dtype=kind, pin_memory=True)
        gather(parts, held.numpy(), hands)
        with torch.cuda.stream(stream):
            return held.to(device, non_blocking=True), stream.record_event()

    def arrived(copy: Future[tuple[torch.Tensor, torch.cuda.Event]]) -> torch.Tensor:
        block, event = copy.result()
        torch.cuda.current_stream().wait_event(event)
        block.record_stream(torch.cuda.current_stream())
        return block

    with ThreadPoolExecutor(torch.get_num_threads()) as hands, ThreadPoolExecutor(1) as reader:
        ahead: Future[tuple[torch.Tensor, torch.cuda.Event]] | None = None
        for parts in blocks:
            coming = reader.submit(copied, parts)
            if ahead is not None:
                yield arrived(ahead)
            ahead = coming
        if ahead is not None:
            yield arrived(ahead)


def gather(parts: Parts, out: npt.NDArray, hands: Executor) -> None:
    """Copy consecutive rows to where they lie together, several parts at once."""
    ends = np.cumsum([len(part) for part in parts])
    list(hands.map(np.copyto, np.split(out, ends[:-1]), parts))
