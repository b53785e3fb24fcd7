#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two builds of Atoll, alternating call by call: has a change made collectives slower?

    bench/builds.py SITE [--layout AABB] [--device sim] [--sizes 4,64K,1M,32M] [--environment NAME=VALUE ...]

SITE is a folder that holds the other build's package `atoll`. Each build has ranks of its own, which sleep while the
other's are measured; results are checked. Ends with 4 on a busy machine."""

import argparse
import sys
from pathlib import Path

import own_python  # noqa: F401 - goes on in .venv
from atoll.bench import machine
from atoll.bench.operations import Problem
from atoll.bench.sizes import format_size, parse_sizes
from compare import compare
from contenders import Place, TorchRanks
from intervals import median_interval
from results import say, table


def places(options: argparse.Namespace, site: Path | None) -> list[Place]:
    more = tuple(tuple(each.split("=", 1)) for each in options.environment)
    path = (("PYTHONPATH", str(site)),) if site else ()
    return [
        Place(environment=(("ATOLL_DEVICE", options.device), ("ATOLL_ISLAND", island), *more, *path))
        for island in options.layout
    ]


def switches(pids: list[int]) -> int:
    """Returns the context switches of all threads of these processes since they started."""
    lines = [
        line
        for pid in pids
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if "ctxt_switches" in line
    ]
    return sum(int(line.split()[1]) for line in lines)


def switches_of_a_call(ranks: TorchRanks, problem: Problem, calls: int = 50) -> float:
    contender = ranks.contender("atoll", "own")
    contender.block(problem, calls, False)
    before = switches(ranks.pids)
    contender.block(problem, calls, False)
    return (switches(ranks.pids) - before) / calls


def measured(options: argparse.Namespace) -> list[list[str]]:
    ratios: dict[int, list[float]] = {size: [] for size in options.sizes}
    times: dict[int, list[float]] = {size: [] for size in options.sizes}
    switched: dict[int, list[float]] = {}
    for launch in range(options.launches):
        with (
            TorchRanks(places(options, None), ["atoll"]) as new,
            TorchRanks(places(options, options.site), ["atoll"]) as old,
        ):
            builds = {"this": new.contender("atoll", "own"), "other": old.contender("atoll", "own")}
            for size in options.sizes:
                row = compare(builds, Problem(options.operation, size), options.rounds, turns=True)
                ratios[size].append(1 / row["ratio"]["other"]["median"])
                times[size].append(row["us"]["this"]["median"])
                switched[size] = [switches_of_a_call(ranks, Problem(options.operation, size)) for ranks in (new, old)]
                say(f"launch {launch + 1}, {format_size(size)}: {ratios[size][-1]:.3f} of the other's time")
    rows = []
    for size in options.sizes:
        ratio = median_interval(ratios[size])
        rows.append(
            [format_size(size), f"{sorted(times[size])[len(times[size]) // 2]:.0f}",
             f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
             " and ".join(f"{count:.0f}" for count in switched[size])]
        )  # fmt: skip
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--layout", default="AABB")
    parser.add_argument("--device", default="sim")
    parser.add_argument("--operation", default="all_reduce")
    parser.add_argument("--sizes", type=parse_sizes, default=parse_sizes("4,64K,1M,8M,32M"))
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--launches", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    if not (options.site / "atoll/__init__.py").is_file():
        parser.error(f"{options.site} does not hold the package atoll")
    busy = machine.cores_used_by_others()
    if busy > machine.BUSY_CORES:
        say(f"not measured: other processes use {busy:.2f} cores of this machine")
        return 4
    columns = [
        "size",
        "us",
        "of the other's time, median of launches (95 %)",
        "switches of threads in a call, this and other",
    ]
    print(table(columns, measured(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
