# SPDX-License-Identifier: Apache-2.0
"""Starts local ranks with torchrun's environment, and ends them together."""

import os
import subprocess
import time
from collections.abc import Sequence

import torch.distributed as dist

_GRACE_SECONDS = 15.0  # for the other ranks after one has failed, to report what they saw
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


def run_ranks(command: Sequence[str], ranks: int, seconds: float = float("inf")) -> int:
    """Runs local ranks with a store for them. Returns 0, or the exit status of the first failure. Ranks still running
    after `seconds` are ended and count as failed."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes: list[subprocess.Popen[bytes]] = []
    status, deadline = 0, time.monotonic() + seconds
    try:
        for rank in range(ranks):
            environment = rank_environment(rank, ranks, "127.0.0.1", store.port)
            processes.append(subprocess.Popen(list(command), env=environment))
        waiting = list(processes)
        while waiting:
            for process in list(waiting):
                try:
                    code = process.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    continue
                waiting.remove(process)
                if code and not status:
                    status, deadline = code, min(deadline, time.monotonic() + _GRACE_SECONDS)
            if time.monotonic() > deadline:
                _end(processes)
    finally:
        _end(processes)
    return status if status >= 0 else 128 - status


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
