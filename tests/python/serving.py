# SPDX-License-Identifier: Apache-2.0
"""Servers of split inference as processes for tests."""

import io
import os
import signal
import threading
from pathlib import Path
from typing import Self

from forking import Running, module_source


class Serve:
    """`atoll serve` on a free port of this machine; `address` is where it listens."""

    def __init__(self, folder: Path, *arguments: str, address: str = "127.0.0.1:0") -> None:
        self.key_file = folder / "atoll.key"
        command = ["serve", "--listen", address, "--key-file", self.key_file, "--cache", folder / "models", *arguments]
        self.process = Running(module_source("atoll.cli", *command), os.environ)
        self._output = io.TextIOWrapper(io.BufferedReader(self.process.stdout))
        self.lines: list[str] = []
        self.address = self.wait_for("listening on ").split()[2]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, begin: str) -> str:
        """Waits for the next line that starts with this text."""
        for line in self._output:
            self.lines.append(line.rstrip())
            if line.startswith(begin):
                return line
        raise AssertionError(f"atoll serve ended: {self.output}")

    def _read(self) -> None:
        for line in self._output:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stops the server; returns its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(60)
        self._reader.join(60)
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(60)
