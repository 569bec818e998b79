"""Tokenise a collection once; every later step reads the token ids."""

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.config import Config, UserError
from sparring.components.data.reading import Template, passage_text, question_text
from sparring.components.data.token_store import TOKENIZER, store_digest
from sparring.components.data.tokenizers import lengths_of, prompts_of, tokenizer_digest, tokenizer_file
from sparring.components.expansion.expansions import link_or_copy
from sparring.components.files import naming_damage, read_json, readable, replacing, write_array, write_json
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

TEXTS_AT_ONCE = 10_000
"""Number of texts of a row group that are tokenised together. Until a token's number is taken, the tokeniser holds much
about it in memory. It changes no result."""


ARRAYS = ("ids", "offsets", "same")
"""Files of a table in a token store, without the table's name and `.npy`."""


class TokenizeConfig(Config):
    """Number of tokens that are kept of each text."""

    max_tokens: int = Field(512, ge=1)
    """Number of tokens kept of a text. A model may read fewer."""


class TemplatedConfig(TokenizeConfig):
    """Number of tokens that are kept of each text, for texts that are joined as a reader's template has them."""

    template: Template


def check_lengths(lengths: Mapping[str, int | None], config: TokenizeConfig) -> None:
    """Raise UserError if a model reads more tokens of a text than are kept. A length of None is unknown."""
    for key, length in lengths.items():
        if (length or 0) > config.max_tokens:
            message = (
                f"{key}: {length}: only {config.max_tokens} tokens of a text are kept; raise tokens.max_tokens, or "
                "lower this value"
            )
            raise UserError(message, key=key, code="too-many-tokens")


READ = {"data": ("*.parquet",), "model": ("model/*.safetensors",), "out": ("*.npy", "part-*")}
"""Files that only the workers read."""


@Description(part="data", version=3, workers_read=READ)
def tokenize(out: Path, machine: Machine, *, data: Path, model: Path, config: TokenizeConfig) -> dict[str, Any]:
    """Write the token ids of documents and queries, without special tokens (`components.data.token_store`).

    `documents.same.npy` names, for each document, the first one with the same tokens; `queries.same.npy` likewise.
    """
    check_lengths(lengths_of(model / "model"), config)
    return _tokenized(out, machine, ("documents", "queries"), data=data, model=model / "model", config=config)


@Description(part="data", workers_read={**READ, "documents": ("documents.*.npy",)})
def tokenize_queries(
    out: Path, machine: Machine, *, data: Path, model: Path, documents: Path, config: TokenizeConfig
) -> dict[str, Any]:
    """Write the token ids of a collection that differs from another in its queries alone.

    `documents` is the token store of its documents. Its files are linked, or copied if the filesystem has no links.
    """
    if read_json(documents / TOKENIZER) != tokenizer_digest(model / "model"):
        raise ValueError(f"{documents}: these tokens were made with another tokenizer than that of {model}")
    files = [Shard(name, 1, {"file": name}) for name in map("documents.{}.npy".format, ARRAYS)]
    map_shards(
        _Linking, files, out=out, machine=machine, pool=machine.cluster.map, unit="files", documents=str(documents)
    )
    summary = _tokenized(out, machine, ("queries",), data=data, model=model / "model", config=config)
    return {**summary, "queries": summary["queries"]["texts"]}


def _tokenized(
    out: Path, machine: Machine, tables: tuple[str, ...], *, data: Path, model: Path, config: TokenizeConfig
) -> dict[str, Any]:
    """Write the token ids of some tables, and the tokeniser they belong to. Return the summary."""
    shards, template = [], config.template if isinstance(config, TemplatedConfig) else None
    for table in tables:
        metadata = pq.read_metadata(readable(data / f"{table}.parquet"))
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            shards.append(Shard(f"part-{table}-{group:05d}", rows, {"table": table, "group": group}))
    map_shards(
        Tokenizer,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="texts",
        data=data,
        model=model,
        max_tokens=config.max_tokens,
        template=template,
    )
    parts = {table: [shard for shard in shards if shard.task["table"] == table] for table in tables}
    map_shards(
        _Joining,
        [
            Shard(f"sizes-{table}.json", sum(part.size for part in of_table), {"table": table})
            for table, of_table in parts.items()
        ],
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="texts",
        work=str(out),
        parts={table: [part.file for part in of_table] for table, of_table in parts.items()},
    )
    summary: dict[str, Any] = {table: read_json(out / f"sizes-{table}.json") for table in tables}
    summary["tokenizer"] = store_digest(model, template)
    write_json(out / TOKENIZER, summary["tokenizer"])
    transfer.remove(out, "part-*", "sizes-*")
    return summary


