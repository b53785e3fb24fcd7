# SPDX-License-Identifier: Apache-2.0
"""Queries a group of Atoll about its communication. Groups of other backends give no information."""

import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

from atoll import _C
from atoll.loading.timing import NOT_MEASURED
from atoll.profiling.device import synchronize

TRIED_BYTES, TRIED_CALLS = 16 << 20, 5
MAX_RANKS = 64  # in groups whose links are counted individually


def islands_of(group: dist.ProcessGroup) -> list[list[int]]:
    """Returns the ranks of each island, the same on all ranks; an empty list if the islands are unknown."""
    backend = backend_if_any(group)
    return [] if backend is None else [ranks for _, ranks in backend.islands()]


def seconds_inside(group: dist.ProcessGroup) -> Callable[[], float]:
    """Returns a function that gives the seconds this rank has spent in collectives of the group, without waits for
    other islands and without the work of an island's library; 0 if unknown."""
    backend = backend_if_any(group)
    return (lambda: 0.0) if backend is None else (lambda: backend.time_split()["inside_s"])


def library_seconds(group: dist.ProcessGroup, model: nn.Module) -> float | None:
    """Returns how long the library of this rank's island takes to reduce the gradients of the model, measured with a
    part of them if they are large. None if Atoll itself reduces, infinite if it cannot be measured. Collective."""
    if backend_if_any(group) is None:
        return None
    from atoll.backend import layout

    rank, islands = dist.get_rank(group), layout(group)
    found = None
    for island in islands if len(islands) > 1 else []:
        if island.library == "atoll":
            continue
        if group is not dist.group.WORLD:  # ranks outside it would have to take part in making its islands' groups
            return math.inf
        alone = dist.new_group(island.ranks, backend="atoll")
        if rank in island.ranks:
            found = _seconds_to_reduce(alone, model)
            dist.destroy_process_group(alone)
    return found


def _seconds_to_reduce(group: dist.ProcessGroup, model: nn.Module) -> float:
    gradients = [parameter for parameter in model.parameters() if parameter.requires_grad]
    all_bytes = sum(gradient.numel() * gradient.element_size() for gradient in gradients)
    tried = min(all_bytes, TRIED_BYTES)
    buffer = torch.zeros(max(1, tried // 4), device=gradients[0].device)
    seconds = []
    for _ in range(TRIED_CALLS):
        synchronize(buffer.device)
        begin = time.perf_counter()
        dist.all_reduce(buffer, group=group)
        synchronize(buffer.device)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * all_bytes / max(1, tried)


def backend_if_any(group: dist.ProcessGroup) -> _C.Backend | None:
    """Returns Atoll's backend of the group; None if the group uses another backend."""
    from atoll.backend import backend_of

    try:
        return backend_of(group)
    except (RuntimeError, ValueError):  # another backend, or one without CPU support
        return None


class Traffic:
    """Counts the traffic of a group from its construction on."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._backend = backend_if_any(group)
        ranks = dist.get_world_size(group)
        self._counted = ranks if ranks <= MAX_RANKS else 0
        self._before = self._now()

    def take(self, steps: int) -> list[float]:
        """Returns means over the `steps` steps since the last call, equally many on each rank: the seconds of waits for
        other islands in collectives, while other threads may compute, and of copies between the device and the host
        (NOT_MEASURED if the backend does not report them), and the bytes sent to each rank (none in a large group)."""
        now, before = self._now(), self._before
        self._before = now
        each = [(new - old) / max(1, steps) for new, old in zip(now, before, strict=True)]
        if self._backend is None:
            each[:2] = [NOT_MEASURED, NOT_MEASURED]
        return each

    def _now(self) -> list[float]:
        if self._backend is None:
            return [0.0] * (2 + self._counted)
        sent = self._backend.sent_bytes()[: self._counted]
        return [self._backend.time_split()["bridge_s"], self._backend.staging_seconds(), *map(float, sent)]
