"""Submitting without a cluster: what is refused before anything is sent, and what would be sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.config import UserError, read_yaml
from tests import tiny
from tests.tiny import ROOT, Place
from workflows import cluster as clusters
from workflows import nodes, recipes, submit
from workflows.cluster import Cluster
from workflows.store import StepFailed, code

NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def place(beir: Path, encoder: Path, tmp_path: Path) -> Place:
    return tiny.place(tmp_path / "here", tiny.dpr(beir, encoder))


def submitted(place: Place, *words: str, address: str = NOBODY) -> int:
    return tiny.main([*place.words("submit", "--address", address), *words])


@pytest.fixture
def answering() -> Iterator[Any]:
    """Call it with a status and a text: the address of a server that answers everything so."""
    servers = []

    def serve(status: int, text: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


# Mistakes


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("127.0.0.1:8265", "--address 127.0.0.1:8265: accepted: the job server's URL, such as http://127.0.0.1:8265"),
        ("ray://127.0.0.1:10001", "--address ray://127.0.0.1:10001: accepted: the job server's URL"),
        ("auto", "--address auto: accepted: the job server's URL"),
        ("http://", "--address http://: accepted: the job server's URL"),
        (NOBODY, f"--address {NOBODY}: does not answer (["),
    ],
)
def test_an_address_that_is_none(place: Place, capsys: pytest.CaptureFixture[str], address: str, says: str) -> None:
    assert submitted(place, address=address) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {says}")
    assert err.count("\n") == 1


def test_a_password_in_an_address_is_not_repeated(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert submitted(place, address="http://me:swordfish@127.0.0.1:8265") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: --address: has more in it than a server")
    assert "swordfish" not in said


@pytest.mark.parametrize(
    ("status", "text"), [(200, "<html>"), (200, "[]"), (200, '{"version": 4}'), (404, "no"), (500, "{}"), (200, "\xff")]
)
def test_a_server_that_is_no_job_server(
    place: Place, answering: Any, capsys: pytest.CaptureFixture[str], status: int, text: str
) -> None:
    address = answering(status, text)
    assert submitted(place, address=address) == 2
    assert capsys.readouterr().err == (
        f"error: --address {address}: answers, but is no job server of Ray's (its port is 8265 by default)\n"
    )


@pytest.mark.parametrize("status", [401, 403])
def test_a_job_server_that_asks_for_a_token(
    place: Place, answering: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    address = answering(status, "Unauthorized")
    assert submitted(place, address=address) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: --address {address}: the cluster asks for a token; set RAY_AUTH_MODE=token, and ")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "k=0"], r"k: "),
        (["--set", "dat.path=x"], r"dat: unknown key"),
        (["--cluster", "nowhere.yaml"], r"nowhere.yaml: there is no such file"),
    ],
)
def test_a_mistake_is_found_before_anything_is_sent(
    place: Place, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert submitted(place, *words) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "--address" not in said


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ({"mode": "inline"}, "mode: 'inline' is for one process; accepted for a job: ray"),
        (
            {"mode": "ray", "address": "head:6379"},
            "address: a job joins the cluster it runs on, got 'head:6379'",
        ),
    ],
)
def test_a_profile_that_no_job_can_run_on(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], profile: dict[str, Any], says: str
) -> None:
    path = tiny.write(tmp_path / "profile.yaml", profile)
    assert submitted(place, "--cluster", str(path)) == 2
    assert says in capsys.readouterr().err


def places(monkeypatch: pytest.MonkeyPatch, *words: str, environment: str | None = None) -> tuple[Path, Path]:
    """The store and runs of a job submitted with such words before the command."""
    from workflows.__main__ import parser

    monkeypatch.delenv("SPARRING_STORE", raising=False)
    if environment:
        monkeypatch.setenv("SPARRING_STORE", environment)
    return submit._places(parser().parse_args([*words, "submit", "x.yaml", "--address", NOBODY]))


def test_a_jobs_places(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("--store", "/shared/store", "--runs", "/mine/runs")
    assert places(monkeypatch, *both) == (Path("/shared/store"), Path("/mine/runs"))
    assert places(monkeypatch, *both[:2]) == (Path("/shared/store"), Path("/shared/runs"))
    assert places(monkeypatch, "--store", "s3://bucket/x") == ("s3://bucket/x", Path("runs"))
    assert places(monkeypatch, environment="/a/b") == (Path("/a/b"), Path("/a/runs"))
    assert places(monkeypatch, *both, environment="/a/b") == (Path("/shared/store"), Path("/mine/runs"))


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        ([], None, r"--store: a job needs one, as its own folder goes when it ends; accepted: an absolute path"),
        (["--store", "store"], None, r"--store store: is a place on this machine, and the job runs on the cluster"),
        (["--store", "~/store"], None, r"--store ~/store: is a place on this machine"),
        (["--store", "/s/store", "--runs", "here"], None, r"--runs here: is a place on this machine"),
        ([], "store", r"--store store: is a place on this machine"),
        (["--store", "gs://bucket"], None, r"--store gs://bucket: accepted: a directory, or s3://BUCKET/PREFIX"),
        ([], "s3://key:swordfish@bucket", r"--store: has more in it than a bucket and a prefix"),
    ],
)
def test_a_place_that_only_this_machine_knows(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environment: str | None, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        places(monkeypatch, *words, environment=environment)


def test_data_that_only_this_machine_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARRING_DATA", "data")
    with pytest.raises(UserError, match=r"SPARRING_DATA: data is a place on this machine; accepted: an absolute path"):
        submit._environment()


# What is sent


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_code_is_sent(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    submit._pack(place.config, Cluster(), folder)
    wanted = {"workflows/__main__.py", "workflows/report.html", "cluster/requirements.lock", "configs/demo.yaml"}
    assert wanted <= files(folder)
    assert not [name for name in files(folder) if "__pycache__" in name]


def test_nothing_else_is_sent(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data, no results, no environment, no history, and no keys that lie about."""
    root = tmp_path / "root"
    for name in (*submit.CODE, "store", "runs", "data", ".venv", ".git", "notes"):
        (root / name / "__pycache__").mkdir(parents=True)
        for file in ("one.py", ".token", "__pycache__/one.pyc"):
            (root / name / file).write_text("swordfish")
    (root / ".env").write_text("swordfish")
    monkeypatch.setattr(submit, "ROOT", root)
    folder = tmp_path / "folder"
    config = submit._pack(place.config, Cluster(), folder)
    assert files(folder) == {*(f"{name}/one.py" for name in submit.CODE), "sent/cluster.yaml", config}


