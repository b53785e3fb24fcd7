# SPDX-License-Identifier: Apache-2.0
"""fully_shard over meshes other than a single dimension of all ranks: replicas of shards, and shards of one rank."""

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import atoll
from atoll.weighting.weights import weights_of
from client_ranks import on_layouts
from support import device, later
from test_loader import BATCH as SAMPLES
from test_loader import dataset
from test_weights import SGD_EXACT
from training import check_close, network
from uneven_training import random_shares, train_alone, train_together

STEPS = 12


def sharded(mesh: DeviceMesh) -> nn.Module:
    model = network(place=device())
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def check(model: nn.Module) -> None:
    gathered = network()
    gathered.load_state_dict({name: value.full_tensor().cpu() for name, value in model.state_dict().items()})
    alone = network()
    train_alone(alone, STEPS)
    check_close(gathered, alone, SGD_EXACT)


@on_layouts("AAAA", later("abaC"))
def test_replicas_of_shards(rank: int, size: int) -> None:
    for shape in ((2, 2), (4, 1)):
        model = sharded(init_device_mesh(device(), shape, mesh_dim_names=("replicate", "shard")))
        weights = weights_of(model)
        assert weights.group.size() == size
        train_together(model, weights, rank, random_shares(size, STEPS, most_parts=2, alike=True))
        check(model)


@on_layouts(later("AA"), "ab")
def test_replicas_alone(rank: int, size: int) -> None:
    mesh = init_device_mesh(device(), (size,))
    model = network(place=device())
    for layer in model:
        if isinstance(layer, nn.Linear):
            replicate(layer, mesh=mesh)
    replicate(model, mesh=mesh)
    train_together(model, weights_of(model), rank, random_shares(size, STEPS, most_parts=3, alike=True))
    check(model)


@on_layouts("AA")
def test_a_mesh_of_one_rank(rank: int, size: int) -> None:
    """Each rank trains alone; parts of a step still count by their samples."""
    mesh = init_device_mesh(device(), (size, 1), mesh_dim_names=("apart", "shard"))["shard"]
    model = sharded(mesh)
    train_together(model, weights_of(model), 0, random_shares(1, STEPS, most_parts=4))
    check(model)


@on_layouts("AA", later("ab"))
def test_devices_are_measured_with_a_sharded_model(rank: int, size: int) -> None:
    model = sharded(init_device_mesh(device(), (size,)))
    before = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
    loader = atoll.DataLoader(dataset(), SAMPLES, model=model, settings=atoll.training.Settings(reuse=False))
    assert all(facts.profile is not None for facts in loader.planner.facts)
    assert sum(loader.batch_sizes()) == SAMPLES
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value.full_tensor(), before[name])
