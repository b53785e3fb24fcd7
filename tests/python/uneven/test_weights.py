# SPDX-License-Identifier: Apache-2.0
"""Uneven shares give the training of one process with the whole batch."""

import copy
import gc
import time
import weakref

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.batch_norm import SyncBatchNorm, convert_batch_norm
from atoll.weighting.batch_part import Part
from atoll.weighting.weights import weights_of
from client_ranks import on_layouts
from support import device, later
from training import check_close, check_equal_bits, network
from uneven_training import BATCH, adam, random_shares, sgd, train_alone, train_together

STEPS = 50
SGD_EXACT, ADAM_EXACT = 1e-12, 1e-10
SMALL_BUCKETS_MB = 0.001
LAYOUTS = (later("AA"), "AAA", "ABAA", later("ab"), "aCb")


def reference(**options: object) -> nn.Module:
    alone = network()
    train_alone(alone, STEPS, **options)  # type: ignore[arg-type]
    return alone


def wrapped(**options: object) -> DistributedDataParallel:
    return DistributedDataParallel(network(place=device()), bucket_cap_mb=SMALL_BUCKETS_MB, **options)  # type: ignore[arg-type]


# Proves E-1.
@on_layouts(*LAYOUTS)
def test_ddp(rank: int, size: int) -> None:
    for optimizer, exact in ((sgd, SGD_EXACT), (adam, ADAM_EXACT)):
        model = wrapped()
        train_together(model, weights_of(model), rank, random_shares(size, STEPS), optimizer)
        check_equal_bits(model)
        check_close(model.module, reference(optimizer=optimizer), exact)


@on_layouts("AA", "AAA")
def test_without_weights_it_differs(rank: int, size: int) -> None:
    model = wrapped()
    train_together(model, None, rank, random_shares(size, STEPS))
    with pytest.raises(AssertionError, match="off"):
        check_close(model.module, reference(), 1e-3)


@on_layouts(*LAYOUTS)
def test_parts_accumulate(rank: int, size: int) -> None:
    """Ranks have different numbers of parts, of different sizes, including empty ones."""
    for as_view in (False, True):
        model = wrapped(gradient_as_bucket_view=as_view)
        train_together(model, weights_of(model), rank, random_shares(size, STEPS, most_parts=4))
        check_close(model.module, reference(), SGD_EXACT)


@on_layouts("AAA", later("ab"))
def test_a_hook_of_the_user_sees_weighted_buckets(rank: int, size: int) -> None:
    """The hook is registered before or after the weights, with parts that accumulate."""
    for first in (True, False):
        model = wrapped()
        if first:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        weights = weights_of(model)
        if not first:
            model.register_comm_hook(None, default_hooks.allreduce_hook)
        train_together(model, weights, rank, random_shares(size, STEPS, most_parts=3))
        check_close(model.module, reference(), SGD_EXACT)


def register_bf16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)


def register_fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def register_power_sgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=17, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


@on_layouts("AAA")
def test_compressing_hooks(rank: int, size: int) -> None:
    """They lose as much with equal shares."""
    for register, far in ((register_bf16, 0.02), (register_fp16, 0.005), (register_power_sgd, 0.02)):
        # One bucket, because PowerSGD's own calls for several buckets have no fixed order on a CPU.
        model = DistributedDataParallel(network())
        weights = weights_of(model)
        register(model)
        train_together(model, weights, rank, random_shares(size, STEPS))
        check_close(model.module, reference(), far)


@on_layouts(later("AAA"), "ab")
def test_a_built_in_hook(rank: int, size: int) -> None:
    model = wrapped()
    model._register_builtin_comm_hook(torch.distributed.BuiltinCommHookType.ALLREDUCE)
    train_together(model, weights_of(model), rank, random_shares(size, STEPS, most_parts=3))
    check_close(model.module, reference(), SGD_EXACT)


@on_layouts("AA")
def test_gradients_of_empty_parts_may_be_anything(rank: int, size: int) -> None:
    """Zero times infinity is NaN, so gradients without weight must not be multiplied."""
    for hook in (None, default_hooks.allreduce_hook):
        model = wrapped()
        if hook is not None:
            model.register_comm_hook(None, hook)
        weights = weights_of(model)
        weights.begin(Part(0 if rank == 0 else BATCH, lambda: BATCH))
        (model(torch.ones(2, 12, dtype=torch.float64)).sum() * (float("inf") if rank == 0 else 1.0)).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


@on_layouts(later("AAA"), later("ab"), "aCb")
def test_fsdp(rank: int, size: int) -> None:
    model = network(place=device())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    weights = weights_of(model)
    assert weights.parts_must_match
    train_together(model, weights, rank, random_shares(size, STEPS, most_parts=3, alike=True))
    full = {name: parameter.full_tensor().detach() for name, parameter in model.named_parameters()}  # type: ignore[attr-defined]
    gathered = network()
    gathered.load_state_dict({name: value.cpu() for name, value in full.items()})
    check_close(gathered, reference(), SGD_EXACT)


def convolutional() -> nn.Module:
    torch.manual_seed(5)
    features = [nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(5 * 4 * 4, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5)).double()


@on_layouts(later("AA"), later("AAA"), "aCb")
def test_synchronised_batch_norm(rank: int, size: int) -> None:
    """Running statistics as well. All ranks compute one part, some of them an empty one."""
    alone = convolutional()
    train_alone(alone, STEPS, shape=(2, 6, 6))
    model = DistributedDataParallel(convert_batch_norm(convolutional()).to(device()), bucket_cap_mb=SMALL_BUCKETS_MB)
    assert sum(isinstance(module, SyncBatchNorm) for module in model.modules()) == 2
    weights = weights_of(model)
    assert weights.parts_must_match
    train_together(model, weights, rank, random_shares(size, STEPS), shape=(2, 6, 6))
    check_close(model.module, alone, 1e-11)
    for (name, mine), theirs in zip(model.module.named_buffers(), alone.buffers(), strict=True):
        assert torch.allclose(mine.cpu().double(), theirs.double(), rtol=1e-10, atol=1e-12), name


@on_layouts("AA")
def test_the_same_weights_when_asked_again(rank: int, size: int) -> None:
    model = wrapped()
    assert weights_of(model) is weights_of(model)
    with pytest.raises(TypeError, match="pass what reduces the gradients"):
        weights_of(copy.deepcopy(model.module))
    with pytest.raises(RuntimeError, match="before the first batch of atoll"):
        model(torch.ones(2, 12, dtype=torch.float64)).sum().backward()


@on_layouts("AA", "ab")
def test_a_model_that_is_gone_leaves_no_weights(rank: int, size: int) -> None:
    """The memory of its parameters and gradients is free again."""
    left = []
    for make in (wrapped, lambda: fully_shard(network(place=device()))):
        model = make()
        train_together(model, weights_of(model), rank, random_shares(size, 2))
        left += [weakref.ref(model), weakref.ref(weights_of(model))]
        del model
    deadline = time.monotonic() + 20  # a device's thread may still be leaving the last backward pass
    while any(reference() is not None for reference in left) and time.monotonic() < deadline:
        gc.collect()
    assert [reference() for reference in left] == [None] * 4
