# SPDX-License-Identifier: Apache-2.0
"""FSDP2 gives the training of one unsharded process, on one mesh dimension and on two."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from client_ranks import EVERYWHERE, on_layouts
from support import device, later
from training import network, optimizer, share, train_alone, train_together

STEPS = 6


def shard(model: nn.Module, mesh: DeviceMesh, **options: object) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def check_whole_parameters(model: nn.Module, reference: nn.Module, relative: float) -> None:
    """The gathered parameters are near the reference's and have the same bits on every rank."""
    expected = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        assert isinstance(parameter.data, DTensor)
        whole = parameter.data.full_tensor()
        assert (whole.cpu() - expected[name]).abs().max() <= relative * expected[name].abs().max(), name
        others = [torch.empty_like(whole) for _ in range(dist.get_world_size())]
        dist.all_gather(others, whole)
        assert all(torch.equal(other, whole) for other in others), name


@on_layouts(*EVERYWHERE)
def test_float32(rank: int, size: int) -> None:
    alone = network(torch.float32)
    losses = train_alone(alone, size, STEPS)
    together = shard(network(torch.float32, device()), init_device_mesh(device(), (size,)))
    mean = torch.tensor(train_together(together, rank, STEPS)) / size
    dist.all_reduce(mean)
    torch.testing.assert_close(mean, torch.tensor(losses), rtol=1e-5, atol=0)
    check_whole_parameters(together, alone, 1e-5)


@on_layouts(*EVERYWHERE)
def test_float64(rank: int, size: int) -> None:
    alone = network()
    train_alone(alone, size, STEPS)
    together = shard(network(place=device()), init_device_mesh(device(), (size,)), reshard_after_forward=False)
    train_together(together, rank, STEPS)
    check_whole_parameters(together, alone, 1e-12)


@on_layouts(*EVERYWHERE)
def test_clipped_gradients_and_sharded_optimizer_state(rank: int, size: int) -> None:
    alone, together = network(), shard(network(place=device()), init_device_mesh(device(), (size,)))
    for model, ranks, place in ((alone, range(size), "cpu"), (together, [rank], device())):
        update = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
        for step in range(STEPS):
            update.zero_grad()
            for other in ranks:
                inputs, targets = share(step, other, place=place)
                (nn.functional.cross_entropy(model(inputs), targets) / len(ranks)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=False)
            update.step()
    check_whole_parameters(together, alone, 1e-10)


def train_mixed_alone(model: nn.Module, size: int) -> None:
    """Trains in one process as the policy below means: bfloat16 layers, float32 sums of gradients and updates."""
    update = optimizer(model.parameters())
    for step in range(STEPS):
        update.zero_grad()
        for rank in range(size):
            low = network(torch.bfloat16)
            with torch.no_grad():
                for mine, master in zip(low.parameters(), model.parameters(), strict=True):
                    mine.copy_(master)
            inputs, targets = share(step, rank, torch.bfloat16)
            nn.functional.cross_entropy(low(inputs), targets).backward()
            for mine, master in zip(low.parameters(), model.parameters(), strict=True):
                part = mine.grad.float() / size
                master.grad = part if master.grad is None else master.grad + part
        update.step()


@on_layouts(*EVERYWHERE)
def test_bfloat16_parameters_with_float32_reduction(rank: int, size: int) -> None:
    alone = network(torch.float32)
    train_mixed_alone(alone, size)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    together = shard(network(torch.float32, device()), init_device_mesh(device(), (size,)), mp_policy=policy)
    train_together(together, rank, STEPS)
    check_whole_parameters(together, alone, 1e-3)


@on_layouts(later("AAAA"), "AABB", later("ABAB"), later("aabb"), "abaC")
def test_hybrid_sharding(rank: int, size: int) -> None:
    mesh = init_device_mesh(device(), (2, 2), mesh_dim_names=("replicate", "shard"))
    alone = network()
    train_alone(alone, size, STEPS)
    together = shard(network(place=device()), mesh)
    train_together(together, rank, STEPS)
    check_whole_parameters(together, alone, 1e-12)


@on_layouts(*EVERYWHERE)
def test_accumulation_without_synchronisation(rank: int, size: int) -> None:
    alone, together = network(), shard(network(place=device()), init_device_mesh(device(), (size,)))
    assert isinstance(together, FSDPModule)
    for model, ranks, place in ((alone, range(size), "cpu"), (together, [rank], device())):
        update = optimizer(model.parameters())
        for step in (0, 2, 4):
            update.zero_grad()
            for part in (step, step + 1):
                if model is together:
                    together.set_requires_gradient_sync(part == step + 1)
                for other in ranks:
                    inputs, targets = share(part, other, place=place)
                    (nn.functional.cross_entropy(model(inputs), targets) / len(ranks)).backward()
            update.step()
    check_whole_parameters(together, alone, 1e-12)
