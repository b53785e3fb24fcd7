# SPDX-License-Identifier: Apache-2.0
"""The process group backend "atoll" for torch.distributed, and the queries on a group that uses it."""

import atexit
import copy
import ctypes
import functools
import json
import os
import threading
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from atoll._version_check import require_matching_torch

require_matching_torch()

from atoll import _C, _coalescing, communicators, refusals, ucx, vendors  # noqa: E402 - only after the check
from atoll._variables import warn_of_unknown  # noqa: E402
from atoll.arena import give_to_ddp  # noqa: E402
from atoll.redis import members  # noqa: E402

Options = _C.Backend.Options

# Threads of a group may call back into Python (callbacks of futures), so they end before the interpreter does.
atexit.register(_C.shut_down_all)


def _interrupt(thread: int, peer_lost: bool, text: str) -> None:
    """Raises torch's exception in `thread`, a Python thread, when it next runs Python code, so that it does not use the
    values that an island's library failed to produce."""
    base = dist.DistNetworkError if peer_lost else dist.DistBackendError

    def __init__(self: Any, *_: Any) -> None:  # noqa: N807 - a method of the class made below
        base.__init__(self, text)

    kind = type(base.__name__, (base,), {"__init__": __init__, "__module__": base.__module__})
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _take_back(thread: int) -> None:
    """Withdraws the exception, because `thread` has already learned of the failure from a call."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None)


_C.set_library_maker(lambda *arguments: communicators.connect(communicators.Request(*arguments)))
_C.set_network_memory("cuda", "rocm" if torch.version.hip else "cuda")
_C.set_interrupt(_interrupt, _take_back, threading.main_thread().ident or 0)
_coalescing.install()


def create(settings: Any, options: Any) -> _C.Backend | dist.ProcessGroup:
    """Makes the backend of a new process group; with ATOLL_BRIDGE=relay the relay baseline. Called by torch.distributed
    on every rank of the group; blocks until all ranks have joined or the group's timeout has passed."""
    warn_of_unknown()
    bridge = os.environ.get("ATOLL_BRIDGE", "")
    if bridge == "":
        return _create(settings, options)
    if bridge != "relay":
        raise ValueError(f'ATOLL_BRIDGE="{bridge}": expected relay, or unset for Atoll\'s own bridge')
    if os.environ.get("ATOLL_TLS"):
        raise ValueError(
            "ATOLL_BRIDGE=relay with ATOLL_TLS=1: the relay sends through Gloo, unencrypted; unset one of them"
        )
    from atoll import relay

    return relay.make(settings, lambda: _create(settings, options))


def _create(settings: Any, options: Any) -> _C.Backend:
    if options is None:
        options = Options()
    elif isinstance(options, Options):
        options = copy.copy(options)
    else:
        raise TypeError(f"the atoll backend takes atoll.Options, got {type(options).__name__}")
    ucx.bring()
    refusals.install()
    ranks = list(settings.global_ranks_in_group)  # empty for the default group
    options._timeout = settings.timeout
    options.group_name = settings.group_id
    options.global_ranks_in_group = ranks
    backend = _C.Backend(
        store=settings.store,
        rank=settings.group_rank,
        size=settings.group_size,
        options=options,
        global_rank=ranks[settings.group_rank] if ranks else settings.group_rank,
        place=_place(),
    )
    if not ranks:
        members.publish(settings.store, backend)
        if backend.supports_tensor_alloc(torch.device("cpu")):
            give_to_ddp()
    return backend


def beside(group: dist.ProcessGroup, members: list[int], name: str) -> _C.Backend:
    """Makes a separate backend for the ranks `members` of `group` (the group's own numbers, ascending). Only these
    ranks call it, with a `name` that is new in the group and the same on all of them. torch.distributed does not know
    the backend, because new_group needs all ranks of the job. End it with shutdown()."""
    ranks = dist.get_process_group_ranks(group)
    settings = SimpleNamespace(
        store=dist.PrefixStore(f"beside/{name}/", distributed_c10d._get_process_group_store(group)),
        timeout=backend_of(group).options._timeout,
        group_id=f"{group.group_name}/{name}",
        group_rank=members.index(group.rank()),
        group_size=len(members),
        global_ranks_in_group=[ranks[member] for member in members],
    )
    return _create(settings, None)


@functools.cache
def _register_host_memory(device: str) -> None:
    if (functions := vendors.host_registrar(device)) is not None:
        _C.set_host_registrar(device, *functions)


@functools.cache
def _prepare_threads(device: str, index: int) -> None:
    _C.set_device_threads(device, index, vendors.capture_mode(device))


