# SPDX-License-Identifier: Apache-2.0
"""Exchanges values through the job's store, which works before there is a group and after it has failed."""

import json
import os
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_REPLY_SECONDS = 5.0  # for rank 0's answer, after the other ranks' time has passed
_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.001, 0.05


class JobError(ValueError):
    """This rank cannot take part; the message says why and what to do."""


class Board:
    """The keys in the store where each rank writes its answers as JSON."""

    def __init__(self, store: dist.Store, rank: int, ranks: int) -> None:
        self.store, self.rank, self.ranks = store, rank, ranks

    def collect(self, topic: str, value: Any, seconds: float) -> list[Any]:
        """Returns every rank's `value`, the same list on all ranks, with None for ranks that wrote nothing within rank
        0's `seconds`. Each `topic` is used once. Raises JobError if rank 0 does not answer."""
        try:
            return self._collect(topic, value, seconds)
        except RuntimeError as error:
            raise JobError(f"the job's store no longer answers ({topic}): {error}") from None

    def _collect(self, topic: str, value: Any, seconds: float) -> list[Any]:
        self.store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank == 0:
            self.store.set(f"{topic}/all", json.dumps(self._read(topic, seconds)))
        if not self._wait(f"{topic}/all", seconds + _REPLY_SECONDS):
            raise JobError(f"rank 0 has not answered within {seconds:g} s ({topic}): check its output")
        return list(json.loads(self.store.get(f"{topic}/all")))

    def _read(self, topic: str, seconds: float) -> list[Any]:
        deadline = time.monotonic() + seconds
        values: list[Any] = []
        for rank in range(self.ranks):
            here = self._wait(f"{topic}/{rank}", deadline - time.monotonic())
            values.append(json.loads(self.store.get(f"{topic}/{rank}")) if here else None)
        return values

    def _wait(self, key: str, seconds: float) -> bool:
        """Returns whether `key` is set within `seconds`. Polls, because PyTorch logs a wait that times out."""
        deadline = time.monotonic() + seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self.store.check([key]):
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        return True


def open_board(seconds: float) -> Board:
    """Opens the board of the job that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT describe, as torchrun sets them.
    Raises JobError if one is missing or invalid, or the store cannot be reached within `seconds`."""
    rank, ranks, port = (number_in(name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    address = _text("MASTER_ADDR")
    if not 0 <= rank < ranks:
        raise JobError(f"RANK={rank} does not fit WORLD_SIZE={ranks}: ranks count from 0 to {ranks - 1}")
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        if not serves:
            _wait_for_listener(address, port, seconds)
        limit = timedelta(seconds=seconds)
        store = dist.TCPStore(address, port, is_master=serves, wait_for_workers=False, timeout=limit)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        what = "open" if serves else "reach"
        raise JobError(
            f"rank {rank} cannot {what} the job's store at {address}:{port} within {seconds:g} s: check MASTER_ADDR "
            f"and MASTER_PORT, and that rank 0 runs ({reason})"
        ) from None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Board(dist.PrefixStore(f"atoll-doctor/{attempt}", store), rank, ranks)


def _wait_for_listener(address: str, port: int, seconds: float) -> None:
    """Waits until a process listens there. Raises the system's last OSError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(_MAX_PAUSE_SECONDS, left)).close()
            return
        except OSError:
            if left <= 0:
                raise
        time.sleep(_MAX_PAUSE_SECONDS)


def _text(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise JobError(f"RANK is set, but {name} is not: start with torchrun, or unset RANK to start local ranks")
    return value


def number_in(name: str) -> int:
    """Returns the number in an environment variable. Raises JobError if it is missing or invalid."""
    value = _text(name)
    try:
        return int(value)
    except ValueError:
        raise JobError(f"{name}={value!r}: expected a whole number, as torchrun sets it") from None
