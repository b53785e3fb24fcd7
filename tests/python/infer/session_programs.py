# SPDX-License-Identifier: Apache-2.0
"""Programs that use a session and end in various ways, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

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
    """A running program with a temporary folder, which also holds a key file."""

    def __init__(self, folder: Path, source: str) -> None:
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        key = folder / "key"
        key.write_text("0123456789abcdef0123456789abcdef\n")
        key.chmod(0o600)
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN + source, str(key)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": str(self.temporary), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")},
        )  # fmt: skip

    def wait_for(self, text: str) -> None:
        """Waits until the program prints that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == text:
                return
        raise AssertionError(f"it ended without {text!r}: {self.end()[1]}")

    def end(self) -> tuple[int, str]:
        """Returns the program's status, and what it wrote to standard error."""
        errors = self.process.communicate(timeout=120)[1]
        return self.process.returncode, errors

    def left(self) -> list[str]:
        return sorted(path.name for path in self.temporary.rglob("*"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