class Tokenizer:
    """A worker that tokenises one row group into ids and lengths."""

    on_demand: ClassVar = {"data": ("*.parquet",), "model": ("model/*.safetensors",)}

    def __init__(
        self, *, data: Path, model: Path, max_tokens: int, threads: int, template: Template | None = None
    ) -> None:
        import os

        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        from tokenizers import Tokenizer as Fast

        with naming_damage(tokenizer_file(model)):
            self._tokenizer = Fast.from_file(str(tokenizer_file(model)))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._data, self._limit, self._prompts = data, max_tokens, prompts_of(model)
        self._template = template
        numbers = 1 + max(self._tokenizer.get_vocab().values(), default=0)  # a vocabulary may skip numbers
        wide = numbers > np.iinfo(np.uint16).max
        self._dtype = np.uint32 if wide else np.uint16

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write `ids.npy` and `lengths.npy` of a row group into a directory."""
        path_of_table = self._data / f"{task['table']}.parquet"
        table = pq.ParquetFile(readable(path_of_table)).read_row_group(task["group"])
        prompt, ids = self._prompts[task["table"]], list[np.ndarray]()
        for start in range(0, len(table), TEXTS_AT_ONCE):
            batch = table.slice(start, TEXTS_AT_ONCE)
            texts = batch["text"].to_pylist()
            if task["table"] == "documents":
                both = zip(batch["title"].to_pylist(), texts, strict=True)
                texts = [passage_text(title, text, self._template) for title, text in both]
            else:
                texts = [question_text(text, self._template) for text in texts]
            encoded = self._tokenizer.encode_batch_fast([prompt + text for text in texts], add_special_tokens=False)
            ids += [np.asarray(encoding.ids[: self._limit], dtype=self._dtype) for encoding in encoded]
        path.mkdir()
        np.save(path / "ids.npy", np.concatenate([np.empty(0, self._dtype), *ids]))
        np.save(path / "lengths.npy", np.asarray([len(text) for text in ids], dtype=np.int64))


class _Linking:
    """A worker that links files of a token store, or copies them if the filesystem has no links."""

    on_demand: ClassVar = {"documents": ("*",)}

    def __init__(self, *, documents: str, threads: int) -> None:
        self._documents = Path(documents)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        file = self._documents / task["file"]
        transfer.download(file)
        link_or_copy(file, path)


class _Joining:
    """A worker that joins the parts of a table, and finds texts with the same tokens."""

    on_demand: ClassVar = {"work": ("*",)}

    def __init__(self, *, work: str, parts: dict[str, list[str]], threads: int) -> None:
        self._out, self._parts = Path(work), parts

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write a table's token ids, and at `path` the numbers of its texts and tokens."""
        table, parts = task["table"], [self._out / name for name in self._parts[task["table"]]]
        transfer.download(*parts)
        _join(self._out, table, parts)
        offsets = np.load(self._out / f"{table}.offsets.npy", mmap_mode="r")
        _same(self._out, table)
        for name in ARRAYS:
            transfer.upload(self._out / f"{table}.{name}.npy")
        path.write_text(json.dumps({"texts": len(offsets) - 1, "tokens": int(offsets[-1])}))


def _join(out: Path, table: str, parts: list[Path]) -> None:
    """Join the parts into one memory-mapped column of ids, with the place where each text begins."""
    lengths = np.concatenate([np.empty(0, np.int64), *(np.load(part / "lengths.npy") for part in parts)])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    write_array(out / f"{table}.offsets.npy", offsets)
    with replacing(out / f"{table}.ids.npy") as path:
        dtype = np.load(parts[0] / "ids.npy", mmap_mode="r").dtype if parts else np.uint16
        joined = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(int(offsets[-1]),))
        start = 0
        for part in parts:
            ids = np.load(part / "ids.npy", mmap_mode="r")
            joined[start : start + len(ids)] = ids
            start += len(ids)
        joined.flush()


def _same(out: Path, table: str) -> None:
    """Write for each text the row of the first text with the same tokens."""
    ids = np.load(out / f"{table}.ids.npy", mmap_mode="r")
    offsets = np.load(out / f"{table}.offsets.npy")
    digests = np.asarray(
        [
            int.from_bytes(hashlib.blake2b(ids[a:b].tobytes(), digest_size=8).digest(), "little")
            for a, b in itertools.pairwise(offsets)
        ],
        dtype=np.uint64,
    )
    _, first, inverse = np.unique(digests, return_index=True, return_inverse=True)
    write_array(out / f"{table}.same.npy", first[inverse].astype(np.int64))
