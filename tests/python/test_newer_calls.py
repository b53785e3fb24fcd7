# SPDX-License-Identifier: Apache-2.0
"""Features of torch.distributed since 2.14: gather_single, hooks for failures, and backends that packages declare."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device, raises

SINCE_2_14 = pytest.mark.skipif(not hasattr(dist, "gather_single"), reason=f"torch {torch.__version__}, not 2.14")


def run_on(layout: str, check: Callable[[int], None], place: str = "cpu") -> None:
    ranks = Ranks(len(layout), layout, devices=[place] * len(layout))
    try:
        ranks.run(check)
    finally:
        ranks.stop()


def check_gather_single(rank: int) -> None:
    size = dist.get_world_size()
    gather: Any = dist.gather_single  # type: ignore[attr-defined]
    for shape in ((), (3,), (2, 5), (0,)):
        for root in range(size):
            mine = torch.full(shape, float(rank), device=device())
            if mine.dim() == 2:
                mine = mine.t().contiguous().t()
            whole = torch.full((size, *shape), -1.0, device=device()) if rank == root else None
            gather(mine, whole, dst=root)
            if whole is not None:
                expected = torch.arange(float(size)).view(size, *[1] * len(shape)).expand(size, *shape)
                assert torch.equal(whole.cpu(), expected)


def check_wrong_output(rank: int) -> None:
    size = dist.get_world_size()
    wrong = torch.empty(size * 3 + 1) if rank == 0 else None
    # The others learn of it, unless their contributions were sent earlier.
    with contextlib.suppress(RuntimeError) if rank else raises(Exception, "gather_single"):
        dist.gather_single(torch.ones(3), wrong, dst=0)  # type: ignore[attr-defined]
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert (tensor == size).all(), "the group goes on"


@SINCE_2_14
@pytest.mark.parametrize("layout", ["A", "AAB", "AB"])
def test_gather_single(layout: str) -> None:
    run_on(layout, check_gather_single)
    run_on(layout, check_wrong_output)


@SINCE_2_14
@pytest.mark.parametrize("layout", ["AA", "AAB"])
def test_gather_single_on_devices(layout: str) -> None:
    run_on(layout, check_gather_single, "sim")


def check_hooks(rank: int) -> None:
    called = [threading.Event() for _ in range(3)]
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    backend.register_abort_hook(7, called[0].set)
    backend.register_abort_hook(8, called[1].set)
    backend.unregister_abort_hook(8)
    if rank == 0:
        backend.abort()
    with raises(RuntimeError, ""):
        dist.all_reduce(torch.ones(1), group=group)
        dist.barrier(group)
    assert called[0].wait(20), "called on every rank"
    backend.register_abort_hook(9, called[2].set)
    assert called[2].wait(20), "at once, if it has already failed"
    assert not called[1].is_set()
    fine = dist.new_group()
    other = threading.Event()
    fine._get_backend(torch.device("cpu")).register_abort_hook(1, other.set)
    dist.all_reduce(torch.ones(1), group=fine)
    dist.destroy_process_group(fine)
    assert not other.is_set(), "an orderly end is no failure"


@SINCE_2_14
def test_hooks_are_called_when_the_group_fails() -> None:
    run_on("AB", check_hooks)


@SINCE_2_14
def test_the_backend_is_found_without_being_loaded_with_torch() -> None:
    job = """
import torch, torch.distributed as dist
assert "ATOLL" not in dist.Backend._plugins
dist.init_process_group("atoll", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
dist.destroy_process_group()
"""
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", job], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
