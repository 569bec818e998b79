"""An application that answers on a port of this machine, from a thread of the test's own process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from sparring.workflows.serving.access import Application


@contextmanager
def live(application: Application) -> Iterator[str]:
    """Serve an application on a free port until the block ends. Yield its address."""
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            ready.set()

    config = uvicorn.Config(application, log_level="critical", access_log=False, lifespan="off", ws="none")
    server = Server(config)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            assert ready.wait(60)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
