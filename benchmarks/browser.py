"""Drives headless Chromium through its DevTools protocol: just enough to press keys and look at a page."""

import base64
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from websockets.sync.client import connect

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--no-first-run"),
    *("--disable-extensions", "--disable-background-networking", "--autoplay-policy=no-user-gesture-required"),
)
_CODES = {" ": "Space", "ArrowLeft": "ArrowLeft", "ArrowRight": "ArrowRight", "Tab": "Tab", "Enter": "Enter"}


class Page:
    """One tab."""

    def __init__(self, socket: Any, domains: Sequence[str] = ("Page", "Runtime", "Network", "Log")):
        """domains: of events that are listened to."""
        self._socket = socket
        self._number = 0
        self.requests: list[str] = []
        self.messages: list[str] = []
        for domain in domains:
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """One command of the protocol."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": given}))
        while True:
            message = json.loads(self._socket.recv(timeout=300))
            if message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])
            elif message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(message["params"]))
            if message.get("id") == self._number:
                assert "error" not in message, message["error"]
                return message["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 240.0) -> None:
        """Until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, f"{expression} did not come true: {self.messages}"
            time.sleep(0.02)

    def key(self, key: str) -> None:
        """Presses a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        code = _CODES.get(key, f"Key{key.upper()}")
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)

    def size(self, width: int, height: int, *, touch: bool = False, dark: bool = False) -> None:
        """Another screen."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: pathlib.Path) -> None:
        """A screenshot."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


class Browser:
    """A running browser. Tabs have nothing in common with each other."""

    def __init__(self, process: subprocess.Popen, stack: contextlib.ExitStack, port: str, path: str):
        self.process = process
        self._stack, self._port = stack, port
        self._root = Page(
            stack.enter_context(connect(f"ws://127.0.0.1:{port}{path}", max_size=None, ping_interval=None)), domains=()
        )

    def tab(self) -> Page:
        """A new tab."""
        own = self._root.call("Target.createBrowserContext")["browserContextId"]
        target = self._root.call("Target.createTarget", url="about:blank", browserContextId=own)["targetId"]
        listed = json.load(urllib.request.urlopen(f"http://127.0.0.1:{self._port}/json", timeout=60))
        (address,) = (one["webSocketDebuggerUrl"] for one in listed if one["id"] == target)
        return Page(self._stack.enter_context(connect(address, max_size=None, ping_interval=None)))


@contextlib.contextmanager
def browser(*flags: str) -> Iterator[Browser]:
    """A browser, started with additional flags."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, contextlib.ExitStack() as stack:
        process = subprocess.Popen(
            [PROGRAM, *_FLAGS, *flags, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        port_file, end = pathlib.Path(profile) / "DevToolsActivePort", time.monotonic() + 240
        while not port_file.exists() or len(port_file.read_text().split()) < 2:
            assert process.poll() is None and time.monotonic() < end, "Chromium does not start"
            time.sleep(0.05)
        yield Browser(process, stack, *port_file.read_text().split())
