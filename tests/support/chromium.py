"""A headless Chromium that tests drive over its debugging protocol: what a page asks for, complains about and shows."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
from websockets.sync.client import ClientConnection, connect

KEYS = {
    "Enter": ("\r", 13),
    "Tab": ("", 9),
    " ": (" ", 32),
    "Escape": ("", 27),
    "ArrowLeft": ("", 37),
    "ArrowUp": ("", 38),
    "ArrowRight": ("", 39),
    "ArrowDown": ("", 40),
}
"""What keys write, and their numbers; others write themselves."""
SECONDS = 60.0
"""How long the browser may take to start, or to answer."""


class Browser:
    """One page of a browser of its own. `errors` are exceptions and whatever the console was told as a warning or an
    error, `requests` the addresses that were asked for, but for the page's own, its blobs and its data."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if program is None:
            pytest.skip("there is no Chromium here")
        self.downloads = folder / "downloads"
        self.downloads.mkdir(parents=True)
        self._stack = ExitStack()
        with self._stack:  # whatever fails here leaves no browser behind
            self._start(program, folder / "profile")
            self._stack = self._stack.pop_all()

    def _start(self, program: str, profile: Path) -> None:
        """Start the browser, and listen to its page."""
        self._process = subprocess.Popen(
            [
                program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--disable-background-networking",
                "--remote-debugging-port=0",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.terminate)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._number, self._loaded = 0, False
        port, path = self._address(profile / "DevToolsActivePort")
        connection = connect(f"ws://127.0.0.1:{port}{path}", max_size=None)
        self._socket: ClientConnection = self._stack.enter_context(connection)
        self._session: str | None = None
        pages = self._call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def open(self, address: str | Path, *, width: int = 1200, height: int = 900) -> None:
        """Open a file or an address in a window of this size, on a light screen, and wait until it is loaded."""
        self.resize(width, height)
        self.media()
        self.errors.clear()
        self.requests.clear()
        self._loaded = False
        url = address.resolve().as_uri() if isinstance(address, Path) else address
        self._call("Page.navigate", url=url)
        self._until(lambda: self._loaded)
        self.requests[:] = [address for address in self.requests if address != url]

    def resize(self, width: int, height: int = 900) -> None:
        """Give the window another size."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 640
        )

    def media(self, *, dark: bool = False, paper: bool = False) -> None:
        """Show the page as a system with dark colours does, or as it is printed."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._call("Emulation.setEmulatedMedia", media="print" if paper else "", features=features)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        response = self._call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if "exceptionDetails" in response:
            raise AssertionError(response["exceptionDetails"].get("exception", {}).get("description", response))
        return response["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after another, and let each go."""
        for key in keys:
            text, code = KEYS.get(key, (key, ord(key[0].upper())))
            event = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
            self._call("Input.dispatchKeyEvent", type="keyDown", text=text, **event)
            self._call("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        """Type a text where the cursor is."""
        self._call("Input.insertText", text=text)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true."""
        ends = time.monotonic() + SECONDS
        while not self.run(condition):
            assert time.monotonic() < ends, f"{condition} did not come true: {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def downloaded(self, name: str) -> str:
        """The text of a file that the page has saved, waiting for it."""
        path = self.downloads / name
        ends = time.monotonic() + SECONDS
        while not path.exists():
            assert time.monotonic() < ends, f"not saved: {name}; there are {[p.name for p in self.downloads.iterdir()]}"
            time.sleep(0.05)
        return path.read_bytes().decode()

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what the page looks like."""
        capture = self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(capture["data"]))

    def paper(self, path: Path) -> None:
        """Save the page as it is printed, as a PDF."""
        path.write_bytes(base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"]))

    def _address(self, path: Path) -> list[str]:
        ends = time.monotonic() + SECONDS
        while not path.exists() or len(path.read_text().split()) < 2:
            assert self._process.poll() is None, "Chromium ended"
            assert time.monotonic() < ends, "Chromium does not start"
            time.sleep(0.05)
        return path.read_text().split()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), answers, number)
        assert "error" not in answers[0], f"{method}: {answers[0].get('error')}"
        return dict(answers[0]["result"])

    def _until(self, done: Any, answers: list[dict[str, Any]] | None = None, number: int = 0) -> None:
        """Read what the browser says until something is so."""
        while not done():
            message = json.loads(self._socket.recv(timeout=SECONDS))
            if message.get("id") == number and answers is not None:
                answers.append(message)
            self._note(message.get("method", ""), message.get("params", {}))

    def _note(self, method: str, details: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(details["exceptionDetails"].get("exception", {}).get("description", str(details)))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.errors.append(str([argument.get("value") for argument in details["args"]]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not details["request"]["url"].startswith(("blob:", "data:")):
            self.requests.append(details["request"]["url"])
