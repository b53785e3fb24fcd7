# SPDX-License-Identifier: Apache-2.0
"""Tests whose body runs on every rank at once, in worker processes that stay between tests."""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from support import Ranks, device, later

Body = Callable[[int, int], None]

ON_CPUS = ("AAA", "ABA")
# One island, two, two of unlike devices, three of unlike devices and sizes.
ON_DEVICES = (later("aa"), later("ab"), "Ab", "abaC")
EVERYWHERE = ON_CPUS + ON_DEVICES


def are_devices_unlike() -> bool:
    """Returns whether the default group has both CPUs and simulated devices. Collective."""
    kinds = [""] * dist.get_world_size()
    dist.all_gather_object(kinds, device())
    return len(set(kinds)) > 1


def run_body(rank: int, size: int, module: str, name: str) -> None:
    getattr(importlib.import_module(module), name).body(rank, size)


def on_layouts(*layouts: Any) -> Callable[[Body], Callable[..., None]]:
    """Turns a body(rank, size) into tests, one per layout: a letter per rank; equal letters are one island. Ranks of
    lower-case letters compute on simulated devices; support.device() tells the body which it is."""

    def decorate(body: Body) -> Callable[..., None]:
        @pytest.mark.parametrize("ranks", layouts, indirect=True)
        def test(ranks: Ranks) -> None:
            ranks.run(run_body, ranks.size, body.__module__, body.__name__)

        functools.update_wrapper(test, body)
        del test.__wrapped__  # pytest would read the body's parameters as fixtures
        test.body = body  # type: ignore[attr-defined]
        return test

    return decorate
