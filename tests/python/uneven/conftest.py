# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from support import Ranks


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """The workers of one layout; pytest orders the tests so that each layout starts once."""
    layout = request.param
    devices = ["sim" if letter.islower() else "cpu" for letter in layout]
    workers = Ranks(len(layout), islands=list(layout), devices=devices)
    yield workers
    workers.stop()
