# SPDX-License-Identifier: Apache-2.0
"""Servers of split inference as processes for tests."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

ATOLL = [sys.executable, "-m", "atoll.cli"]


class Serve:
    """`atoll serve` on a free port of this machine; `address` is where it listens."""

    def __init__(self, folder: Path, *arguments: str, address: str = "127.0.0.1:0") -> None:
        self.key_file = folder / "atoll.key"
        command = [*ATOLL, "serve", "--listen", address, "--key-file", str(self.key_file)]
        command += ["--cache", str(folder / "models"), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self.address = self.wait_for("listening on ").split()[2]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, begin: str) -> str:
        """Waits for the next line that starts with this text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(begin):
                return line
        raise AssertionError(f"atoll serve ended: {self.output}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
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
