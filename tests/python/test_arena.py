# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that ranks of one host read where it lies: those of atoll.empty, DDP's buckets, FSDP2's buffers."""

import gc
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll import arena
from support import Ranks, device, later, run_script, threads_of_atoll

LARGE = 300_007  # elements: several chunks, the last of them incomplete


@pytest.fixture(scope="module", params=["AA", "AB", "ABA"])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    started = Ranks(len(request.param), list(request.param))
    yield started
    started.stop()


def numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.arange(count) * 7 + rank * 3) % 11).to(dtype)


def in_arena(values: torch.Tensor) -> torch.Tensor:
    return atoll.empty(values.shape, dtype=values.dtype).copy_(values)


def lent() -> float:
    return atoll.time_split()["bytes_lent"]


def check_collectives(rank: int, dtype: torch.dtype) -> None:
    size = dist.get_world_size()
    all_values = [numbers(r, LARGE * size, dtype) for r in range(size)]
    total = torch.stack([values.double() for values in all_values]).sum(0).to(dtype)
    mine = all_values[rank]
    before = lent()

    reduced = in_arena(mine)
    dist.all_reduce(reduced)
    assert torch.equal(reduced, total)

    view = in_arena(mine)[5 : LARGE + 3]
    dist.all_reduce(view)
    assert torch.equal(view, total[5 : LARGE + 3])

    gathered = atoll.empty(LARGE * size, dtype=dtype)
    dist.all_gather_into_tensor(gathered, in_arena(mine[:LARGE]))
    assert torch.equal(gathered, torch.cat([values[:LARGE] for values in all_values]))

    part = atoll.empty(LARGE, dtype=dtype)
    dist.reduce_scatter_tensor(part, in_arena(mine))
    assert torch.equal(part, total[rank * LARGE : (rank + 1) * LARGE])

    passed = in_arena(mine)
    dist.broadcast(passed, size - 1)
    assert torch.equal(passed, all_values[size - 1])

    exchanged = atoll.empty(LARGE * size, dtype=dtype)
    dist.all_to_all_single(exchanged, in_arena(mine))
    assert torch.equal(exchanged, torch.cat([values[rank * LARGE : (rank + 1) * LARGE] for values in all_values]))
    assert lent() > before


@pytest.mark.parametrize("dtype", [torch.float32, later(torch.bfloat16), later(torch.int64)])
def test_collectives_on_arena_memory(ranks: Ranks, dtype: torch.dtype) -> None:
    ranks.run(check_collectives, dtype)


def sum_of(rank: int, dtype: torch.dtype) -> bytes:
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(LARGE, generator=generator).to(dtype)
    dist.all_reduce(values)
    return values.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, later(torch.bfloat16)])
def test_any_number_of_threads_folds_to_the_same_bits(dtype: torch.dtype) -> None:
    found = []
    for threads in ("1", "3"):
        started = Ranks(2, environment={"ATOLL_FOLD_THREADS": threads})
        try:
            found += started.run(sum_of, dtype)
            names = started.run(names_of_threads)
        finally:
            started.stop()
        assert all(("atoll-fold" in name) == (threads == "3") for name in names)
    assert len(set(found)) == 1


def names_of_threads(rank: int) -> list[str]:
    return threads_of_atoll()


def test_an_invalid_number_of_threads_is_an_error() -> None:
    source = "import torch.distributed as dist, atoll; dist.init_process_group('atoll')"
    (done,) = run_script(source, 1, {"ATOLL_FOLD_THREADS": "0"})
    assert done.returncode != 0
    assert 'ATOLL_FOLD_THREADS="0": expected a whole number from 1 to 64' in done.stderr


def check_mixed_memory(rank: int) -> None:
    size = dist.get_world_size()
    values = numbers(rank, LARGE, torch.float32)
    expected = torch.stack([numbers(r, LARGE, torch.float32) for r in range(size)]).sum(0)
    for lenders in range(size + 1):
        tensor = in_arena(values) if rank < lenders else values.clone()
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert torch.equal(tensor, expected)


def test_some_ranks_may_have_private_memory(ranks: Ranks) -> None:
    ranks.run(check_mixed_memory)


def check_private_memory(rank: int) -> None:
    before = lent()
    dist.all_reduce(torch.ones(LARGE))
    assert lent() == before


def test_private_memory_is_not_lent(ranks: Ranks) -> None:
    ranks.run(check_private_memory)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 4)).double()


