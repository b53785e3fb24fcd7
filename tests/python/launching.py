# SPDX-License-Identifier: Apache-2.0
"""`atoll run` for tests: as a finished command, or as a running one whose output is waited for."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from atoll.launch import processes
from forking import Running, module_source, run_module

TIMEOUT_S = 100
COMMAND = [sys.executable, "-m", "atoll.cli"]


def free_port() -> int:
    """Returns a port that neither the system nor another worker of the tests gives to others, so that it is still
    free when a program binds it seconds later."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    while True:
        port = 10_000 + worker * 5_000 + secrets.randbelow(5_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def atoll(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """A finished `atoll ARGUMENTS`."""
    return run_module("atoll.cli", *arguments, timeout=TIMEOUT_S, **environment)


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {TIMEOUT_S} s: {what}"
        time.sleep(0.01)


# Of a program in a session of its own, which ignores these signals and no others.
BEGIN = """
import os, signal
os.setsid()
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    signal.signal(number, signal.SIG_IGN if number in {} else handler)
"""


class Launched:
    """A running `atoll run`, with its output so far in `text`. A variable marks its ranks and the processes that
    they start, so that they can be found."""

    def __init__(self, *arguments: object, ignored: Sequence[int] = (), **environment: str) -> None:
        self.mark = f"TEST_MARK={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        source = BEGIN.format([int(number) for number in ignored]) + module_source("atoll.cli", "run", *arguments)
        self.process = Running(source, {**os.environ, name: value, **environment})
        self.text = ""

    def wait_for(self, text: str, count: int = 1) -> None:
        """Reads until `text` was printed `count` times."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.text.count(text) < count:
            try:
                data = self.process.read(deadline)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{text!r} not printed: {self.text}") from None
            assert data, f"ended without {text!r}: {self.text}"
            self.text += data.decode()

    def end(self, number: int | None = None, timeout: float = TIMEOUT_S) -> int:
        """Sends the signal, if one is given, and returns the exit status; `text` is then complete."""
        if number is not None:
            os.kill(self.process.pid, number)
        self.text += self.process.rest(timeout).decode()
        return self.process.wait()

    def marked(self) -> list[int]:
        """Returns the processes of this job, without zombies."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                except OSError:
                    continue
                if self.mark.encode() in environment and processes.start_time(int(entry.name)) is not None:
                    found.append(int(entry.name))
        return found

    def wait_until_gone(self) -> None:
        """Waits until no process is left; a killed process takes a moment to vanish."""
        eventually(lambda: not self.marked(), f"the processes {self.marked()} end")


@contextmanager
def launched(*arguments: object, ignored: Sequence[int] = (), **environment: str) -> Iterator[Launched]:
    job = Launched(*arguments, ignored=ignored, **environment)
    try:
        yield job
    finally:
        job.process.kill()
        for pid in job.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.rest(TIMEOUT_S)
