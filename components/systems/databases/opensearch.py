"""OpenSearch: `opensearch+http://HOST:9200` or `opensearch+https://...`, by plain HTTP.

The query's vector is compared with all documents, so the ranking is exact. BM25 has the system's k1 and b, over title
and text together as in the system, with the analyzer of the same language. The password of the URL's user may be in
`$OPENSEARCH_PASSWORD` instead.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from sparring.components.config import UserError
from sparring.components.systems.database import KEY, Address, Batch, Layout, VectorDatabase

LANGUAGES = (
    "arabic armenian basque bengali bulgarian catalan cjk czech danish dutch english estonian finnish french galician "
    "german greek hindi hungarian indonesian irish italian latvian lithuanian norwegian persian portuguese romanian "
    "russian sorani spanish swedish turkish"
)
"""Languages with an analyzer of their name."""
SECONDS = 120
"""Seconds to wait for an answer."""
MOST_BYTES = 512
"""Length of the longest id of a document."""
CONNECT = """
import base64
import urllib.parse
import urllib.request
place = urllib.parse.urlsplit(url.partition("+")[2])
user, password = place.username, place.password or os.environ.get("PASSWORD")
headers = {"Content-Type": "application/json"}
if user:
    headers["Authorization"] = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
def found(asked, k):
    body = json.dumps({"query": asked, "size": k, "_source": ["id", "title", "text"]}).encode()
    server = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path.rstrip('/')}/"
    answer = urllib.request.urlopen(urllib.request.Request(server + "TABLE" + "/_search", body, headers))
    hits = json.load(answer)["hits"]["hits"]
    return [(hit["_source"]["id"], hit["_source"]["title"], hit["_source"]["text"], hit["_score"]) for hit in hits]
def nearest(column, vector, k):
    # A score is never negative: it is 1 + the inner product, or 1 / (1 - the inner product) if that is below 0.
    script = SCRIPT
    rows = found({"script_score": {"query": {"match_all": {}}, "script": script}}, k)
    return [(*row, score - 1 if score >= 1 else 1 - 1 / score) for *row, score in rows]
"""
SCRIPT = """{"lang": "knn", "source": "knn_score", "params": {
        "field": column, "query_value": vector.tolist(), "space_type": "innerproduct"}}"""
PROGRAM_WORDS = """
def words(query, k):
    return found({"match": {"contents": query}}, k)