def _place() -> _C.Place:
    place = vendors.this_place()
    _register_host_memory(place.device)
    _prepare_threads(place.device, place.index)
    return _C.Place(**vars(place))


def backend_of(group: dist.ProcessGroup | None = None) -> _C.Backend:
    """Returns the Atoll backend of `group` (default: the default group). Raises ValueError if it uses another one."""
    group = group or distributed_c10d._get_default_group()
    from atoll.relay import Relay

    if isinstance(group, Relay):
        raise ValueError("the group uses the relay (ATOLL_BRIDGE=relay), which reports nothing: unset it")
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps it
    if not isinstance(backend, _C.Backend):
        raise ValueError(f"the group's backend is {dist.get_backend(group)}, not atoll")
    return backend


def islands(group: dist.ProcessGroup | None = None) -> list[tuple[str, list[int]]]:
    """Returns label and ranks of each island of `group`, ordered by lowest rank. Ranks are the group's own."""
    return backend_of(group).islands()


@dataclass(frozen=True)
class Island:
    """The ranks of a group whose tensors one library reduces directly."""

    label: str
    ranks: list[int]
    """The group's own ranks, ascending."""
    device: str
    """PyTorch's type of the device that its ranks compute on."""
    library: str
    """The library that reduces inside the island: "nccl", "gloo", or "atoll" if Atoll does it itself."""


def layout(group: dist.ProcessGroup | None = None) -> list[Island]:
    """Returns the islands of `group`, ordered by lowest rank, with the library inside each. A library takes part in
    operations on tensors of its own device; Atoll does everything else, and all operations of a group of one rank
    unless ATOLL_INNER names the library."""
    backend = backend_of(group)
    is_named = backend.size() == 1 and vendors.is_named(backend.devices()[0])
    rows = zip(backend.islands(), backend.devices(), backend.libraries(), strict=True)
    return [
        Island(label, ranks, device, library if library and (len(ranks) > 1 or is_named) else "atoll")
        for (label, ranks), device, library in rows
    ]


def links(group: dist.ProcessGroup | None = None) -> dict[int, str]:
    """Returns how this rank reaches each peer it has exchanged data with: "shm", or "tcp" with both addresses. Links
    open on first use."""
    return dict(backend_of(group).links())


def time_split(group: dist.ProcessGroup | None = None) -> dict[str, float]:
    """Returns the seconds that this rank has spent in collectives of `group` since it was made: `total_s` and its parts
    `inside_s` (within the island) and `bridge_s` (waiting for other islands); also the number of `operations`, and the
    payload that this rank has sent, `bytes_inside` and `bytes_bridge`, of which other ranks read `bytes_lent` in this
    rank's memory (atoll.empty). The rest of the wall time is the caller's."""
    return backend_of(group).time_split()


def dump(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Returns the last operations of this rank with their state, the group's islands and links, and its first error if
    any. The same is written to ATOLL_DUMP_DIR on failure."""
    result: dict[str, Any] = json.loads(backend_of(group).dump_json())
    return result


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None, wait_all_ranks: bool = False
) -> None:
    """Waits until all ranks have called it. After `timeout` (default: the group's) it raises on every rank that called
    it; rank 0's error names the first missing rank, or all missing ranks with `wait_all_ranks`."""
    backend = backend_of(group)
    backend.monitored_barrier(timeout or backend.options._timeout, wait_all_ranks)


def schedule_text(
    group: dist.ProcessGroup | None, operation: str, numel: int, dtype: torch.dtype = torch.float32, root: int = 0
) -> str:
    """Returns the text of print_schedule: the algorithm, a line with its cost, and the steps of each lane."""
    backend = backend_of(group)
    size = backend.size()
    counts, receive_counts = [numel], []
    if operation in ("all_gather", "gather", "scatter"):
        counts = [numel] * size
    elif operation in ("reduce_scatter", "all_to_all"):
        if numel % size:
            raise ValueError(f"{operation}: {numel} elements cannot be divided equally among {size} ranks")
        counts = [numel // size] * size
    if operation == "all_to_all":
        receive_counts = counts
    rooted = operation in ("broadcast", "reduce", "gather", "scatter")
    return backend.schedule(operation, dtype, root if rooted else -1, counts, receive_counts)


def print_schedule(
    group: dist.ProcessGroup | None, operation: str, numel: int, dtype: torch.dtype = torch.float32, root: int = 0
) -> None:
    """Prints the steps of this rank in `operation` ("all_reduce", "all_gather", ...) on a tensor of `numel` elements:
    the input, or for scatter the output. The root matters for rooted operations only."""
    print(schedule_text(group, operation, numel, dtype, root))
