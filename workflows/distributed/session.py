"""Start, join and leave Ray in this process."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from sparring.components import modules
from sparring.components.config import UserError
from sparring.components.files import unwritable
from sparring.components.timing import timed
from sparring.workflows import PACKAGE
from sparring.workflows.distributed import resources
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.leftovers import driver_of
from sparring.workflows.distributed.limits import cores

SETTINGS = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray's C++ code logs for users what also comes as a clearer exception, such as that a process died.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A thread that still asks Ray when this process leaves it would join, or look for, another cluster.
    "RAY_ENABLE_AUTO_CONNECT": "0",
    # Without a bound, Ray retries for ever a task that its memory monitor has killed.
    "RAY_task_oom_retries": "3",
}
"""Environment variables for Ray. Variables that the environment already has stay as they are."""

SOCKET_BYTES = 103 if sys.platform == "darwin" else 107
"""Maximum length of the path of a Unix socket, in bytes."""
SESSION_SOCKET = "ray/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store"
"""Longest path of a Ray session's socket, inside the folder for temporary files."""


def set_ray_environment() -> None:
    """Set Ray's environment variables. Ray's libraries read them when they are first imported."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def ray_session(cluster: Cluster, *, trials: int = 1) -> Any:
    """Return the `ray` module. The first call joins the profile's cluster, or starts Ray with CPUs for the trials."""
    set_ray_environment()
    if not cluster.address:
        _require_token()
        # Nobody can see the metrics, and Ray never frees some of them: 2.6 GB in two hours of short steps.
        os.environ.setdefault("RAY_enable_metrics_collection", "0")
        # Ray's own is 15, with which workers wait while other programs use all processors.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # No cloud takes this machine away, and each start of training workers would wait for the watcher's process.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
    import logging

    with timed("start"):
        import ray

        if not ray.is_initialized():
            logging.getLogger("ray").setLevel(logging.ERROR)
            terminate = signal.getsignal(signal.SIGTERM)
            _start(ray, cluster, trials)
            if threading.current_thread() is threading.main_thread():  # in place of Ray's, which ends with a C++ trace
                signal.signal(signal.SIGTERM, terminate)
    return ray


def _start(ray: Any, cluster: Cluster, trials: int = 1) -> None:
    """Join the profile's cluster, or start Ray on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "job_config": _worker_paths()}
    if cluster.address:
        try:
            _reach(cluster.address)
            with _level_unsaid():
                dashboard = ray.init(address=cluster.address, **quiet).dashboard_url
        except ConnectionError as error:
            token = os.environ.get("RAY_AUTH_MODE") != "token"
            refused = "set RAY_AUTH_MODE=token" if token else "copy its ~/.ray/auth_token to this machine"
            raise UserError(
                f"cluster: address: {cluster.address}: no Ray answers there ({str(error).splitlines()[0]}). Start one "
                "(`ray start --head`), name another address, or leave the address out to start Ray on this machine. If "
                f"a Ray runs there and refuses this machine's token, {refused}. For a cluster that is not here, `plan "
                "--estimate` asks no Ray if the profile has `hardware`."
            ) from None
        except RuntimeError as error:
            if "Version mismatch" not in str(error):  # Ray has no type for it
                raise
            remote, local = re.findall(r"Ray: (\S+)\s+Python: (\S+)", str(error))
            raise UserError(
                f"cluster: address: {cluster.address}: Ray {remote[0]} with Python {remote[1]} runs there, and Ray "
                f"{local[0]} with Python {local[1]} here; they must be the same: set up both from "
                "one lock (`make setup`, or the image of cluster/Dockerfile)"
            ) from None
        if dashboard:
            print(f"Ray's dashboard: http://{dashboard}", file=sys.stderr, flush=True)
        return
    _write_token()
    place = session_folder()
    trainings = cluster.parallel_steps * (cluster.train.workers or 1) * trials
    try:
        with _level_unsaid():
            ray.init(
                address="local",  # never another cluster that happens to run on this host
                include_dashboard=False,
                num_cpus=cores() + trainings,  # logical: the processes of maps ask for none (`ray_map.Kind`)
                object_store_memory=cluster.object_store_mb * 2**20,
                _temp_dir=str(place / "ray"),
                object_spilling_directory=tempfile.gettempdir(),  # it may be large where `place` is small
                **quiet,
            )
    except ValueError as error:
        if "object store" not in str(error):
            raise
        raise UserError(
            f"cluster: object_store_mb: this machine has no {cluster.object_store_mb} MB of memory for it; accepted: "
            "75 to what it has"
        ) from None
    except Exception as error:
        if "timed out during startup" not in str(error):  # Ray has no type for it
            raise
        raise UserError(
            "Ray did not start within 30 s, because this machine is busy or short of memory. Stop other programs and "
            "repeat the command.",
            code="ray-start",
        ) from None


def _worker_paths() -> Any:
    """Return Ray's settings of the places where workers search for modules.

    Ray would put the driver's current folder first, and any file in it could replace a library.
    """
    from ray.job_config import JobConfig

    class WithoutCurrentFolder(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True  # Ray then adds neither the current folder nor that of the script

    environment: dict[str, Any] = {}
    if modules.own_folder() is not None:
        hook = f"{modules.__name__}.{modules.add_own_folder.__name__}"
        environment = {"env_vars": {modules.FOLDER: modules.own_folder()}, "worker_process_setup_hook": hook}
    home = PACKAGE.parent
    folders = [] if home.name in modules.INSTALLED else [str(home)]
    return WithoutCurrentFolder(runtime_env=environment, _py_driver_sys_path=folders)


def session_folder() -> Path:
    """Return the folder of this machine's Ray sessions: $RAY_TMPDIR, or the folder for temporary files."""
    return socket_folder(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), SESSION_SOCKET)


