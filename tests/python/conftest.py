# SPDX-License-Identifier: Apache-2.0
"""Settings of all Python tests: no influence of the caller's environment, reproducible properties, and processes
that serve many tests."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from support import Ranks, later

JOB_VARIABLES = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"}

for name in list(os.environ):
    if name in JOB_VARIABLES or name.startswith(("ATOLL_", "TORCHELASTIC_")):
        del os.environ[name]

# Tests neither read the user's files nor leave any there.
os.environ["ATOLL_CACHE"] = tempfile.mkdtemp(prefix="atoll-cache-")
atexit.register(shutil.rmtree, os.environ["ATOLL_CACHE"], ignore_errors=True)

# Devices' libraries run as on real devices: not all at once, whatever the order in which ranks issue to them.
os.environ["ATOLL_SIM_SERIAL"] = "1"

# Ranks outnumber cores in most tests; more threads per rank would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# torch's store looks up the names of its clients: a name server that does not answer must not delay tests for long.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

# Examples start processes, so time per example says nothing; a failing example is printed as a line to paste.
hypothesis.settings.register_profile("atoll", deadline=None, print_blob=True)
hypothesis.settings.load_profile("atoll")


def pytest_collection_finish() -> None:
    """Freezes all objects, which live to the end, so that garbage collection does not visit them."""
    gc.collect()
    gc.freeze()


def _ranks(size: int, islands: str = "", device: str = "cpu", **environment: str) -> Iterator[Ranks]:
    ranks = Ranks(size, list(islands) or None, environment, [device] * size)
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """The workers of one layout (client_ranks.on_layouts); pytest orders the tests so that each layout starts once."""
    layout = request.param
    devices = ["sim" if letter.islower() else "cpu" for letter in layout]
    workers = Ranks(len(layout), islands=list(layout), devices=devices)
    yield workers
    workers.stop()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two processes in one island."""
    yield from _ranks(2)


@pytest.fixture(scope="session")
def three_ranks() -> Iterator[Ranks]:
    """Three processes in one island."""
    yield from _ranks(3)


@pytest.fixture(scope="session")
def island_ranks() -> Iterator[Ranks]:
    """Three processes in islands A, B, A."""
    yield from _ranks(3, "ABA")


@pytest.fixture(scope="session")
def two_on_sim() -> Iterator[Ranks]:
    """Two processes with simulated devices, for tests of their library, whose operations run concurrently."""
    yield from _ranks(2, device="sim", ATOLL_SIM_SERIAL="0")


@pytest.fixture(scope="session")
def three_on_sim() -> Iterator[Ranks]:
    """Three processes like those of two_on_sim."""
    yield from _ranks(3, device="sim", ATOLL_SIM_SERIAL="0")


@pytest.fixture(params=[later("two_ranks"), "three_ranks", "island_ranks"])
def any_ranks(request: pytest.FixtureRequest) -> Ranks:
    """The workers of each layout in turn."""
    ranks: Ranks = request.getfixturevalue(request.param)
    return ranks
