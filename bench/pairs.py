# SPDX-License-Identifier: Apache-2.0
"""Two contenders, alternating call by call in the same processes: for differences that are far smaller than the
variation from one call to the next."""

import gc
import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from atoll.bench.block import choose_calls, quantile
from atoll.bench.devices import synchronize
from atoll.bench.operations import Operation, Problem
from contenders import TorchRanks
from intervals import median_interval


def run_pairs(operations: Sequence[Operation], pairs: int) -> dict[str, Any]:
    """Runs both operations in turn, `pairs` times, alternating the order. Returns this rank's part: the nanoseconds of
    each call (on an accelerator until the device is done), one list per operation, and the number of wrong elements.
    Both work in place on one buffer, so that its place in memory makes no difference."""
    first = operations[0]
    first.fill()
    for operation in operations:
        operation.buffer = first.buffer
    call_ns: list[list[int]] = [[] for _ in operations]
    order = list(enumerate(operations))
    collects = gc.isenabled()
    gc.disable()
    synchronize(first.device)
    dist.barrier(group=first.group)
    for pair in range(pairs):
        for index, operation in reversed(order) if pair % 2 else order:
            begin = time.perf_counter_ns()
            operation.call()
            synchronize(operation.device)
            call_ns[index].append(time.perf_counter_ns() - begin)
    if collects:
        gc.enable()
    return {"call_ns": call_ns, "wrong": first.wrong(len(operations) * pairs)}


def compare_pairs(ranks: TorchRanks, names: tuple[str, str], problem: Problem, seconds: float) -> dict[str, Any]:
    """Returns both times in microseconds per call, and the additional time of the first: the median over all pairs of
    the mean over the ranks. `seconds`: roughly how long to measure. Raises RuntimeError on a wrong element."""

    def mean_us(of_ranks: Sequence[tuple[int, int]]) -> tuple[float, float]:
        first, second = (sum(times) / len(times) * 1e-3 for times in zip(*of_ranks, strict=True))
        return first, second

    def block(pairs: int) -> list[tuple[float, float]]:
        answers = ranks.ask("pairs", backends=names, problem={**vars(problem), "device": "own"}, pairs=pairs)
        if wrong := sum(answer["wrong"] for answer in answers):
            raise RuntimeError(f"{names}: {wrong} wrong elements in {problem}")
        calls = [zip(*answer["call_ns"], strict=True) for answer in answers]
        return [mean_us(of_ranks) for of_ranks in zip(*calls, strict=True)]

    warm = block(2)[1:] + block(4)
    most = ranks.ask("most_calls", backend=names[0], problem={**vars(problem), "device": "own"})[0]["calls"]
    pair_seconds = sum(first + second for first, second in warm) / len(warm) * 1e-6
    pairs = max(2, choose_calls(pair_seconds, seconds / 30, most // 2) // 2 * 2)
    blocks = [block(pairs) for _ in range(max(2, int(seconds / (pair_seconds * pairs))))]
    calls = [pair for of_block in blocks for pair in of_block]
    times = {name: quantile([pair[index] for pair in calls], 0.5) for index, name in enumerate(names)}
    added = quantile([first - second for first, second in calls], 0.5)
    return {"bytes": problem.bytes, "pairs": len(calls), "us": times, "added_us": added}


def over_launches(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combines the results of the same comparison in several launches of the ranks into one row: medians, with the 95 %
    interval of the first one's additional time. Where the kernel puts the threads of a launch favours one or the other
    until its end."""
    times = {name: quantile([row["us"][name] for row in rows], 0.5) for name in rows[0]["us"]}
    added = [row["added_us"] for row in rows]
    return {"bytes": rows[0]["bytes"], "pairs": sum(row["pairs"] for row in rows), "us": times,
            "added_us": median_interval(added), "launches_us": added}  # fmt: skip
