# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from support import Ranks


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """The workers of one layout; pytest orders the tests so that each layout starts once."""
    workers = Ranks(len(request.param), islands=list(request.param))
    yield workers
    workers.stop()
