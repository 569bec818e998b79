"""Ray's job server: send a job, follow its log, and report its end as a run on this machine would."""

import asyncio
import http.client
import json
import logging
import os
import re
import secrets
import ssl
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from sparring.components.config import UserError
from sparring.workflows.distributed import job_package, nodes
from sparring.workflows.store.dag import StepFailed

ANSWER_SECONDS = 10.0
"""Seconds in which an address must answer first."""
LOST_SECONDS = 120.0
"""Seconds without an answer after which a job server counts as lost."""
RETRY_SECONDS = 5.0
"""Seconds between two attempts to send a job to a head that is still starting."""
KILLED = 137
"""Exit status of a process that SIGKILL has ended."""
LAST_LOGS = ", last available logs"
"""Words in Ray's message before the log, which was followed already."""
TOO_LARGE = "status code 413"
"""Words in Ray's answer to a package that is larger than its job server takes."""
NO_AGENT = "No available agent"
"""Words in Ray's answer while the agent of the head's node is missing."""
NO_AGENT_WHY = (
    "Either it has just started, or another Ray on its machine has its agent's port (52365); then start it with `ray "
    "start --head --dashboard-agent-listen-port=0`"
)


class Sent(NamedTuple):
    """Result of sending a command."""

    job: str
    running: bool
    """The job was running already, so nothing was sent."""
    changed: bool = False
    """The running job was sent with other code or settings."""


class JobServer:
    """A job server, through Ray's client of it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def at(cls, address: str) -> "JobServer":
        """Connect to the job server at a URL. UserError if none answers, or if it does not accept us."""
        check_answers(address)
        return cls(_client(address))

    def send(
        self, name: str, command: str, folder: Path, *, purpose: str, install: bool, wait_seconds: float = 0.0
    ) -> Sent:
        """Send a command and its package, unless a job of the same purpose is running: two would do the same work.

        With `install` every node first installs the locked packages for the job. While a head cannot start jobs yet,
        the request is repeated for `wait_seconds`.
        """
        environment: dict[str, Any] = {"working_dir": str(folder), "env_vars": job_package.environment()}
        if install:
            environment["pip"] = {"packages": list(nodes.locked().values()), "pip_check": False}
        words = [command, json.dumps(environment["env_vars"], sort_keys=True), str(install)]
        digest = job_package.digest(folder, words)
        metadata = {"sparring": digest, "purpose": purpose}
        running = [job for job in self._jobs() if not job.status.is_terminal()]
        for key, value in metadata.items():  # an equal job first
            if (job := next((job for job in running if (job.metadata or {}).get(key) == value), None)) is not None:
                return Sent(str(job.submission_id), running=True, changed=job.metadata["sparring"] != digest)
        # Ray accepts an id once, and a run may be submitted again to resume it.
        wanted = f"{re.sub('[^A-Za-z0-9_.-]', '-', name).strip('-') or 'run'}-{secrets.token_hex(3)}"
        sent = self._sent(
            wait_seconds,
            entrypoint=command,
            runtime_env=environment,
            submission_id=wanted,
            metadata=metadata,
        )
        return Sent(sent, running=False)

    def _jobs(self) -> list[Any]:
        """Return all jobs that the server knows."""
        try:
            return list(self._asked(self._client.list_jobs))
        except RuntimeError as error:
            raise StepFailed(f"{self._client.get_address()} does not list its jobs: {first_line(error)}") from error

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Return the server's answer to a request made before a job is followed. StepFailed if the connection
        breaks."""
        try:
            return ask()
        except OSError as error:  # an error of Python's, or of Ray's HTTP library
            if error.filename is not None:  # the error is about a file of the package
                raise
            raise StepFailed(
                f"{self._client.get_address()}: the connection broke while the job was being sent "
                f"({first_line(error)}). Repeat the command. A job that has arrived is followed then, and not sent "
                "again."
            ) from error

    def _sent(self, wait_seconds: float, **job: Any) -> str:
        """Send a job. Try again while the head has no agent that could start it."""
        end, announced = time.monotonic() + wait_seconds, False
        while True:
            try:
                return str(self._asked(lambda: self._client.submit_job(**job)))
            except RuntimeError as error:
                if TOO_LARGE in str(error):
                    sent = job_package.largest(Path(job["runtime_env"]["working_dir"]))
                    raise UserError(
                        f"the job server does not take a package of this size ({first_line(error)}); move the largest "
                        f"file in it to another place: {sent}"
                    ) from error
                if NO_AGENT not in str(error):
                    raise StepFailed(f"the cluster did not accept the job: {first_line(error)}") from error
                if time.monotonic() >= end:
                    raise StepFailed(
                        f"the cluster did not accept the job: its head has no agent that could start it. {NO_AGENT_WHY}"
                    ) from error
            if not announced:
                print(
                    f"the cluster's head cannot start jobs yet; trying for {wait_seconds:.0f} s (wait_seconds in the "
                    f"profile). {NO_AGENT_WHY}",
                    file=sys.stderr,
                    flush=True,
                )
                announced = True
            time.sleep(RETRY_SECONDS)

    def follow(self, job: str) -> None:
        """Print a job's log as it is written, to its end. After a lost connection the log continues where it was."""
        asyncio.run(self._follow(job))

    async def _follow(self, job: str) -> None:
        printed, heard = 0, time.monotonic()
        while True:
            place = 0
            try:
                async for text in self._client.tail_job_logs(job):  # the log from its beginning, each time
                    place, heard = place + len(text), time.monotonic()
                    if place > printed:
                        print(text[printed - place :], end="", flush=True)
                        printed = place
                if self._client.get_job_status(job).is_terminal():
                    return
                heard = time.monotonic()
            except Exception as error:  # Ray and its HTTP libraries raise many kinds when nobody answers
                if self._is_unknown(job):
                    raise StepFailed(
                        f"{self._client.get_address()} knows no job {job} any more: the cluster's head was restarted, "
                        "and the job is gone"
                    ) from error
                if time.monotonic() - heard > LOST_SECONDS:
                    self._lost(job, error)
            await asyncio.sleep(1.0)

    def end(self, job: str) -> float:
        """Return the seconds that a finished job took. If it failed, raise what a run on this machine would have
        raised."""
        try:
            info = self._client.get_job_info(job)
            log = self._client.get_job_logs(job)
        except Exception as error:
            self._lost(job, error)
        if info.status == "SUCCEEDED":
            return float((info.end_time or 0) - (info.start_time or 0)) / 1000
        if info.status == "STOPPED":
            raise StepFailed(f"job {job} was stopped")
        reason = _reason(info, log)
        if info.driver_exit_code == 2:
            raise UserError(f"job {job}: {reason}")
        raise StepFailed(f"job {job}: {reason}")

    def _is_unknown(self, job: str) -> bool:
        """Check whether a server answers and says that it has no such job."""
        try:
            self._client.get_job_status(job)
        except Exception as error:
            return "status code 404" in str(error)
        return False

    def _lost(self, job: str, error: Exception) -> NoReturn:
        raise StepFailed(
            f"{self._client.get_address()} no longer answers ({first_line(error)}); the job {job} may still be running"
        ) from error


