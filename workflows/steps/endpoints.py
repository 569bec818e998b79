"""Rerank, teach and embed with models behind an address (`components.models.endpoints`).

One worker asks. Each answer is in a file as soon as it comes, so a repeated command asks only for what has no answer.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components import progress
from sparring.components.data.groups import Groups, query_ids_of, write_lists
from sparring.components.data.tables import QUERIES, RANKING, document_text, read, rows_in, write
from sparring.components.data.vectors import SHARDS, save_rows
from sparring.components.files import read_json, save_array, write_array, write_json
from sparring.components.models.endpoints import (
    Answer,
    Client,
    Endpoint,
    ask_all,
    key_of,
    misread,
    scores,
    total,
    vectors,
)
from sparring.components.models.permutations import ordered, windows
from sparring.components.retrieval.reordering import ShortLists
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards, row_shards
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

QUERIES_PER_FILE = 200
"""Number of queries whose scores are in one file."""
TEXTS_PER_REQUEST = 64
"""Number of texts that one request embeds."""
USAGE = "usage.json"
"""File with what all answers of a step are counted as. It is written when nothing is left to ask."""


class Scored(NamedTuple):
    """Pairs that an address has scored."""

    queries: np.ndarray
    """Rows of the queries: (N,)."""
    documents: np.ndarray
    """Rows of the documents: (N,)."""
    scores: Any
    """Scores: (N,)."""


def _refuses(endpoint: Endpoint, machine: Machine) -> None:
    """Refuse an address whose key is not in the environment. Workers on other machines have their own environment."""
    if machine.cluster.address is None:
        key_of(endpoint)


@Description(part="asking addresses", workers_read={"data": ("documents.parquet",)}, refuses=_refuses)
def rerank_at(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path,
    split: str,
    endpoint: Endpoint,
    depth: int,
    queries: int | None,
    before: list[Path],
) -> dict[str, Any]:
    """Write the measured queries' ranking with its first documents in the order of the scores at an address, as
    `rerank` does.

    One request scores the documents of a query, and of other queries with the same text. Pairs that the same address
    has scored for the rankings `before`, to the same depth, are not asked again, and not counted.
    """
    if not (out / USAGE).exists():
        lists, *earlier = (
            ShortLists.read(folder, data, split, depth=depth, queries=queries) for folder in (ranking, *before)
        )
        earlier_scores = [Scored(first.queries, first.documents, first.top["score"].to_numpy()) for first in earlier]
        values, usage = _scored(out, machine, data, endpoint, lists.queries, lists.documents, earlier_scores)
        write(out / "ranking.parquet", lists.reordered(values), RANKING)
        write_json(out / USAGE, {**usage, "queries": len(np.unique(lists.queries))})
    return _finished(out, "pairs.npy", "part-*.npy")


@Description(
    part="asking addresses", makes="taught groups", workers_read={"data": ("documents.parquet",)}, refuses=_refuses
)
def score_groups_at(
    out: Path, machine: Machine, *, data: Path, groups: Path, endpoint: Endpoint, before: list[Path]
) -> dict[str, Any]:
    """Write the same groups with the scores at an address as teacher, as `score_groups` does.

    One request scores the documents of a query in all its groups. Pairs that the same address has scored for the groups
    `before` are not asked again, and not counted.
    """
    if not (out / USAGE).exists():
        unscored = Groups(groups / "groups.parquet", data)
        earlier = (Groups(folder / "groups.parquet", data) for folder in before)
        earlier_scores = [Scored(_queries(groups), groups.documents, groups.teacher) for groups in earlier]
        values, usage = _scored(out, machine, data, endpoint, _queries(unscored), unscored.documents, earlier_scores)
        write_lists(groups / "groups.parquet", "teacher", values, out / "groups.parquet")
        write_json(out / USAGE, usage)
    return _finished(out, "pairs.npy", "part-*.npy")


@Description(part="asking addresses", workers_read={"data": ("documents.parquet",)}, refuses=_refuses)
def order_at(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path,
    split: str,
    endpoint: Endpoint,
    depth: int,
    queries: int | None,
) -> dict[str, Any]:
    """Write the measured queries' ranking with its first documents in the order that a language model at an address
    writes (`components.models.permutations`). One request orders a window. The scores are 0, -1, -2 and so on."""
    if not (out / USAGE).exists():
        lists = ShortLists.read(ranking, data, split, depth=depth, queries=queries)
        values, usage = _scored(out, machine, data, endpoint, lists.queries, lists.documents, (), worker=_Orderer)
        write(out / "ranking.parquet", lists.reordered(values), RANKING)
        write_json(out / USAGE, {**usage, "queries": len(np.unique(lists.queries))})
    return _finished(out, "pairs.npy", "part-*.npy")


def _queries(groups: Groups) -> np.ndarray:
    """Return the row of each candidate's query: (C,)."""
    return np.repeat(groups.queries, np.diff(groups.offsets))


