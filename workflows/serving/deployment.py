"""Run the service: in this process with uvicorn, or on the nodes of a joined cluster with Ray Serve.

On one machine Ray Serve adds a proxy and a scheduler between the client and the models, and gains nothing. On a cluster
Ray Serve starts more replicas while many requests wait, and every node with a replica answers.
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.serving import metrics, running
from sparring.workflows.serving.access import Application
from sparring.workflows.serving.batching import TOGETHER
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.questions import Mark
from sparring.workflows.serving.service import Served

NAME = "sparring"
CONNECTIONS = 4_096
"""Maximum number of open requests. Further requests get status 503."""
STOP_SECONDS = 10.0
"""Seconds for unanswered requests when the service is stopped."""
TARGET = TOGETHER // 4
"""Number of unanswered requests of a replica above which Ray Serve starts another one. A replica answers up to
`TOGETHER` requests at once, so more replicas come before requests wait for a second search."""
SHARE_SECONDS = 5.0
"""Seconds between the reports of a replica's metrics."""
CONTROLLER = {"name": "SERVE_CONTROLLER_ACTOR", "namespace": "serve"}
"""The actor that exists on clusters with Ray Serve."""


@dataclass(frozen=True)
class Service:
    """Description from which any process can start the service."""

    served: Served
    host: str
    port: int
    loopback: bool
    token: str | None
    marks: Path
    identity: str

    @property
    def url(self) -> str:
        """Address at which this machine reaches the service."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def application(self, desk: Desk | None = None) -> Application:
        """Open the models and indexes, and return the application. `desk` is for replicas."""
        from sparring.workflows.serving.application import application

        answering = self.served.open()
        return application(
            answering,
            Marks(self.marks) if desk is None else desk,
            metrics=answering.metrics.text if desk is None else desk.sharing(answering.metrics),
            facts={"identity": self.identity},
            token=self.token,
            loopback=self.loopback,
        )


def free_port(host: str, port: int) -> int:
    """Return the port, or any free port for 0. UserError if another program uses the port, or if the host is no address
    of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except PermissionError:
            raise UserError(f"--port: {port} may not be used by this user; accepted: 1024 to 65535") from None
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise UserError(f"--host: {host!r} is no address of this machine") from None
            raise UserError(
                f"--port: {port} is taken on {host}; stop what uses it, or name another, such as --port {port + 1}"
            ) from None
        return int(tried.getsockname()[1])


def run(service: Service, machine: Machine, ready: Callable[[], Any]) -> None:
    """Serve until Ctrl-C or a request to terminate. Requests that are being answered then are finished first.

    `ready` is called when the service answers. UserError if a cluster serves already, or if the service does not start
    or answer there.
    """
    (_with_ray if machine.cluster.address else _in_this_process)(service, machine, ready)


def _in_this_process(service: Service, machine: Machine, ready: Callable[[], Any]) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                ready()

    config = uvicorn.Config(
        service.application(),
        host=service.host,
        port=service.port,
        log_level="error",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(STOP_SECONDS),
        limit_concurrency=CONNECTIONS,
    )
    with _until_stopped():  # uvicorn hears signals first, finishes what it is answering and passes them on
        Server(config).run()


def _with_ray(service: Service, machine: Machine, ready: Callable[[], Any]) -> None:
    ray, pool = ray_session(machine.cluster), machine.cluster.map
    _check_alone(ray, str(machine.cluster.address))
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve.schema import LoggingConfig

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its import sets another
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    most = machine.workers(pool, CONNECTIONS, gpu=machine.cuda)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        autoscaling_config={"min_replicas": 1, "max_replicas": most, "target_ongoing_requests": TARGET},
        max_ongoing_requests=2 * TOGETHER,
        max_queued_requests=CONNECTIONS,
        ray_actor_options={"num_cpus": pool.threads, "num_gpus": pool.gpus if machine.cuda else 0},
        graceful_shutdown_timeout_s=STOP_SECONDS,
        health_check_timeout_s=60,
    )
    ledger = _open_ledger(ray, service.marks)
    service = replace(service, served=replace(service.served, threads=pool.threads))
    with _until_stopped() as stopped:
        try:
            serve.start(
                proxy_location="EveryNode",
                http_options={"host": service.host, "port": service.port},
                logging_config=quiet,
            )
            try:
                handle = serve.run(deployment.bind(service, ledger), name=NAME, route_prefix="/", logging_config=quiet)
            except RuntimeError as error:
                raise UserError(f"the service does not start: {_why(serve.status(), error)}") from error
            if problem := handle.problem.remote().result():
                raise UserError(problem)
            if not running.answers(service.url, service.identity, running.ANSWER_SECONDS):
                raise UserError(
                    f"the service does not answer at {service.url}. Ray Serve listens on the cluster's head and on "
                    "nodes with a replica: start the service on the head."
                )
            ready()
            stopped.wait()
        finally:
            with suppress(RayActorError):  # Serve was ended by others
                serve.delete(NAME)  # when its requests are answered
                serve.shutdown()
            ray.kill(ledger)


