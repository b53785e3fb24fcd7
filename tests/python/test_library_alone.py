# SPDX-License-Identifier: Apache-2.0
"""A group of one rank, and the library that ATOLL_INNER names."""

import pytest
import torch
import torch.distributed as dist

import atoll
from support import Ranks, device


def call_alone(rank: int) -> str:
    tensor = torch.full((5003,), 3.0, device=device())
    dist.all_reduce(tensor)
    whole = torch.empty(5003, device=device())
    dist.all_gather_into_tensor(whole, tensor)
    assert whole.eq(3).all().item()
    return atoll.layout()[0].library


@pytest.mark.parametrize(("place", "setting"), [("cpu", "cpu:gloo"), ("sim", "sim:simccl"), ("sim", "")])
def test_a_library_that_is_named_works_in_a_group_of_one_rank(place: str, setting: str) -> None:
    ranks = Ranks(1, ["A"], {"ATOLL_INNER": setting}, [place])
    try:
        assert ranks.run(call_alone) == [setting.partition(":")[2] or "atoll"]
    finally:
        ranks.stop()
