# SPDX-License-Identifier: Apache-2.0
"""Processes of this host by number and start time, because numbers are reused."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_POLL_S = 0.02


def start_time(pid: int) -> int | None:
    """Returns when process `pid` started, in clock ticks since boot; None if there is none or it is a zombie."""
    try:
        # The name before the last parenthesis may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def is_running(pid: int, started: int) -> bool:
    return start_time(pid) == started


def wait_until_gone(pid: int, started: int, timeout_s: float) -> bool:
    """Waits at most `timeout_s`, and returns whether the process has ended."""
    deadline = time.monotonic() + timeout_s
    while is_running(pid, started):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def close_streams(handler: Any) -> None:
    """Closes the streams of a SubprocessHandler that has ended: torch elastic keeps them open, but readers wait for
    their end."""
    for stream in (handler._stdout, handler._stderr):
        if stream:
            stream.close()


def kill_groups(leaders: Iterable[int]) -> None:
    """Sends SIGKILL to the process groups of these leaders, even if a leader has ended and others of its group have
    not."""
    for pid in leaders:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
