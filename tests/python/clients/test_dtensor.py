# SPDX-License-Identifier: Apache-2.0
"""DTensor redistributes between all placements, on meshes of one and two dimensions, with uneven shards."""

import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from client_ranks import EVERYWHERE, are_devices_unlike, on_layouts
from support import device, later, raises

UNEVEN = (7, 5)


def whole() -> torch.Tensor:
    return torch.arange(35, dtype=torch.float64).reshape(UNEVEN) + 1


def spread(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """Returns `whole` in these placements; a partial dimension holds it split into unequal summands."""
    value = whole()
    replicated = [Replicate() if placement.is_partial() else placement for placement in placements]
    tensor = distribute_tensor(value, mesh, replicated)
    local = tensor.to_local()
    for dimension, placement in enumerate(placements):
        if placement.is_partial():
            count = mesh.size(dimension)
            local = local * (2.0 * (mesh.get_local_rank(dimension) + 1) / (count * (count + 1)))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


def changes_sharding(source: tuple[Placement, ...], target: tuple[Placement, ...]) -> bool:
    return any(a.is_shard() and b.is_shard() and a != b for a, b in zip(source, target, strict=True))


def check(mesh: DeviceMesh, sources: list[tuple[Placement, ...]], targets: list[tuple[Placement, ...]]) -> None:
    unlike = are_devices_unlike()
    for source, target in itertools.product(sources, targets):
        if unlike and changes_sharding(source, target):
            continue  # refused, see test_new_sharding_on_unlike_devices
        moved = spread(mesh, source).redistribute(mesh, target)
        assert moved.placements == target
        torch.testing.assert_close(moved.full_tensor().cpu(), whole(), msg=f"{source} to {target}")
        if not any(placement.is_partial() for placement in target):
            expected = distribute_tensor(whole(), mesh, target).to_local()
            torch.testing.assert_close(moved.to_local().cpu(), expected.cpu(), msg=f"{source} to {target}")


@on_layouts(*EVERYWHERE)
def test_one_dimension(rank: int, size: int) -> None:
    places: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    combinations = [(place,) for place in places]
    check(init_device_mesh(device(), (size,)), [*combinations, (Partial(),)], combinations)


@on_layouts("Ab")
def test_new_sharding_on_unlike_devices(rank: int, size: int) -> None:
    """DTensor calls all_gather for it on CPUs and all_to_all elsewhere, which is an error on all ranks. In two steps
    it works."""
    group = dist.new_group()
    mesh = DeviceMesh.from_group(group, device())
    sharded = distribute_tensor(whole(), mesh, [Shard(0)])
    moved = sharded.redistribute(mesh, [Replicate()]).redistribute(mesh, [Shard(1)])
    torch.testing.assert_close(moved.full_tensor().cpu(), whole())
    with raises(RuntimeError, "all_gather", "all_to_all", "same operations in the same order"):
        sharded.redistribute(mesh, [Shard(1)])
    dist.destroy_process_group(group)


@on_layouts(later("AAAA"), "AABB", later("ABAB"), later("aabb"), "abaC")
def test_two_dimensions(rank: int, size: int) -> None:
    places: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    targets = list(itertools.product(places, repeat=2))
    sources = list(itertools.product([*places, Partial()], repeat=2))
    check(init_device_mesh(device(), (2, 2)), sources, targets)


@on_layouts(*EVERYWHERE)
def test_round_trip_through_a_product(rank: int, size: int) -> None:
    mesh = init_device_mesh(device(), (size,))
    random = torch.Generator().manual_seed(1)
    left = torch.randn(4, 11, generator=random, dtype=torch.float64)
    right = torch.randn(11, 8, generator=random, dtype=torch.float64)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    scattered = product.redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(scattered.full_tensor().cpu(), left @ right)
    torch.testing.assert_close(product.redistribute(mesh, [Replicate()]).to_local().cpu(), left @ right)


@on_layouts(*EVERYWHERE)
def test_tensor_parallel_layers(rank: int, size: int) -> None:
    def layers() -> nn.Module:
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6)).double()

    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    alone = layers()
    alone(inputs).square().mean().backward()
    mesh = init_device_mesh(device(), (size,))
    split = parallelize_module(layers().to(device()), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    split(inputs.to(device())).square().mean().backward()
    expected = dict(alone.named_parameters())
    for name, parameter in split.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor().cpu(), expected[name].grad, msg=name)
