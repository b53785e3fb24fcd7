# SPDX-License-Identifier: Apache-2.0
"""bench/device_pair.py with a simulated device: two stages, and messages in registered memory."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support import Ranks, device
from ucx_ways import over_ucx, skip_without_ucx

ROOT = Path(__file__).resolve().parents[2]
TCP = "tcp,self"
LIMIT = timedelta(seconds=30)


@pytest.fixture(scope="module", autouse=True)
def ucx() -> None:
    skip_without_ucx()


@pytest.mark.verify
@pytest.mark.timeout(300)
def test_the_program_prints_its_rows() -> None:
    command = [
        sys.executable, "-m", "atoll.cli", "run", "--island", "gpu:1,device=sim", "--island", "cpu:1,device=cpu",
        str(ROOT / "bench/device_pair.py"), "--quick",
    ]  # fmt: skip
    environment = {**os.environ, **over_ucx(TCP)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| stages | predicted, ms | simulated, ms | measured, ms | off |" in done.stdout
    assert "of 2 blocks, width 32 |" in done.stdout
    assert "| message | ring, us (GB/s) | registered each time, us (GB/s) | registered once, us (GB/s) |" in done.stdout
    assert "Messages of the group went through rings." in done.stdout


def straight(rank: int) -> list[str]:
    """Sends one number in both directions, and checks the errors for a link that is not open and for a message of
    another size."""
    from atoll import _C
    from atoll.backend import backend_of

    backend, peer = backend_of(), 1 - rank
    mine = torch.arange(3_000_001, dtype=torch.float64, device=device()) + rank
    theirs = torch.zeros_like(mine)
    said = []
    try:
        _C.remember_direct(backend, peer, mine)
    except ValueError as error:
        said.append(str(error))
    token = torch.zeros(1)
    for sender in (0, 1):
        dist.send(token, peer) if rank == sender else dist.recv(token, peer)
    for tensor in (mine, theirs):
        _C.remember_direct(backend, peer, tensor)
    mine.cpu(), theirs.cpu()  # the device has finished with them
    for sender in (0, 1):
        _C.pass_direct(backend, peer, 7 + sender, mine if rank == sender else theirs, rank == sender, LIMIT)
    for tensor in (mine, theirs):
        _C.forget_direct(backend, peer, tensor)
    assert torch.equal(theirs.cpu(), torch.arange(3_000_001, dtype=torch.float64) + peer)
    try:
        _C.pass_direct(backend, peer, 9, mine[: 1000 + rank], rank == 0, LIMIT)
    except dist.DistBackendError as error:
        said.append(str(error))
    dist.barrier()
    return said


def test_registered_memory_of_devices() -> None:
    ranks = Ranks(2, ["A", "B"], over_ucx(TCP), ["sim", "cpu"])
    try:
        first, second = ranks.run(straight)
    finally:
        ranks.stop()
    for rank, said in enumerate((first, second)):
        assert f"rank {1 - rank}: no link over UCX is open there" in said[0]
    assert "a direct message of 8000 bytes arrived for a receive of 8008" in second[1]


def not_registered(rank: int) -> str:
    from atoll import _C
    from atoll.backend import backend_of

    dist.barrier()
    try:
        _C.pass_direct(backend_of(), 1 - rank, 1, torch.zeros(10), rank == 0, LIMIT)
    except ValueError as error:
        return str(error)
    return ""


def test_other_links_have_none() -> None:
    ranks = Ranks(2, ["A", "B"], {"ATOLL_TRANSPORT": "tcp", "ATOLL_ADDRESS": "127.0.0.1"})
    try:
        assert all("with ATOLL_TRANSPORT=ucx" in text for text in ranks.run(not_registered))
    finally:
        ranks.stop()
