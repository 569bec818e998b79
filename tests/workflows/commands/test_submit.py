"""Submitting without a cluster: what is refused before anything is sent, and what a job is sent as."""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from sparring.components.config import UserError
from sparring.components.yaml_files import read_yaml
from sparring.workflows.command_line import parser
from sparring.workflows.commands import run, submit
from sparring.workflows.distributed import cluster as clusters
from sparring.workflows.distributed import job_package
from sparring.workflows.distributed.job_server import JobServer
from sparring.workflows.experiments import loading
from tests.support import tiny
from tests.support.errors import refused
from tests.support.jobs import ADDRESS as NOBODY
from tests.support.jobs import Client
from tests.support.tiny import ROOT, Place


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
        ("http://[::1", "--address http://[::1: accepted: the job server's URL"),
        ("http://127.0.0.1:abc", "--address http://127.0.0.1:abc: accepted: the job server's URL"),
        ("http://exa mple:8265", "--address http://exa mple:8265: accepted: the job server's URL"),
        (NOBODY, f"--address {NOBODY}: does not answer (["),
    ],
)
def test_an_address_that_is_none(place: Place, capsys: pytest.CaptureFixture[str], address: str, says: str) -> None:
    assert submitted(place, address=address) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {says}")
    assert err.count("\n") == 1


