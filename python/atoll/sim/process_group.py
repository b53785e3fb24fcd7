# SPDX-License-Identifier: Apache-2.0
"""The process group backend "simccl": the simulated accelerator's own collective library, as NCCL is CUDA's."""

from datetime import timedelta

import torch.distributed as dist

from atoll import _sim

NAME = "simccl"


def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> _sim.ProcessGroupSimccl:
    """Makes this rank's part of a new group, for tensors on simulated devices. The ranks meet in its first operation,
    or when they call eager_connect_single_device(), which blocks until all have come; it raises DistBackendError if
    one has not within `timeout`, or is on another host."""
    return _sim.ProcessGroupSimccl(store, rank, size, timeout)


def register() -> None:
    """Makes `init_process_group("simccl")` and `new_group(backend="simccl")` work. May be called repeatedly."""
    if dist.is_available() and NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, create, devices=["sim"])
