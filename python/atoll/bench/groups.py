# SPDX-License-Identifier: Apache-2.0
"""The groups that are compared, by name: "atoll"; "relay", the baseline; "inner", the library of the only island, which
holds all ranks; or a backend of torch.distributed."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from atoll import vendors

OURS = ("atoll", "relay")
RELAYED = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier")


class UsageError(ValueError):
    """The request cannot be measured; the message says why, and what can be measured."""


@contextmanager
def _bridge(name: str) -> Iterator[None]:
    before = os.environ.get("ATOLL_BRIDGE")
    os.environ["ATOLL_BRIDGE"] = "relay" if name == "relay" else ""
    try:
        yield
    finally:
        if before is None:
            del os.environ["ATOLL_BRIDGE"]
        else:
            os.environ["ATOLL_BRIDGE"] = before


def make_default(name: str, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Makes the default group of the process."""
    if name == "inner":
        raise UsageError("inner is the library inside an island of atoll: measure it with --against inner")
    with _bridge(name):
        dist.init_process_group("atoll" if name in OURS else name, timeout=timeout)
    world = dist.group.WORLD
    assert world is not None
    return world


def make_another(name: str, first: dist.ProcessGroup, timeout: timedelta | None = None) -> dist.ProcessGroup:
    """Makes another group of all ranks. Raises UsageError if "inner" is not available."""
    if name == "inner":
        name = inner_library(first)
    with _bridge(name):
        group: dist.ProcessGroup = dist.new_group(backend="atoll" if name in OURS else name, timeout=timeout)
    return group


def inner_library(group: dist.ProcessGroup) -> str:
    """Returns the library inside the only island of an Atoll group."""
    from atoll.backend import layout

    islands = layout(group)
    if len(islands) != 1:
        labels = ", ".join(island.label for island in islands)
        raise UsageError(
            f"inner is the library of a single island, but there are {len(islands)} ({labels}): use --layout AA"
        )
    if islands[0].library == "atoll":
        raise UsageError("inner: this island uses no library; on the CPU set ATOLL_INNER=cpu:gloo")
    return islands[0].library


def check(name: str, operation: str, devices: Sequence[str]) -> None:
    """Raises UsageError if the backend does not support the operation, or tensors on one of `devices`, the device types
    by rank."""
    if name == "relay" and operation not in RELAYED:
        raise UsageError(f"the relay does not support {operation}, only {', '.join(RELAYED)}")
    known = sorted({row.device for row in vendors.vendors() if row.library == name})
    for rank, device in enumerate(devices):
        if known and device not in known:
            raise UsageError(
                f"{name} takes tensors on {' or '.join(known)}, but rank {rank} is on {device}: compare with relay, or "
                f"use --device {known[0]}"
            )
