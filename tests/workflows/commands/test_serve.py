"""`serve`: a run's systems over HTTP, what `search` and the page get of it, and the marks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.systems.system import LoadedSystem
from sparring.workflows import ROOT
from sparring.workflows.distributed import machine
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.experiments import loading
from sparring.workflows.serving import deployment, running
from sparring.workflows.serving import service as services
from sparring.workflows.serving.deployment import Service
from sparring.workflows.serving.service import low_score
from sparring.workflows.store.store import Store
from sparring.workflows.systems.library import Library
from tests.support import tiny
from tests.support.chromium import Browser
from tests.support.served import Served, served
from tests.support.tiny import Place, Said


@pytest.fixture(scope="module")
def place(played: Place, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run of its own, beside which the service's files lie."""
    return played.copy(tmp_path_factory.mktemp("served") / "copy")


@pytest.fixture(scope="module")
def service(place: Place) -> Iterator[Served]:
    with served(place) as service:
        yield service


@pytest.fixture
def no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened in this process."""
    monkeypatch.setattr(Library, "system", None)
    monkeypatch.setattr(LoadedSystem, "load", None)


def queries(place: Place) -> list[dict[str, str]]:
    table = pq.read_table(place.artifact("data") / "queries.parquet").to_pylist()
    return [row for row in table if row["split"] == "test"][:3]


def test_every_system_finds_what_the_run_found(place: Place, service: Served) -> None:
    """In the run's order, with its scores."""
    response = service.get("/systems")
    names = [system["name"] for system in response["systems"]]
    assert {"BM25", "start model", "warm retriever", "retriever 1", "ranker over retriever 1"} <= set(names)
    assert (response["name"], response["collection"]) == ("tiny", place.metrics()["rows"][0]["collection"])
    table = pq.read_table(place.artifact("data") / "queries.parquet", filters=[("split", "=", "test")])
    assert response["examples"] == table["text"].to_pylist()[:5]
    assert [system["low"] for system in response["systems"]] == [None] * len(names)  # too few queries of dev
    candidates = json.loads((place.artifact("selection") / "selection.json").read_text())["candidates"]
    assert response["default"] == max(candidates, key=lambda candidate: candidate["value"])["system"]
    ranked = {
        "retriever 1": "retriever 1 ranking (test)",
        "BM25": "bm25 ranking (test)",
        "ranker over retriever 1": "ranker over retriever 1 (test)",
    }
    documents = pq.read_table(place.artifact("data") / "documents.parquet").to_pylist()
    says = {row["doc_id"]: (row["title"], row["text"]) for row in documents}
    for name, label in ranked.items():
        table = pq.read_table(place.artifact(label) / "ranking.parquet").to_pylist()
        for query in queries(place):
            wanted = [row for row in table if row["query_id"] == query["query_id"]][:5]
            response = service.ask(query["text"], len(wanted), name)
            # Of documents that say the same rounding decides which comes first.
            assert [says[doc_id] for doc_id, _ in response] == [says[row["doc_id"]] for row in wanted]
            assert [score for _, score in response] == pytest.approx([row["score"] for row in wanted], abs=1e-4)


