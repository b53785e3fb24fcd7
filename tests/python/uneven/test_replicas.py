# SPDX-License-Identifier: Apache-2.0
"""Ranks that no longer hold the same model are detected, and can be aligned."""

import math

import torch

from atoll.weighting.replicas import align_replicas, checksum, replica_difference
from client_ranks import on_layouts
from support import device
from test_loader import on_all_ranks
from training import network


@on_layouts("AAA", "aCb")
def test_one_bit_is_seen(rank: int, size: int) -> None:
    model = network(place=device())
    assert len(set(on_all_ranks(checksum(model)))) == 1
    assert replica_difference(model) == 0
    with torch.no_grad():
        weight = next(model.parameters())
        largest = max(float(parameter.abs().max()) for parameter in model.parameters())
        if rank == 1:
            weight[0, 0] += 1e-9
    assert len(set(on_all_ranks(checksum(model)))) == 2
    assert abs(replica_difference(model) - 1e-9 / largest) < 1e-12
    align_replicas(model)
    assert len(set(on_all_ranks(checksum(model)))) == 1


@on_layouts("AAA", "aCb")
def test_what_is_not_finite_is_a_difference_unless_all_have_it(rank: int, size: int) -> None:
    for value in (math.nan, math.inf, -math.inf):
        model = network(place=device())
        weight = next(model.parameters())
        with torch.no_grad():
            weight[0, 0] = value if rank == 1 else 1.0
        assert replica_difference(model) == math.inf
        with torch.no_grad():
            weight[0, 0] = value
        assert replica_difference(model) == 0