def test_a_proxy_that_stands_before_an_address_is_named(
    place: Place, answering: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked at the address itself; a password in the proxy's is not said."""
    proxy = answering(502, "no").removeprefix("http://")
    for answer in (proxy, f"me:swordfish@{NOBODY.removeprefix('http://')}"):
        monkeypatch.setenv("http_proxy", f"http://{answer}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert submitted(place, address="http://127.0.0.1:8265") == 2
        text = capsys.readouterr().err
        assert text.endswith(" It was asked through the proxy in http_proxy; without it: export no_proxy=127.0.0.1\n")
        assert "swordfish" not in text
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert submitted(place, address=NOBODY) == 2
        assert "proxy" not in capsys.readouterr().err


def test_a_password_in_an_address_is_not_repeated(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    for address in ("http://me:swordfish@127.0.0.1:8265", "http://me:swordfish@[::1"):
        assert submitted(place, address=address) == 2
        text = capsys.readouterr().err
        assert text.startswith("error: --address: holds more than a host and a port")
        assert "swordfish" not in text


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
    text = capsys.readouterr().err
    assert text.startswith(f"error: --address {address}: the cluster asks for a token; set RAY_AUTH_MODE=token, and ")
    assert text.count("\n") == 1


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
    text = capsys.readouterr().err
    assert says in text
    assert "--address" not in text


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
    monkeypatch.delenv("SPARRING_STORE", raising=False)
    if environment:
        monkeypatch.setenv("SPARRING_STORE", environment)
    return submit.places(parser().parse_args([*words, "submit", "x.yaml", "--address", NOBODY]))


def test_a_jobs_places(monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("--store", "/shared/store", "--runs", "/mine/runs")
    assert places(monkeypatch, *both) == (Path("/shared/store"), Path("/mine/runs"))
    assert places(monkeypatch, *both[:2]) == (Path("/shared/store"), Path("/shared/runs"))
    assert places(monkeypatch, "--store", "s3://bucket/x") == ("s3://bucket/x", Path("runs"))
    assert places(monkeypatch, environment="/a/b") == (Path("/a/b"), Path("/a/runs"))
    assert places(monkeypatch, *both, environment="/a/b") == (Path("/shared/store"), Path("/mine/runs"))


@pytest.mark.parametrize(
    ("words", "environment", "key"),
    [
        (["--store", "store"], None, "--store"),
        (["--store", "~/store"], None, "--store"),
        (["--store", "/s/store", "--runs", "here"], None, "--runs"),
        ([], "store", "--store"),
    ],
)
def test_a_place_that_only_this_machine_knows(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environment: str | None, key: str
) -> None:
    with refused(key, "local-path"):
        places(monkeypatch, *words, environment=environment)


@pytest.mark.parametrize(
    ("words", "environment", "says"),
    [
        ([], None, r"--store: missing; a job's own folder is deleted when it ends; accepted: an absolute path"),
        (["--store", "gs://bucket"], None, r"--store gs://bucket: accepted: a directory, or s3://BUCKET/PREFIX"),
        ([], "s3://key:swordfish@bucket", r"--store: it has more than a bucket and a prefix"),
    ],
)
def test_a_store_that_no_job_can_have(
    monkeypatch: pytest.MonkeyPatch, words: list[str], environment: str | None, says: str
) -> None:
    with pytest.raises(UserError, match=says):
        places(monkeypatch, *words, environment=environment)


def test_a_runs_folder_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    words = ["--store", "/s/store", "submit", str(tmp_path), "--address", NOBODY]
    with pytest.raises(UserError, match=f"{tmp_path}: the folder of a run here; accepted: its config, with the same"):
        submit.call(parser().parse_args(words))


# What is sent


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Client:
    """A job server that accepts every job, and whose jobs are done in two seconds."""
    client = Client(["a line of its log\n"])
    monkeypatch.setattr(JobServer, "at", lambda _: JobServer(client))
    return client


@pytest.mark.parametrize("tune", [False, True])
def test_a_tuning_is_sent_as_a_run_is(
    place: Place, served: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tune: bool
) -> None:
    """The section goes along, and the job is the command; what is wrong with it sends nothing."""
    tree = read_yaml(place.config)
    requests = {"measure": "RR@10", "systems": ["retriever"], "space": {"train.learning_rate": {"grid": [1e-3, 1e-4]}}}
    tiny.write(place.config, {**tree, "tune": requests})
    sections: list[Any] = []

    def submit_job(*, entrypoint: str, runtime_env: dict[str, Any], **_: Any) -> str:
        words = entrypoint.split()
        config = words[words.index("--cluster") - 1]
        sections.extend([words[7], read_yaml(Path(runtime_env["working_dir"]) / "sparring" / config)["tune"]])
        return "job"

    monkeypatch.setattr(served, "submit_job", submit_job)
    profile = tiny.write(place.folder / "ray.yaml", {"address": "auto"})
    words = ["--no-wait", "--cluster", str(profile), *(["--tune"] if tune else [])]
    assert submitted(place, *words) == 0
    assert sections == ["tune" if tune else "run", requests]
    assert capsys.readouterr().err == f"job job was sent; Ray's dashboard: {NOBODY}\n"
    if tune:
        assert submitted(place, *words, "--set", "tune.split=test") == 2
        assert len(sections) == 2


@pytest.mark.parametrize("here", [True, False])
def test_data_at_a_relative_path_is_named(
    place: Place,
    served: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    beir: Path,
    here: bool,
) -> None:
    """The job has another working directory."""
    monkeypatch.setattr(served, "submit_job", lambda **_: "job", raising=False)
    profile = tiny.write(place.folder / "ray.yaml", {"address": "auto"})
    relative = os.path.relpath(beir) if here else "nothing/here"
    assert submitted(place, "--no-wait", "--cluster", str(profile), "--set", f"data.path={relative}") == 0
    assert capsys.readouterr().err.startswith(f"note: {relative}/corpus.jsonl: the job looks for it in its own folder")


@pytest.mark.parametrize("here", [True, False])
def test_a_model_at_a_relative_path_is_named(
    place: Place,
    served: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    encoder: Path,
    here: bool,
) -> None:
    monkeypatch.chdir(encoder.parent)
    relative = encoder.name if here else "./nowhere"
    assert submitted(place, "--no-wait", "--set", f"retriever.model={relative}") == 0
    assert capsys.readouterr().err.startswith(f"note: {relative}: the job looks for it in its own folder")
    for existing in (encoder, "package:nowhere", "someone/nowhere"):
        served.jobs.clear()
        assert submitted(place, "--no-wait", "--set", f"retriever.model={existing}") == 0
        assert capsys.readouterr().err.startswith("job ")


@pytest.fixture
def packages(served: Client, monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], Any]]:
    """The words of each job that is sent, and the profile in its package."""
    result: list[tuple[list[str], Any]] = []

    def submit_job(*, entrypoint: str, runtime_env: dict[str, Any], **_: Any) -> str:
        result.append(
            (shlex.split(entrypoint), read_yaml(Path(runtime_env["working_dir"]) / "sparring" / job_package.PROFILE))
        )
        return "job"

    monkeypatch.setattr(served, "submit_job", submit_job)
    return result


def test_without_a_profile_a_job_uses_whatever_the_cluster_has(
    place: Place, packages: list[tuple[list[str], Any]]
) -> None:
    assert submitted(place, "--no-wait") == 0
    ((_, profile),) = packages
    assert clusters.Cluster.model_validate(profile) == clusters.read_cluster(ROOT / "cluster" / "joined.yaml")
    assert (profile["device"], profile["train"]["workers"]) == ("auto", None)


def test_a_job_names_the_config_as_its_user_does(place: Place, packages: list[tuple[list[str], Any]]) -> None:
    """It runs a copy, in a folder that the user does not have."""
    assert submitted(place, "--no-wait") == 0
    ((words, _),) = packages
    copy = words[words.index("run") + 1]
    assert re.fullmatch(r"sent/[0-9a-f]{6}/tiny\.yaml", copy)
    arguments = parser().parse_args(words[words.index("sparring") + 1 :])
    assert arguments.known_as == place.config
    assert f'search {place.config} "your question"' in run._command(arguments, "search", '"your question"')


@pytest.mark.parametrize(
    ("store", "tune", "report"),
    [
        ("", False, "the report, on the cluster: {run}/report.html"),
        ("", True, "the report, on the cluster: {run}/tune.html"),
        (
            "s3://bucket",
            False,
            "the report: python -m workflows --store s3://bucket report {config} --set 'evaluate.measures=[RR@10]'",
        ),
    ],
)
def test_the_last_line_of_a_job_that_is_done_says_where_the_report_is(
    place: Place,
    served: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    store: str,
    tune: bool,
    report: str,
) -> None:
    monkeypatch.setattr("sparring.workflows.tuning.config.read_tuning", lambda _: None)
    profile = tiny.write(place.folder / "ray.yaml", {"address": "auto"})
    words = ["--store", store or place.where, "--runs", str(place.runs), "submit", str(place.config)]
    words += ["--address", NOBODY, "--cluster", str(profile), *(["--tune"] if tune else [])]
    assert tiny.main([*words, "--set", "evaluate.measures=[RR@10]"]) == 0
    text = capsys.readouterr().out.splitlines()
    job = served.jobs[0].submission_id
    assert text[0] == "a line of its log"
    run = loading.read(place.config, ["evaluate.measures=[RR@10]"], place.runs).run
    assert text[-1] == f"job {job}: done in 2.0 s; {report.format(run=run, config=place.config)}"


def test_a_repeated_command_says_that_another_was_sent(
    place: Place, served: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submitted(place, "--no-wait") == 0
    capsys.readouterr()
    assert submitted(place, "--no-wait") == 0
    job = served.jobs[0].submission_id
    running = f"job {job} is running already; Ray's dashboard: {NOBODY}\n"
    assert capsys.readouterr().err == running
    tiny.write(place.config, {**read_yaml(place.config), "k": 21})
    assert submitted(place, "--no-wait") == 0
    assert capsys.readouterr().err == (
        f"{running}note: it was sent with other code or settings; to send these, stop it and repeat the command: "
        f"ray job stop --address {NOBODY} {job}\n"
    )
    assert len(served.jobs) == 1


def test_ctrl_c_stops_following_and_says_how_to_follow_again(
    place: Place, served: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(served, "tail_job_logs", interrupted)
    profile = tiny.write(place.folder / "ray.yaml", {"address": "auto"})
    assert submitted(place, "--cluster", str(profile)) == 130
    job = served.jobs[0].submission_id
    assert capsys.readouterr().err.splitlines()[2:] == [
        f"The job {job} is still running. Repeat the command to follow it.",
        f"its log: ray job logs --address {NOBODY} --follow {job}",
        f"stop it: ray job stop --address {NOBODY} {job}",
    ]


def test_the_profile_joins_the_cluster(tmp_path: Path) -> None:
    """Whether or not it says so: a job that started a Ray of its own would have one machine."""
    for name in ("laptop", "joined", "nodes", "node"):
        cluster = submit.joining(ROOT / "cluster" / f"{name}.yaml")
        job_package.pack(ROOT / "configs" / "demo.yaml", cluster, tmp_path / name)
        assert clusters.read_cluster(tmp_path / name / "sparring" / job_package.PROFILE) == cluster
        assert cluster.address == "auto"
