# SPDX-License-Identifier: Apache-2.0
"""Operators that need sums over the split dimension: two sides exchange states of their rows and compute the whole."""

import json
import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from atoll import _C
from atoll.infer import capture
from atoll.infer.graph import to_text
from one_node import Call, call_with, graph_json, replaced, tensors_of
from summing_calls import FAMILIES, Summing, image
from testing import testing

ROUNDS = 12
Share = list[int]  # the robot's rows from and to, the server's


class Divided:
    """One call as a model whose first operand is split along `dim`."""

    def __init__(self, case: Summing) -> None:
        call, self.dim = case
        self.name = f"{call.name}, dimension {self.dim}"
        self.expected = call_with(call.op, call.values())[0]
        self.inputs = tensors_of(call.values())
        self.graph = graph_json(call, call_with(call.op, call.values()))
        self.model = testing.InferModel(self.graph, {})
        self.plan = json.loads(testing.plan_division(self.graph, 0, self.dim, "local"))
        shares = self.plan["shares"]
        self.has_states = len(shares) == len(self.inputs) + 2
        # Doubles are summed in doubles, and floats may be, too; no states are made that are larger than the few rows.
        assert self.has_states or self.inputs[0].dtype == torch.float32, f"{self.name}: states and a result"
        self.rows, self.results = shares[-2][1], shares[-1][1]
        assert not self.has_states or self.rows == self.inputs[0].shape[self.dim], self.name

    def division(self, states: Share, results: Share) -> str:
        shares = [*self.plan["shares"][:-2], states, results]
        return json.dumps({**self.plan, "shares": shares})


def assert_near(found: torch.Tensor, expected: torch.Tensor, message: str, limit: float = 1e-12) -> None:
    assert found.shape == expected.shape, message
    assert found.dtype == expected.dtype, message
    found, expected = found.double(), expected.double()
    same = (found == expected) | (found.isnan() & expected.isnan())
    error = (found - expected).abs()[~same]
    finite = expected[expected.isfinite()]
    largest = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
    assert error.numel() == 0 or error.max().item() <= limit * largest, message


def any_share(dice: random.Random, rows: int) -> Share:
    """Returns the shares of a random cut, sometimes with rows on both sides; either side may have the first rows."""
    end = dice.choice([0, 1, rows - 1, rows, dice.randint(0, rows)])
    begin = dice.choice([end, dice.randint(0, end)])
    low, high = [0, end], [begin, rows]
    return [*low, *high] if dice.random() < 0.5 else [*high, *low]


def exact_limit(expected: torch.Tensor) -> float:
    return 1e-12 if expected.dtype == torch.float64 or not expected.is_floating_point() else 1e-6


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_two_sides_make_the_whole(family: Callable[[random.Random], Iterator[Summing]]) -> None:
    for seed in range(ROUNDS):
        torch.manual_seed(seed)
        dice = random.Random(seed)
        with torch.no_grad():
            for case in family(dice):
                divided = Divided(case)
                for _ in range(4):
                    division = divided.division(any_share(dice, divided.rows), any_share(dice, divided.results))
                    (found,) = divided.model.run_divided(divided.inputs, division)
                    message = f"{divided.name}, divided {division}"
                    assert_near(found, divided.expected, message, exact_limit(divided.expected))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_one_side_with_everything_calls_the_operator(family: Callable[[random.Random], Iterator[Summing]]) -> None:
    torch.manual_seed(1)
    dice = random.Random(1)
    with torch.no_grad():
        for case in family(dice):
            divided = Divided(case)
            rows, results = divided.rows, divided.results
            for division in (
                divided.division([0, rows, 0, 0], [0, results, 0, 0]),
                divided.division([0, 0, 0, rows], [0, 0, 0, results]),
            ):
                (found,) = divided.model.run_divided(divided.inputs, division)
                assert torch.equal(found.nan_to_num(), divided.expected.nan_to_num()), divided.name


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_float32_deviates_no_more_than_twice_the_operator(family: Callable[[random.Random], Iterator[Summing]]) -> None:
    """Compares the worst of many calls, relative to their results, because a single call may be right by luck."""
    worst: dict[str, tuple[float, float]] = {}
    skipped: set[str] = set()
    for seed in range(25):
        torch.manual_seed(seed)
        dice = random.Random(seed)
        with torch.no_grad():
            for call, dim in family(dice):
                values = call.values()
                is_other = any(t.dtype != torch.float64 or not t.isfinite().all() for t in tensors_of(values))
                if is_other or any(value is torch.float32 for value in values):
                    continue
                rounded = tuple(v.float() if isinstance(v, torch.Tensor) else v for v in call.args)
                single = Call(call.op, rounded, call.kwargs)
                doubles = [t.double() for t in tensors_of(single.values())]
                exact = call_with(call.op, replaced(values, doubles))[0].double()
                divided = Divided((single, dim))
                if not divided.has_states:
                    skipped.add(str(call.op))
                    continue
                division = divided.division(any_share(dice, divided.rows), any_share(dice, divided.results))
                (found,) = divided.model.run_divided(divided.inputs, division)
                largest = exact.abs().max().item()
                unsplit = (divided.expected.double() - exact).abs().max().item() / largest
                deviation = (found.double() - exact).abs().max().item() / largest
                before = worst.get(str(call.op), (0.0, 0.0))
                worst[str(call.op)] = max(before[0], unsplit), max(before[1], deviation)
    assert skipped <= set(worst)
    for name, (unsplit, deviation) in worst.items():
        assert deviation <= 2 * max(unsplit, torch.finfo(torch.float32).eps), name


