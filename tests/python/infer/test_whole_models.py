# SPDX-License-Identifier: Apache-2.0
"""Whole models, divided between two sides by every policy and in random ways, answer like the undivided ones: in
float64 up to rounding, in float32 at most twice as far from the float64 model as the undivided one."""

import gc
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch

import networks
from atoll import _C
from atoll.infer import capture
from atoll.plan import inference_policies
from captured import (
    CLOSE,
    Sides,
    allowed,
    assert_alike,
    both_compute,
    exact_sides,
    leads,
    single_sides,
)
from export_models import CLASSES, DIMS, EXAMPLES, TRANSFORMERS
from networks import NETWORKS
from own_error import deviation, judged, largest
from support import crossed, sampled
from testing import testing

# All of these have a plan for every model: where nothing can be divided, intra-dp and hybrid-parallel equal cut. Random
# plans have tests of their own.
POLICIES = ("local", "offload", "stream", "cut", "energy", "tensor", "intra-dp", "hybrid-parallel", "auto")
# A slow robot and a fast link, so that plans divide.
LINK = {"up": 1e8, "down": 1e8, "latency": 1e-6, "evaluations": 100, "chunks": 3}
PLANS = 20


@dataclass(frozen=True)
class Case:
    """A model, its exact answers, and the allowed error of each way to run it."""

    dims: Sequence[int]
    classes: int
    truth: list[torch.Tensor]
    runs: list[tuple[Sides, float]]

    @property
    def sides(self) -> Sides:
        return self.runs[0][0]

    def check(self, division: str) -> None:
        for sides, limit in self.runs:
            assert_alike(sides.divided(division), self.truth, limit, self.classes, division)

    def check_policy(self, policy: str, dim: int) -> int:
        """Checks a policy; returns the number of operators that both sides compute parts of."""
        division = self.sides.division(dim, policy, **LINK)
        self.check(division)
        return both_compute(division)

    def check_random(self, seed: int) -> int:
        dim = self.dims[seed % len(self.dims)]
        division = json.loads(self.sides.division(dim, "random", seed=seed)) | {"chunks": seed % 8 + 1}
        self.check(json.dumps(division))
        return both_compute(json.dumps(division))


@cache
def case(name: str) -> Case:
    single, exact = single_sides(name), exact_sides(name)
    truth = exact.run()
    runs = [(single, allowed(single, truth)), (exact, CLOSE * largest(truth))]
    return Case(DIMS[name], CLASSES[name], truth, runs)


def full_case(name: str) -> Case:
    """Returns the case at its published size, in float32."""
    network = NETWORKS[name]
    module, args, kwargs = networks.example(name, full=True)
    bundle = capture(module, args, kwargs)
    sides = Sides.of(bundle, bundle.check_inputs(args, kwargs))
    truth = sides.in_float64().run()
    limit = allowed(sides, truth)
    with torch.no_grad():
        answer = bundle.output.tensors_of(module(*args, **kwargs), "output")
    assert_alike(answer, truth, limit, network.classes, "the module itself")
    dims = [dim for dim in network.dims if sides.inputs[0].shape[dim] > 1]
    return Case(dims, network.classes, truth, [(sides, limit)])


def test_the_policies_are_all_there_are() -> None:
    assert {*POLICIES, "random"} == set(inference_policies())


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_have_as_many_parameters_as_the_published_ones(name: str) -> None:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    network = NETWORKS[name]
    with torch.device("meta"):
        module = network.make(**network.full)
    assert sum(parameter.numel() for parameter in module.parameters()) == network.parameters


@pytest.mark.parametrize("name", EXAMPLES)
def test_kernels_alone_do_not_move_these_models(name: str) -> None:
    """The allowed error, twice that of the undivided model, is then twice its error with default kernels."""
    (sides, limit), _ = case(name).runs
    truth = case(name).truth
    unit = torch.finfo(torch.float32).eps * largest(truth)
    assert limit == 2 * max(deviation(sides.run(), truth), unit)


def test_what_kernels_move_is_measured_by_the_largest() -> None:
    assert judged(0.0061, [0.0061, 0.0212, 0.0008], 4.7e-5) == 0.0212
    assert judged(0.0061, [0.0061, 0.0091, 0.0008], 4.7e-5) == 0.0061
    assert judged(1e-7, [1e-7, 9e-7], 1e-7) == 1e-7, "in the last places it is luck"
    assert judged(0.0, [0.0], 1e-7) == 1e-7


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_compared_depends_on_the_input(name: str) -> None:
    """A model with the same answer for any image would be right even with wrong regions."""
    found = case(name)
    sides = exact_sides(name)
    for dim in found.dims:
        turned = [sides.inputs[0].flip(dim), *sides.inputs[1:]]
        assert deviation(sides.model.run(turned), found.truth) > 1e-4 * largest(found.truth)
    (_, limit), _ = found.runs
    sure = leads(found.truth[0], found.classes) > 2 * limit
    assert sure.float().mean() > 0.5, "most argmaxes are decided by more than rounding"


# Proves I-1.
@pytest.mark.parametrize(("name", "policy"), crossed(EXAMPLES, POLICIES))
def test_every_policy(name: str, policy: str) -> None:
    found = case(name)
    shared = sum(found.check_policy(policy, dim) for dim in found.dims)
    assert policy != "tensor" or name not in NETWORKS or shared > 0


# Proves I-1.
@pytest.mark.parametrize("name", sampled(EXAMPLES, {"resnet152", "resnet101", "vgg19"}))
def test_random_plans(name: str) -> None:
    assert sum(map(case(name).check_random, range(PLANS))) > 0


@pytest.mark.verify
@pytest.mark.parametrize("name", EXAMPLES)
def test_many_random_plans(name: str) -> None:
    for seed in range(PLANS, 6 * PLANS):
        case(name).check_random(seed)


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NETWORKS)
def test_full_size(name: str) -> None:
    """A server admits the model, and each plan gives its answer."""
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    found = full_case(name)
    _C.infer_admit(found.sides.graph)
    for policy in POLICIES:
        found.check_policy(policy, found.dims[0])
    assert sum(map(found.check_random, range(PLANS))) > 0
    del found
    gc.collect()
    testing.infer_empty_arena()
