"""Runs the service: with Ray Serve, or in this process where the profile says `mode: inline`."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.serving import running
from sparring.workflows.serving.access import Application
from sparring.workflows.serving.marks import Marks
from sparring.workflows.serving.service import Served

NAME = "sparring"
WAITING = 4_096
"""The most requests that wait; further ones are told to come again (503)."""
STOP_SECONDS = 10.0
"""For requests that are being answered when the service is stopped."""
CONTROLLER = {"name": "SERVE_CONTROLLER_ACTOR", "namespace": "serve"}
"""The actor that is there where Ray Serve runs."""


@dataclass(frozen=True)
class Service:
    """A service, in words that any process can start it by."""

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

    def application(self) -> Application:
        """The service with its models and indexes open."""
        from sparring.workflows.serving.application import application

        return application(
            self.served.open(),
            Marks(self.marks),
            facts={"identity": self.identity},
            token=self.token,
            loopback=self.loopback,
        )


def free_port(host: str, port: int) -> int:
    """The port, or any free one for 0; UserError where another program has it or the host is none of this machine's."""
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


def run(service: Service, cluster: Cluster, ready: Callable[[], Any]) -> None:
    """Serve until Ctrl-C or a request to terminate; `ready` is called once it answers. Requests that are being answered
    then are finished first. UserError where a cluster serves already, or the service does not start or answer there."""
    (_in_this_process if cluster.mode == "inline" else _with_ray)(service, cluster, ready)


def _in_this_process(service: Service, cluster: Cluster, ready: Callable[[], Any]) -> None:
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
        limit_concurrency=WAITING,
    )
    with _until_stopped():  # uvicorn hears signals first, finishes what it is answering and passes them on
        Server(config).run()


def _with_ray(service: Service, cluster: Cluster, ready: Callable[[], Any]) -> None:
    cuda = service.served.models["cuda"]
    _check_alone(ray_session(cluster), cluster)
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve.schema import LoggingConfig

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # its import sets another
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        num_replicas=1,
        max_ongoing_requests=WAITING,
        max_queued_requests=WAITING,
        ray_actor_options={"num_cpus": 0, "num_gpus": 1 if cuda else 0},
        graceful_shutdown_timeout_s=STOP_SECONDS,
        health_check_timeout_s=60,
    )
    with _until_stopped() as stopped:
        try:
            serve.start(
                proxy_location="HeadOnly",
                http_options={"host": service.host, "port": service.port},
                logging_config=quiet,
            )
            try:
                handle = serve.run(deployment.bind(service), name=NAME, route_prefix="/", logging_config=quiet)
            except RuntimeError as error:
                raise UserError(f"the service does not start: {_why(serve.status(), error)}") from error
            if problem := handle.problem.remote().result():
                raise UserError(problem)
            if not running.answers(service.url, service.identity, running.ANSWER_SECONDS):
                raise UserError(
                    f"the service does not answer at {service.url}: Ray Serve listens on the machine of "
                    "the cluster's head alone; start it there"
                )
            ready()
            stopped.wait()
        finally:
            with suppress(RayActorError):  # Serve was ended by others
                serve.delete(NAME)  # when its requests are answered
                if cluster.address:  # a Ray of our own ends with this process
                    serve.shutdown()


def _check_alone(ray: Any, cluster: Cluster) -> None:
    """UserError where Ray Serve runs already: it has one port, and one application at its root."""
    if CONTROLLER in ray.util.list_named_actors(all_namespaces=True):
        raise UserError(
            f"cluster: address: {cluster.address}: Ray Serve runs there already, and this service would take the place "
            "of another; accepted: another cluster, or no address, for a Ray of its own on this machine; what nobody "
            "uses any more ends with `serve shutdown`"
        )


def _why(status: Any, error: RuntimeError) -> str:
    """Say why a replica did not start: the last line that Serve has kept of it."""
    deployments = status.applications[NAME].deployments if NAME in status.applications else {}
    message = deployments[NAME].message if NAME in deployments else ""
    return (message or str(error)).strip().splitlines()[-1]


class Replica:
    """The process that Ray Serve starts for the models. It starts too where they cannot be opened, to say why: of one
    that does not start, Serve says nothing."""

    def __init__(self, service: Service) -> None:
        from fastapi import FastAPI

        self._problem = ""
        self._application: Application = FastAPI(openapi_url=None)  # which has no pages
        try:
            self._application = service.application()
        except UserError as error:
            self._problem = str(error)

    def problem(self) -> str:
        """Why nothing can be served; empty where all is open."""
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
