# SPDX-License-Identifier: Apache-2.0
"""A robot as a process of its own, so that its resources can be measured: it reads a JSON object per line and
answers with one.

python long_robot.py ADDRESS KEY_FILE"""

import collections
import contextlib
import ctypes
import dataclasses
import gc
import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from processes import Held, held
from split_cases import LIMIT, READY_S, check, session_of, until_server

_ANSWER_S = 600


class Robot:
    """The test's handle of the process."""

    def __init__(self, address: str, key_file: Path) -> None:
        command = [sys.executable, str(Path(__file__)), address, str(key_file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select([self.process.stdout], [], [], _ANSWER_S)
        line = self.process.stdout.readline() if ready else ""
        assert line, f"the robot does not answer {do}: status {self.process.poll()}"
        return json.loads(line)

    def wait_until_ready(self) -> None:
        assert self.ask("ready")

    def run(self, count: int) -> dict[str, int]:
        """Returns the number of answers by origin; each was compared with the model's own."""
        return dict(self.ask("run", count=count))

    def held(self) -> Held:
        return Held(**self.ask("held"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Inside:
    """The program of the process."""

    def __init__(self, address: str, key_file: Path) -> None:
        self._address, self._key_file = address, key_file
        self._session = session_of(address, key_file)

    def ready(self) -> bool:
        return self._session.wait_until_ready(READY_S)

    def run(self, count: int) -> dict[str, int]:
        return collections.Counter(check(self._session, number).origin for number in range(count))

    def come_and_go(self, count: int) -> bool:
        """Opens and closes further sessions, one after the other."""
        for _ in range(count):
            with session_of(self._address, self._key_file) as session:
                until_server(session)
        return True

    def held(self) -> dict[str, Any]:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # memory that the allocator keeps is not a leak
        return dataclasses.asdict(held(os.getpid()))

    def close(self) -> None:
        self._session.close()


def _serve(address: str, key_file: Path) -> None:
    inside = Inside(address, key_file)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(inside, request.pop("do"))(**request)), flush=True)
    inside.close()


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
