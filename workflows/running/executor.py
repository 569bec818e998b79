"""Running one step: its artifact, its record, and what its failure leaves."""

import errno
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sparring.components import timing
from sparring.components.compute.processor import describe_processor, release_memory
from sparring.components.config import Config, UserError, listing
from sparring.components.digests import sha256
from sparring.components.files import remove_leftovers
from sparring.components.models.configs import Pretrained, locate_model
from sparring.components.sources.base import Source, sought
from sparring.components.yaml_files import yaml_line
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import SUMMARY, run_in_worker
from sparring.workflows.program import without_passwords
from sparring.workflows.store import attempts, cache, s3, transfer
from sparring.workflows.store.availability import NotMade, damage, remade
from sparring.workflows.store.code_version import code_version
from sparring.workflows.store.dag import Composite, Step, StepFailed, canonical, foreign_code, function_name, mapped
from sparring.workflows.store.progress import PROGRESS
from sparring.workflows.store.store import FAILURE, Store

UNTIL_DONE = (FAILURE, PROGRESS, attempts.ATTEMPTS)
"""Files in a step's directory that are removed before its record is written."""
LONG = 10.0
"""Seconds of a step after which this process returns unused memory to the system. Without Ray all steps run in this
process, and a training leaves GBs unused."""


def execute(
    node: Step,
    store: Store,
    machine: Machine | None,
    *,
    on_wait: Callable[[str], None],
    on_start: Callable[[], None] = lambda: None,
) -> bool:
    """Run a step and write its record last. Return False if another driver finished the step first.

    `on_wait` is called with the name of a driver that holds the step, `on_start` when the wait is over.
    """
    out = store.path(node)
    worker_for = machine if node.description.in_worker else None
    leaves = partial(node.leaves, node) if worker_for is None else lambda name: name != SUMMARY
    with store.locked(node, on_wait) as finish, cache.holding(), transfer.left_to_workers(out, leaves):
        on_start()
        store.prefetch_records([node], refresh=True)
        if store.is_complete(node):
            return False
        remove_leftovers(out)
        store.reset(node)
        started = time.time()
        timing.drain()  # discard the times of a step that failed before
        try:
            _check_code(node)
            if worker_for is None:
                store.fetch_inputs(node)
            attempts.resume(out)
            files = {name: code for reader in _readers(node) for name, code in _digests(reader.files()).items()}
            with timing.timed("compute"):
                inputs = resolve_inputs(node.inputs, store)
                summary = (
                    node.function(out, machine, **inputs)
                    if worker_for is None
                    else run_in_worker(node.function, out, worker_for, inputs)
                )
                _check_summary(node, summary)
            for name in UNTIL_DONE:
                (out / name).unlink(missing_ok=True)
            remove_leftovers(out)  # files of workers that died while the step went on without them
            return finish(_record(node, summary or {}, files, started, machine))
        except UserError as error:
            raise mistake(node, error) from None
        except Exception as error:
            if damaged := damage(store.path(source) for source in node.upstream):
                raise mistake(node, damaged) from None
            lines = [line for line in str(error).strip().splitlines() if not line.startswith("\tat ")]  # Java's calls
            reason = lines or [type(error).__name__]
            full = os.strerror(errno.ENOSPC) in reason[-1]
            disk = "cache ($SPARRING_CACHE)" if s3.is_cached(out) else "disk (--store PLACE)"
            advice = f"; free some, or use another {disk}" if full else ""
            try:
                (out / FAILURE).write_text(without_passwords(traceback.format_exc()))
                place = str(out / FAILURE)
            except OSError as write_error:  # such as a full disk, which may be why the step failed
                place = f"not written: {write_error}"
            raise StepFailed(f"step {node.label!r} failed: {reason[-1]} (traceback: {place}){advice}") from error
        finally:
            if time.time() - started > LONG:
                release_memory()


def mistake(node: Step, error: UserError) -> UserError:
    """Prefix a user's mistake with its step's label, and say how to make a missing file again."""
    remedied = remade(error)
    if isinstance(remedied, NotMade):
        return UserError(f"{node.label}: {remedied}: repeat the command", key=remedied.key, code=remedied.code)
    return remedied.within(node.label)


def _check_summary(node: Step, summary: Any) -> None:
    """Raise TypeError if a step function returned something other than a JSON object."""
    try:
        json.dumps(summary)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{node.function.__name__} returned what is no JSON: {error}") from None
    if not isinstance(summary, dict | None):
        raise TypeError(f"{node.function.__name__} returned {type(summary).__name__}; accepted: a dictionary, or None")


