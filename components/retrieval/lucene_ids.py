"""Which document each of Lucene's numbers is.

Lucene's lists have a document's number in the index. Its id is stored with its text, in blocks that are unpacked to
read it. Here the ids lie in the order of the numbers in two files beside Lucene's, which are mapped into memory.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from components.config import Damaged

ENDS, TEXT = "doc_ids.ends", "doc_ids.text"


def write(folder: Path, parts: Iterable[list[bytes]]) -> None:
    """Write the ids of an index, in UTF-8 and in the order of Lucene's numbers."""
    end = np.int64(0)
    with (folder / ENDS).open("wb") as ends, (folder / TEXT).open("wb") as text:
        ends.write(end.tobytes())
        for ids in parts:
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            ends.write((end + np.cumsum(lengths)).tobytes())
            text.write(b"".join(ids))
            end += lengths.sum()


def opened(folder: Path) -> pa.LargeStringArray | None:
    """The ids, (N,), mapped; None of an index that others wrote, or we before there were such files; Damaged where one
    is lost or cut."""
    if not (folder / ENDS).is_file() and not (folder / TEXT).is_file():
        return None
    for name in (ENDS, TEXT):
        if not (folder / name).is_file():
            raise Damaged(f"{folder}: {name} is not there", folder)
    ends, text = (pa.memory_map(str(folder / name)).read_buffer() for name in (ENDS, TEXT))
    if not ends.size or ends.size % 8 or np.frombuffer(ends, np.int64)[-1] != text.size:
        raise Damaged(f"{folder}: {ENDS} and {TEXT} do not belong together", folder)
    return pa.LargeStringArray.from_buffers(ends.size // 8 - 1, ends, text if text.size else pa.py_buffer(b""))
