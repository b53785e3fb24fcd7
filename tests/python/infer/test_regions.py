# SPDX-License-Identifier: Apache-2.0
"""Every operator with a region rule, computed in two regions that cover the output from the rows that the rule
names, equals the whole: in float64 up to rounding, in float32 at most twice as far from float64 as the whole."""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from atoll import _C
from one_node import Call, call_with, graph_json, outputs_of, part_of
from operator_calls import FAMILIES, tensor
from testing import testing

ROUNDS = 30
SINGLE_ROUNDS = 10
CLOSE = 1e-12
EPSILON = torch.finfo(torch.float32).eps
# Their second output is the position of a maximum in the whole plane, which a slice cannot know, and which is unused.
PLACES = (torch.ops.aten.max_pool2d_with_indices.default, torch.ops.aten.adaptive_max_pool2d.default)


@dataclass
class Whole:
    """A call, its results for all rows, and how far parts may be from the truth, by output."""

    call: Call
    made: list[torch.Tensor]
    truth: list[torch.Tensor]
    limits: list[float]

    def __post_init__(self) -> None:
        self.graph = graph_json(self.call, self.made)

    def check(self, dice: random.Random) -> None:
        for dim in range(self.made[0].dim()):
            if self.made[0].shape[dim] == 0:
                continue
            locality = json.loads(testing.infer_split(self.graph, 0, dim))["locality"]
            if locality in ("partial", "global"):
                assert dim not in self.call.local, f"{self.call.name} is {locality} along dimension {dim}"
                continue
            for begin, end in covering(self.made[0].shape[dim], dice):
                self._check_region(dim, begin, end)

    def _check_region(self, dim: int, begin: int, end: int) -> None:
        where = dim, begin, end
        if begin == end:
            empty = json.loads(testing.infer_slice(self.graph, 0, *where))
            assert empty == {"operands": [], "pads": [], "changes": [], "keep": [0, 0]}, self._name(where)
            return
        rows = self.made[0].shape[dim]
        found = part_of(self.call, self.graph, *where)
        for index, (part, output) in enumerate(zip(found, self.truth, strict=True)):
            if output.dim() <= dim or output.shape[dim] != rows or (index > 0 and self.call.op in PLACES):
                continue
            expected = output.narrow(dim, begin, end - begin)
            assert part.shape == expected.shape, self._name(where)
            assert part.dtype == self.made[index].dtype, self._name(where)
            assert error_of(part, expected) <= self.limits[index], self._name(where)

    def _name(self, where: tuple[int, int, int]) -> str:
        return f"{self.call.name}, dimension {where[0]}, rows {where[1:]} of {self.made[0].shape[where[0]]}"


def largest(output: torch.Tensor) -> float:
    """Returns the largest magnitude, but at least 1, which is the size of operands."""
    finite = output.double()[output.isfinite()]
    return max(1.0, finite.abs().max().item() if finite.numel() else 1.0)


def error_of(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the largest error. Infinities and NaN must be equal, or else are infinitely far off."""
    found, expected = found.double(), expected.double()
    errors = (found - expected).abs()[found != expected]
    worst = errors.max().item() if errors.numel() else 0.0
    return math.inf if math.isnan(worst) else worst


def covering(rows: int, dice: random.Random) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns two adjacent or overlapping regions, one of which is often empty."""
    begin, end = sorted(dice.choice([0, rows, dice.randint(0, rows), dice.randint(0, rows)]) for _ in range(2))
    return (0, end), (dice.choice([begin, end]), rows)


def check_call(call: Call, dice: random.Random) -> None:
    made = call_with(call.op, call.values())
    Whole(call, made, made, [CLOSE * largest(output) for output in made]).check(dice)


def converted(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
    """Returns an argument, or several, with one type replaced by the other."""
    if isinstance(value, torch.Tensor):
        return value.to(target) if value.dtype == source else value
    if isinstance(value, list | tuple):
        return type(value)(converted(entry, source, target) for entry in value)
    return target if value is source else value


def call_in(call: Call, source: torch.dtype, target: torch.dtype) -> Call:
    named = {name: converted(value, source, target) for name, value in call.kwargs.items()}
    return Call(call.op, converted(call.args, source, target), named, call.local)


def check_single_call(call: Call, dice: random.Random) -> None:
    """Checks float32. Values that are not floats must equal those of the whole call. One unit in the last place is
    allowed, for a whole call that is exact by luck."""
    single = call_in(call, torch.float64, torch.float32)
    exact = call_in(single, torch.float32, torch.float64)
    made, truth = call_with(single.op, single.values()), call_with(exact.op, exact.values())
    limits = [2 * max(error_of(one, other), EPSILON * largest(other)) for one, other in zip(made, truth, strict=True)]
    wanted = [other if one.is_floating_point() else one for one, other in zip(made, truth, strict=True)]
    Whole(single, made, wanted, limits).check(dice)


@pytest.mark.parametrize(
    ("check", "rounds"), [(check_call, ROUNDS), (check_single_call, SINGLE_ROUNDS)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_two_regions_are_the_whole(
    family: Callable[[random.Random], Iterator[Call]], check: Callable[[Call, random.Random], None], rounds: int
) -> None:
    for seed in range(rounds):
        torch.manual_seed(seed)
        dice = random.Random(seed)
        with torch.no_grad():
            for call in family(dice):
                check(call, dice)


def test_what_needs_sums_says_how_many_bytes() -> None:
    x = tensor(2, 3, 8, 8)
    call = Call(torch.ops.aten.adaptive_avg_pool2d.default, (x, [1, 1]))
    graph = graph_json(call, outputs_of(call.op(*call.args)))
    assert json.loads(testing.infer_split(graph, 0, 2)) == {
        "locality": "partial",
        "state_bytes": 2 * 3 * 8,
        "operands": [{"tensor": 0, "dim": -1, "map": "whole"}],
    }
    assert json.loads(_C.infer_dims(graph, 0, 2)) == {
        "dims": [2, -1], "local": 0, "partial": 1, "global": 0, "constant": 0,
    }  # fmt: skip


def test_errors_are_those_of_torch() -> None:
    call = Call(torch.ops.aten.softmax.int, (tensor(2, 3), 1))
    graph = graph_json(call, outputs_of(call.op(*call.args)))
    with pytest.raises(ValueError, match=r"has 2 rows, not \[0, 3\)"):
        testing.infer_slice(graph, 0, 0, 0, 3)
    with pytest.raises(ValueError, match="cannot be computed in parts"):
        testing.infer_slice(graph, 0, 1, 0, 3)
    with pytest.raises(ValueError, match="there is no node 1"):
        testing.infer_split(graph, 1, 0)
    with pytest.raises(torch.distributed.DistNetworkError, match="the graph is not JSON"):
        testing.infer_split(graph[:-1], 0, 0)
