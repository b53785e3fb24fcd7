# SPDX-License-Identifier: Apache-2.0
"""A real browser without a window, which renders pages as a user would see them. It is controlled through pipes,
with the protocol of its developer tools."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60.0  # for any answer


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _moved(descriptor: int) -> int:
    """Moves a descriptor away from the numbers that the browser uses."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Browser:
    def __init__(self) -> None:
        found = program()
        assert found is not None
        self._folder = tempfile.TemporaryDirectory(prefix="atoll-browser-", ignore_cleanup_errors=True)
        there_in, self._out = map(_moved, os.pipe())
        self._in, there_out = map(_moved, os.pipe())
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--remote-debugging-pipe", "--hide-scrollbars",
                 f"--user-data-dir={self._folder.name}"]  # fmt: skip
        # The browser reads from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{there_in} 4>&{there_out} {there_in}<&- {there_out}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, found, *flags, "about:blank"], pass_fds=(there_in, there_out),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(there_in)
        os.close(there_out)
        self._buffer = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self.session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + SECONDS
        while True:
            heard = self._read(deadline, method)
            if heard.get("id") != self._number:
                self._events.append(heard)
                continue
            if "error" in heard:
                raise RuntimeError(f"{method}: {heard['error']}")
            result: dict[str, Any] = heard["result"]
            return result

    def _read(self, deadline: float, what: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser has not answered {what} within {SECONDS:g} s")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise EOFError(f"the browser has ended during {what}")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, path: Path, width: int, is_dark: bool = False, height: int = 800) -> None:
        """Opens the page at that width; returns when it is loaded. Its errors from then on are in `problems`."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._read(deadline, "loading"))

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def problems(self) -> list[str]:
        """Returns errors and warnings of the console, exceptions, and requests to other hosts."""
        found = []
        for event in self._events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(f"exception: {told['exceptionDetails']}")
            if method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(f"console: {told['args']}")
            if method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {told['entry']['text']}")
            if method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("file:", "data:")):
                found.append(f"request: {told['request']['url']}")
        return found

    def screenshot(self, path: Path) -> None:
        """Takes a screenshot of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(taken["data"]))
