# SPDX-License-Identifier: Apache-2.0
"""Ends coalescing regions whose body raises. PyTorch leaves them open (`_coalescing_manager`, and so
`batch_isend_irecv`), and then takes every later all_reduce of the group for one of the region: it returns at once and
does nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

_torchs_own = distributed_c10d._coalescing_manager


@contextlib.contextmanager
def _manager(
    group: dist.ProcessGroup | None = None, device: torch.device | None = None, async_ops: bool = False
) -> Iterator[Any]:
    group = group or distributed_c10d._get_default_group()
    is_open = False
    try:
        with _torchs_own(group, device, async_ops) as works:
            is_open = True
            yield works
            is_open = False
    except BaseException:
        if is_open and distributed_c10d._world.pg_coalesce_state.pop(group, None) is not None and device:
            with contextlib.suppress(RuntimeError):
                group._end_coalescing(device)
        raise


def install() -> None:
    """For all groups of this process: what PyTorch does where nothing is raised stays as it is."""
    distributed_c10d._coalescing_manager = _manager
    dist._coalescing_manager = _manager
