# SPDX-License-Identifier: Apache-2.0
"""Ranks whose parameters diverge learn of it in time: by a warning if it is rounding, otherwise by an error."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.profiling import device as profiling
from atoll.weighting.replicas import align_replicas, checksum, replica_difference, replicas_of
from client_ranks import on_layouts
from isolated_models import adamw
from support import device, warnings_of_plans
from test_loader import BATCH, UNMEASURED, dataset, on_all_ranks, wrapped
from training import network


def train(
    model: nn.Module, changes: dict[int, Any], settings: atoll.training.Settings = UNMEASURED, **options: Any
) -> int:
    """Trains for six steps with these changes in them; returns the steps that were done."""
    update = adamw(model.parameters())
    loader = atoll.DataLoader(dataset(6 * BATCH), BATCH, model=model, policy="equal", settings=settings, **options)
    for step, (inputs, targets, _) in enumerate(loader, start=1):
        nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
        update.step()
        update.zero_grad()
        changes.get(step, lambda: None)()
    return loader.state_dict()["steps"]


def change(model: nn.Module, by: float, is_here: bool) -> Any:
    def apply() -> None:
        with torch.no_grad():
            parameter = list(model.parameters())[2]
            getattr(parameter, "_local_tensor", parameter)[0, 0] += by if is_here else 0.0

    return apply


@on_layouts("AAA", "aCb")
def test_more_than_rounding_is_an_error(rank: int, size: int) -> None:
    model = wrapped()
    said = (
        r"step 4: the parameters of rank 1 differ from those of other ranks by up to 0\.\d+ of the largest one, in "
        r"2.weight; they were still equal after step 2.*align_replicas"
    )
    with pytest.raises(RuntimeError, match=said):
        train(model, {3: change(model, 0.5, rank == 1)})
    align_replicas(model)
    assert replica_difference(model) == 0
    unchecked = atoll.training.Settings(measure=False, check_replicas=0)
    assert train(model, {2: change(model, 0.5, rank == 1)}, unchecked) == 6


@on_layouts("AAA")
def test_rounding_is_a_warning(rank: int, size: int) -> None:
    model = wrapped()
    with warnings_of_plans() as said:
        settings = atoll.training.Settings(measure=False, check_replicas=1)
        train(model, {2: change(model, 1e-9, rank == 1), 3: change(model, 1e-9, rank == 1),
                      4: change(model, 1e-7, rank == 1)}, settings)  # fmt: skip
    told = [text.partition(":")[0] for text in said if "round differently" in text]
    assert told == (["step 2", "step 4"] if rank == 0 else []), "and when it has grown tenfold"


@on_layouts("AAA")
def test_parameters_that_ranks_have_for_themselves(rank: int, size: int) -> None:
    net = network()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["2.weight", "2.bias"])
    model = DistributedDataParallel(net)
    assert train(model, {1: change(model, 1.0, rank == 1)}) == 6


@on_layouts("AAAA")
def test_replicas_of_shards(rank: int, size: int) -> None:
    def sharded(*shape: int) -> nn.Module:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        return fully_shard(network(), mesh=mesh)

    model = sharded(2, 2)
    with pytest.raises(RuntimeError, match=r"the parameters of rank 3 differ .* they were still equal after step 1"):
        train(model, {2: change(model, 0.5, rank == 3)})
    align_replicas(model)
    sums = on_all_ranks(checksum(model))
    assert sums[:2] == sums[2:]
    model = sharded(4)
    assert replicas_of(model) is None
    assert train(model, {2: change(model, 0.5, rank == 3)}) == 6, "what no other rank has cannot be compared"


@on_layouts("AAA")
def test_what_measuring_once_did_would_be_found(rank: int, size: int) -> None:
    """With static_graph DistributedDataParallel counts the passes over each parameter in its first step; measuring
    passes over the parameters themselves made it reduce too early."""
    model = DistributedDataParallel(network(), static_graph=True)
    for batch in range(profiling.WARM_UP + profiling.STEPS + rank):
        nn.functional.cross_entropy(model.module(dataset()[batch : batch + 1][0]), torch.zeros(1).long()).backward()
    model.zero_grad()
    with pytest.raises(RuntimeError, match="That is not rounding: some rank has changed parameters by itself, or"):
        train(model, {})