def socket_folder(wanted: str, socket: str) -> Path:
    """Return the wanted folder, or `/tmp` if the path of a socket inside would be too long. UserError if nothing can
    be written there."""
    place = Path(wanted).absolute()
    if len(os.fsencode(place / socket)) > SOCKET_BYTES:
        place = Path("/tmp")
    if reason := unwritable(place):
        raise UserError(
            f"{place}: Ray's sockets cannot be there, as {reason}. Set RAY_TMPDIR to a folder that you may write to, "
            f"whose path has at most {SOCKET_BYTES - len(SESSION_SOCKET) - 1} bytes"
        )
    return place


@contextmanager
def _level_unsaid() -> Iterator[None]:
    """Drop from stderr the line in which Ray's C++ code names its log level. Another process filters stderr, so that
    the last lines show even if Ray aborts this process."""
    sys.stderr.flush()
    stderr = os.dup(2)
    grep = subprocess.Popen(["grep", "--line-buffered", "-v", "RAY_BACKEND_LOG_LEVEL"], stdin=subprocess.PIPE, stdout=2)
    assert grep.stdin is not None
    os.dup2(grep.stdin.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        grep.stdin.close()
        grep.wait()


CURRENT = "ray/ray_current_cluster"
"""File in which Ray keeps the address of the head that was started last on this machine, even if that head was
killed."""
ANSWER_SECONDS = 10.0


def _reach(address: str) -> None:
    """Raise ConnectionError if nothing listens at an address. Ray itself would try for minutes."""
    place = os.environ.get("RAY_ADDRESS") or address  # as Ray does
    heads = [process for process in psutil.process_iter(["name"]) if process.info["name"] == "gcs_server"]
    drivers = [driver for driver in map(driver_of, heads) if driver is not None]
    if place == "auto" and heads and len(drivers) == len(heads):
        raise ConnectionError(f"the only one on this machine is of the run of process {drivers[0]}, and ends with it")
    kept = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", CURRENT)
    stale = place == "auto" and kept.is_file() and not heads
    host, _, port = (kept.read_text().strip() if stale else place).rpartition(":")
    if not port.isdecimal():  # Ray looks for this address in other ways, or it is not an address
        return
    try:
        socket.create_connection((host, int(port)), ANSWER_SECONDS).close()
    except OSError as error:
        reason = f"nothing listens at {host}:{port}: {error.strerror or error}"
        raise ConnectionError(f"{reason}; {kept} says so, remove it" if stale else reason) from None


def _require_token() -> None:
    """Make a Ray that starts on this machine refuse clients without its token. Its ports are open to the network."""
    if "ray" not in sys.modules:  # Ray reads the variable when it is imported; token mode is also its default
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _write_token() -> None:
    """Write this user's token for Ray so that only the user can read it. Ray itself would write it readable by all."""
    path = Path.home() / ".ray" / "auth_token"
    configured = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if path.exists() or configured or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
    with suppress(OSError):  # Ray itself reports a home that cannot be written to
        path.parent.mkdir(exist_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        temporary.replace(path)


def node_name() -> str:
    """Name the Ray node that this process runs on. One host may have several."""
    import ray

    return f"{socket.gethostname()} ({ray.get_runtime_context().get_node_id()[:8]})"


def session_id() -> str:
    """Name the present session of Ray, which differs from all earlier sessions. Return "" if there is none."""
    import ray

    context = ray.get_runtime_context() if ray.is_initialized() else None
    return f"{context.get_node_id()} {context.get_job_id()}" if context else ""


def stop_ray() -> None:
    """Leave Ray, if this process has started or joined it."""
    if "ray" in sys.modules:
        import logging

        import ray

        # Messages of threads that are still at work explain nothing.
        logging.getLogger("ray").setLevel(logging.CRITICAL + 1)
        ray.shutdown()
        resources.forget_warm()
