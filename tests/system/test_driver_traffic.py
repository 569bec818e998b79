"""What passes the driver if the store is on S3: records and small tables, but no vectors, models or indexes.

The driver reads some files that grow with the queries (`READ`), and none that grows with the documents.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from sparring.components.data.groups import check_k, ids_of
from sparring.components.data.tables import DOCUMENTS, RANKING, counts, pieces, read, write, write_ranking_part
from sparring.workflows.distributed.shard_worker import Filler
from sparring.workflows.steps import train
from sparring.workflows.store import s3, transfer
from tests.support import bucket, tiny
from tests.support.bucket import Remote
from tests.support.faults import Passed, Proxy
from tests.support.tiny import ROOT

SENDER = "AWS_SDK_UA_APP_ID"
NODES = f"""
import os, sys
from ray.cluster_utils import Cluster
def on(node):
    return {{"SPARRING_CACHE": os.environ["SPARRING_CACHE"] + "-" + node, "{SENDER}": node}}
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1, "env_vars": on("node-0")}})
cluster.add_node(num_cpus=1, env_vars=on("node-1"))
cluster.wait_for_nodes()
os.environ["RAY_ADDRESS"] = cluster.address
from sparring.workflows.command_line import main
sys.exit(main(sys.argv[1:]))
"""
APART = {
    "mode": "ray",
    "address": "auto",
    "device": "cpu",
    "retries": 0,
    "map": {"workers": 2, "threads": 1},
    "java": {"workers": 1, "threads": 1},
    "train": {"workers": 2, "threads": 1},
}
GROWS = re.compile(r"/(\w+)-[0-9a-f]{12}/(.*\.(?:npy|parquet|safetensors)|index/(?!sparring\.json).*)$")

WRITTEN = {"start/model/model.safetensors"}
"""Files that the driver writes. The start model comes from a folder or a hub, and is as large for any collection."""
READ = {
    "evaluate/per_query.parquet",
    "fuse/ranking.parquet",
    "ingest/qrels.parquet",
    "ingest/queries.parquet",
    "lucene_search/ranking.parquet/0.parquet",
    "search/ranking.parquet/0.parquet",
}
"""Files that grow with the queries and that the driver reads: for the report those of the measured splits, and for the
plan of the mining queries and judgements."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with bucket.serving() as url:
        yield url


@pytest.fixture
def proxy(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Counts the bytes of each process's requests."""
    monkeypatch.setenv("SPARRING_CACHE", str(tmp_path / "cache"))
    with Proxy(url).running() as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        monkeypatch.setenv(SENDER, "driver")
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
    s3fs.S3FileSystem.clear_instance_cache()


def growing(passed: list[Passed], sender: str, *methods: str) -> set[str]:
    """The files that grow with the collection among what a process sent or got: the step that made them, and the name
    with its digits as `0`."""
    names = [
        GROWS.search(request.path)
        for request in passed
        if request.sender.startswith(sender) and request.method in methods and not request.part
    ]
    return {f"{name[1]}/{re.sub(r'[0-9]+', '0', name[2])}" for name in names if name}


def check(passed: list[Passed]) -> None:
    """The driver writes and reads only what it may, and vectors pass the workers."""
    assert growing(passed, "driver", "PUT", "POST") == WRITTEN
    assert growing(passed, "driver", "GET") == READ
    assert "encode_documents/documents-0.npy" in growing(passed, "node-", "PUT")


def on_another_node(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A function of workers, which has another cache and other requests than the driver."""

    def working(*arguments: Any, **named: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setenv("SPARRING_CACHE", os.environ["SPARRING_CACHE"].removesuffix("-node-0") + "-node-0")
            patch.setenv(SENDER, "node-0")
            return function(*arguments, **named)

    return working


def test_no_vector_ranking_or_text_passes_the_driver(
    proxy: Proxy, beir: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Encoding, exact search, mining and training, with workers that have a cache of their own. The results are those
    of a store on a disk."""

    def file_system() -> Any:
        return s3fs.S3FileSystem(use_listings_cache=False, config_kwargs={"user_agent_appid": os.environ[SENDER]})

    monkeypatch.setattr(s3, "file_system", file_system)
    for name in ("__init__", "fill", "close"):
        monkeypatch.setattr(Filler, name, on_another_node(getattr(Filler, name), monkeypatch))
    monkeypatch.setattr(train, "work", on_another_node(train.work, monkeypatch))
    disk = tiny.place(tmp_path / "disk", tiny.dpr(beir, encoder))
    place = bucket.remote(tmp_path / "traffic", disk)
    assert place("run", "--no-estimate") == 0
    check(proxy.passed)
    assert disk("run", "--no-estimate") == 0
    bucket.assert_same(place, disk)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_that_grows_passes_the_driver_of_ray(proxy: Proxy, beir: Path, encoder: Path, tmp_path: Path) -> None:
    """The same on two nodes."""
    place = Remote(tiny.place(tmp_path / "traffic", tiny.dpr(beir, encoder), **APART).folder)
    words = [sys.executable, "-c", NODES, *place.words("run", "--no-estimate")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    check(proxy.passed)


def test_ids_and_counts_of_documents_are_read_without_their_texts(proxy: Proxy) -> None:
    out = s3.local_path(f"s3://{bucket.BUCKET}/texts") / "ingest-0123456789ab"
    out.mkdir(parents=True)
    ids = [f"d{number}" for number in range(2_000)]
    texts = [os.urandom(500).hex() for _ in ids]
    table = pa.table({"doc_id": ids, "title": texts, "text": texts}, schema=DOCUMENTS)
    write(out / "documents.parquet", table, DOCUMENTS)
    size = (out / "documents.parquet").stat().st_size
    transfer.sync(out)
    (out / "documents.parquet").unlink()
    proxy.passed.clear()
    assert check_k(5, out) == 2_000
    assert ids_of(out / "documents.parquet", "doc_id").to_pylist() == ids
    documents = pa.concat_tables(pieces(out / "documents.parquet", DOCUMENTS, columns=["doc_id"]))
    assert documents["doc_id"].to_pylist() == ids
    assert sum(request.size for request in proxy.passed) < size / 5
    assert pq.read_table(s3.open_file(out / "documents.parquet")).equals(table)


def test_a_table_in_parts_is_whole_although_the_cache_has_only_some(proxy: Proxy) -> None:
    out = s3.local_path(f"s3://{bucket.BUCKET}/parts") / "search-0123456789ab"
    path = out / "ranking.parquet"
    path.mkdir(parents=True)
    columns = [["q0", "q0"], ["a", "b"], [1, 2], [1.0, 0.5]]
    tables = [pa.table([[f"{query}{part}" for query in columns[0]], *columns[1:]], schema=RANKING) for part in range(3)]
    for number, table in enumerate(tables):
        write_ranking_part(path / f"{number}.parquet", [table], RANKING)
        transfer.upload(path / f"{number}.parquet")
    (path / "1.parquet").unlink()
    proxy.passed.clear()
    assert counts(path) == {"answered": 3, "rows": 6}
    assert read(path, RANKING).equals(pa.concat_tables(tables))
    assert pa.concat_tables(pieces(path, RANKING)).equals(pa.concat_tables(tables))
    assert {request.path[-9:] for request in proxy.passed if request.part} == {"1.parquet"}