def _reason(info: Any, log: str) -> str:
    """Return the reason why a job failed: the last words of its command, or else what Ray says of the command."""
    errors = [line for line in log.splitlines() if line.startswith(("error: ", "failed: "))]
    if errors:
        return errors[-1].partition(": ")[2]
    if info.driver_exit_code == KILLED:
        return f"its driver was killed (exit code {KILLED}), perhaps for lack of memory"
    return first_line(info.message or "it gives no reason").partition(LAST_LOGS)[0]


def url_of(address: str) -> str:
    """Return a job server's URL without a slash at its end. UserError if it is invalid or holds a secret."""
    if "@" in address or "?" in address:
        raise UserError(
            "--address: holds more than a host and a port, and would be written to logs; accepted: http(s)://HOST:PORT"
        )
    try:
        url = urllib.parse.urlsplit(address)
        valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0 and " " not in address
    except ValueError:  # half of an IPv6 address, or a port that is not a number
        valid = False
    if not valid:
        raise UserError(f"--address {address}: accepted: the job server's URL, such as http://127.0.0.1:8265")
    return address.rstrip("/")


def check_answers(address: str) -> None:
    """Raise UserError unless a job server of Ray's answers. Ray's own client would wait for minutes."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=ANSWER_SECONDS) as reply:
            answer = json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return  # it asks for a token, which Ray's client will send
        answer = None
    except (ValueError, http.client.HTTPException):
        answer = None
    except OSError as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLError):
            return  # Ray's client has its own certificates, and decides
        raise UserError(
            f"--address {address}: does not answer ({reason}); is the cluster up, and is this its port?"
            f"{_proxy(address)}"
        ) from None
    if not isinstance(answer, dict) or "ray_version" not in answer:
        raise UserError(
            f"--address {address}: answers, but is no job server of Ray's (its port is 8265 by default)"
            f"{_proxy(address)}"
        )


def _proxy(address: str) -> str:
    """Return words for the end of an error if a proxy answered instead of the address, as for Ray's client."""
    url = urllib.parse.urlsplit(address)
    if url.scheme not in urllib.request.getproxies() or urllib.request.proxy_bypass(url.netloc):
        return ""
    return f" It was asked through the proxy in {url.scheme}_proxy; without it: export no_proxy={url.hostname}"


def _client(address: str) -> Any:
    """Return Ray's client of a job server. UserError if the server does not accept us."""
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(name, None)  # Ray would prefer these to the passed address
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.job.sdk", "dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)  # each sets itself to INFO
    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        if os.environ.get("RAY_AUTH_MODE") != "token":
            raise UserError(
                f"--address {address}: the cluster asks for a token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH "
                "to the file that holds it"
            ) from None
        raise UserError(f"--address {address}: the cluster does not accept the token {_token_source()}") from None
    except (OSError, RuntimeError, ValueError) as error:
        path = urllib.parse.urlsplit(address).path
        hint = f"; most job servers have no path, and this address has {path}" if path else ""
        raise UserError(f"--address {address}: {first_line(error)}{hint}") from None


def _token_source() -> str:
    """Name the place from which Ray takes the token, without the token."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "in RAY_AUTH_TOKEN"
    return f"in {os.environ.get('RAY_AUTH_TOKEN_PATH') or '~/.ray/auth_token'}"


def first_line(message: Any) -> str:
    """Return the first line of a library's message or error."""
    return next(iter(str(message).strip().splitlines()), type(message).__name__)
