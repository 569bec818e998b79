"""A job server of Ray's without Ray."""

from __future__ import annotations

from typing import Any

ADDRESS = "http://127.0.0.1:9"
"""Where nobody answers."""


class Status(str):
    """A job's status as Ray has it."""

    def is_terminal(self) -> bool:
        return self not in ("RUNNING", "PENDING")


class Job:
    """A job as the server describes it."""

    def __init__(self, name: str, status: str, metadata: dict[str, str] | None, **more: Any) -> None:
        self.submission_id, self.status, self.metadata = name, Status(status), metadata
        self.start_time, self.end_time, self.message, self.driver_exit_code = 0, 2000, None, None
        self.__dict__.update(more)


class Client:
    """Ray's client of a server whose jobs end as they are told to, whose connection breaks so often, and whose head
    refuses so many jobs as it has no agent yet."""

    def __init__(self, log: list[str] | None = None, breaks: int = 0, refusals: int = 0, **ended: Any) -> None:
        self.jobs: list[Job] = []
        self.sent: dict[str, Any] = {}
        self.log, self.breaks, self.refusals, self.ended = log or [], breaks, refusals, ended

    def list_jobs(self) -> list[Job]:
        return self.jobs

    def submit_job(self, **job: Any) -> str:
        if self.refusals:
            self.refusals -= 1
            raise RuntimeError("Request failed with status code 500: No available agent to submit job, please try ...")
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
        return ADDRESS
