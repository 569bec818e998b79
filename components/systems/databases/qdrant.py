"""Qdrant: `qdrant+http://HOST:6333` or `qdrant+https://...` for a server, `qdrant:///FOLDER` for its embedded mode.

The example asks for exact search, which a server otherwise answers from a graph. A server's key is in
`$QDRANT_API_KEY`, or stands in the URL as a password.

Qdrant has no analyzer. Words are sparse vectors: the place of a word is a hash of it, and its number is BM25's weight
without the inverse document frequency, which Qdrant multiplies by (`modifier: idf`).
"""

from __future__ import annotations

import os
import re
import uuid
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from sparring.components.config import UserError
from sparring.components.systems.database import Address, Batch, Layout, VectorDatabase

USUAL_WORDS = 256
"""Number of words of an average document. The real average would change with each document."""
PROGRAM = """
from qdrant_client import QdrantClient, models
place = {"path": url[len("qdrant:///"):]} if url.startswith("qdrant:") else {
    "url": url[len("qdrant+"):], "api_key": os.environ.get("QDRANT_API_KEY")}
database = QdrantClient(**place)
def nearest(column, vector, k):
    exact = None if url.startswith("qdrant:") else models.SearchParams(exact=True)  # a folder's search always is
    points = database.query_points("TABLE", vector.tolist(), using=column, limit=k, search_params=exact).points
    return [(hit.payload["id"], hit.payload["title"], hit.payload["text"], hit.score) for hit in points]
"""
PROGRAM_WORDS = """
import re
import zlib
def words(query, k):
    places = sorted({zlib.crc32(word.encode()) for word in re.findall(r"\\w+", query.lower())})
    vector = models.SparseVector(indices=places, values=[1.0] * len(places))
    points = database.query_points("TABLE", vector, using="words", limit=k).points
    return [(hit.payload["id"], hit.payload["title"], hit.payload["text"], hit.score) for hit in points]
"""


class Qdrant(VectorDatabase):
    """A collection with a named vector for each retriever, and a sparse vector for words."""

    packages = {"qdrant_client": "qdrant-client"}
    rows = 500
    full_text = "BM25 over words without a stemmer"
    program = PROGRAM
    program_words = PROGRAM_WORDS

    @classmethod
    def place(cls, address: Address) -> str:
        """Return the URL. A folder's path is absolute."""
        return address.shown if address.transport else address.absolute

    def __init__(self, address: Address, layout: Layout) -> None:
        from qdrant_client import QdrantClient

        super().__init__(address, layout)
        if address.transport:
            key = address.password or os.environ.get("QDRANT_API_KEY")
            self._client = QdrantClient(url=address.server, api_key=key, timeout=60)
        else:
            self._client = QdrantClient(path=str(address.file))

    @staticmethod
    def failures() -> tuple[type[Exception], ...]:
        """Return the exceptions of Qdrant's client. Its embedded mode raises RuntimeError if another process has the
        folder open."""
        from qdrant_client.http.exceptions import ApiException

        return (ApiException, OSError, RuntimeError)

    def prepare(self) -> None:
        """Create the collection. An existing one must have the same vectors."""
        from qdrant_client import models

        lexical = self.layout.lexical
        sizes = dict(self.layout.vectors)
        if self._client.collection_exists(self.layout.table):
            parameters = self._client.get_collection(self.layout.table).config.params
            stored = parameters.vectors if isinstance(parameters.vectors, dict) else {}
            same = {name: int(vector.size) for name, vector in stored.items()} == sizes
            if not same or bool(parameters.sparse_vectors) != (lexical is not None):
                raise UserError(
                    f"--name: {self.layout.table!r} exists there with other vectors. Use another name, or delete it "
                    "first.",
                    code="other-layout",
                )
            return
        self._client.create_collection(
            self.layout.table,
            vectors_config={
                name: models.VectorParams(size=size, distance=models.Distance.DOT) for name, size in sizes.items()
            },
            sparse_vectors_config=None
            if lexical is None
            else {"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        )

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Look up points by the ids that are made of the documents' ids."""
        points = self._client.retrieve(self.layout.table, [*map(_point, ids)], with_payload=["id", "digest"])
        payloads = [point.payload or {} for point in points]
        return {payload["id"]: payload["digest"] for payload in payloads}

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert or replace points."""
        from qdrant_client import models

        points = []
        for row, (id, title, text) in enumerate(zip(*batch[:3], strict=True)):
            vectors: dict[str, Any] = {name: batch.vectors[name][row].tolist() for name in self.layout.vectors}
            if self.layout.lexical is not None:
                weights = self._weights(f"{title} {text}")
                vectors["words"] = models.SparseVector(indices=list(weights), values=list(weights.values()))
            payload = {"id": id, "title": title, "text": text, "digest": digests[row]}
            points.append(models.PointStruct(id=_point(id), vector=vectors, payload=payload))
        self._client.upsert(self.layout.table, points, wait=True)

    def _weights(self, text: str) -> dict[int, float]:
        """Return BM25's weight of each word of a document, by the word's place."""
        assert self.layout.lexical is not None
        k1, b = self.layout.lexical.k1, self.layout.lexical.b
        counts = Counter(zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower()))
        length = 1 - b + b * counts.total() / USUAL_WORDS
        return {place: count * (k1 + 1) / (count + k1 * length) for place, count in sorted(counts.items())}

    def count(self) -> int:
        """Count the points."""
        return int(self._client.count(self.layout.table, exact=True).count)

    def ids(self) -> Iterator[list[str]]:
        """List ids in the order of the points."""
        offset: Any = None
        while True:
            points, offset = self._client.scroll(self.layout.table, limit=self.rows, offset=offset, with_payload=["id"])
            yield [(point.payload or {})["id"] for point in points]
            if offset is None:
                return

    def delete(self, ids: Sequence[str]) -> None:
        """Delete points."""
        self._client.delete(self.layout.table, [*map(_point, ids)], wait=True)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _point(doc_id: str) -> str:
    """Make the id of a point, a UUID, of a document's id."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, doc_id))


Database = Qdrant
