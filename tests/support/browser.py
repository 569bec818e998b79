"""A headless Chromium, driven by the W3C's WebDriver protocol: as much of it as the tests need."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Enter": "\ue007", "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015"}
"""As WebDriver names them."""
SECONDS = 60


def there() -> bool:
    """Whether this machine has Chromium and its driver."""
    return shutil.which("chromedriver") is not None and _chromium() is not None


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page."""

    def __init__(self, session: str) -> None:
        self._session = session

    def call(self, method: str, path: str, **values: Any) -> Any:
        body = json.dumps(values).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self._session}{path}", body, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=SECONDS) as answer:
            return json.load(answer)["value"]

    def open(self, url: str) -> None:
        self.call("POST", "/url", url=url)

    def js(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.call("POST", "/execute/sync", script=script, args=list(arguments))

    def press(self, *keys: str) -> None:
        """Press keys one after another, by name; others are typed."""
        pressed = [KEYS.get(key, key) for key in keys]
        actions = [{"type": kind, "value": key} for key in pressed for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def wait(self, script: str) -> Any:
        """What a script returns, once that is true."""
        until = time.monotonic() + SECONDS
        while not (found := self.js(f"return {script}")):
            assert time.monotonic() < until, (
                f"{script} did not come true; the page says {self.js('return document.body.innerText')}"
            )
            time.sleep(0.05)
        return found

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The page's size, and whether the user prefers dark colours."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def devtools(self, command: str, **values: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=values)

    def picture(self, path: Path) -> None:
        """Write what is shown as a PNG."""
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def log(self) -> list[dict[str, Any]]:
        """What the console has said since it was last asked."""
        return list(self.call("POST", "/se/log", type="browser"))


@contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium that knows no address but this machine's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["chromedriver", f"--port={port}", "--log-level=OFF"]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    start = Browser(f"http://127.0.0.1:{port}")
    try:
        until = time.monotonic() + SECONDS
        while True:
            try:
                assert start.call("GET", "/status")["ready"]
                break
            except (OSError, AssertionError):
                assert time.monotonic() < until
                time.sleep(0.1)
        options = {
            "binary": _chromium(),
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        }  # fmt: skip
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = start.call("POST", "/session", capabilities={"alwaysMatch": wanted})["sessionId"]
        page = Browser(f"http://127.0.0.1:{port}/session/{session}")
        yield page
        page.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