def _open_ledger(ray: Any, marks: Path) -> Any:
    """Start the actor that keeps the marks and counts for all replicas, on the node of this process."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=strategy)(Ledger).remote(marks)


def _check_alone(ray: Any, address: str) -> None:
    """Raise UserError if Ray Serve runs on the cluster already. It has one port, and one application at its root."""
    if CONTROLLER in ray.util.list_named_actors(all_namespaces=True):
        raise UserError(
            f"cluster: address: {address}: Ray Serve runs there already, and this service would take the place of "
            "another. Use another cluster, or a profile without an address to serve from this machine alone. "
            "`serve shutdown` ends a Ray Serve that nobody uses."
        )


def _why(status: Any, error: RuntimeError) -> str:
    """Say why a replica did not start, from the last line that Serve has kept."""
    deployments = status.applications[NAME].deployments if NAME in status.applications else {}
    message = deployments[NAME].message if NAME in deployments else ""
    return (message or str(error)).strip().splitlines()[-1]


class Ledger:
    """The actor that all replicas share: the file of marks, and the latest metrics of each replica."""

    def __init__(self, file: Path) -> None:
        self._marks, self._metrics = Marks(file), dict[str, bytes]()

    def marks(self) -> list[Mark]:
        """List the marks that hold."""
        return self._marks.all()

    def add(self, mark: Mark) -> None:
        """Add a mark to the file."""
        self._marks.add(mark)

    def share(self, replica: str, text: bytes) -> bytes:
        """Keep a replica's metrics, and return the sum over all replicas, those that have ended included."""
        self._metrics[replica] = text
        return metrics.total(self._metrics.values())


class Desk:
    """A replica's access to the `Ledger`."""

    def __init__(self, ledger: Any) -> None:
        self._ledger, self._replica = ledger, uuid.uuid4().hex

    def all(self) -> list[Mark]:
        """List the marks that hold."""
        return list(self._get(self._ledger.marks.remote()))

    def add(self, mark: Mark) -> None:
        """Add a mark. It is on the disk afterwards."""
        self._get(self._ledger.add.remote(mark))

    def sharing(self, own: metrics.Metrics) -> Callable[[], bytes]:
        """Report a replica's metrics again and again. Return a function that computes the sum over all replicas."""

        def shared() -> bytes:
            return bytes(self._get(self._ledger.share.remote(self._replica, own.text())))

        def report() -> None:
            with suppress(Exception):  # the service ends
                while True:
                    shared()
                    time.sleep(SHARE_SECONDS)

        threading.Thread(target=report, daemon=True).start()
        return shared

    def _get(self, result: Any) -> Any:
        import ray
        from ray.exceptions import RayTaskError

        try:
            return ray.get(result)
        except RayTaskError as error:
            raise error.cause from None


class Replica:
    """The process that Ray Serve starts for the models. It starts even if the models cannot be opened, and says why:
    Ray Serve itself gives no reason for a replica that does not start."""

    def __init__(self, service: Service, ledger: Any) -> None:
        from fastapi import FastAPI

        self._problem = ""
        self._application: Application = FastAPI(openapi_url=None)  # which has no pages
        try:
            self._application = service.application(Desk(ledger))
        except UserError as error:
            self._problem = str(error)

    def problem(self) -> str:
        """Say why nothing can be served. Empty if all is open."""
        return self._problem

    def __serve_build_asgi_app__(self) -> Application:
        return self._application


@contextmanager
def _until_stopped() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C and a request to terminate set. A second Ctrl-C interrupts."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.set()

    before = {signum: signal.signal(signum, stop) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
