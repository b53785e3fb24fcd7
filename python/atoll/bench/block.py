# SPDX-License-Identifier: Apache-2.0
"""Timed blocks: a number of calls in a row on every rank, then a check of their results."""

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch.distributed as dist

from atoll.bench.devices import synchronize
from atoll.bench.operations import Operation


@dataclass
class Block:
    """One rank's result of one block."""

    calls: int
    seconds: float  # for all calls
    call_ns: list[int]  # each call's own time
    wrong: int = 0


def run_block(operation: Operation, calls: int, *, fault: bool = False) -> Block:
    """Fills the buffers, times `calls` calls that all ranks start together, and checks every element. On an accelerator
    the block ends when the device has completed all calls; the time of a single call is how long its caller waits.

    `fault` corrupts one element before the check, to prove that the check works."""
    operation.fill()
    synchronize(operation.device)
    clock = time.perf_counter_ns
    call_ns = [0] * calls
    collects = gc.isenabled()
    gc.disable()
    dist.barrier(group=operation.group)
    begin = last = clock()
    for index in range(calls):
        operation.call()
        now = clock()
        call_ns[index] = now - last
        last = now
    synchronize(operation.device)
    end = clock()
    if collects:
        gc.enable()
    if fault:
        spoil(operation)
    return Block(calls, (end - begin) * 1e-9, call_ns, operation.wrong(calls))


def spoil(operation: Operation) -> None:
    """Changes one element of what this rank received."""
    name = next(name for name in ("received", "result", "buffer") if hasattr(operation, name))
    buffer = getattr(operation, name)
    buffer[-1] = buffer[-1] + buffer[-1] + 1


def choose_calls(seconds_per_call: float, target_seconds: float, most: int) -> int:
    """Returns the number of calls in a block that takes about `target_seconds`."""
    if seconds_per_call <= 0:
        return most
    return max(1, min(most, math.ceil(target_seconds / seconds_per_call)))


def quantile(samples: Sequence[float], share: float) -> float:
    """Returns the quantile, interpolated linearly; share 0.5 is the median. Raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    return float(numpy.quantile(samples, share))
