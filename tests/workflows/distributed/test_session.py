"""Starting, joining and leaving Ray."""

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from sparring.components.config import UserError
from sparring.workflows import ROOT
from sparring.workflows.distributed import session
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.leftovers import DRIVER
from tests.support.errors import refused


def test_leaving_ray_does_not_import_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    session.stop_ray()
    assert "ray" not in sys.modules


@pytest.mark.parametrize(("address", "watches"), [(None, False), ("auto", True)])
def test_a_training_watches_for_nodes_that_a_cloud_takes_away(
    monkeypatch: pytest.MonkeyPatch, address: str | None, watches: bool
) -> None:
    """Ray Train does by default. On one machine no node goes, and its process would only cost time."""
    variable = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
    monkeypatch.setenv(variable, "")
    monkeypatch.delenv(variable)  # so that the variable is removed after the test
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    session.ray_session(Cluster(address=address))
    assert (os.environ.get(variable) is None) == watches
    assert variable not in session.SETTINGS


# The token


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MODE", "TOKEN", "TOKEN_PATH"):
        monkeypatch.delenv(f"RAY_AUTH_{name}", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_only_the_user_can_read_the_token(home: Path) -> None:
    session._write_token()
    path = home / ".ray" / "auth_token"
    assert path.stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"[0-9a-f]{64}", path.read_text())
    assert [file.name for file in path.parent.iterdir()] == ["auth_token"]
    token = path.read_text()
    session._write_token()
    assert path.read_text() == token


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_TOKEN", "x"), ("RAY_AUTH_TOKEN_PATH", "x"), ("RAY_AUTH_MODE", "disabled")]
)
def test_no_token_is_written_where_another_way_is_configured(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    session._write_token()
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("given", [None, "disabled"])
def test_a_token_is_required_unless_the_user_decides_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    if given is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", given)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    session._require_token()
    assert os.environ.pop("RAY_AUTH_MODE") == (given or "token")


STARTED = """
import os, subprocess, sys
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.session import ray_session, stop_ray
address = ray_session(Cluster(object_store_mb=100)).get_runtime_context().gcs_address
client = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
for told in ({}, {"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_TOKEN": "0" * 64}):
    command = [sys.executable, "-c", client, address]
    done = subprocess.run(command, env={**os.environ, **told}, capture_output=True, text=True)
    print(done.returncode, done.stderr.splitlines()[-1])
stop_ray()
"""


@pytest.mark.slow
def test_clients_without_the_token_are_refused() -> None:
    """With the right token, without one, and with a wrong one."""
    command = [sys.executable, "-c", STARTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown, without, another = done.stdout.splitlines()
    assert shown.startswith("0 ")
    assert without.startswith("1 ConnectionError: Failed to connect to Ray cluster")
    assert another.startswith("1 ConnectionError: Failed to connect to Ray cluster")


def test_a_home_that_cannot_be_written_to_is_left_to_ray(home: Path) -> None:
    (home / ".ray").write_text("")
    session._write_token()


@pytest.mark.parametrize("page", ["127.0.0.1:8265", ""])
def test_joining_a_cluster_prints_its_dashboard(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(psutil, "process_iter", lambda _: iter([]))

    class Ray:
        @staticmethod
        def init(**_: Any) -> Any:
            return type("Context", (), {"dashboard_url": page})

    session._start(Ray, Cluster(address="auto"))
    assert capsys.readouterr().err == ("Ray's dashboard: http://127.0.0.1:8265\n" if page else "")


@pytest.mark.parametrize("length", [20, session.SOCKET_BYTES - len(session.SESSION_SOCKET) - 1, 60, 200])
def test_sockets_are_in_the_wanted_folder_where_their_paths_fit(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    monkeypatch.setattr(session, "unwritable", lambda place: None)
    wanted = "/" + "x" * (length - 1)
    folder = session.socket_folder(wanted, session.SESSION_SOCKET)
    assert str(folder) == (wanted if length < 60 else "/tmp")
    with socket.socket(socket.AF_UNIX) as tried, pytest.raises(FileNotFoundError):  # the path is not too long
        tried.connect(str(folder / session.SESSION_SOCKET))


def test_ray_gets_a_folder_for_its_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {}

    class Ray:
        @staticmethod
        def init(**given: Any) -> None:
            arguments.update(given)

    monkeypatch.setattr(session, "_write_token", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 100)))
    session._start(Ray, Cluster())
    assert arguments["_temp_dir"] == "/tmp/ray"


def test_no_place_for_sockets_is_told_with_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "unwritable", lambda place: f"{place} cannot be written to")
    with pytest.raises(UserError, match=r"^/tmp: .* Set RAY_TMPDIR to a folder .* at most 39 bytes$"):
        session.socket_folder(str(tmp_path / ("x" * 100)), session.SESSION_SOCKET)


def test_a_machine_too_busy_to_start_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        @staticmethod
        def init(**_: Any) -> None:
            # Ray's own words (`ray._private.node`)
            raise Exception("The current node timed out during startup. This could happen because the raylet failed.")

    monkeypatch.setattr(session, "_write_token", lambda: None)
    with refused("", "ray-start", "30 s"):
        session._start(Ray, Cluster())


TOO_LARGE = """
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.session import ray_session
ray_session(Cluster(object_store_mb=100_000_000))
"""


@pytest.mark.slow
def test_more_shared_memory_than_the_machine_has_is_a_users_mistake() -> None:
    done = subprocess.run([sys.executable, "-c", TOO_LARGE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "UserError: cluster: object_store_mb: this machine has no 100000000 MB of memory for it" in done.stderr


@pytest.mark.parametrize("started_by_the_run", [True, False])
def test_the_ray_of_another_run_is_no_cluster(
    started_by_the_run: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It ends with that run; one that was started by itself is joined."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "gcs_server").symlink_to("/bin/sleep")
    driver = os.getpid() if started_by_the_run else os.getppid()
    head = subprocess.Popen([tmp_path / "gcs_server", "60"], env={**os.environ, DRIVER: str(driver)})
    try:
        process = psutil.Process(head.pid)
        process.info = {"name": "gcs_server"}
        while DRIVER not in process.environ():  # it is still a copy of this process
            time.sleep(0.01)
        monkeypatch.setattr(psutil, "process_iter", lambda _: iter([process]))
        refused = pytest.raises(ConnectionError, match=f"is of the run of process {driver}, and ends with it")
        with refused if started_by_the_run else nullcontext():
            session._reach("auto")
    finally:
        head.kill()
        head.wait()


def test_ray_does_not_say_which_level_its_log_has(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Ray:
        @staticmethod
        def init(**_: Any) -> Any:
            os.write(2, b"[I 1 1] logging.cc: Set ray log level from environment variable RAY_BACKEND_LOG_LEVEL to 3\n")
            os.write(2, b"A worker died.\n")

    session._start(Ray, Cluster())
    os.write(2, b"Joined.\n")
    assert capfd.readouterr().err == "A worker died.\nJoined.\n"
