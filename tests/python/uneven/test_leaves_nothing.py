# SPDX-License-Identifier: Apache-2.0
"""Measuring leaves nothing behind: a training is, bit for bit, the same as without it."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
import isolated_models
from client_ranks import on_layouts
from isolated_models import KINDS, WRAPPERS, Checkpointed, Counting, InBackward, Net, adamw, over_replicas
from support import Ranks, device, sampled
from test_loader import dataset
from training import CLASSES, FEATURES, check_equal_bits, network

BATCH, STEPS = 24, 4
NOT_SHARDED = ("Writing", "Hooked")  # these models use whole parameters in a pass
NOT_COMPILED = ("Recurrent", "Drawing", "Writing", "Hooked", "Spectral", "WeightNormed", "Counting", "Checkpointed")


def plain(value: Any) -> Any:
    """Converts a state so that `==` compares it bit for bit."""
    if isinstance(value, torch.Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        return [tuple(value.shape), value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()]
    if isinstance(value, dict):
        return {name: plain(held) for name, held in value.items()}
    return [plain(held) for held in value] if isinstance(value, list | tuple) else repr(value)


def trained(kind: type[Net], wrap: Callable[[nn.Module], nn.Module], measure: bool, optimizer: Any = adamw) -> Any:
    """Returns the state of a short training, and the result of each step."""
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(7)
    isolated_models.passes = Counting.of_class = 0
    isolated_models.seen.clear()
    net = kind().double()
    model = wrap(net)
    size = torch.distributed.get_world_size()
    shares = [BATCH - 3 * (size - 1), *[3] * (size - 1)]
    settings = atoll.training.Settings(measure=measure, reuse=False, replay=[{"step": 0, "batches": shares}])
    update = optimizer(model.parameters())
    loader = atoll.DataLoader(dataset(STEPS * BATCH), BATCH, model=model, settings=settings)
    assert (loader.planner.facts[0].profile is not None) == measure
    outputs = []
    for inputs, targets, _ in loader:
        output = model(inputs)
        nn.functional.cross_entropy(output, targets).backward()
        update.step()
        update.zero_grad()
        outputs.append(output)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    inner = getattr(inner, "_orig_mod", inner)
    if isinstance(model, DistributedDataParallel):
        check_equal_bits(model)
    return plain([outputs, dict(inner.state_dict()), inner.kept(), torch.get_rng_state(), random.getstate()])


def check(kind: type[Net], wrap: Callable[[nn.Module], nn.Module], optimizer: Any = adamw) -> None:
    unmeasured, measured = (trained(kind, wrap, measure, optimizer) for measure in (False, True))
    parts = ("outputs", "parameters and buffers", "what is kept", "PyTorch's random state", "Python's random state")
    for name, expected, found in zip(parts, unmeasured, measured, strict=True):
        assert found == expected, f"{kind.__name__}: {name}"


def can_wrap(name: str, kind: type[Net]) -> bool:
    left_out = {"sharded": NOT_SHARDED, "compiled": NOT_COMPILED}.get(name, ())
    return kind.__name__ not in left_out


def each_kind(rank: int, names: list[str], kinds: list[int]) -> None:
    for name, kind in itertools.product(names, [KINDS[number] for number in kinds]):
        if can_wrap(name, kind):
            check(kind, WRAPPERS[name])


NAMES = [kind.__name__ for kind in KINDS]


# Proves E-3.
@pytest.mark.parametrize("ranks", ["AAA"], indirect=True)
@pytest.mark.parametrize("name", sampled(NAMES, {"Spectral", "WeightNormed", "Tied", "Writing"}))
def test_each_model(ranks: Ranks, name: str) -> None:
    ranks.run(each_kind, ["static", "sharded"], [NAMES.index(name)])


# Proves E-3.
@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("name", [name for name in WRAPPERS if name != "compiled"])
def test_each_wrapper(ranks: Ranks, name: str) -> None:
    ranks.run(each_kind, [name], [0])


@pytest.mark.verify
@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("name", WRAPPERS)
def test_each_model_in_each_wrapper(ranks: Ranks, name: str, number: int) -> None:
    ranks.run(each_kind, [name], [number])


@on_layouts("AAAA")
def test_optimizers_in_the_backward_pass(rank: int, size: int) -> None:
    for wrap in (WRAPPERS["sharded"], over_replicas):
        check(Checkpointed, wrap, InBackward)


def measured(model: nn.Module, **settings: Any) -> atoll.DataLoader:
    given = atoll.training.Settings(reuse=False, replay=[{"step": 0, "batches": [BATCH - 9, 9]}], **settings)
    return atoll.DataLoader(dataset(STEPS * BATCH), BATCH, model=model, settings=given)


@on_layouts("AA")
def test_graphs_are_compiled_for_the_training(rank: int, size: int) -> None:
    """Otherwise training would use graphs compiled for other sizes or for the bare model."""
    compiled: list[bool] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(any(isinstance(each, torch.SymInt) for each in inputs))
        return graph

    model = DistributedDataParallel(torch.compile(network(), backend=backend))
    loader = measured(model)
    assert compiled == [False, True], "one size, then any"
    compiled.clear()
    inputs, targets, _ = next(iter(loader))
    nn.functional.cross_entropy(model(inputs), targets).backward()
    assert compiled == [False], "for the training's size"


@on_layouts("AA")
def test_autocast_keeps_no_weight_of_the_measurement(rank: int, size: int) -> None:
    net = network(torch.float32)
    model = DistributedDataParallel(net)
    with torch.autocast("cpu", torch.bfloat16):
        loader = measured(model, forward=lambda net, batch: net(batch[0].float()).square().mean())
        inputs, targets, _ = next(iter(loader))
        loss = nn.functional.cross_entropy(model(inputs.float()), targets)
    loss.backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@on_layouts("AA", "ab")
def test_parameters_are_restored(rank: int, size: int) -> None:
    """Including gradients, flags and hooks, also if a measurement fails, and for TorchScript modules."""

    def forward(net: nn.Module, batch: Any) -> torch.Tensor:
        if calls is not None:
            calls.append(1)
            if len(calls) == 3:
                raise ValueError("this loss cannot be computed")
        return net(batch[0]).square().mean()

    for script in (False, True):
        net = network(place=device())
        model = DistributedDataParallel(torch.jit.script(net) if script else net)
        inner = model.module
        dict(inner.named_parameters())["0.bias"].requires_grad_(False)
        own = list(inner.parameters())
        for place, parameter in enumerate(own):
            parameter.grad = torch.full_like(parameter, float(place))
        fired: list[int] = []
        own[0].register_hook(lambda _, fired=fired: fired.append(1))
        for calls in ([], None):
            if calls is not None:
                with pytest.raises(ValueError, match="this loss cannot be computed"):
                    measured(model, forward=forward)
                calls = None
            else:
                loader = measured(model, forward=forward)
            assert all(held is then for held, then in zip(inner.parameters(), own, strict=True))
            assert [each.requires_grad for each in own] == [True, False, *[True] * 4]
            assert all(bool((each.grad == place).all()) for place, each in enumerate(own) if each.requires_grad)
            assert not fired
        inputs, targets, _ = next(iter(loader))
        nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
        assert fired == [1]


class Clipping(nn.Module):
    """A model whose third and later passes write to a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.count = nn.Linear(FEATURES, CLASSES), 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.count += 1
        if self.count > 2:
            self.layer.bias.data.add_(1.0)
        return self.layer(rows)


@on_layouts("AA")
def test_changes_that_cannot_be_undone_are_an_error(rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match=r"measuring changed parameters of the model.*Settings\(measure=False\)"):
        measured(DistributedDataParallel(Clipping().double()))
