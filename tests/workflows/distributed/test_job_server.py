"""A job is sent once, followed to its end, and ends as a run here would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from sparring.components.config import UserError
from sparring.workflows.distributed import job_server, nodes
from sparring.workflows.distributed.job_server import JobServer, Sent
from sparring.workflows.store.dag import StepFailed
from tests.support.jobs import Client, Status


def sent(
    client: Client,
    folder: Path,
    command: str = "python x",
    *,
    name: str = "a run",
    install: bool = False,
    wait_seconds: float = 0.0,
) -> Sent:
    return JobServer(client).send(
        name, f"{command} --known-as y", folder, purpose=command, install=install, wait_seconds=wait_seconds
    )


def test_the_same_command_again_follows_the_same_job(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("1")
    client = Client()
    first = sent(client, tmp_path)
    assert first.job.startswith("a-run-")
    assert not first.running
    assert sent(client, tmp_path) == Sent(first.job, running=True)
    assert not sent(client, tmp_path, "python y").running  # another command
    client.jobs[0].status = Status("FAILED")
    again = sent(client, tmp_path)  # it is over: another job resumes the run
    assert again.job != first.job
    assert not again.running


def test_other_code_follows_the_job_that_does_the_work(tmp_path: Path) -> None:
    """A second one would do it again; what runs is said to be another. The very same job is preferred."""
    (tmp_path / "code.py").write_text("1")
    client = Client()
    first = sent(client, tmp_path)
    (tmp_path / "code.py").write_text("2")
    assert sent(client, tmp_path) == Sent(first.job, running=True, changed=True)
    job = JobServer(client).send("a run", "python x --known-as y", tmp_path, purpose="another", install=False)
    assert not job.running
    assert sent(client, tmp_path) == Sent(job.job, running=True)
    client.jobs[0].metadata = client.jobs[1].metadata = None  # not ours
    assert not sent(client, tmp_path).running


@pytest.mark.parametrize(("name", "called"), [("中文", "run"), ("中文-1", "1"), ("a run", "a-run"), (".x", ".x")])
def test_a_job_is_called_as_its_run_is_where_ray_has_the_letters(tmp_path: Path, name: str, called: str) -> None:
    """A dash at its beginning would make it an option of Ray's own commands."""
    assert sent(Client(), tmp_path, name=name).job.rpartition("-")[0] == called


def test_the_lock_is_installed_where_that_is_asked_for(tmp_path: Path) -> None:
    client = Client()
    sent(client, tmp_path)
    assert client.sent["runtime_env"].keys() == {"working_dir", "env_vars"}
    client.jobs.clear()
    sent(client, tmp_path, install=True)
    assert f"ray=={nodes.installed_versions()['ray']}" in client.sent["runtime_env"]["pip"]["packages"]
    assert len(client.sent["runtime_env"]["pip"]["packages"]) == len(nodes.locked())


WHY = (
    "Either it has just started, or another Ray on its machine has its agent's port (52365); then start it with `ray "
    "start --head --dashboard-agent-listen-port=0`"
)


def test_a_head_that_is_still_starting_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray answers 500 for as long as the head's node has no agent; one line says so, and what may be the cause."""
    monkeypatch.setattr(job_server.time, "sleep", lambda seconds: None)
    client = Client(refusals=3)
    job = sent(client, tmp_path, wait_seconds=600)
    assert [entry.submission_id for entry in client.jobs] == [job.job]
    assert not job.running
    assert capsys.readouterr().err == (
        f"the cluster's head cannot start jobs yet; trying for 600 s (wait_seconds in the profile). {WHY}\n"
    )


def test_a_head_that_never_gets_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(refusals=10**6)
    with pytest.raises(StepFailed) as failed:
        sent(client, tmp_path)
    assert str(failed.value) == (
        f"the cluster did not accept the job: its head has no agent that could start it. {WHY}"
    )
    assert client.refusals == 10**6 - 1
    assert capsys.readouterr().err == ""


def test_another_refusal_ends_the_command_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    def refused(**_: Any) -> str:
        raise RuntimeError("Request failed with status code 400: bad\nTraceback")

    monkeypatch.setattr(client, "submit_job", refused)
    with pytest.raises(StepFailed, match=r"^the cluster did not accept the job: Request failed .* 400: bad$"):
        sent(client, tmp_path, wait_seconds=600)