"""


class Refused(OSError):
    """Raised if the server answers with an error."""


class OpenSearch(VectorDatabase):
    """An index with a `knn_vector` for each retriever."""

    rows = 500
    full_text = "BM25"
    program = CONNECT.replace("PASSWORD", "OPENSEARCH_PASSWORD").replace("SCRIPT", SCRIPT)
    program_words = PROGRAM_WORDS
    languages = {language: language for language in LANGUAGES.split()}
    other_language = "standard"

    def __init__(self, address: Address, layout: Layout) -> None:
        super().__init__(address, layout)
        self._server, self._headers = address.server, {"Accept": "application/json"}
        if address.user is not None:
            password = address.password or os.environ.get(f"{address.name.upper()}_PASSWORD", "")
            pair = base64.b64encode(f"{address.user}:{password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {pair}"

    def vector(self, width: int) -> dict[str, Any]:
        """Return the mapping of a vector."""
        return {"type": "knn_vector", "dimension": width}

    def prepare(self) -> None:
        """Create the index, whose mapping carries the description."""
        mapping = self._ask("GET", f"/{self.layout.table}/_mapping", missing=True)
        if mapping is not None:
            notes = next(iter(mapping.values()))["mappings"].get("_meta", {})
            self.check_description(notes.get("sparring"))
            return
        properties: dict[str, Any] = {
            "id": {"type": "keyword"},
            "title": {"type": "text", "index": False},
            "text": {"type": "text", "index": False},
            "digest": {"type": "keyword", "index": False},
            **{name: self.vector(width) for name, width in self.layout.vectors.items()},
        }
        settings: dict[str, Any] = {}
        if self.layout.lexical is not None:
            for name in ("title", "text"):
                properties[name] = {**properties[name], "copy_to": "contents"}
            properties["contents"] = {"type": "text", "analyzer": self.language(self.layout)}
            k1, b = self.layout.lexical.k1, self.layout.lexical.b
            settings["index"] = {"similarity": {"default": {"type": "BM25", "k1": k1, "b": b}}}
        notes = {"sparring": self.layout.description}
        mappings = {"dynamic": False, "_meta": notes, "properties": properties}
        self._ask("PUT", f"/{self.layout.table}", {"settings": settings, "mappings": mappings})

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Look up documents by id."""
        answer = self._ask("POST", f"/{self.layout.table}/_mget?_source=digest", {"ids": list(ids)})
        return {row["_id"]: row["_source"]["digest"] for row in answer["docs"] if row.get("found")}

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert or replace documents."""
        lines: list[Any] = []
        for row, (id, title, text) in enumerate(zip(*batch[:3], strict=True)):
            if len(id.encode()) > MOST_BYTES:
                raise UserError(f"{KEY}: the id {id[:60]!r}... is longer than {MOST_BYTES} bytes.", code="too-large")
            vectors = {name: batch.vectors[name][row].tolist() for name in self.layout.vectors}
            document = {"id": id, "title": title, "text": text, "digest": digests[row], **vectors}
            lines += [{"index": {"_id": id}}, document]
        self._bulk(lines)

    def count(self) -> int:
        """Count the documents."""
        self._ask("POST", f"/{self.layout.table}/_refresh")
        return int(self._ask("GET", f"/{self.layout.table}/_count")["count"])

    def ids(self) -> Iterator[list[str]]:
        """List ids in order."""
        body: dict[str, Any] = {"size": self.rows, "sort": [{"id": "asc"}], "_source": False}
        while hits := self._ask("POST", f"/{self.layout.table}/_search", body)["hits"]["hits"]:
            yield [hit["_id"] for hit in hits]
            body["search_after"] = hits[-1]["sort"]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete documents by id."""
        self._bulk([{"delete": {"_id": id}} for id in ids])

    def finish(self) -> None:
        """Make everything visible to searches."""
        self._ask("POST", f"/{self.layout.table}/_refresh")

    def _bulk(self, lines: Sequence[Any]) -> None:
        """Send lines to the bulk interface. Refused if one of them was refused."""
        answer = self._ask("POST", f"/{self.layout.table}/_bulk", lines=lines)
        outcomes = [outcome for item in answer["items"] for outcome in item.values()]
        if errors := [outcome for outcome in outcomes if "error" in outcome]:
            raise Refused(f"{len(errors)} of {len(outcomes)} documents were refused: {_reason(errors[0])}")

    def _ask(
        self, method: str, path: str, body: Any = None, *, lines: Sequence[Any] | None = None, missing: bool = False
    ) -> Any:
        """Send a request, and return the JSON of the answer. Return None for a status of 404 if that may be."""
        kind, data = "application/json", None if body is None else json.dumps(body).encode()
        if lines is not None:
            kind, data = "application/x-ndjson", "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        url = self._server.rstrip("/") + quote(path, safe="/?=&_")
        request = Request(url, data, {**self._headers, "Content-Type": kind}, method=method)
        try:
            with urlopen(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except HTTPError as error:
            with error:
                if error.code == 404 and missing:
                    return None
                raise Refused(f"{error.code} {_reason(error.read())}") from None


def _reason(answer: Any) -> str:
    """Return the reason in an error's JSON, or the beginning of the answer."""
    try:
        tree = json.loads(answer) if isinstance(answer, bytes) else answer
        error = tree["error"]
        return str(error["reason"] if isinstance(error, dict) else error)[:300]
    except (ValueError, KeyError, TypeError):
        return str(answer)[:300]


Database = OpenSearch
