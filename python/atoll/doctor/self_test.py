# SPDX-License-Identifier: Apache-2.0
"""Runs every operation at small odd sizes, and checks each element of each result on every rank."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from atoll.bench.block import spoil
from atoll.bench.operations import OPERATIONS, Problem, make
from atoll.bench.values import NUMBER_TYPES

COUNTS = (1, 1009, 40_009)  # elements per rank
NUMBERS = (("float32", "sum"), ("float32", "avg"), ("bfloat16", "sum"), ("int64", "max"))

# Operations whose results the last rank has and checks.
FAULTS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "scatter", "send")


@dataclass(frozen=True)
class Case:
    operation: str
    count: int
    dtype: str
    reduction: str

    def __str__(self) -> str:
        kind = f"{self.dtype}, {self.reduction}" if OPERATIONS[self.operation].reduces else self.dtype
        return f"{self.count} x {kind}"


def operations(ranks: int) -> list[str]:
    """Returns the operations that a group of this size supports."""
    return [name for name in OPERATIONS if name != "send" or ranks > 1]


def cases(operation: str) -> list[Case]:
    """Returns the cases of an operation. A barrier moves no data and has one case; few operations depend on the
    reduction."""
    if operation == "barrier":
        return [Case(operation, 1, "float32", "sum")]
    reduces = OPERATIONS[operation].reduces
    numbers = [(dtype, op) for dtype, op in NUMBERS if reduces or op != "avg"]
    return [Case(operation, count, dtype, op) for count in COUNTS for dtype, op in numbers]


def run(group: dist.ProcessGroup, device: str, fault: str, progress: Callable[[str], None]) -> dict[str, list[str]]:
    """Returns by operation the errors that this rank found for tensors on `device`. Called on all ranks; the last rank
    corrupts the first result of the operation `fault`. Raises RuntimeError that names the operation that failed."""
    found: dict[str, list[str]] = {}
    ranks = dist.get_world_size(group)
    for name in operations(ranks):
        progress(f"self-test: {name} on {device}")
        found[name] = []
        for index, case in enumerate(cases(name)):
            spoiled = name == fault and index == 0 and dist.get_rank(group) == ranks - 1
            try:
                wrong = _wrong_elements(group, case, device, spoiled)
            except Exception as error:
                raise RuntimeError(f"{name} of {case} on {device}: {error}") from error
            if wrong:
                found[name].append(f"{wrong} wrong elements of {case} on {device}")
    return found


def _wrong_elements(group: dist.ProcessGroup, case: Case, device: str, spoiled: bool) -> int:
    parts = dist.get_world_size(group) if OPERATIONS[case.operation].split else 1
    size = case.count * parts * NUMBER_TYPES[case.dtype].dtype.itemsize
    operation = make(Problem(case.operation, size, case.dtype, case.reduction, device), group)
    operation.fill()
    operation.call()
    if spoiled:
        spoil(operation)
    return operation.wrong(1)


def rows(tensors: str, found: Sequence[dict[str, list[str]]]) -> list[dict[str, Any]]:
    """Returns one row per operation from the errors of each rank; `tensors` names where the tensors were."""
    result = []
    for name in found[0]:
        failures = [{"rank": rank, "what": what} for rank, views in enumerate(found) for what in views[name]]
        result.append(
            {"operation": name, "tensors": tensors, "cases": len(cases(name)), "passed": not failures,
             "failures": failures}
        )  # fmt: skip
    return result