def test_a_side_whose_peer_stops_gets_the_answer_alone() -> None:
    torch.manual_seed(2)
    dice = random.Random(2)
    with torch.no_grad():
        for family in FAMILIES:
            for case in family(dice):
                divided = Divided(case)
                half = [divided.rows // 2, divided.rows, 0, divided.rows // 2]
                results = [divided.results // 2, divided.results, 0, divided.results // 2]
                if divided.results == 1:
                    results = [0, 1, 0, 0]
                division = divided.division(half, results)
                for after in range(divided.model.steps(division) + 1):
                    (found,) = divided.model.cut_short(divided.inputs, division, after)
                    message = f"{divided.name}, stopped after {after} steps"
                    assert_near(found, divided.expected, message, exact_limit(divided.expected))


class Gated(nn.Module):
    """Norms over places, and a gate by the mean over them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Sigmoid())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = self.second(x * self.squeeze(x))
        return torch.softmax(x, 2).mean((2, 3))


def test_a_model_of_norms_is_divided_by_its_rows() -> None:
    """With two equally fast sides the plan divides across norms, a gate and softmax."""
    torch.manual_seed(3)
    module = Gated().double().eval()
    x = torch.randn(1, 3, 24, 20, dtype=torch.float64)
    bundle = capture(module, (x,))
    graph = to_text(bundle.graph).decode()
    model = testing.InferModel(graph, bundle.weights)
    counts = json.loads(_C.infer_dims(graph, bundle.graph["inputs"][0], 2))
    assert counts["partial"] == 5
    whole = model.run([x])[0]
    assert torch.equal(whole, module(x))
    nodes = len(bundle.graph["nodes"])
    costs = {"robot": [[0, 1.0]] * nodes, "server": [[0, 1.0]] * nodes}
    options = json.dumps({"up": 1e4, "down": 1e4, "latency": 1e-3, **costs})
    division = json.loads(testing.plan_division(graph, bundle.graph["inputs"][0], 2, "auto", options))
    shared = [share for share in division["shares"] if share[0] < share[1] and share[2] < share[3]]
    assert len(shared) > nodes // 2, division
    found = model.run_divided([x], json.dumps(division))[0]
    assert_near(found, whole, "auto")
    for seed in range(20):
        division = testing.plan_division(graph, bundle.graph["inputs"][0], 2, "random", json.dumps({"seed": seed}))
        assert_near(model.run_divided([x], division)[0], whole, division)


def test_half_precision_is_summed_in_float32() -> None:
    torch.manual_seed(4)
    dice = random.Random(4)
    x = image(dice).bfloat16()
    divided = Divided((Call(torch.ops.aten.mean.dim, (x, [2], True)), 2))
    (found,) = divided.model.run_divided(divided.inputs, divided.division([1, divided.rows, 0, 1], [0, 1, 0, 0]))
    exact = x.double().mean(2, keepdim=True)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * exact.abs().max()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.uint8, torch.bool], ids=str
)
def test_extremes_are_exact_in_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    aten = torch.ops.aten
    x = torch.randint(0, 100, (2, 6, 7)).to(dtype)
    calls = [Call(op, (x, [2], True)) for op in (aten.amax.default, aten.amin.default)]
    calls += [Call(op, (x,)) for op in (aten.max.default, aten.min.default)]
    for call in calls:
        divided = Divided((call, 2))
        (found,) = divided.model.run_divided(divided.inputs, divided.division([3, divided.rows, 0, 3], [0, 1, 0, 0]))
        assert found.dtype == dtype, divided.name
        assert torch.equal(found, divided.expected), divided.name