def _check_code(node: Step) -> None:
    """Raise UserError if code outside this repository differs from the code in the step's fingerprint."""
    now = foreign_code(node.function, node.inputs)
    if now != node.code:
        changed = sorted(name for name in {*now, *node.code} if now.get(name) != node.code.get(name))
        message = f"the source of {listing(changed)} changed after the run began; repeat the command"
        raise UserError(message, code="code-changed")


def resolve_inputs(value: Any, store: Store) -> Any:
    """Replace each upstream step among inputs by the path of its artifact."""

    def resolved(leaf: Any) -> Any:
        if isinstance(leaf, Composite):
            return leaf.resolved(store)
        return store.path(leaf) if isinstance(leaf, Step) else leaf

    return mapped(value, resolved)


def check_present(nodes: Iterable[Step]) -> None:
    """Raise UserError if a step to run reads a file outside the store, a package or a model's directory that is
    missing."""
    for node in nodes:
        if missing := missing_for(node):
            raise UserError(f"{node.label}: {sought(missing)}")
        for value in node.inputs.values():
            if isinstance(value, Pretrained):
                try:
                    locate_model(value.model)
                except UserError as error:
                    raise mistake(node, error) from None


def missing_for(node: Step) -> list[str]:
    """List what a step reads outside the store and cannot find."""
    return [name for reader in _readers(node) for name in reader.missing()]


def check_source_files(nodes: Iterable[Step], store: Store) -> None:
    """Raise UserError if a file outside the store, or the version of an installed package, has changed since a finished
    step read it."""
    for change in source_changes(nodes, store):
        raise UserError(change)


def source_changes(nodes: Iterable[Step], store: Store) -> Iterator[str]:
    """Yield a sentence for each change outside the store since finished steps read it, with what to do.

    A step's identity has what its config declares, not the contents of the files that it names. Without this check a
    changed file would go unnoticed. A new file among those that a step reads is a change, a deleted file is none. Only
    files with a new size or time of change are read.
    """
    for node in nodes:
        files, installed = [(reader, reader.files()) for reader in _readers(node)], _installed(node)
        record = store.record(node) if installed or any(paths for _, paths in files) else None
        if record is None:
            continue
        for name, version in installed.items():
            if version != (before := record.get("versions", {}).get(name, version)):
                yield (
                    f"the package {name} is version {version} here, but the step {node.label!r} read version {before}; "
                    f'install that one, or declare the new one in the source: `versions: {{{name}: "{version}"}}`'
                )
        for reader, paths in files:
            changed = {name: now for name, now in _digests(paths).items() if now != record["files"].get(name)}
            if changed:
                name, now = next(iter(changed.items()))
                yield (
                    f"{paths[name]}: changed since the step {node.label!r} read it (sha256 {now} now, "
                    f"{record['files'].get(name, 'not there')} then); restore it, or {_declaring(reader, changed)}"
                )


def _declaring(reader: Config, changed: dict[str, str]) -> str:
    """Say how to declare changed files as another input."""
    if isinstance(reader, Source):
        digests = yaml_line({"sha256": {**reader.sha256, **changed}}).removeprefix("{")
        return f"declare the new one: `data: {{format: {reader.format}, ..., {digests}`"
    return "declare the new one as another input: a model by another `revision`, anything by another path"


def _readers(node: Step) -> list[Config]:
    """List the configs among a step's inputs. They may name files outside the store."""
    return [value for value in node.inputs.values() if isinstance(value, Config)]


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Compute the digests of the files that exist, by name."""
    return {name: sha256(path) for name, path in files.items() if path.is_file()}


def _installed(node: Step) -> dict[str, str]:
    """List the versions of installed packages that a step reads, by name."""
    return {name: version for reader in _readers(node) for name, version in reader.installed().items()}


def _record(
    node: Step, summary: dict[str, Any], files: dict[str, str], started: float, machine: Machine | None
) -> dict[str, Any]:
    intervals, ended = timing.drain(), time.time()
    seconds = timing.covered([*intervals, timing.Interval("compute", started, ended)])
    return {
        "function": function_name(node.function),
        "version": node.description.version,
        "fingerprint": node.fingerprint,
        "label": node.label,
        "inputs": canonical(node.inputs),
        "modules": dict(node.code),
        "upstream": [before.name for before in node.upstream],
        "summary": summary,
        "files": files,
        "versions": _installed(node),
        "dropped": [],
        "started": ended - seconds,  # as if the attempts had followed one another without a pause
        "seconds": seconds,
        "time": timing.seconds_by_kind(intervals),
        "host": socket.gethostname(),
        "machine": describe_processor() | (machine.record() if machine else {}),
        "nodes": timing.compute_seconds(intervals),
        "cluster": machine.cluster.model_dump(mode="json") if machine else None,
        "code": code_version(),
    }
