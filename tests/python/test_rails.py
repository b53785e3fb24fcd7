# SPDX-License-Identifier: Apache-2.0
"""Links over several rails under torch.distributed: on loopback anywhere, and with pulled cables if this is root."""

import importlib
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support import Ranks

ROOT = Path(__file__).resolve().parents[2]
ON_LOOPBACK = {"ATOLL_TRANSPORT": "tcp", "ATOLL_ADDRESS": "127.0.0.1"}
_WAIT_SECONDS = 30


@pytest.fixture(params=[1, 2, 4])
def railed(request: pytest.FixtureRequest) -> Iterator[tuple[int, Ranks]]:
    rails = ",".join(f"127.0.0.{i}" for i in range(1, request.param + 1))
    ranks = Ranks(2, ["A", "B"], {**ON_LOOPBACK, "ATOLL_RAILS": rails})
    yield request.param, ranks
    ranks.stop()


def reduce_and_send(rank: int) -> str:
    """Checks sums and messages of many sizes; returns the description of the link."""
    import atoll

    for elements in (1, 1000, 70_001, 3_000_003):
        ours = torch.arange(elements, dtype=torch.float64) * (rank + 1)
        dist.all_reduce(ours)
        assert torch.equal(ours, torch.arange(elements, dtype=torch.float64) * 3)
        mine = torch.full((elements,), float(rank))
        theirs = torch.empty(elements)
        for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank),
        ]):  # fmt: skip
            work.wait()
        assert bool((theirs == 1 - rank).all())
    return next(iter(atoll.links().values()))


def test_collectives_and_messages_over_any_number_of_rails(railed: tuple[int, Ranks]) -> None:
    rails, ranks = railed
    texts = ranks.run(reduce_and_send)
    for text in texts:
        if rails == 1:
            assert text.startswith("tcp 127.0.0.1:")
        else:
            assert f"tcp over {rails} of {rails} rails: 127.0.0.1:" in text
            assert text.count(" MB/s") == rails


def sum_is_right(rank: int) -> str:
    import atoll

    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    assert bool((tensor == 3).all())
    return next(iter(atoll.links().values()))


def test_one_side_alone_makes_no_rails() -> None:
    ranks = Ranks(2, ["A", "B"], ON_LOOPBACK, own=[{"ATOLL_RAILS": "4"}, {}])
    try:
        assert all("rails" not in text for text in ranks.run(sum_is_right))
    finally:
        ranks.stop()


def test_a_number_of_connections_over_one_interface() -> None:
    ranks = Ranks(2, ["A", "B"], {**ON_LOOPBACK, "ATOLL_RAILS": "3"})
    try:
        texts = ranks.run(reduce_and_send)
        assert all("tcp over 3 of 3 rails" in text for text in texts)
    finally:
        ranks.stop()


RANK = """
import os, sys
import torch, torch.distributed as dist
import atoll

dist.init_process_group("atoll")
rank, peer = dist.get_rank(), 1 - dist.get_rank()
generator = torch.Generator()
commands = sys.stdin
print("ready", flush=True)
for number, line in enumerate(iter(commands.readline, "end\\n")):
    elements, times = map(int, line.split())
    # Both ranks know what each of them sends.
    ours, theirs = (torch.rand(elements, generator=generator.manual_seed(2 * number + which)) for which in (rank, peer))
    for _ in range(times):
        received = torch.empty(elements)
        for work in [dist.isend(ours, peer), dist.irecv(received, peer)]:
            work.wait()
    print("same" if torch.equal(received, theirs) else "different", *atoll.links().values(), flush=True)
dist.destroy_process_group()
"""


class NamespaceRanks:
    """Two ranks in the namespaces of a shaped link, which exchange messages."""

    def __init__(self, link: Any, folder: Path) -> None:
        program = folder / "rank.py"
        program.write_text(textwrap.dedent(RANK))
        address, port = link.store
        self._processes = []
        for rank, place in enumerate(link.places("AB")):
            environment = {
                **os.environ, **dict(place.environment), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                "MASTER_ADDR": address, "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "ATOLL_HEARTBEAT": "20",
            }  # fmt: skip
            command = [*place.prefix, sys.executable, str(program)]
            self._processes.append(
                subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
        assert self._answers() == ["ready", "ready"]

    def exchange(self, elements: int = 1 << 20, times: int = 1) -> list[str]:
        """Exchanges messages; returns the descriptions of both links."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{elements} {times}\n")
            process.stdin.flush()
        answers = self._answers()
        assert all(answer.startswith("same ") for answer in answers), answers
        return answers

    def _answers(self) -> list[str]:
        lines = []
        for process in self._processes:
            assert process.stdout is not None
            lines.append(process.stdout.readline().strip())
        return lines

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def shape(request: pytest.FixtureRequest) -> tuple[Any, ...]:
    """Sets the rate of each of two rails, and optionally its burst."""
    return getattr(request, "param", (200_000_000,))


@pytest.fixture
def shaped_link(shape: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} is not installed (Debian: iproute2)")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    try:
        rate, *burst = shape
        with importlib.import_module("netns").ShapedLink(rate, 2, *burst) as link:
            yield link
    except RuntimeError as error:
        pytest.skip(f"this machine allows no network namespaces: {error}")


def exchange_until(ranks: NamespaceRanks, wanted: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not all(wanted in text for text in ranks.exchange()):
        assert time.monotonic() < deadline, f"never {wanted}"


@pytest.mark.timeout(240)
def test_a_cable_pulled_mid_transfer_loses_nothing(shaped_link: Any, tmp_path: Path) -> None:
    ranks = NamespaceRanks(shaped_link, tmp_path)
    try:
        exchange_until(ranks, "over 2 of 2 rails")
        for rail in (1, 0, 1):
            shaped_link.set_rail(rail, False)
            exchange_until(ranks, "over 1 of 2 rails")
            shaped_link.set_rail(rail, True)
            exchange_until(ranks, "over 2 of 2 rails")
    finally:
        ranks.close()


def rates_of(text: str) -> list[float]:
    """Returns the rates of the rails in MB/s."""
    return [float(rate) for rate in re.findall(r"([0-9.]+) MB/s", text)]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("shape", [(50_000_000, "8kb")], ids=["50Mbit"])
def test_small_messages_show_the_rates_of_rails(shaped_link: Any, tmp_path: Path) -> None:
    """Interfaces state 10 Gbit/s and carry 50 Mbit/s, which is measured at arrival, although no rail is ever busy."""
    ranks = NamespaceRanks(shaped_link, tmp_path)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        found = [[math.inf]]
        while not all(len(rates) == 2 and max(rates) < 12.5 for rates in found):
            assert time.monotonic() < deadline, f"rates in MB/s of two rails of 6.25: {found}"
            found = [rates_of(text) for text in ranks.exchange(8192, 10)]
    finally:
        ranks.close()
