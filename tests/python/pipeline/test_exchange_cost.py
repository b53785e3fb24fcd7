# SPDX-License-Identifier: Apache-2.0
"""The latency of links while both ends compute."""

import itertools

import pytest
import torch
import torch.distributed as dist

from atoll.loading.exchange import Exchange
from atoll.pipeline.exchange_cost import _pairs, under_load
from atoll.pipeline.planner_request import Link
from support import Ranks
from test_planner_request import rank as measured

NOTHING = 1e-12  # seconds


def test_one_pair_of_each_two_classes() -> None:
    assert _pairs([[0, 1, 4], [3], [2, 5]]) == [(0, 1), (0, 2), (0, 3), (2, 3), (2, 5)]
    assert _pairs([[0]]) == []


def loaded_body(rank: int, seconds_per_byte: float) -> list[float]:
    """Ranks 0 and 1 are of one class, 2 and 3 of another; nothing is known of 0 and 3."""
    ranks = [measured("a", 0, 1.0), measured("a", 0, 1.0), measured("b", 1, 1.0), measured("b", 1, 1.0)]
    pairs = [pair for pair in itertools.combinations(range(4), 2) if pair != (0, 3)]
    links = [Link(a, b, NOTHING, seconds_per_byte) for a, b in pairs]
    value = torch.ones(64, requires_grad=True)
    found = under_load(Exchange(dist.group.WORLD, torch.device("cpu")), ranks, links, lambda: value * 2)
    assert [(link.a, link.b, link.seconds_per_byte) for link in found] == [(a, b, seconds_per_byte) for a, b in pairs]
    return [link.latency for link in found]


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
def test_latencies_are_those_of_classes(ranks: Ranks) -> None:
    found = ranks.run(loaded_body, 0.0)
    assert all(each == found[0] for each in found), "all ranks ask the planner the same"
    inside_a, *across, inside_b = found[0]
    assert len(set(across)) == 1, "what was measured of one pair counts for all of its classes"
    assert min(found[0]) >= NOTHING
    assert max(inside_a, inside_b, *across) > 1e-7, "an exchange takes time"


@pytest.mark.parametrize("ranks", ["AABB"], indirect=True)
def test_transfer_time_is_not_latency(ranks: Ranks) -> None:
    assert ranks.run(loaded_body, 10.0)[0] == [NOTHING] * 5
