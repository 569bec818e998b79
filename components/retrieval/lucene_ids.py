"""Ids of documents by Lucene's numbers.

Lucene's lists have a document's number in the index. Its id is stored with its text, in blocks that are unpacked to
read it. Here the ids are in two files next to Lucene's, in the order of the numbers, and are mapped into memory.
"""

import re
import shutil
from binascii import a2b_base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparring.components.config import Damaged
from sparring.components.retrieval import lucene

ENDS, TEXT = "doc_ids.ends", "doc_ids.text"
AT_ONCE = 4_096
"""Documents that are Java objects at once."""
UNUSED = {
    "org.apache.lucene.search.FieldDoc": ["score", "doc", "shardIndex"],
    "org.apache.lucene.util.BytesRef": ["offset", "valid"],
}
ID = re.compile(r'"bytes":"([^"]*)","length":(\d+)')
"""An id in Java's JSON; its bytes may be followed by others."""


def write(folder: Path) -> None:
    """Write the ids of an index into its folder."""
    with closing(lucene.open_index(folder)) as index:
        write_parts(folder, _read(index))


def write_parts(folder: Path, parts: Iterable[list[bytes]]) -> None:
    """Write ids in UTF-8, in the order of Lucene's numbers."""
    end = np.int64(0)
    with (folder / ENDS).open("wb") as ends, (folder / TEXT).open("wb") as text:
        ends.write(end.tobytes())
        for ids in parts:
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            ends.write((end + np.cumsum(lengths)).tobytes())
            text.write(b"".join(ids))
            end += lengths.sum()


def merge(folder: Path, parts: Sequence[Path]) -> None:
    """Write the ids of an index out of those of its parts, in order. Ids are copied, not read from Lucene."""
    end = np.int64(0)
    with (folder / ENDS).open("wb") as ends, (folder / TEXT).open("wb") as text:
        ends.write(end.tobytes())
        for part in parts:
            of_part = np.fromfile(part / ENDS, np.int64)
            ends.write((end + of_part[1:]).tobytes())
            with (part / TEXT).open("rb") as file:
                shutil.copyfileobj(file, text)
            end += of_part[-1]


def of(folder: Path, index: Any) -> pa.LargeStringArray:
    """Return the ids (N,) of an open index. Indexes without the files of ids are read from Lucene, at some 2
    microseconds an id."""
    if (ids := written(folder)) is None:
        ids = pa.array(chain.from_iterable(_read(index)), pa.large_binary()).cast(pa.large_string())
    return ids


def written(folder: Path) -> pa.LargeStringArray | None:
    """Map the ids in the folder's files. Return None without files. Raise Damaged if a file is missing or cut."""
    present = [(folder / name).is_file() for name in (ENDS, TEXT)]
    if not any(present):
        return None
    if not all(present):
        raise Damaged(f"{folder}: {TEXT if present[0] else ENDS} is not there", folder)
    ends, text = (pa.memory_map(str(folder / name)).read_buffer() for name in (ENDS, TEXT))
    if not ends.size or ends.size % 8 or np.frombuffer(ends, np.int64)[-1] != text.size:
        raise Damaged(f"{folder}: {ENDS} and {TEXT} do not belong together", folder)
    return pa.LargeStringArray.from_buffers(ends.size // 8 - 1, ends, text if text.size else pa.py_buffer(b""))


def _read(index: Any) -> Iterator[list[bytes]]:
    """Yield the ids of an index in UTF-8, in the order of Lucene's numbers."""
    autoclass = lucene.start_jvm().autoclass
    searcher = autoclass("org.apache.lucene.search.IndexSearcher")(index)
    everything = autoclass("org.apache.lucene.search.MatchAllDocsQuery")()
    # Ids are sorted backwards, so the empty id is the last: a search after it begins at the next number.
    order, no_id = lucene.order("FIELD_DOC", ids_backwards=True), autoclass("org.apache.lucene.util.BytesRef")()
    writer = lucene.json_writer(UNUSED)
    for start in range(0, index.maxDoc(), AT_ONCE):
        if start == 0:
            hits = searcher.search(everything, AT_ONCE, order)
        else:
            last = [autoclass("java.lang.Integer")(start - 1), no_id]
            after = autoclass("org.apache.lucene.search.FieldDoc")(start - 1, 0.0, last)
            hits = searcher.searchAfter(after, everything, AT_ONCE, order)
        yield [a2b_base64(id)[: int(length)] for id, length in ID.findall(writer.writeValueAsString(hits))]
