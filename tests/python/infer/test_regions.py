# SPDX-License-Identifier: Apache-2.0
"""Every operator with a region rule, computed in two parts from the rows that the rule names, equals the whole."""

import json
import random
from collections.abc import Callable, Iterator

import pytest
import torch

from atoll import _C
from one_node import Call, call_with, graph_json, outputs_of, part_of
from operator_calls import FAMILIES, tensor

ROUNDS = 30
# Their second output says where in the whole plane a maximum was; a slice cannot know, and nobody uses it.
PLACES = (torch.ops.aten.max_pool2d_with_indices.default, torch.ops.aten.adaptive_max_pool2d.default)


def assert_equal(found: torch.Tensor, expected: torch.Tensor, message: str) -> None:
    assert found.shape == expected.shape, message
    assert found.dtype == expected.dtype, message
    if found.numel() == 0:
        return
    found, expected = found.double(), expected.double()
    same = found == expected  # infinities
    error = (found - expected).abs()[~same]
    finite = expected[expected.isfinite()]
    limit = 1e-12 * max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
    assert error.numel() == 0 or error.max().item() <= limit, message


def check_dim(call: Call, graph: str, whole: list[torch.Tensor], dim: int, dice: random.Random) -> None:
    rows = whole[0].shape[dim]
    cut = dice.choice([0, rows, dice.randint(0, rows), dice.randint(0, rows)])
    pieces = [part_of(call, graph, dim, begin, end) for begin, end in ((0, cut), (cut, rows)) if begin < end]
    for index, output in enumerate(whole):
        if output.dim() <= dim or output.shape[dim] != rows:
            continue
        found = torch.cat([piece[index] for piece in pieces], dim)
        if index == 0 or call.op not in PLACES:
            assert_equal(found, output, f"{call.name}, dimension {dim}, cut at {cut} of {rows}")


def check_call(call: Call, dice: random.Random) -> None:
    whole = call_with(call.op, call.values())
    graph = graph_json(call, whole)
    for dim in range(whole[0].dim()):
        if whole[0].shape[dim] == 0:
            continue
        locality = json.loads(_C.infer_split(graph, 0, dim))["locality"]
        if locality in ("partial", "global"):
            assert dim not in call.local, f"{call.name} is {locality} along dimension {dim}"
        else:
            check_dim(call, graph, whole, dim, dice)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_two_parts_are_the_whole(family: Callable[[random.Random], Iterator[Call]]) -> None:
    for seed in range(ROUNDS):
        torch.manual_seed(seed)
        dice = random.Random(seed)
        with torch.no_grad():
            for call in family(dice):
                check_call(call, dice)


def test_what_needs_sums_says_how_many_bytes() -> None:
    x = tensor(2, 3, 8, 8)
    call = Call(torch.ops.aten.adaptive_avg_pool2d.default, (x, [1, 1]))
    graph = graph_json(call, outputs_of(call.op(*call.args)))
    assert json.loads(_C.infer_split(graph, 0, 2)) == {
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
        _C.infer_slice(graph, 0, 0, 0, 3)
    with pytest.raises(ValueError, match="cannot be computed in parts"):
        _C.infer_slice(graph, 0, 1, 0, 3)
    with pytest.raises(ValueError, match="there is no node 1"):
        _C.infer_split(graph, 1, 0)
    with pytest.raises(torch.distributed.DistNetworkError, match="the graph is not JSON"):
        _C.infer_split(graph[:-1], 0, 0)
