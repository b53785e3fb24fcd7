# SPDX-License-Identifier: Apache-2.0
"""Starts local ranks with torchrun's environment, and ends them together."""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

import torch.distributed as dist

_ONE_COMPUTE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def rank_environment(rank: int, ranks: int, address: str, port: int) -> dict[str, str]:
    """Returns the variables that torchrun sets, for a rank whose store is in another process
    (`TORCHELASTIC_USE_AGENT_STORE`)."""
    return {
        **os.environ,
        **_ONE_COMPUTE_THREAD,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


class LocalRanks:
    """Processes of one job on this machine, and its store. Leaving the `with` block ends the processes still
    running."""

    GRACE_SECONDS = 15.0  # for the other ranks after one has failed, to report what they saw

    def __init__(self, command: Sequence[str], ranks: int, extra: Sequence[Mapping[str, str]] = ()) -> None:
        """`extra`: additional environment variables, by rank."""
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(ranks):
            environment = rank_environment(rank, ranks, "127.0.0.1", self._store.port)
            environment.update(extra[rank] if extra else {})
            self._processes.append(subprocess.Popen(list(command), env=environment))

    def wait(self, seconds: float = float("inf")) -> int:
        """Returns 0, or the exit status of the first failure. Ranks still running after `seconds` are ended and count
        as failed."""
        status = 0
        deadline = time.monotonic() + seconds
        waiting = list(self._processes)
        while waiting:
            for process in list(waiting):
                try:
                    code = process.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    continue
                waiting.remove(process)
                if code and not status:
                    status, deadline = code, min(deadline, time.monotonic() + self.GRACE_SECONDS)
            if time.monotonic() > deadline:
                self.end()
        return status if status >= 0 else 128 - status

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()

    def __enter__(self) -> "LocalRanks":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
