# SPDX-License-Identifier: Apache-2.0
"""Interleaved measurement: one block of each contender in turn, round after round, at one size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atoll.bench.block import choose_calls, quantile
from atoll.bench.operations import Problem
from contenders import Contender

BLOCK_SECONDS = 0.02
PROBE_ROUNDS = 3
FAR_BEHIND = 2  # times the fastest: a candidate this slow in its warm-up is not probed further


def spread(samples: Sequence[float]) -> dict[str, float]:
    return {"median": quantile(samples, 0.5), "p10": quantile(samples, 0.1), "p90": quantile(samples, 0.9)}


def warm_up(contender: Contender, problem: Problem, target_seconds: float) -> tuple[int, float]:
    """Makes some calls, fewer where they are long; returns how many of them a block should have, and the seconds that
    one takes."""
    contender.block(problem, 1, False)
    result = contender.block(problem, 3, False)
    if result.seconds < target_seconds:
        result = contender.block(problem, 3, False)
    seconds = result.seconds / 3
    return choose_calls(seconds, target_seconds, result.most_calls), seconds


def fastest(candidates: Mapping[str, Contender], problem: Problem) -> str:
    """Returns the name of the candidate whose fastest block is the fastest of all."""
    found = {name: warm_up(candidate, problem, BLOCK_SECONDS) for name, candidate in candidates.items()}
    least = min(seconds for _, seconds in found.values())
    best = {name: float("inf") for name, (_, seconds) in found.items() if seconds <= FAR_BEHIND * least}
    for _ in range(PROBE_ROUNDS):
        for name in best:
            calls = found[name][0]
            best[name] = min(best[name], candidates[name].block(problem, calls, False).seconds / calls)
    return min(best, key=lambda name: best[name])


def compare(
    contenders: Mapping[str, Contender], problem: Problem, rounds: int, *, block_seconds: float = BLOCK_SECONDS,
    each: bool = False, turns: bool = False, before_round: Callable[[], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Times by contender in microseconds per call, and ratios of the others' times to the first contender's, by round.

    With `turns` every other round goes in reverse order. Raises RuntimeError on a wrong element."""
    calls = {name: warm_up(contender, problem, block_seconds)[0] for name, contender in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    single: dict[str, list[float]] = {name: [] for name in contenders}
    size = problem.bytes
    order = list(contenders.items())
    for turn in range(rounds):
        if before_round:
            before_round()
        for name, contender in reversed(order) if turns and turn % 2 else order:
            result = contender.block(problem, calls[name], each)
            if result.wrong:
                raise RuntimeError(f"{name}: {result.wrong} wrong elements in {problem}")
            times[name].append(result.seconds / calls[name] * 1e6)
            single[name] += [ns * 1e-3 for ns in result.call_ns]
            size = result.bytes
    first = next(iter(contenders))
    row: dict[str, Any] = {"operation": problem.operation, "bytes": size, "rounds": rounds, "calls": calls}
    row["us"] = {name: {**spread(of_name), "rounds": of_name} for name, of_name in times.items()}
    row["ratio"] = {
        name: spread([theirs / ours for ours, theirs in zip(times[first], times[name], strict=True)])
        for name in contenders
        if name != first
    }
    if each:
        row["call_us"] = {
            name: {"median": quantile(of_name, 0.5), "p99": quantile(of_name, 0.99), "samples": len(of_name)}
            for name, of_name in single.items()
        }
    return row
