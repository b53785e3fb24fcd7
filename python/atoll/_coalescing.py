# SPDX-License-Identifier: Apache-2.0
"""Closes coalescing regions whose body raises. PyTorch leaves them open (`_coalescing_manager`, and so
`batch_isend_irecv`), and then counts every later all_reduce of the group as part of the region: the call returns at
once and does nothing."""

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
    """Installs the fix for all groups of this process. PyTorch's behaviour does not change if nothing is raised."""
    distributed_c10d._coalescing_manager = _manager
    dist._coalescing_manager = _manager
