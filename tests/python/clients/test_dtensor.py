# SPDX-License-Identifier: Apache-2.0
"""DTensor redistributes between all placements, on meshes of one and two dimensions, with uneven shards."""

import itertools

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from client_ranks import on_layouts

UNEVEN = (7, 5)


def whole() -> torch.Tensor:
    return torch.arange(35, dtype=torch.float64).reshape(UNEVEN) + 1


def spread(mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """`whole` in these placements; a partial dimension holds it split into unequal summands."""
    value = whole()
    replicated = [Replicate() if placement.is_partial() else placement for placement in placements]
    tensor = distribute_tensor(value, mesh, replicated)
    local = tensor.to_local()
    for dimension, placement in enumerate(placements):
        if placement.is_partial():
            count = mesh.size(dimension)
            local = local * (2.0 * (mesh.get_local_rank(dimension) + 1) / (count * (count + 1)))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


def check(mesh: DeviceMesh, sources: list[tuple[Placement, ...]], targets: list[tuple[Placement, ...]]) -> None:
    for source, target in itertools.product(sources, targets):
        moved = spread(mesh, source).redistribute(mesh, target)
        assert moved.placements == target
        torch.testing.assert_close(moved.full_tensor(), whole(), msg=f"{source} to {target}")
        if not any(placement.is_partial() for placement in target):
            expected = distribute_tensor(whole(), mesh, target).to_local()
            torch.testing.assert_close(moved.to_local(), expected, msg=f"{source} to {target}")


@on_layouts("AAA", "ABA")
def test_one_dimension(rank: int, size: int) -> None:
    places: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    combinations = [(place,) for place in places]
    check(init_device_mesh("cpu", (size,)), [*combinations, (Partial(),)], combinations)


@on_layouts("AAAA", "AABB", "ABAB")
def test_two_dimensions(rank: int, size: int) -> None:
    places: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    targets = list(itertools.product(places, repeat=2))
    sources = list(itertools.product([*places, Partial()], repeat=2))
    check(init_device_mesh("cpu", (2, 2)), sources, targets)


@on_layouts("AAA", "ABA")
def test_round_trip_through_a_product(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    random = torch.Generator().manual_seed(1)
    left = torch.randn(4, 11, generator=random, dtype=torch.float64)
    right = torch.randn(11, 8, generator=random, dtype=torch.float64)
    product = distribute_tensor(left, mesh, [Shard(1)]) @ distribute_tensor(right, mesh, [Shard(0)])
    assert product.placements == (Partial(),)
    scattered = product.redistribute(mesh, [Shard(0)])
    torch.testing.assert_close(scattered.full_tensor(), left @ right)
    torch.testing.assert_close(product.redistribute(mesh, [Replicate()]).to_local(), left @ right)


@on_layouts("AAA", "ABA")
def test_tensor_parallel_layers(rank: int, size: int) -> None:
    def layers() -> nn.Module:
        torch.manual_seed(11)
        return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 6)).double()

    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    alone = layers()
    alone(inputs).square().mean().backward()
    mesh = init_device_mesh("cpu", (size,))
    split = parallelize_module(layers(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    split(inputs).square().mean().backward()
    expected = dict(alone.named_parameters())
    for name, parameter in split.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        torch.testing.assert_close(parameter.grad.full_tensor(), expected[name].grad, msg=name)