def _scored(
    out: Path,
    machine: Machine,
    data: Path,
    endpoint: Endpoint,
    queries: np.ndarray,
    documents: np.ndarray,
    before: Sequence[Scored],
    worker: type | None = None,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Let an address score pairs of rows (N,). Return fp32 scores (N,), and what the answers are counted as.

    A pair that occurs twice, or whose score is among those `before`, is not asked again. If `worker` is None, a
    request scores the documents of a query.
    """
    first, count = _first_with_text(data), rows_in(data / "documents.parquet")
    keys = first[queries] * count + documents
    distinct, places, inverse = np.unique(keys, return_index=True, return_inverse=True)
    values = np.full(len(distinct), np.nan, np.float32)
    for scored in before:
        keys = first[scored.queries] * count + scored.documents
        matches = np.isin(keys, distinct)
        values[np.searchsorted(distinct, keys[matches])] = scored.scores[matches]
    missing = np.isnan(values)
    pairs = np.stack(np.divmod(distinct[missing], count), 1)
    write_array(out / "pairs.npy", np.column_stack([pairs, places[missing]]))
    shards = row_shards(len(np.unique(pairs[:, 0])), QUERIES_PER_FILE, "part-{:05d}.npy")
    options = {"data": data, "pairs": out / "pairs.npy"}
    usage = _asked(worker or _Reranker, shards, "queries", out, machine, endpoint, **options)
    values[missing] = np.concatenate([np.empty(0, np.float32), *(np.load(out / shard.file) for shard in shards)])
    return values[inverse], {"pairs": len(pairs), **usage}


@Description(
    part="asking addresses",
    droppable=("documents-*.npy",),
    workers_read={"data": ("documents.parquet",), "out": ("documents-*.npy",)},
    refuses=_refuses,
)
def embed_documents_at(
    out: Path, machine: Machine, *, data: Path, endpoint: Endpoint, prompt: str, shard: int, dtype: str
) -> dict[str, Any]:
    """Write the documents' vectors from an address, of length 1, in the files that `encode_documents` writes."""
    if not (out / USAGE).exists():
        documents = rows_in(data / "documents.parquet")
        shards = row_shards(documents, shard, "documents-{:05d}.npy")
        options = {"data": data, "split": None, "prompt": prompt, "dtype": dtype}
        usage = _asked(_Embedder, shards, "texts", out, machine, endpoint, **options)
        write_json(out / SHARDS, {part.file: part.size for part in shards})
        write_json(out / USAGE, {"documents": documents, **usage})
    return _finished(out)


@Description(
    part="asking addresses", droppable=("queries.npy",), workers_read={"out": ("queries.npy",)}, refuses=_refuses
)
def embed_queries_at(
    out: Path, machine: Machine, *, data: Path, split: str, endpoint: Endpoint, prompt: str, dtype: str
) -> dict[str, Any]:
    """Write the vectors of a split's queries from an address, in the files that `encode_queries` writes."""
    if not (out / USAGE).exists():
        ids = query_ids_of(data, [split]).to_pylist()
        shard = Shard("queries.npy", len(ids), {"start": 0, "stop": len(ids)})
        options = {"data": data, "split": split, "prompt": prompt, "dtype": dtype}
        usage = _asked(_Embedder, [shard], "texts", out, machine, endpoint, **options)
        write_json(out / "queries.json", ids)
        write_json(out / USAGE, {"queries": len(ids), **usage})
    return _finished(out)


def _first_with_text(data: Path) -> np.ndarray:
    """Return for each query the row of the first query with the same text."""
    texts = read(data / "queries.parquet", QUERIES, columns=["text"])["text"].combine_chunks()
    _, first, inverse = np.unique(texts.dictionary_encode().indices.to_numpy(), return_index=True, return_inverse=True)
    return first[inverse]


def _asked(
    worker: type, shards: list[Shard], unit: str, out: Path, machine: Machine, endpoint: Endpoint, **options: Any
) -> dict[str, Any]:
    """Let one worker fill the shards, and return what all answers are counted as."""
    pool = machine.cluster.map.model_copy(update={"workers": 1})
    options |= {"endpoint": endpoint, "folder": str(out)}
    map_shards(worker, shards, out=out, machine=machine, pool=pool, unit=unit, **options)
    return total(read_json(out / _usage_file(shard.task)) for shard in shards)


def _usage_file(task: Mapping[str, Any]) -> str:
    return f"usage-{task['start']:010d}.json"


def _finished(out: Path, *parts: str) -> dict[str, Any]:
    """Remove what only an interrupted step needs, and return the summary."""
    transfer.remove(out, "asked-*.jsonl", "usage-*.json", *parts)
    return dict(read_json(out / USAGE))


class _Asker:
    """A worker that asks an address, and keeps what it is answered next to the shard's file."""

    def __init__(self, *, endpoint: Endpoint, folder: str, threads: int) -> None:
        self._endpoint, self._folder = endpoint, Path(folder)
        self._finished: Path | None = None

    def _contents(
        self, task: dict[str, Any], requests: Mapping[str, Callable[[Client], Answer]], *, unit: int = 1
    ) -> Any:
        """Return the contents of a shard's answers, and count all answers so far. An answer is progress by `unit`."""
        path = self._folder / f"asked-{task['start']:010d}.jsonl"
        if self._finished not in (None, path):  # its shard's file is there
            self._finished.unlink()
        contents, usage = ask_all(self._endpoint, path, requests, partial(progress.report, unit))
        write_json(self._folder / _usage_file(task), usage)
        transfer.upload(self._folder / _usage_file(task))
        self._finished = path
        return contents


class _Reranker(_Asker):
    """A worker that asks for scores of documents, with one request for a query."""

    def __init__(self, *, data: Path, pairs: Path, **options: Any) -> None:
        super().__init__(**options)
        queries, self._documents, self._places = np.load(pairs).T
        self._rows, starts = np.unique(queries, return_index=True)
        self._starts = np.append(starts, len(queries))
        texts = read(data / "queries.parquet", QUERIES, columns=["text"])["text"].take(self._rows)
        self._queries = texts.to_pylist()
        wanted = np.unique(self._documents)
        self._texts = dict(zip(wanted.tolist(), _document_texts(data, wanted), strict=True))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the scores of some queries' documents."""
        requests = {str(self._rows[place]): partial(self._score, place) for place in range(task["start"], task["stop"])}
        by_query = self._contents(task, requests)
        save_array(path, np.concatenate([np.asarray(values, np.float32) for values in by_query]))

    def _score(self, place: int, client: Client) -> Answer:
        """Score a query's documents. Documents with equal texts are sent once."""
        rows = self._documents[self._starts[place] : self._starts[place + 1]].tolist()
        distinct = list(dict.fromkeys(self._texts[row] for row in rows))
        answer = scores(client, self._endpoint, self._queries[place], distinct)
        by_text = dict(zip(distinct, answer.content, strict=True))
        return answer._replace(content=[by_text[self._texts[row]] for row in rows])


class _Orderer(_Reranker):
    """A worker that asks a language model for the order of each query's documents, window by window."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the scores of some queries' documents. A window begins with the order that the windows before it
        left."""
        queries = range(task["start"], task["stop"])
        orders = {query: self._first_order(query) for query in queries}
        rounds = {query: windows(len(orders[query])) for query in queries}
        for number in range(max(map(len, rounds.values()))):
            spans = {query: spans[number] for query, spans in rounds.items() if number < len(spans)}
            requests = {
                f"{self._rows[query]}-{number}": partial(self._order, query, orders[query][start:stop])
                for query, (start, stop) in spans.items()
            }
            answers = self._contents(task, requests, unit=0)
            for (query, (start, stop)), permuted in zip(spans.items(), answers, strict=True):
                window = orders[query][start:stop]
                orders[query][start:stop] = [window[place] for place in permuted]
            progress.report(sum(len(spans) == number + 1 for spans in rounds.values()))
        scores = [self._scores(query, orders[query]) for query in queries]
        save_array(path, np.concatenate(scores).astype(np.float32))

    def _first_order(self, query: int) -> list[str]:
        """List the texts of a query's documents in the order of its ranking, each once."""
        span = slice(self._starts[query], self._starts[query + 1])
        rows = self._documents[span][np.argsort(self._places[span])]
        return list(dict.fromkeys(self._texts[row] for row in rows.tolist()))

    def _order(self, query: int, texts: list[str], client: Client) -> Answer:
        return ordered(client, self._endpoint, self._queries[query], texts)

    def _scores(self, query: int, order: list[str]) -> np.ndarray:
        """Return the negative places of a query's documents in an order of their texts."""
        places = {text: place for place, text in enumerate(order)}
        rows = self._documents[self._starts[query] : self._starts[query + 1]].tolist()
        return np.array([-places[self._texts[row]] for row in rows])


class _Embedder(_Asker):
    """A worker that asks for vectors of documents, or of a split's queries."""

    def __init__(self, *, data: Path, split: str | None, prompt: str, dtype: str, **options: Any) -> None:
        super().__init__(**options)
        self._data, self._split, self._prompt, self._dtype = data, split, prompt, dtype

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the vectors of some texts. Equal texts of one file are sent once."""
        texts = [self._prompt + text or " " for text in self._read(task)]  # addresses refuse empty texts
        distinct = list(dict.fromkeys(texts))
        batches = [distinct[start : start + TEXTS_PER_REQUEST] for start in range(0, len(distinct), TEXTS_PER_REQUEST)]
        requests = {str(number): partial(self._embed, batch) for number, batch in enumerate(batches)}
        contents = self._contents(task, requests)
        flat_vectors = [np.frombuffer(base64.b64decode(content), "<f4") for content in contents]
        rows = [row for flat, batch in zip(flat_vectors, batches, strict=True) for row in flat.reshape(len(batch), -1)]
        if len({len(row) for row in rows}) > 1:
            raise misread(self._endpoint, "of another length than earlier vectors")
        places = {text: place for place, text in enumerate(distinct)}
        encoded = np.stack(rows)[[places[text] for text in texts]] if rows else np.empty((0, 0), np.float32)
        lengths = np.linalg.norm(encoded, axis=1, keepdims=True)
        save_rows(path, (encoded / np.where(lengths > 0, lengths, 1)).astype(self._dtype))

    def _read(self, task: dict[str, Any]) -> list[str]:
        if self._split is None:
            return _document_texts(self._data, np.arange(task["start"], task["stop"]))
        table = read(self._data / "queries.parquet", QUERIES, columns=["text", "split"])
        texts: list[str] = table.filter(pc.equal(table["split"], self._split))["text"].to_pylist()
        return texts

    def _embed(self, texts: list[str], client: Client) -> Answer:
        """Embed texts as the bytes of fp32 numbers, which take less space than JSON's."""
        answer = vectors(client, self._endpoint, texts)
        content = base64.b64encode(np.asarray(answer.content, "<f4").tobytes()).decode()
        return answer._replace(content=content)


def _document_texts(data: Path, rows: np.ndarray) -> list[str]:
    """Read the texts of some documents. `rows` must ascend."""
    texts, start = list[str](), 0
    with pq.ParquetFile(data / "documents.parquet") as file:
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            inside = rows[(rows >= start) & (rows < stop)] - start
            if len(inside):
                table = file.read_row_group(group, columns=["title", "text"]).take(inside)
                both = zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
                texts += [document_text(title, text) for title, text in both]
            start = stop
    return texts
