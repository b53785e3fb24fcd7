# SPDX-License-Identifier: Apache-2.0
"""Programs that use a session and end in various ways, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

from forking import Running

BEGIN = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in a shell's background
import torch
from torch import nn
import atoll

nap = 0.0  # seconds of each operator

@torch.library.custom_op("atoll_test::nap", mutates_args=())
def take_nap(x: torch.Tensor) -> torch.Tensor:
    if nap:
        say("napping")
        time.sleep(nap)
    return x.clone()

take_nap.register_fake(lambda x: torch.empty_like(x))

class Napping(nn.Module):
    def forward(self, x):
        for _ in range(200):
            x = take_nap(x)
        return x

said = set()
def say(text):
    if text not in said:
        said.add(text)
        print(text, flush=True)

def session_of(net, x, **options):
    return atoll.infer.Session(net.eval(), (x,), **{"profile_seconds": 0.0, **options})

x = torch.rand(1, 8)
key_file = sys.argv[1]
"""


class Program:
    """A running program with a temporary folder, which also holds a key file. A `fresh` one has a Python of its own,
    and ends like a user's program; the others are forked, which is faster."""

    def __init__(self, folder: Path, source: str, fresh: bool = False) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        key = folder / "key"
        key.write_text("0123456789abcdef0123456789abcdef\n")
        key.chmod(0o600)
        self._errors = folder / "errors"
        source = f"import sys\nsys.argv = ['-c', {str(key)!r}]\n{BEGIN}{source}"
        environment = {**os.environ, "TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
        self.process: Running | subprocess.Popen[bytes]
        if fresh:
            with self._errors.open("wb") as errors:
                command = [sys.executable, "-c", source]
                self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment)
        else:
            self.process = Running(source, environment, self._errors)
        assert self.process.stdout is not None
        self._output = self.process.stdout

    def wait_for(self, text: str) -> None:
        """Waits until the program prints that line."""
        for line in self._output:
            if line.decode().strip() == text:
                return
        raise AssertionError(f"it ended without {text!r}: {self.end()[1]}")

    def end(self) -> tuple[int, str]:
        """Returns the program's status, and what it wrote to standard error."""
        self._output.read()
        return self.process.wait(timeout=110), self._errors.read_text()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.temporary.rglob("*"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self._output.close()
        self.process.wait(60)