@pytest.mark.parametrize("call", ["list_jobs", "submit_job"])
@pytest.mark.parametrize(
    "broken",
    [ConnectionResetError(104, "Connection reset by peer"), requests.exceptions.ConnectionError("('x', None)")],
)
def test_a_connection_that_breaks_while_a_job_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, broken: OSError
) -> None:
    """The job may have arrived: the same command follows it then."""
    client = Client()

    def breaks(**_: Any) -> None:
        raise broken

    monkeypatch.setattr(client, call, breaks)
    with pytest.raises(StepFailed) as failed:
        sent(client, tmp_path)
    assert str(failed.value) == (
        f"http://127.0.0.1:9: the connection broke while the job was being sent ({broken}). Repeat the command. A job "
        "that has arrived is followed then, and not sent again."
    )


def test_a_server_that_does_not_list_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    def fails() -> None:
        raise RuntimeError("Request failed with status code 500: no\nTraceback")

    monkeypatch.setattr(client, "list_jobs", fails)
    with pytest.raises(StepFailed, match=r"^http://127\.0\.0\.1:9 does not list its jobs: Request .* 500: no$"):
        sent(client, tmp_path)


def test_a_file_that_cannot_be_packed_is_no_broken_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()

    def fails(**_: Any) -> str:
        raise PermissionError(13, "Permission denied", "code.py")

    monkeypatch.setattr(client, "submit_job", fails)
    with pytest.raises(PermissionError):
        sent(client, tmp_path)


def test_a_package_that_is_too_large_names_its_largest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "code.py").write_text("1")
    with (tmp_path / "configs" / "vectors.bin").open("wb") as file:
        file.truncate(3 * 2**20)
    client = Client()

    def refused(**_: Any) -> str:
        raise RuntimeError("Request failed with status code 413: Maximum request body size 9 exceeded.")

    monkeypatch.setattr(client, "submit_job", refused)
    with pytest.raises(UserError, match=r"not take a package of this size \(.* 413.*: configs/vectors\.bin \(3 MiB\)$"):
        sent(client, tmp_path)


async def quick(seconds: float) -> None:
    """A sleep that does not last."""


def followed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_server.asyncio, "sleep", quick)
    JobServer(client).follow("job")


def test_after_a_lost_connection_the_log_continues_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    followed(Client(["one\n", "two\n", "three\n", "four\n"], breaks=3), monkeypatch)
    assert capsys.readouterr().out == "one\ntwo\nthree\nfour\n"


def test_a_job_server_that_is_gone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(job_server, "LOST_SECONDS", 0.0)
    with pytest.raises(StepFailed, match=r"http://127\.0\.0\.1:9 no longer answers \(the connection is lost\)"):
        followed(Client(["one\n", "two\n", "three\n"], breaks=10**6), monkeypatch)
    assert capsys.readouterr().out == "one\ntwo\n"


@pytest.mark.parametrize(
    ("ended", "log", "kind", "says"),
    [
        ({"status": "STOPPED"}, [], StepFailed, "job x was stopped"),
        ({"status": "FAILED", "driver_exit_code": 2}, ["error: data: no\n"], UserError, "job x: data: no"),
        (
            {"status": "FAILED", "driver_exit_code": 1},
            ["failed: step 'a' failed: b\n", "Finished steps\n"],
            StepFailed,
            "job x: step 'a' failed: b",
        ),
        (
            {"status": "FAILED", "message": "The actor died.\nLong story"},
            ["half a l"],
            StepFailed,
            "job x: The actor died.",
        ),
        ({"status": "FAILED"}, [], StepFailed, "job x: it gives no reason"),
        (
            {
                "status": "FAILED",
                "driver_exit_code": 3,
                "message": "Job failed with exit code 3, last available logs (truncated to 20,000 chars):\na line",
            },
            ["a line"],
            StepFailed,
            "job x: Job failed with exit code 3",
        ),
        (
            {
                "status": "FAILED",
                "driver_exit_code": 137,
                "message": "Job failed with exit code 137. No logs available.",
            },
            ["a line"],
            StepFailed,
            "job x: its driver was killed (exit code 137), perhaps for lack of memory",
        ),
    ],
)
def test_how_a_job_ended_is_how_the_command_ends(
    ended: dict[str, Any], log: list[str], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as caught:
        JobServer(Client(log, **ended)).end("x")
    assert str(caught.value) == says


def test_a_job_that_is_done_says_how_long_it_took() -> None:
    assert JobServer(Client(["a\n"])).end("x") == 2.0


def test_a_server_that_was_restarted_knows_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(Client):
        def get_job_status(self, job: str) -> Status:
            raise RuntimeError("Request failed with status code 404: no such job")

    with pytest.raises(StepFailed, match=r"knows no job job any more: the cluster's head was restarted, and the job"):
        followed(Forgetful(["one\n"]), monkeypatch)
