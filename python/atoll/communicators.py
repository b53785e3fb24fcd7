# SPDX-License-Identifier: Apache-2.0
"""Communicators of the libraries that reduce inside islands: how a row of atoll.vendors becomes one."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from atoll import vendors


@dataclass(frozen=True)
class Request:
    """A request for a communicator, made by all ranks of an island at the same time."""

    library: str
    device: str
    store: Any  # for this communicator only
    rank: int
    size: int
    timeout: timedelta
    group_name: str  # unique
    global_ranks: list[int]


def _is_foreign(plugin: Any) -> bool:
    return plugin is not None and not getattr(plugin.creator_fn, "__module__", "").startswith("torch.distributed")


def connect(request: Request) -> Any:
    """Returns a bare c10d Backend of the request's library, without a process group around it."""
    name = request.library
    plugin, own = vendors.plugin_of(name), _OWN.get(name)
    # PyTorch's own registrations mean the classes made here, except "nccl" since 2.15, which is another class.
    if own is not None and not _is_foreign(plugin):
        backend = own(request)
    elif plugin is not None:
        backend = _from_plugin(plugin, request)
    else:
        raise vendors.VendorError(f"a communicator of {name} cannot be made: it is not a registered plug-in")
    if not isinstance(backend, torch._C._distributed_c10d.Backend):
        raise vendors.VendorError(f"{name} makes a {type(backend).__name__}, which is not a c10d Backend")
    return backend


def _from_plugin(plugin: Any, request: Request) -> Any:
    if not plugin.extended_api:
        return plugin.creator_fn(request.store, request.rank, request.size, request.timeout)
    settings = torch._C._distributed_c10d._DistributedBackendOptions()
    settings.store = request.store
    settings.group_rank = request.rank
    settings.group_size = request.size
    settings.timeout = request.timeout
    settings.group_id = request.group_name
    settings.global_ranks_in_group = request.global_ranks
    return plugin.creator_fn(settings, None)


# NCCL's watchdog must neither end the process nor hold its locks for a minute, which delays an abort: Atoll itself
# detects failures and aborts the communicator.
_QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",  # it would switch the first on again, as the debug level DETAIL would
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}


@contextmanager
def _quiet_watchdog() -> Iterator[None]:
    before, level = {key: os.environ.get(key) for key in _QUIET}, dist.get_debug_level()
    os.environ.update(_QUIET)
    dist.set_debug_level(dist.DebugLevel.OFF)
    try:
        yield
    finally:
        dist.set_debug_level(level)
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.__setitem__(key, value)


def _nccl(request: Request) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(days=1)  # Atoll has the deadlines
    options.global_ranks_in_group = request.global_ranks
    options.group_name = dist.distributed_c10d.GroupName(request.group_name)
    with _quiet_watchdog():
        return dist.ProcessGroupNCCL(request.store, request.rank, request.size, options)


def _gloo(request: Request) -> Any:
    return dist.ProcessGroupGloo(request.store, request.rank, request.size, timeout=request.timeout)


def _xccl(request: Request) -> Any:
    options = dist.ProcessGroupXCCL.Options()
    options._timeout = request.timeout
    return dist.ProcessGroupXCCL(request.store, request.rank, request.size, options)


_OWN: dict[str, Callable[[Request], Any]] = {"gloo": _gloo, "nccl": _nccl, "xccl": _xccl}
