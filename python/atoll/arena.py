# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that ranks on the same host read where it lies."""

import functools
import os
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atoll._version_check import require_matching_torch

require_matching_torch()

from atoll import _C  # noqa: E402 - only after the check


def empty(*size: int | tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns an uninitialised CPU tensor in this process's arena: collectives of the atoll backend let the other ranks
    of this host read it, and views of it, where it lies, instead of copying it for them. Use it for large tensors that
    are sent often. Arguments are those of torch.empty; `dtype` defaults to torch's default.

    The memory is returned when no tensor of this process uses it. A process that is forked shares it with its
    parent, which may use it for another tensor later. When the arena's budget (ATOLL_ARENA) is used up, ordinary
    memory is used, with a warning."""
    given = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return _C.empty(list(given), dtype or torch.get_default_dtype())  # type: ignore[arg-type]


def memory() -> dict[str, int]:
    """Returns the bytes of this process's arena that tensors use, `allocated`, and of those taken from the system,
    `mapped`."""
    allocated, mapped = _C.arena_bytes()
    return {"allocated": allocated, "mapped": mapped}


@functools.cache
def give_to_ddp() -> None:
    """Lets DistributedDataParallel ask the default group's backend for the memory of its buckets, which it does only if
    told so. A value that the user has set stays.

    PyTorch cannot lay out buckets of complex numbers in such memory, so a process that has them gives DDP none."""
    os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def __init__(self: DistributedDataParallel, module: nn.Module, *rest: Any, **named: Any) -> None:  # noqa: N807
        if isinstance(module, nn.Module) and any(parameter.is_complex() for parameter in module.parameters()):
            _C.Backend.stop_tensor_alloc()
        make(self, module, *rest, **named)

    DistributedDataParallel.__init__ = __init__  # type: ignore[method-assign]