def batch(rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(8, 400, generator=generator, dtype=torch.float64)


def gradients_of_all(size: int) -> list[torch.Tensor]:
    whole = model()
    (sum(whole(batch(r)).square().mean() for r in range(size)) / size).backward()
    return [parameter.grad for parameter in whole.parameters() if parameter.grad is not None]


def check_ddp(rank: int) -> None:
    wrapped = DistributedDataParallel(model())
    before = lent()
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(batch(rank)).square().mean().backward()
    assert lent() - before > 3 * 400 * 400 * 8 / 2
    for parameter, expected in zip(wrapped.parameters(), gradients_of_all(dist.get_world_size()), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-12, atol=1e-14)


def test_ddp_has_its_buckets_there(ranks: Ranks) -> None:
    ranks.run(check_ddp)


def check_complex_ddp(rank: int) -> None:
    layer = nn.Linear(300, 300, dtype=torch.complex64)
    wrapped = DistributedDataParallel(layer)
    for _ in range(3):
        wrapped.zero_grad()
        wrapped(torch.ones(2, 300, dtype=torch.complex64) * (rank + 1)).abs().sum().backward()
    assert layer.weight.grad is not None
    total = layer.weight.grad.clone()
    dist.broadcast(total, 0)
    assert torch.equal(total, layer.weight.grad)


def test_ddp_with_complex_parameters_has_ordinary_buckets() -> None:
    started = Ranks(2)
    try:
        started.run(check_complex_ddp)
    finally:
        started.stop()


def check_fsdp(rank: int) -> None:
    sharded = fully_shard(model())
    sharded.set_allocate_memory_from_process_group_for_comm(True)
    before = lent()
    sharded(batch(rank)).square().mean().backward()
    assert lent() > before
    for parameter, expected in zip(sharded.parameters(), gradients_of_all(dist.get_world_size()), strict=True):
        grad: Any = parameter.grad
        torch.testing.assert_close(grad.full_tensor(), expected, rtol=1e-12, atol=1e-14)


def test_fsdp2_has_its_buffers_there(ranks: Ranks) -> None:
    ranks.run(check_fsdp)


def check_staging(rank: int, is_lent: bool) -> None:
    values = numbers(rank, 3_000_001, torch.float32)
    tensor = values.to(device())
    before = lent()
    for _ in range(3):
        tensor.copy_(values)
        dist.all_reduce(tensor)
        expected = numbers(0, 3_000_001, torch.float32) + numbers(1, 3_000_001, torch.float32)
        assert torch.equal(tensor.cpu(), expected)
    assert (lent() > before) == is_lent
    used = arena.memory()
    group = dist.new_group(backend="atoll")
    dist.all_reduce(tensor, group=group)
    dist.destroy_process_group(group)
    gc.collect()
    assert arena.memory()["allocated"] == used["allocated"]


@pytest.mark.parametrize("budget", ["", "0"])
def test_the_way_to_devices_leads_through_the_arena(budget: str) -> None:
    started = Ranks(2, ["A", "B"], {"ATOLL_ARENA": budget}, ["sim", "sim"])
    try:
        started.run(check_staging, not budget)
    finally:
        started.stop()


def check_returned(rank: int, groups: int) -> None:
    for _ in range(groups):
        group = dist.new_group(backend="atoll")
        tensor = atoll.empty(2_000_000)
        tensor.fill_(1)
        dist.all_reduce(tensor, group=group)
        assert tensor[-1] == dist.get_world_size()
        del tensor
        dist.destroy_process_group(group)
    gc.collect()
    used = arena.memory()
    assert used["allocated"] < 1 << 20
    assert used["mapped"] <= 300 << 20


@pytest.mark.parametrize("groups", [20, later(1000)])
def test_memory_is_returned(groups: int) -> None:
    started = Ranks(2)
    try:
        started.run(check_returned, groups)
    finally:
        started.stop()


def test_empty_is_like_torchs() -> None:
    assert atoll.empty(3, 4).shape == (3, 4)
    assert atoll.empty((3, 4), dtype=torch.int8).dtype == torch.int8
    assert atoll.empty(2).dtype == torch.get_default_dtype()
    assert atoll.empty(0).numel() == 0
    assert atoll.empty(()).shape == ()
    with pytest.raises((RuntimeError, ValueError)):
        atoll.empty(-1)


def test_storage_can_be_resized() -> None:
    tensor = atoll.empty(1000)
    tensor.fill_(3)
    tensor.untyped_storage().resize_(8000)
    assert tensor.sum() == 3000
    tensor.untyped_storage().resize_(0)
    del tensor


WITHOUT_BUDGET = """
import atoll
tensors = [atoll.empty(5_000_000) for _ in range(4)]
for tensor in tensors:
    tensor.fill_(1)
    assert tensor.sum() == 5_000_000
"""


@pytest.mark.parametrize(("budget", "warnings_given"), [("0", 0), ("30", 1)])
def test_ordinary_memory_is_used_beyond_the_budget(budget: str, warnings_given: int) -> None:
    (done,) = run_script(WITHOUT_BUDGET, 1, {"ATOLL_ARENA": budget})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the arena has no memory for 20000000 bytes") == warnings_given
    assert done.stderr.count("ATOLL_ARENA") == warnings_given


@pytest.mark.parametrize("budget", ["much", "-1", "15"])
def test_an_invalid_budget_is_an_error(budget: str) -> None:
    (done,) = run_script("import atoll; atoll.empty(4)", 1, {"ATOLL_ARENA": budget})
    assert done.returncode != 0
    assert f'ATOLL_ARENA="{budget}": expected a whole number of mebibytes from 16 on, or 0' in done.stderr


def check_own_choice(rank: int) -> None:
    assert os.environ["DDP_DISABLE_COMM_MEM"] == "1"


def test_the_users_choice_for_ddp_stays() -> None:
    started = Ranks(2, environment={"DDP_DISABLE_COMM_MEM": "1"})
    try:
        started.run(check_own_choice)
    finally:
        started.stop()


def test_a_forked_child_shares_the_memory() -> None:
    tensor = atoll.empty(1000)
    tensor.fill_(1)
    child = os.fork()
    if child == 0:
        code = 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tensor.fill_(2)
            own = atoll.empty(1000)
            own.fill_(5)
            del tensor
            code = 0 if own.sum() == 5000 else 1
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert tensor.sum() == 2000
