# SPDX-License-Identifier: Apache-2.0
"""Examples for tests: captured once, run in float32 and in float64 on two sides, and compared."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from atoll.infer import Bundle, capture
from atoll.infer.graph import from_text, to_text
from export_models import TRANSFORMERS, example
from own_error import Tensors, deviation, own_error
from testing import testing

CLOSE = 1e-12  # of the largest value, between two ways to the same result in float64


@dataclass(frozen=True)
class Captured:
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bundle: Bundle


@cache
def captured(name: str) -> Captured:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    module, args, kwargs = example(name)
    return Captured(module, args, kwargs, capture(module, args, kwargs))


@dataclass(frozen=True)
class Sides:
    """The model on both sides of a division, and the example's inputs."""

    bundle: Bundle
    graph: str
    inputs: list[torch.Tensor]
    model: testing.InferModel

    @staticmethod
    def of(bundle: Bundle, inputs: Tensors) -> "Sides":
        graph = to_text(bundle.graph).decode()
        return Sides(bundle, graph, list(inputs), testing.InferModel(graph, bundle.weights))

    def run(self) -> list[torch.Tensor]:
        """Runs the model on one side."""
        return self.model.run(self.inputs)

    def divided(self, division: str) -> list[torch.Tensor]:
        return self.model.run_divided(self.inputs, division)

    def division(self, dim: int, policy: str, **options: object) -> str:
        return testing.plan_division(self.graph, self.bundle.graph["inputs"][0], dim, policy, json.dumps(options))

    def in_float64(self) -> "Sides":
        """Returns the same graph, weights and inputs with float64 for every float32, also where the module itself
        requests float32, as LLaMA's norms do."""
        graph = from_text(to_text(self.bundle.graph).replace(b'"float32"', b'"float64"'))
        weights = {name: _wide(weight.detach()) for name, weight in self.bundle.weights.items()}
        bundle = Bundle(graph, weights, self.bundle.inputs, self.bundle.output)
        return Sides.of(bundle, [_wide(each) for each in self.inputs])


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.double() if tensor.dtype == torch.float32 else tensor


@cache
def single_sides(name: str) -> Sides:
    """Returns the sides in float32."""
    one = captured(name)
    return Sides.of(one.bundle, one.bundle.check_inputs(one.args, one.kwargs))


@cache
def exact_sides(name: str) -> Sides:
    """Returns the sides in float64."""
    return single_sides(name).in_float64()


def allowed(sides: Sides, truth: Tensors) -> float:
    """Returns how far a division in float32 may be from the truth: twice as far as the undivided model."""
    return 2 * own_error(sides.bundle, sides.inputs, sides.run(), truth)


def leads(scores: torch.Tensor, classes: int) -> torch.Tensor:
    """Returns the difference between the largest and the second largest value along that dimension."""
    best = scores.double().topk(2, classes).values
    return best.select(classes, 0) - best.select(classes, 1)


def assert_alike(found: Tensors, truth: Tensors, limit: float, classes: int, what: str) -> None:
    """Checks that no float is further from the truth than `limit`, and that along the dimension `classes` of the
    first output the largest value is in the same place wherever it leads by more than two limits. Outputs of whole
    numbers are such places, or must be equal."""
    assert [one.shape for one in found] == [other.shape for other in truth], what
    sure = leads(truth[0], classes) > 2 * limit
    same = found[0].argmax(classes) == truth[0].argmax(classes)
    assert bool((same | ~sure).all()), f"another value is the largest: {what}"
    error = deviation(found, truth)
    assert error <= limit, f"{error} off, {limit} allowed: {what}"
    for one, other in zip(found, truth, strict=True):
        if not other.is_floating_point():
            unsure = ~sure if sure.shape == other.shape else torch.zeros_like(other, dtype=torch.bool)
            assert bool(((one == other) | unsure).all()), f"other whole numbers: {what}"


def both_compute(division: str) -> int:
    """Returns the number of operators that both sides compute parts of."""
    shares = json.loads(division)["shares"]
    return sum(end > begin and last > first for begin, end, first, last in shares)
