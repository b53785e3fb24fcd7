# SPDX-License-Identifier: Apache-2.0
"""The baseline ATOLL_BRIDGE=relay: right results for every mixture of devices, and clear errors."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from support import Ranks, device, raises, run_script

RELAY = {"ATOLL_BRIDGE": "relay"}
MIXTURES = [
    ("AB", ["cpu", "sim"]),
    ("ABA", ["sim", "cpu", "sim"]),  # ranks of an island are not neighbours
    ("AAB", ["sim", "sim", "sim"]),  # unequal islands of one kind
    ("AA", ["sim", "sim"]),  # nothing crosses
    ("ABB", ["cpu", "cpu", "cpu"]),
]


@pytest.fixture(
    params=MIXTURES, ids=lambda mixture: f"{mixture[0]}-{'-'.join(dict.fromkeys(mixture[1]))}", scope="module"
)
def relayed(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    islands, devices = request.param
    ranks = Ranks(len(devices), list(islands), RELAY, devices)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="module")
def pair() -> Iterator[Ranks]:
    ranks = Ranks(2, ["A", "B"], RELAY, ["cpu", "sim"])
    yield ranks
    ranks.stop()


def own(rank: int, count: int, dtype: torch.dtype, where: str) -> torch.Tensor:
    return (torch.arange(count) % 13 + 3 * rank + 1).to(dtype).to(where)


def everything(rank: int, where: str) -> None:
    size = dist.get_world_size()
    for count in (0, 1, 61, 100_003):
        for dtype in (torch.float32, torch.int64):
            parts = [own(each, count, dtype, "cpu") for each in range(size)]
            tensor = own(rank, count, dtype, where)
            dist.all_reduce(tensor)
            assert torch.equal(tensor.cpu(), torch.stack(parts).sum(0)), ("all_reduce", count, dtype)
            tensor = own(rank, count, dtype, where)
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
            assert torch.equal(tensor.cpu(), parts[-1]), ("max", count, dtype)
            for root in range(size):
                tensor = own(rank, count, dtype, where)
                dist.broadcast(tensor, root)
                assert torch.equal(tensor.cpu(), parts[root]), ("broadcast", count, dtype, root)
            whole = torch.empty(size * count, dtype=dtype, device=where)
            dist.all_gather_single(whole, own(rank, count, dtype, where))
            assert torch.equal(whole.cpu(), torch.cat(parts)), ("all_gather", count, dtype)
            mine = torch.empty(count, dtype=dtype, device=where)
            dist.reduce_scatter_single(mine, (whole * (rank + 1)))
            assert torch.equal(mine.cpu(), parts[rank] * (size * (size + 1) // 2)), ("reduce_scatter", count, dtype)
    tensor = own(rank, 8, torch.float32, where)
    dist.all_reduce(tensor, dist.ReduceOp.AVG)
    assert torch.equal(tensor.cpu(), own(0, 8, torch.float32, "cpu") + 3 * (size - 1) / 2)
    dist.barrier()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))


def everything_here(rank: int) -> None:
    everything(rank, device())


def everything_on_the_cpu(rank: int) -> None:
    everything(rank, "cpu")


def train_one_step(rank: int) -> list[float]:
    torch.manual_seed(rank)  # the first rank's parameters count
    model = DistributedDataParallel(nn.Linear(4, 3).to(device()))
    model(torch.full((2, 4), rank + 1.0, device=device())).sum().backward()
    weight = model.module.weight
    assert weight.grad is not None
    assert torch.equal(weight.grad.cpu(), torch.full((3, 4), dist.get_world_size() + 1.0))
    return [float(value) for value in weight.detach().cpu().flatten()]


def test_every_operation(relayed: Ranks) -> None:
    relayed.run(everything_here)


def test_tensors_on_the_cpu(relayed: Ranks) -> None:
    relayed.run(everything_on_the_cpu)


def test_ddp(relayed: Ranks) -> None:
    weights = relayed.run(train_one_step)
    assert all(of_rank == weights[0] for of_rank in weights)


def ask_for_what_it_lacks(rank: int) -> None:
    tensor = torch.ones(4, device=device())
    with raises(
        NotImplementedError, "ATOLL_BRIDGE=relay", "does not support reduce,", "all_reduce", "unset ATOLL_BRIDGE"
    ):
        dist.reduce(tensor, 0)
    with raises(NotImplementedError, "does not support all_to_all_single"):
        dist.all_to_all_single(torch.empty_like(tensor), tensor)
    with raises(NotImplementedError, "does not support send"):
        dist.send(tensor, 1 - rank)
    with raises(ValueError, "contiguous tensors, all_reduce got one of strides (1, 2)"):
        dist.all_reduce(torch.ones(2, 2, device=device()).t())
    with raises(ValueError, "the group uses the relay", "unset it"):
        atoll.islands()


def test_refusals(pair: Ranks) -> None:
    pair.run(ask_for_what_it_lacks)


def come_alone(rank: int) -> None:
    group = dist.new_group(backend="atoll", timeout=timedelta(seconds=1))
    if rank == 0:
        with raises(RuntimeError, "imed out"):
            dist.all_reduce(torch.ones(4), group=group)


def test_a_missing_rank_ends_the_wait() -> None:
    ranks = Ranks(2, ["A", "B"], RELAY)
    ranks.run(come_alone)
    ranks.stop()


START = """
import os, torch.distributed as dist
{before}
try:
    dist.init_process_group("atoll")
    import torch
    dist.all_reduce(torch.ones(1))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_value_must_be_known() -> None:
    [done] = run_script(START.format(before=""), 1, {"ATOLL_BRIDGE": "tunnel"})
    assert 'ValueError ATOLL_BRIDGE="tunnel": expected relay, or unset' in done.stdout


def test_some_ranks_without_it_are_named() -> None:
    before = 'os.environ.update({"ATOLL_BRIDGE": "relay"} if os.environ["RANK"] == "0" else {})'
    with_it, without = run_script(START.format(before=before), 2)
    assert "ATOLL_BRIDGE=relay is set here but not on ranks [1]: set it on all ranks or on none" in with_it.stdout
    assert "Error" in without.stdout


def test_an_island_needs_a_library() -> None:
    before = "import atoll.sim"
    for done in run_script(START.format(before=before), 2, RELAY | {"ATOLL_INNER": "sim:none"}):
        assert "the relay needs a library on sim for the island of ranks [0, 1]" in done.stdout
