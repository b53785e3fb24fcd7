# SPDX-License-Identifier: Apache-2.0
"""Tests whose body runs on every rank at once, in worker processes that stay between tests."""

import functools
import importlib
from collections.abc import Callable

import pytest

from support import Ranks

Body = Callable[[int, int], None]


def run_body(rank: int, size: int, module: str, name: str) -> None:
    getattr(importlib.import_module(module), name).body(rank, size)


def on_layouts(*layouts: str) -> Callable[[Body], Callable[..., None]]:
    """Makes tests of a body(rank, size), one per layout: a letter per rank; equal letters are one island."""

    def decorate(body: Body) -> Callable[..., None]:
        @pytest.mark.parametrize("ranks", layouts, indirect=True)
        def test(ranks: Ranks) -> None:
            ranks.run(run_body, ranks.size, body.__module__, body.__name__)

        functools.update_wrapper(test, body)
        del test.__wrapped__  # pytest would read the body's parameters as fixtures
        test.body = body  # type: ignore[attr-defined]
        return test

    return decorate
