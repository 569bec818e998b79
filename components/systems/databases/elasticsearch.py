"""Elasticsearch: `elasticsearch+http://HOST:9200` or `elasticsearch+https://...`, by plain HTTP.

It is used like OpenSearch, except that vectors have another type and another function. The password of the URL's user
may be in `$ELASTICSEARCH_PASSWORD` instead.
"""

from __future__ import annotations

from typing import Any

from sparring.components.systems.databases.opensearch import CONNECT, OpenSearch

SCRIPT = """{"params": {"vector": vector.tolist(), "column": column}, "source":
        "double d = dotProduct(params.vector, params.column); return d >= 0 ? d + 1 : 1 / (1 - d);"}"""


class Elasticsearch(OpenSearch):
    """An index with a `dense_vector` for each retriever."""

    program = CONNECT.replace("PASSWORD", "ELASTICSEARCH_PASSWORD").replace("SCRIPT", SCRIPT)

    def vector(self, width: int) -> dict[str, Any]:
        """Return the mapping of a vector. No graph is built, because all documents are compared."""
        return {"type": "dense_vector", "dims": width, "index": False}


Database = Elasticsearch