def test_it_listens_on_this_machine_alone(service: Served) -> None:
    """Whoever does not ask for more gets no more."""
    processes = [psutil.Process(service.process.pid)]
    processes += processes[0].children(recursive=True)
    listening = [
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == ["127.0.0.1"]


def test_search_asks_a_running_service(place: Place, service: Served, said: Said, no_models: None) -> None:
    for name in ("retriever 1", "ranker over retriever 1"):
        assert place("search", "barami comi", "-k", "4", "--system", name) == 0
        lines = [line for line in said()[0].splitlines() if not line.startswith("   ")]
        assert [line.split()[-1] for line in lines] == [doc_id for doc_id, _ in service.ask("barami comi", 4, name)]


def test_search_says_the_same_with_and_without_a_service(
    place: Place, played: Place, service: Served, said: Said
) -> None:
    for name in ("retriever 1", "ranker over retriever 1"):
        assert place("search", "barami comi", "-k", "4", "--system", name) == 0
        with_it = said()[0]
        assert played("search", "barami comi", "-k", "4", "--system", name) == 0
        assert said()[0] == with_it


@pytest.mark.parametrize(
    "change", [{"pid": 2**22 + 1}, {"identity": "another"}, {"url": "http://127.0.0.1:9"}, {"systems": []}, {"url": 1}]
)
def test_a_file_of_a_service_that_is_gone_is_ignored(
    tmp_path: Path, service: Served, place: Place, change: dict[str, object]
) -> None:
    announcement = json.loads((place.runs / "tiny" / running.FILE).read_text())
    assert running.ask(place.runs / "tiny", announcement["identity"], "retriever 1", "barami", 2) is not None
    (tmp_path / running.FILE).write_text(json.dumps({**announcement, **change}))
    assert running.ask(tmp_path, announcement["identity"], "retriever 1", "barami", 2) is None
    (tmp_path / running.FILE).write_text("{")
    assert running.ask(tmp_path, announcement["identity"], "retriever 1", "barami", 2) is None
    assert running.ask(tmp_path / "none", announcement["identity"], "retriever 1", "barami", 2) is None


def test_an_exported_system_is_served_until_it_is_asked_to_stop(
    played: Place, tmp_path: Path, said: Said, no_models: None
) -> None:
    folder = tmp_path / "tiny.yaml"  # where a place has its config
    assert played("export", str(tmp_path / "out"), "--system", "BM25") == 0
    (tmp_path / "out" / "system").rename(folder)
    place = tiny.Place(tmp_path)
    tiny.write(tmp_path / "inline.yaml", tiny.INLINE)
    with served(place) as service:
        wanted = [doc_id for doc_id, _ in service.ask("barami comi", 3)]
        said()
        assert place("search", "barami comi", "-k", "3") == 0
        lines = [line for line in said()[0].splitlines() if not line.startswith("   ")]
        assert [line.split()[-1] for line in lines] == wanted
        status, rest = service.stop(signal.SIGTERM)
    assert (status, rest.splitlines()[-1]) == (0, "Stopped.")
    assert not (folder / running.FILE).exists()


def test_mistakes(place: Place, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(running.TOKEN, raising=False)
    monkeypatch.setattr(machine, "ray_session", None)  # all are found before Ray is started
    monkeypatch.chdir(ROOT)
    (tmp_path / "token").write_text("short")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, says in {
            ("--port", str(port)): f"--port: {port} is taken on 127.0.0.1; stop what uses it, or name another",
            ("--port", "70000"): "--port: got 70000; accepted: 0 to 65535",
            ("--host", "0.0.0.0"): "--host: 0.0.0.0 lets other machines ask; accepted: with a token",
            ("--host", "192.0.2.77", "--without-token"): "--host: '192.0.2.77' is no address of this machine",
            ("--token-file", str(tmp_path / "none")): f"--token-file: {tmp_path / 'none'}: no such file",
            ("--token-file", str(tmp_path / "token")): "--token-file: accepted: a word of at least 16 ASCII",
            ("--system", "no"): "--system: no system 'no' can be asked; accepted: 'BM25', 'start model'",
            ("--marks", str(tmp_path / "no" / "marks")): f"--marks: {tmp_path / 'no'} is no folder",
        }.items():
            assert place("serve", "--cluster", "cluster/laptop.yaml", *words) == 2
            assert said()[1].startswith(f"error: {says}")
    assert place("serve", "--set", "evaluate.measures=[RR@10]") == 2  # its systems are there, by other runs
    assert re.match(r"error: the step 'results' is not done; run it first: .* run ", said()[1])


def test_a_finished_run_without_a_folder_is_served(
    place: Place, said: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The folder is made, and the marks lie there."""
    opened: list[Service] = []
    monkeypatch.setattr(deployment, "run", lambda service, cluster, ready: opened.append(service))
    folder = tmp_path / "runs" / "tiny"
    words = place.words("serve", "--port", "0")
    words[words.index("--runs") + 1] = str(folder.parent)
    assert tiny.main(words) == 0, said()
    assert opened[0].marks == folder / "marks.jsonl"
    assert (folder / "config.yaml").read_text() == (place.runs / "tiny" / "config.yaml").read_text()
    assert any(path.is_symlink() for path in folder.iterdir())


def test_a_cluster_that_serves_already_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Ray Serve is even imported."""
    util = SimpleNamespace(list_named_actors=lambda all_namespaces: [deployment.CONTROLLER])
    monkeypatch.setattr(deployment, "ray_session", lambda _: SimpleNamespace(util=util))
    joined: Any = SimpleNamespace(cluster=Cluster(address="head:6379"))
    service: Any = None
    with pytest.raises(UserError, match="cluster: address: head:6379: Ray Serve runs there already, and this service "):
        deployment.run(service, joined, ready=lambda: None)


def test_why_a_service_does_not_start() -> None:
    """Serve's error says that it failed, its status what Python said."""
    error = RuntimeError("Deploying application sparring failed: Failed to update the deployments ['sparring'].")
    status = SimpleNamespace(
        message="It failed 3 times in a row.\nTraceback\nModuleNotFoundError: No module named 'x'\n"
    )
    application = SimpleNamespace(deployments={"sparring": status})
    assert deployment._why(SimpleNamespace(applications={"sparring": application}), error).endswith(
        "No module named 'x'"
    )
    assert deployment._why(SimpleNamespace(applications={}), error) == str(error)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80")],
)
def test_where_this_machine_reaches_it(place: Place, host: str, url: str) -> None:
    served: Any = None
    assert Service(served, host, 80, loopback=True, token=None, marks=place.folder, identity="x").url == url


def test_marks_make_a_collection(place: Place, service: Served, said: Said, tmp_path: Path, encoder: Path) -> None:
    """The collection with the marks is read as any: a mark takes the place of the collection's own judgement."""
    data = place.artifact("data")
    rows = pq.read_table(data / "qrels.parquet").to_pylist()
    judged = next(row for row in rows if row["split"] == "test")
    (text,) = (
        row["text"]
        for row in pq.read_table(data / "queries.parquet").to_pylist()
        if row["query_id"] == judged["query_id"]
    )
    file = tmp_path / "marks.jsonl"
    marks = [(text, judged["doc_id"], False), ("a new one", "d3", True), ("a new one", "d4", False)]
    marks += [("a new one", "gone", True)]
    lines = [json.dumps({"query": query, "doc_id": doc_id, "relevant": right}) for query, doc_id, right in marks]
    file.write_text("\n".join([*lines, '{"query": "torn']))
    before = tiny.contents(place.store)
    assert place("marks", str(tmp_path / "out"), "--marks", str(file)) == 0
    assert "3 judgements from marks, 1 of them in place of the collection's own; 1 new query in the split train" in (
        output := said()[0]
    )
    assert "left out: 1 mark of documents that are not there any more\n" in output
    assert tiny.contents(place.store) == before
    again = tiny.place(tmp_path / "again", tiny.dpr(tmp_path / "out", encoder))
    assert again("run", "--until", "data") == 0
    table = pq.read_table(next(again.store.glob("ingest-*")) / "qrels.parquet").to_pylist()
    labels = {(row["query_id"], row["doc_id"]): (row["relevance"], row["split"]) for row in table}
    assert labels.pop((judged["query_id"], judged["doc_id"])) == (0, "test")
    new = {key: value for key, value in labels.items() if key[0].startswith("marked-")}
    assert sorted(new.values()) == [(0, "train"), (1, "train")]
    assert len(labels) - len(new) == len(rows) - 1
    said()
    assert place("marks", str(tmp_path / "out")) == 2
    assert said()[1] == f"error: {tmp_path / 'out'}: is there already; accepted: a new folder\n"


def test_scores_are_low_below_those_of_most_dev_queries(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, store = loading.read(place.config, [], place.runs, place.where), Store(place.store)
    assert low_score(experiment.outcome, store, "BM25") is None  # too few queries
    monkeypatch.setattr(services, "FEWEST", 1)
    ranking = pq.read_table(place.artifact("bm25 ranking (dev)") / "ranking.parquet", filters=[("rank", "=", 1)])
    best = np.quantile(ranking["score"].to_numpy(), 0.05)
    assert low_score(experiment.outcome, store, "BM25") == pytest.approx(best)
    assert low_score(experiment.outcome, store, "a system that was not measured") is None


@pytest.mark.browser
def test_the_page_by_keyboard_and_on_a_phone(service: Served, tmp_path: Path) -> None:
    with Browser(tmp_path) as page:
        page.open(service.url, width=1280)
        page.wait("document.querySelectorAll('#system option').length > 4 && document.activeElement.id === 'query'")
        page.write("barami comi")
        page.press("Enter")
        page.wait("document.querySelectorAll('#columns li').length === 10")
        wanted = [doc_id for doc_id, _ in service.ask("barami comi", 10)]
        assert page.run("[...document.querySelectorAll('#columns li')].map((one) => one.dataset.doc)") == wanted
        page.press("ArrowDown", "ArrowDown", "y")
        page.wait("document.querySelectorAll('#columns li.right').length === 1")
        assert page.run("document.activeElement.dataset.doc") == wanted[1]
        assert service.get("/marks") == [{"query": "barami comi", "doc_id": wanted[1], "relevant": True}]
        page.run(
            "{document.querySelector('ol').id = 'before'; form.query.value = 'barami  comi'; form.requestSubmit()}"
        )
        page.wait("!document.getElementById('before') && document.querySelectorAll('#columns li.right').length === 1")
        page.run("document.querySelector('#columns li.right').focus()")
        page.press("Enter")
        assert page.run("document.activeElement.classList.contains('open')")
        page.press("y", "ArrowUp", "n")
        page.wait("document.querySelectorAll('#columns li.wrong').length === 1")
        page.wait("document.querySelectorAll('#columns li.right').length === 0")
        page.run("{const other = document.getElementById('compare'); other.value = 'BM25'; other.onchange()}")
        page.wait("document.querySelectorAll('#columns section').length === 2")
        page.run("document.querySelector('#columns li').focus()")
        page.press("ArrowRight")
        assert page.run("document.activeElement.closest('section').querySelector('h2').textContent") == "BM25"
        page.press("/")
        assert page.run("document.activeElement.id") == "query"
        assert page.run("document.querySelectorAll('#columns section:nth-child(2) mark').length") > 0
        page.resize(390, 844)
        page.wait("document.querySelectorAll('#columns section').length === 1")  # both systems in one list
        assert page.run("document.documentElement.scrollWidth") <= 390
        buttons = "[...document.querySelectorAll('#columns li button:not([hidden])')]"
        assert min(page.run(f"{buttons}.map((button) => button.getBoundingClientRect().height)")) >= 40
        assert all(request.startswith(service.url) for request in page.requests)
        assert page.errors == []
        address = page.run("location.href")  # which has what was asked
        page.open("about:blank")
        page.open(address)
        page.wait("document.querySelectorAll('#columns section').length === 2")
        page.open(f"{service.url}/?q=comi&k=5")
        page.wait("document.querySelectorAll('#columns li').length === 5")
        page.run("location.hash = '#q=barami'")
        page.wait("document.title.startsWith('barami')")


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
cluster.add_node(num_cpus=2)
print(cluster.address, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def joined(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A copy of the run whose profile joins a Ray cluster of two nodes."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    copy = place.copy(tmp_path / "copy")
    with subprocess.Popen([sys.executable, "-c", CLUSTER], stdin=-1, stdout=-1, text=True) as head:
        assert head.stdout is not None
        profile = {"mode": "ray", "device": "cpu", "address": head.stdout.readline().strip()}
        tiny.write(copy.folder / "inline.yaml", profile)
        yield copy
        head.communicate("\n")


@pytest.mark.slow
def test_ray_serve_on_a_cluster_answers_as_one_process(place: Place, service: Served, joined: Place) -> None:
    """Replicas start while requests wait, share marks and metrics, and end with Ctrl-C."""
    # Ray Serve itself uses what pydantic will drop.
    with served(joined, "--system", "retriever 1", "--system", "BM25", warnings="ignore") as many:
        assert (joined.runs / "tiny" / running.FILE).exists()
        assert [named["name"] for named in many.get("/systems")["systems"]] == ["retriever 1", "BM25"]
        with ThreadPoolExecutor(64) as pool:
            queries, end = 0, time.monotonic() + 120
            wanted = dict(service.ask("barami comi", 5, "retriever 1"))
            while len(replicas()) < 2:  # Ray Serve starts another while requests wait
                assert time.monotonic() < end
                answers = pool.map(lambda number: many.ask("barami comi", 5, "retriever 1"), range(512))
                for answer in answers:  # queries that are encoded together round differently
                    assert dict(answer) == pytest.approx(wanted, abs=1e-2)
                queries += 512
        assert many.ask("barami comi", 5, "BM25") == service.ask("barami comi", 5, "BM25")
        texts = {"input": ["barami comi", "dutol"], "model": "retriever 1/dense"}
        rows = [
            server.post("/v1/embeddings", {**texts, **name})
            for server, name in ((many, {"model": "dense"}), (service, {}))
        ]
        assert rows[0]["usage"] == rows[1]["usage"]
        vectors = [[row["embedding"] for row in answer["data"]] for answer in rows]
        np.testing.assert_allclose(*vectors, atol=1e-5)
        document = many.ask("barami comi", 1, "BM25")[0][0]
        mark = {"query": "barami comi", "doc_id": document, "relevant": True}
        many.post("/marks", mark)
        for _ in range(20):  # whichever replica answers
            assert many.get("/marks") == [mark]
        metrics = many.text("/metrics")
        assert (
            re.search(r'^sparring_queries_total\{system="retriever 1"\} (\S+)$', metrics, re.M)[1] == f"{queries:.1f}"
        )
        status, rest = many.stop()
    assert (status, rest.splitlines()[-1]) == (0, "Stopped.")
    assert not (joined.runs / "tiny" / running.FILE).exists()
    assert json.loads((joined.runs / "tiny" / "marks.jsonl").read_text())["doc_id"] == document


def replicas() -> list[psutil.Process]:
    """List the processes of Ray Serve's replicas."""
    processes = psutil.process_iter(["cmdline"])
    return [process for process in processes if "ServeReplica:sparring" in " ".join(process.info["cmdline"] or [])]


@pytest.mark.slow
def test_a_replica_reports_a_damaged_model_in_one_line(joined: Place) -> None:
    """Ray Serve by itself gives no reason."""
    [file] = (joined.artifact("retriever 1") / "model").rglob("*.safetensors")
    os.truncate(file, file.stat().st_size // 2)
    command = [sys.executable, "-m", "workflows", *joined.words("serve", "--port", "0", "--system", "retriever 1")]
    done = subprocess.run(command, cwd=tiny.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1].partition(str(file))[0]) == (2, "error: ")


@pytest.mark.slow
def test_a_second_service_on_a_cluster_is_refused(joined: Place) -> None:
    """The second service would take the place of the first one. The end of the first ends Ray Serve there."""
    first, second = "retriever 1", "BM25"
    again = [sys.executable, "-m", "workflows", *joined.words("serve", "--port", "0", "--system", second)]
    with served(joined, "--system", first, warnings="ignore") as earlier:
        done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "Ray Serve runs there already" in done.stderr.splitlines()[-1]
        assert [named["name"] for named in earlier.get("/systems")["systems"]] == [first]
        status, rest = earlier.stop()
    assert (status, rest.splitlines()[-1]) == (0, "Stopped.")
    with served(joined, "--system", second, warnings="ignore") as later:
        assert [named["name"] for named in later.get("/systems")["systems"]] == [second]
