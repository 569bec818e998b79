"""A store on S3: the same artifacts as on a disk, complete ones only, even if drivers die."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from sparring.components.files import replacing
from sparring.workflows.distributed.ray_train import is_permanent
from sparring.workflows.distributed.shard_worker import Filler
from sparring.workflows.store import leases, object_store, s3, transfer
from sparring.workflows.systems import deployable
from tests.support import bucket, killing, tiny
from tests.support.bucket import Remote, assert_same, own
from tests.support.tiny import ROOT, Place, Said


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The server, with a bucket."""
    with bucket.serving() as url:
        yield url


@pytest.fixture
def cache(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's cache."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def disk(toys: Path, beir: Path, encoder: Path) -> Place:
    """A finished run whose store is on this disk."""
    place = tiny.place(toys / "disk", tiny.dpr(beir, encoder))
    assert place("run") == 0
    return place


@pytest.fixture
def place(cache: Path, disk: Place, tmp_path: Path) -> Remote:
    """The same experiment with a store on S3."""
    return bucket.remote(tmp_path / tmp_path.name, disk)


def test_a_run_is_the_same_as_on_a_disk(
    place: Remote, disk: Place, cache: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So are the commands that read it, also with an empty cache. No secret is in any output or file."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", bucket.SECRET)
    assert place("plan") == 0
    assert " done " not in said()[0]
    assert place("run") == 0
    assert_same(place, disk)
    assert not [name for name in place.names() if name.startswith(leases.LEASES)]
    out, err = said()
    for folder in (place.folder, cache, place.store):
        assert [path for path in files(folder) if bucket.SECRET.encode() in path.read_bytes()] == []
    assert bucket.SECRET not in out + err
    table = out.partition("\nreport:")[0].splitlines()[:12]
    report = (place.runs / "tiny" / "report.html").read_text()
    shutil.rmtree(cache)
    shutil.rmtree(place.runs)
    assert place("run") == 0
    out, _ = said()
    assert "nothing to run" in out
    assert out.splitlines()[:12] == table
    again = (place.runs / "tiny" / "report.html").read_text()
    assert len(re.findall("<svg", again)) == len(re.findall("<svg", report))
    for words in (
        ["plan"],
        ["show"],
        ["show", "data"],
        ["show", "--watch"],
        ["search", "river", "-k", "3", *WHICH],
        ["report"],
        ["export", str(place.folder / "out"), *WHICH],
        ["clean", "--dry-run"],
    ):
        shutil.rmtree(cache, ignore_errors=True)
        assert place(*words) == 0, words
    assert exported_files(place.folder / "out") == exported(disk, place.folder / "theirs")
    assert f"{place.where}/ingest-" in said()[0]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_through_ray_is_the_same_as_on_a_disk(cache: Path, disk: Place, tmp_path: Path, steps: int) -> None:
    """Its workers download their inputs and upload their results, also with two steps at once."""
    pools = {"map": {"workers": 2, "threads": 1}, "train": {"workers": 1, "threads": 1}}
    place = bucket.remote(
        tmp_path / tmp_path.name, disk, mode="ray", object_store_mb=100, parallel_steps=steps, **pools
    )
    assert killing.run(place, "never") == 0
    assert_same(place, disk)


NODES = """
import os, sys
from ray.cluster_utils import Cluster
caches = [f"{os.environ['SPARRING_CACHE']}-{number}" for number in range(3)]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "env_vars": {"SPARRING_CACHE": caches[0]}})
for cache in caches[1:]:
    cluster.add_node(num_cpus=1, env_vars={"SPARRING_CACHE": cache})
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
from sparring.workflows.command_line import main
sys.exit(main(sys.argv[1:]))
"""


APART: dict[str, Any] = {
    "mode": "ray",
    "address": "auto",
    "device": "cpu",
    "retries": 0,
    "map": {"workers": 3, "threads": 1},
    "java": {"workers": 2, "threads": 1},
    "train": {"workers": 2, "threads": 1},
}


def on_nodes(place: Remote) -> None:
    """Run on three nodes."""
    done = subprocess.run(
        [sys.executable, "-c", NODES, *place.words("run")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_that_share_nothing_keep_the_best_model_and_choose_numbers(
    cache: Path, beir: Path, encoder: Path, tmp_path: Path
) -> None:
    """The first worker alone has the best weights, and shards are told what was chosen."""
    tree = tiny.coder(beir, encoder)
    place = Remote(tiny.place(tmp_path / "chosen", tree, **APART).folder)
    on_nodes(place)
    records = {record["label"]: record for record in tiny.records(place.store)}
    assert records["CODER 1"]["summary"]["workers"] == 2
    assert records["CODER 1"]["summary"]["best"]["update"] in (0, 2, 4, 6)
    assert not [name for name in place.names() if "/checkpoints/" in name]
    chosen = next(name for name in place.names() if name.endswith("chosen.json"))
    assert chosen.replace("chosen.json", "ranking.parquet") in place.names()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes_that_share_nothing(cache: Path, disk: Place, tmp_path: Path) -> None:
    """Three nodes and the driver, each with a cache of its own: the same rankings; two nodes train together."""
    place = bucket.remote(tmp_path / "nodes", disk, **APART)
    on_nodes(place)
    store = place.store
    records = {record["label"]: record for record in tiny.records(store)}
    nodes = {label: [name for name in record["nodes"] if "(" in name] for label, record in records.items()}
    assert len(nodes["retriever vectors"]) == 3
    assert len(nodes["retriever"]) == 2
    digests, wanted = tiny.results(store), tiny.results(disk.store)
    assert digests.keys() == wanted.keys()
    alike = {name for name in wanted if name.startswith(("lucene_search-", "mine-"))}
    assert alike
    assert {name: digests[name] for name in alike} == {name: wanted[name] for name in alike}
    for label in ("start vectors", "retriever vectors"):
        name = f"encode_documents-{records[label]['fingerprint'][:12]}"
        mine, disk_paths = (sorted(folder.glob("*.npy")) for folder in (next(store.glob(name)), disk.artifact(label)))
        for path, disk_path in zip(mine, disk_paths, strict=True):
            np.testing.assert_allclose(np.load(path), np.load(disk_path), atol=1e-4)
    assert len(list(tmp_path.glob("cache*"))) == 4


def files(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return files


WHICH = ("--system", "retriever")
"""A system without a Lucene index, whose files differ from one making to the next."""


def exported(place: Place, to: Path) -> dict[str, str]:
    """What a run exports, but for the card, which says when the run was and what the config's file is called."""
    assert place("export", str(to), *WHICH) == 0
    return exported_files(to)


def exported_files(folder: Path) -> dict[str, str]:
    return {name: digest for name, digest in tiny.contents(folder).items() if not name.endswith("README.md")}


def test_clean_deletes_parts_on_s3_too(
    place: Remote, disk: Place, cache: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clean drops is deleted on S3 too; a step asked for by name gets its parts back, and no other does. Which toy
    is the best differs from one processor to another."""
    monkeypatch.setattr(deployable, "_recommended", lambda outcome, store: [outcome.ranked[WHICH[-1]]])
    assert place("run") == 0
    before = place.names()
    assert place("clean") == 0
    removals = before - place.names()
    assert removals
    assert all(re.search(r"/(documents-\d+\.npy|queries\.npy|state/.*)$", name) for name in removals), removals
    shutil.rmtree(cache)
    assert place("run") == 0
    assert "nothing to run" in said()[0]
    assert place("run", "--until", "start vectors") == 0
    assert f"start vectors: {place.where}/encode_documents-" in said()[0]
    back = removals - (before - place.names())
    assert {name.partition("-")[0] for name in back} >= {"encode_documents"}


def test_objects_that_were_replaced_or_lost_are_found(place: Remote, cache: Path, said: Said) -> None:
    """Their artifacts are removed and made again."""
    assert place("run") == 0
    assert place("clean") == 0
    assert place("verify") == 0
    replaced, lost = (
        min(f"{place.where}/{name}" for name in place.names() if re.fullmatch(pattern, name))
        for pattern in (r"encode_documents-\w+/documents\.json", r"train-\w+/model/config\.json")
    )
    storage = bucket.files()
    storage.pipe_file(replaced, storage.cat_file(replaced) + b" ")
    storage.rm_file(lost)
    shutil.rmtree(cache)
    said()
    assert place("verify", "--remove") == 0
    *lines, last = said()[0].splitlines()
    labels, problems = zip(*(line.strip().split(": ", 1) for line in lines), strict=True)
    assert sorted(problems) == [f"{replaced} has changed", f"{lost} is not there"]
    assert "2 of 30 artifacts" in last
    for label in labels:
        assert place("run", "--until", label) == 0
    assert place("verify") == 0
    assert said()[0].splitlines()[-1].startswith("30 artifacts")


def test_a_record_that_is_no_json_is_one_line(place: Remote, cache: Path, said: Said) -> None:
    """`verify` removes it, as it does digests that were damaged; a run makes them again."""
    wanted = ("run", "--until", "bm25 ranking (test)", "--no-estimate")
    assert place(*wanted) == 0
    records = [name for name in sorted(place.names()) if name.endswith("/artifact.json")]
    record, digests = records[0], records[1].replace("artifact.json", "etags.json")
    for name in (record, digests):
        bucket.files().pipe_file(f"{bucket.BUCKET}/{place.folder.name}/{name}", b"{\xff")
    said()
    for words in (["plan"], ["run"]):
        assert place(*words) == 2
        [line] = said()[1].splitlines()
        where = f"{place.where}/{record}"
        assert line.startswith(f"error: {where}: not JSON: ")
        assert line.endswith(f"; remove {where.removesuffix('/artifact.json')}, and repeat the command")
    assert place("verify", "--remove") == 0
    output = said()[0]
    assert f"{record} has changed" in output
    assert f"{digests} has changed" in output
    assert place(*wanted) == 0
    assert place("verify") == 0


@pytest.mark.kill
def test_a_driver_that_vanished_with_its_machine(
    place: Remote, disk: Place, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it encodes, after a checkpoint, and before a record; each time its cache is lost too."""
    monkeypatch.setenv("SPARRING_TEST_STALE", "1.5")
    assert killing.run(place, "shard", 8) == -signal.SIGKILL  # before the file with copies, which is written twice
    shards = {name for name in place.names() if re.match(r"encode_documents-.*/documents-", name)}
    assert 0 < len(shards) < 6
    dates = place.dates(shards)
    shutil.rmtree(cache)
    assert killing.run(place, "checkpoint", 2) == -signal.SIGKILL
    assert place.dates(shards) == dates  # none was done again
    assert {name.split("/")[2] for name in place.names() if "/checkpoints/" in name} == {"update-000001"}
    shutil.rmtree(cache)
    assert killing.run(place, "record", 1) == -signal.SIGKILL
    shutil.rmtree(cache)
    assert killing.run(place, "never") == 0
    assert_same(place, disk)
    logs = [
        [json.loads(line)["update"] for line in path.read_text().splitlines()]
        for path in place.store.glob("train-*/metrics.jsonl")
    ]
    assert logs
    assert all(log == list(range(1, len(log) + 1)) for log in logs)


def test_two_drivers_at_once(place: Remote, disk: Place, cache: Path, tmp_path: Path) -> None:
    """Each with a cache of its own: each step is run by one of them; the other waits and says for which process."""
    command = [sys.executable, "-m", "workflows", *place.words("run")]
    drivers = [
        subprocess.Popen(
            [*command[:5], "--runs", str(tmp_path / f"runs{number}"), *command[7:]],
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "SPARRING_CACHE": f"{cache}{number}"},
        )
        for number in range(2)
    ]
    outputs = [driver.communicate() for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], outputs
    labels = [re.findall(r"\] (.*): done in", err) for _, err in outputs]
    peer_labels = [re.findall(r"\] (.*): done by another driver in", err) for _, err in outputs]
    assert sorted(labels[0] + labels[1]) == sorted(set(labels[0] + peer_labels[0] + labels[1] + peer_labels[1]))
    assert any("waiting for process" in err for _, err in outputs)
    store = place.store
    assert tiny.results(store) == tiny.results(disk.store)


@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 14])
def test_no_record_is_written_before_its_files(
    place: Remote, disk: Place, number: int, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    """Whichever upload fails, its step fails, finished artifacts have all their files, and a rerun finishes the run."""
    put, countdown = transfer._upload_file, number

    def fails(artifact: Path, name: str) -> None:
        nonlocal countdown
        countdown -= 1
        if countdown == 0:
            raise OSError("the network is gone")
        put(artifact, name)

    monkeypatch.setattr(transfer, "_upload_file", fails)
    assert place("run") == 1
    assert "the network is gone" in said()[1]
    whole = tiny.contents(disk.store)
    names = place.names()
    for name in [name for name in names if name.endswith("/artifact.json")]:
        artifact = name.partition("/")[0]
        assert {name for name in whole if name.startswith(f"{artifact}/") and not own(name)} <= names
    assert place("run") == 0
    assert_same(place, disk)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("s3://", "accepted: a directory, or s3://BUCKET/PREFIX"),
        ("gs://bucket/x", "accepted: a directory, or s3://BUCKET/PREFIX"),
        ("s3://key:word@bucket/x", "it has more than a bucket and a prefix"),
        ("s3://nowhere/x", "there is no bucket nowhere"),
        ("s3://bucket/../x", "a prefix without `..`; accepted: a directory"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused(cache: Path, disk: Place, where: str, reason: str, said: Said) -> None:
    from sparring.workflows.command_line import main

    assert main(["--store", where, "plan", str(disk.config)]) == 2
    (line,) = said()[1].splitlines()
    assert reason in line
    assert "word" not in line


def test_missing_credentials_or_a_missing_package_are_named(
    cache: Path, place: Remote, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") or "METADATA" in k}
    command = [sys.executable, "-m", "workflows", *place.words("plan")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**environment, "HOME": str(cache), "AWS_CONFIG_FILE": "", "AWS_SHARED_CREDENTIALS_FILE": ""},
    )
    assert done.returncode == 2
    reason = "Unable to locate credentials; credentials and endpoint are AWS_... variables"
    assert done.stderr == f"error: --store {place.where}: {reason}\n"
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert place("plan") == 2
    assert "s3fs is not installed" in said()[1]


def test_an_object_store_without_conditional_writes_is_refused(
    place: Remote, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_json = s3.put_json
    monkeypatch.setattr(s3, "put_json", lambda path, value, **condition: put_json(path, value))
    assert place("run") == 2
    assert "ignores the condition If-None-Match" in said()[1]


def test_the_config_of_a_run_is_kept(cache: Path) -> None:
    store = object_store.open_store(f"s3://{bucket.BUCKET}/kept")
    assert store.kept_config("mine") is None
    for k in (10, 20):
        store.keep_config("mine", {"k": k})
        assert store.kept_config("mine") == {"k": k}


def test_an_expired_lease_is_taken_over(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that did not renew its lease finds out before it writes a record, and does not delete the new lease."""
    monkeypatch.setattr(leases, "EXPIRE_SECONDS", 0.5)
    out = s3.local_path(f"s3://{bucket.BUCKET}/leases") / "wait-0123456789ab"
    out.mkdir(parents=True)
    waited: list[str] = []
    with leases.hold_lease(out, waited.append) as first:
        first.check()
        monkeypatch.setattr(leases, "_cache_id", lambda root: "another")
        with leases.hold_lease(out, waited.append) as second:
            second.check()
            with pytest.raises(RuntimeError, match="another driver has taken over"):
                first.check()
            first.release()
            second.check()
            assert list(leases.read_leases(out.parent)) == [out.name]
    assert len(waited) == 1
    assert leases.read_leases(out.parent) == {}


def test_a_lease_lives_by_s3s_clock(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a machine which ran ahead took a driver at work for dead, and `clean --whole` removed what it made."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/clocks") / "wait-0123456789ab"
    out.mkdir(parents=True)
    with leases.hold_lease(out, lambda holder: None):
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 90)
        assert list(leases.read_leases(out.parent)) == [out.name]
        monkeypatch.setattr(leases, "EXPIRE_SECONDS", -90.0)
        assert leases.read_leases(out.parent) == {}


def test_an_s3_that_fails_is_one_line(place: Remote, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback of a hundred lines came of it, and several configs ended with the first."""

    class Failing:
        def call_s3(self, *words: Any, **named: Any) -> Any:
            return {}

        def __getattr__(self, name: str) -> Any:
            raise OSError(121, "a fault")

    monkeypatch.setattr(s3, "file_system", Failing)
    assert place("plan") == 1
    assert said()[1].splitlines()[0] == "failed: S3 does not answer as it should: [Errno 121] a fault"
    with pytest.raises(s3.Unanswered) as caught:
        s3.listing(s3.local_path(f"s3://{bucket.BUCKET}/x"))
    assert not is_permanent(caught.value)  # a training worker tries again
    with pytest.raises(ValueError, match="JSON"):
        s3.put_json(s3.local_path(f"s3://{bucket.BUCKET}/x/y"), {"a": float("nan")})


def test_a_directory_is_downloaded_when_it_is_complete(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload that is interrupted leaves no directory to download; the next upload completes it."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/whole") / "step-0123456789ab"
    for name in ("index/a", "index/b", "checkpoints/step-1/a", "file"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    with monkeypatch.context() as patch:
        put = transfer._upload_file
        patch.setattr(transfer, "_upload_file", lambda path, name: put(path, name) if name[-1] == "a" else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            transfer.upload(out / "index")
    transfer.upload(out / "checkpoints" / "step-1")
    shutil.rmtree(cache)
    transfer.download(out)
    assert {name for name in tiny.contents(out) if not name.startswith(".")} == {"checkpoints/step-1/a"}
    for name in ("index/a", "index/b"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(name)
    transfer.upload(out / "index")
    (out / "index" / "b").write_text("other")
    (out / "more").touch()
    transfer.download(out, exact=True)
    assert (out / "index" / "b").read_text() == "index/b"
    assert not (out / "more").exists()


def test_a_part_of_a_table_is_downloaded_before_the_other_parts_are_there(cache: Path) -> None:
    """Each worker uploads the part that it has written."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/parts") / "step-0123456789ab"
    part = out / "ranking.parquet" / "00000000.parquet"
    part.parent.mkdir(parents=True)
    part.write_text("part")
    transfer.upload(part)
    shutil.rmtree(cache)
    transfer.download(out)
    assert part.read_text() == "part"


@pytest.fixture
def sent(cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    """The names of all files that are uploaded from now on. Listings have milliseconds, as AWS's have."""
    names: list[str] = []
    put, list_folder = transfer._upload_file, s3.listing

    def upload(artifact: Path, name: str) -> None:
        names.append(name)
        put(artifact, name)

    def with_milliseconds(folder: Path, prefix: str = "") -> s3.Listing:
        later = datetime.timedelta(milliseconds=250)
        return {
            name: {**fields, "LastModified": fields["LastModified"] + later}
            for name, fields in list_folder(folder, prefix).items()
        }

    monkeypatch.setattr(transfer, "_upload_file", upload)
    monkeypatch.setattr(s3, "listing", with_milliseconds)
    return names


def elsewhere(cache: Path, monkeypatch: pytest.MonkeyPatch, out: Path) -> Path:
    """An artifact's directory on another node, which this process is from now on."""
    monkeypatch.setenv("SPARRING_CACHE", f"{cache}-of-another-node")
    return s3.local_path(out)


def test_only_what_changed_is_sent_whatever_its_size_and_time(cache: Path, sent: list[str]) -> None:
    """A written file is sent even if its size and time are those of before; one that was not written never is."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/changes") / "train-0123456789ab"
    for name in ("state/optimizer", "state/state.json", "log"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("a" * 8)
    transfer.sync(out)
    assert sorted(sent) == ["log", "state/optimizer", "state/state.json"]
    sent.clear()
    transfer.sync(out)
    transfer.download(out)
    transfer.sync(out)
    assert sent == []
    times = (out / "state/optimizer").stat()
    with replacing(out / "state/optimizer") as path:
        path.write_text("b" * 8)
    os.utime(out / "state/optimizer", ns=(times.st_atime_ns, times.st_mtime_ns))
    transfer.sync(out)
    assert sent == ["state/optimizer"]
    assert bucket.files().cat_file(s3.object_path(out / "state/optimizer")) == b"b" * 8


def test_another_nodes_version_is_downloaded_whatever_its_size_and_time(
    cache: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that this node has may be newer by its clock, and as large."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/versions") / "train-0123456789ab"
    out.mkdir(parents=True)
    (out / "log").write_text("a" * 8)
    transfer.sync(out)
    with monkeypatch.context() as patch:
        copy = elsewhere(cache, patch, out)
        transfer.download(copy)
        assert (copy / "log").read_text() == "a" * 8
        (copy / "log").write_text("b" * 8)
        transfer.sync(copy)
    later = time.time() + 3600
    os.utime(out / "log", (later, later))
    transfer.download(out)
    assert (out / "log").read_text() == "b" * 8
    before = (out / "log").stat()
    transfer.download(out)
    assert (out / "log").stat() == before  # it is not downloaded again
    transfer.sync(out)
    assert sent == ["log", "log"]


def test_an_interrupted_note_of_a_version_costs_a_transfer(cache: Path, sent: list[str]) -> None:
    out = s3.local_path(f"s3://{bucket.BUCKET}/notes") / "train-0123456789ab"
    out.mkdir(parents=True)
    (out / "log").write_text("a" * 8)
    transfer.sync(out)
    (out / transfer.VERSIONS / "log").write_text("[")
    transfer.sync(out)
    assert sent == ["log", "log"]


def test_a_dead_driver_of_the_same_cache_is_not_waited_for(cache: Path) -> None:
    """It held the lock file in this cache, which the asking driver holds now."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/dead") / "wait-0123456789ab"
    out.mkdir(parents=True)
    assert s3.put_json(leases.lease_path(out), leases._contents(out), IfNoneMatch="*")
    waited: list[str] = []
    with leases.hold_lease(out, waited.append) as lease:
        lease.check()
    assert waited == []


def test_the_records_of_a_graph_are_read_in_a_few_batches(
    place: Remote, disk: Place, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps it has."""
    counts: list[int] = []
    read_bodies = s3.read_bodies
    monkeypatch.setattr(s3, "read_bodies", lambda paths: counts.append(len(paths)) or read_bodies(paths))
    for words in (["plan"], ["show"]):
        assert place(*words) in (0, 2)
        assert len([count for count in counts if count]) <= 3
        assert max(counts) == len(json.loads((disk.runs / "tiny" / "metrics.json").read_text())["steps"])
        counts.clear()


def test_paths_that_are_sent_to_a_worker_are_localized(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are localized as paths and as text, wherever they are in a worker's values, to the node's own cache."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/travels") / "step-0123456789ab"
    out.mkdir(parents=True)
    (out / "rows").write_text("1")
    transfer.upload(out / "rows")
    value: dict[str, Any] = {"a": out / "rows", "b": [str(out), "s3://x/y"], "c": {"d": Path("/elsewhere")}, "e": 3}
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "other"))
    copy = tmp_path / "other" / out.relative_to(cache)
    assert transfer.localize(value) == {**value, "a": copy / "rows", "b": [str(copy), "s3://x/y"]}
    assert (copy / "rows").read_text() == "1"


class Copier:
    """Copies the text at the path that its task names."""

    def __init__(self, *, threads: int) -> None:
        """Needs nothing."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        path.write_text(Path(task["of"]).read_text())


def test_a_path_in_a_shards_task_is_brought_to_the_workers_node(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As those are that its worker is built from."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/tasks") / "step-0123456789ab"
    out.mkdir(parents=True)
    (out / "rows").write_text("1")
    transfer.upload(out / "rows")
    shutil.rmtree(cache)
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "other"))
    with Filler(Copier, out, threads=1, constructor={}) as filler:
        filler.fill("part", {"of": str(out / "rows")})
    monkeypatch.setenv("SPARRING_CACHE", str(cache))
    transfer.download(out)
    assert (out / "part").read_text() == "1"


def test_files_that_only_workers_read_stay_on_s3(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver neither downloads them after a map nor deletes them at the end. It sees that they are there."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/left") / "encode-0123456789ab"
    with monkeypatch.context() as patch:
        copy = elsewhere(cache, patch, out)
        (copy / "model").mkdir(parents=True)
        for name in ("part-0.npy", "vectors-0.npy", "notes.json", "model/a"):
            (copy / name).write_text(name)
        for name in ("part-0.npy", "vectors-0.npy", "notes.json", "model"):
            transfer.upload(copy / name)
    with transfer.left_to_workers(out, lambda name: fnmatch(name, "vectors-*") or name.startswith("model/")):
        transfer.collect(out)
        assert sorted(path.name for path in out.glob("[!.]*")) == ["notes.json", "part-0.npy"]
        finished = transfer.finished_sizes(out)
        transfer.remove(out, "part-*")
        (out / "late.json").write_text("late")
        transfer.finish(out)
    assert finished.pop(".") == sum(len(name) for name in ("part-0.npy", "vectors-0.npy", "notes.json", "model/a"))
    assert finished == {"part-0.npy": 10, "vectors-0.npy": 13, "notes.json": 10, "model": 7, "model/a": 7}
    assert {name for name in s3.listing(out) if transfer.UPLOADED not in name} == {
        "vectors-0.npy",
        "notes.json",
        "late.json",
        "model/a",
    }
    with monkeypatch.context() as patch:
        patch.setenv("SPARRING_CACHE", f"{cache}-of-a-third-node")
        transfer.download(s3.local_path(out))
        assert (s3.local_path(out) / "model" / "a").read_text() == "model/a"


def test_an_older_copy_does_not_replace_what_another_node_wrote(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers rewrite vectors of copies, while the node that encoded them keeps the first version."""
    out = s3.local_path(f"s3://{bucket.BUCKET}/older") / "encode-0123456789ab"
    out.mkdir(parents=True)
    (out / "vectors").write_text("first")
    transfer.sync(out)
    with monkeypatch.context() as patch:
        copy = elsewhere(cache, patch, out)
        transfer.download(copy)
        (copy / "vectors").write_text("second")
        transfer.upload(copy / "vectors")
    transfer.sync(out, delete=True)
    assert bucket.files().cat_file(s3.object_path(out / "vectors")) == b"second"


def test_what_is_made_is_known_before_it_is_downloaded(cache: Path, tmp_path: Path) -> None:
    """A part of a table is complete by itself, a file of another directory with the whole directory."""
    for out in (tmp_path / "step-0123456789ab", s3.local_path(f"s3://{bucket.BUCKET}/made") / "step-0123456789ab"):
        for name in ("ranking.parquet/0.parquet", "index/a", "index/b", "progress.json", ".x.npy.0a1b2c3d"):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(name)
        transfer.upload(out / "ranking.parquet" / "0.parquet")
        transfer.upload(out / "index" / "a")
        index = {} if s3.is_cached(out) else {"index": 14, "index/a": 7, "index/b": 7}
        assert transfer.finished_sizes(out) == {
            ".": 25 + sum(index.values()) // 2,
            "ranking.parquet": 25,
            "ranking.parquet/0.parquet": 25,
            **index,
        }


def test_a_worker_downloads_what_it_opens(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a worker's class names are left until the worker asks for them."""
    vectors, out = (s3.local_path(f"s3://{bucket.BUCKET}/opens") / f"{name}-0123456789ab" for name in ("encode", "out"))
    vectors.mkdir(parents=True)
    for number in range(12):
        (vectors / f"documents-{number}").write_text(str(number))
    (vectors / "names.json").write_text("names")
    transfer.sync(vectors)
    copy = elsewhere(cache, monkeypatch, vectors)
    with Filler(Opener, out, threads=1, constructor={"vectors": str(vectors)}) as filler:
        assert [path.name for path in copy.glob("[!.]*")] == ["names.json"]
        filler.fill("part", {"file": "documents-1"})
        assert sorted(path.name for path in copy.glob("[!.]*")) == ["documents-1", "names.json"]


class Opener:
    """Copies a file of a folder."""

    on_demand: ClassVar = {"vectors": ("documents-*",)}

    def __init__(self, *, vectors: str, threads: int) -> None:
        self._folder = Path(vectors)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        transfer.download(self._folder / task["file"])
        path.write_bytes((self._folder / task["file"]).read_bytes())