def test_an_experiment_is_sent_whole(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it stands on laid under it, so that it means there what it means here."""
    other = tiny.write(tmp_path / "other.yaml", {"base": str(place.config), "k": 10, "data": {"on_bad": "drop"}})
    both = tiny.write(
        tmp_path / "both.yaml",
        {"recipe": "compare", "baseline": "one", "systems": ["retriever"],
         "experiments": {"one": str(place.config), "other": {"file": str(other), "sets": ["k=11"]}},
         "curves": {"a line": {2: "one", 11: "other"}}},
    )  # fmt: skip
    folder = tmp_path / "folder"
    folder.mkdir()
    for config in (other, both, ROOT / "configs" / "ar2-msmarco.yaml"):
        here = recipes.read(config, [], tmp_path)
        sent = submit._experiment(config, folder)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            there = recipes.read(Path(sent), [], tmp_path)
        assert there.name == here.name
        assert [step.fingerprint for step in there.wanted] == [step.fingerprint for step in here.wanted]


def test_an_experiment_of_the_repository_keeps_its_place(tmp_path: Path) -> None:
    assert submit._experiment(Path("configs/demo.yaml"), tmp_path) == "configs/demo.yaml"
    assert submit._experiment(ROOT / "configs" / "demo.yaml", tmp_path) == "configs/demo.yaml"


@pytest.mark.parametrize("tune", [False, True])
def test_a_tuning_is_sent_as_a_run_is(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tune: bool
) -> None:
    """The section goes along, and the job is the command; what is wrong with it sends nothing."""
    tree = read_yaml(place.config)
    asked = {"measure": "RR@10", "systems": ["retriever"], "space": {"train.learning_rate": {"grid": [1e-3, 1e-4]}}}
    tiny.write(place.config, {**tree, "tune": asked})
    found: list[Any] = []

    def send(client: Any, name: str, command: str, folder: Path, *, install: bool) -> tuple[str, bool]:
        words = command.split()
        config = words[words.index("--cluster") - 1]
        found.extend([words[7], read_yaml(folder / config)["tune"]])
        return "job", False

    monkeypatch.setattr(submit, "_answers", lambda _: None)
    monkeypatch.setattr(submit, "_client", lambda _: None)
    monkeypatch.setattr(submit, "_send", send)
    profile = tiny.write(place.folder / "ray.yaml", {"address": "auto"})
    words = ["--no-wait", "--cluster", str(profile), *(["--tune"] if tune else [])]
    assert submitted(place, *words) == 0
    assert found == ["tune" if tune else "run", asked]
    assert capsys.readouterr().err == f"job job was sent; Ray's dashboard: {NOBODY}\n"
    if tune:
        assert submitted(place, *words, "--set", "tune.split=test") == 2
        assert len(found) == 2


def test_text_stays_text(tmp_path: Path) -> None:
    tree = {"a": "1e-5", "b": 1e-5, "c": "null", "d": None, "e": "ünïcode\n", "f": [True, "yes", 0.1], "g": "007"}
    submit._write(tmp_path / "x" / "y.yaml", tree)
    assert read_yaml(tmp_path / "x" / "y.yaml") == tree


def test_the_profile_joins_the_cluster(tmp_path: Path) -> None:
    """Whether or not it says so: a job that started a Ray of its own would have one machine."""
    for name in ("laptop", "nodes", "node"):
        cluster = submit._profile(ROOT / "cluster" / f"{name}.yaml")
        submit._pack(ROOT / "configs" / "demo.yaml", cluster, tmp_path / name)
        assert clusters.read(tmp_path / name / "sent" / "cluster.yaml") == cluster
        assert cluster.address == "auto"


def test_nothing_of_this_machines_environment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SPARRING_STORE"):
        monkeypatch.setenv(name, "swordfish")
    monkeypatch.delenv("SPARRING_DATA", raising=False)
    sent = submit._environment()
    assert "swordfish" not in json.dumps(sent)
    assert sent.keys() == {*clusters.SETTINGS, "SPARRING_CODE"}
    monkeypatch.setenv("SPARRING_DATA", "/shared/data")
    assert submit._environment()["SPARRING_DATA"] == "/shared/data"


class Status(str):
    def is_terminal(self) -> bool:
        return self not in ("RUNNING", "PENDING")


class Job:
    def __init__(self, name: str, status: str, metadata: dict[str, str] | None, **more: Any) -> None:
        self.submission_id, self.status, self.metadata = name, Status(status), metadata
        self.start_time, self.end_time, self.message, self.driver_exit_code = 0, 2000, None, None
        self.__dict__.update(more)


class Client:
    """A job server of one's own making."""

    def __init__(self, log: list[str] | None = None, breaks: int = 0, **ended: Any) -> None:
        self.jobs: list[Job] = []
        self.sent: dict[str, Any] = {}
        self.log, self.breaks, self.ended = log or [], breaks, ended

    def list_jobs(self) -> list[Job]:
        return self.jobs

    def submit_job(self, **job: Any) -> str:
        self.sent = job
        self.jobs.append(Job(job["submission_id"], "RUNNING", job["metadata"]))
        return str(job["submission_id"])

    async def tail_job_logs(self, job: str) -> Any:
        for number, text in enumerate(self.log):
            if self.breaks and number == 2:
                self.breaks -= 1
                raise RuntimeError("the connection is lost")
            yield text

    def get_job_status(self, job: str) -> Status:
        return Status("SUCCEEDED")

    def get_job_info(self, job: str) -> Job:
        return Job(job, **{"status": "SUCCEEDED", "metadata": None, **self.ended})

    def get_job_logs(self, job: str) -> str:
        return "".join(self.log)

    def get_address(self) -> str:
        return NOBODY


def sent(client: Client, folder: Path, command: str = "python x", *, install: bool = False) -> tuple[str, bool]:
    return submit._send(client, "a run", command, folder, install=install)


def test_the_same_command_again_follows_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("1")
    client = Client()
    first, found = sent(client, tmp_path)
    assert first.startswith("a-run-")
    assert not found
    assert sent(client, tmp_path) == (first, True)
    assert sent(client, tmp_path, "python y")[1] is False  # another command
    (tmp_path / "code.py").write_text("2")
    assert sent(client, tmp_path)[1] is False  # other code
    (tmp_path / "code.py").write_text("1")
    client.jobs[0].status = Status("FAILED")
    again, found = sent(client, tmp_path)  # it is over: another job goes on where it was
    assert again != first
    assert not found


def test_the_lock_is_installed_where_that_is_asked_for(tmp_path: Path) -> None:
    client = Client()
    sent(client, tmp_path)
    assert client.sent["runtime_env"].keys() == {"working_dir", "env_vars"}
    sent(client, tmp_path, install=True)
    assert f"ray=={nodes.locked()['ray']}" in client.sent["runtime_env"]["pip"]["packages"]
    assert len(client.sent["runtime_env"]["pip"]["packages"]) == len(nodes.locked())


async def quick(seconds: float) -> None:
    """A sleep that does not last."""


def followed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(submit.asyncio, "sleep", quick)
    asyncio.run(submit._follow(client, "job"))


def test_a_lost_connection_is_taken_up_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(Client(["one\n", "two\n", "three\n", "four\n"], breaks=3), monkeypatch)
    assert capsys.readouterr().out == "one\ntwo\nthree\nfour\n"


def test_a_job_server_that_is_gone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(submit, "LOST", 0.0)
    with pytest.raises(StepFailed, match=r"http://127\.0\.0\.1:9 does not answer any more \(the connection is lost\)"):
        followed(Client(["one\n", "two\n", "three\n"], breaks=10**6), monkeypatch)
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("ended", "log", "kind", "says"),
    [
        ({"status": "STOPPED"}, [], StepFailed, "job x was stopped"),
        ({"status": "FAILED", "driver_exit_code": 2}, ["error: data: no\n"], UserError, "job x: data: no"),
        ({"status": "FAILED", "driver_exit_code": 1}, ["failed: step 'a' failed: b\n", "What was finished\n"],
         StepFailed, "job x: step 'a' failed: b"),
        ({"status": "FAILED", "message": "The actor died.\nLong story"}, ["half a l"], StepFailed,
         "job x: The actor died."),
        ({"status": "FAILED"}, [], StepFailed, "job x: it says no reason"),
    ],
)  # fmt: skip
def test_how_a_job_ended_is_how_the_command_ends(
    ended: dict[str, Any], log: list[str], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as caught:
        submit._end(Client(log, **ended), "x", Path("/shared/runs/x/report.html"))
    assert str(caught.value) == says


def test_the_last_line_of_a_job_that_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    submit._end(Client(["a\n"]), "x", Path("/shared/runs/x/report.html"))
    assert capsys.readouterr().out == "job x: done in 2 s; the report, on the cluster: /shared/runs/x/report.html\n"
    submit._end(Client(["a\n"]), "x", "python -m workflows --store s3://b report x.yaml")
    assert capsys.readouterr().out.endswith("; the report: python -m workflows --store s3://b report x.yaml\n")


def test_what_was_sent_from_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that was sent is no checkout."""
    here = code()
    monkeypatch.setenv("SPARRING_CODE", submit._environment()["SPARRING_CODE"])
    monkeypatch.setattr("subprocess.run", None)
    assert code() == here


def test_a_profile_written_and_read_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    submit._write(path, Cluster(address="auto").model_dump(mode="json"))
    assert yaml.safe_load(path.read_text())["address"] == "auto"
    assert clusters.read(path) == Cluster(address="auto")
