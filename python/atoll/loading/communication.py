# SPDX-License-Identifier: Apache-2.0
"""What a group of Atoll's tells of its communication. Groups of other backends tell nothing."""

from collections.abc import Callable

import torch.distributed as dist

from atoll import _C


def islands_of(group: dist.ProcessGroup) -> list[list[int]]:
    """The ranks of each island; none where they are not known. The same on all ranks."""
    backend = _backend_of(group)
    return [] if backend is None else [ranks for _, ranks in backend.islands()]


def seconds_inside(group: dist.ProcessGroup) -> Callable[[], float]:
    """How long this rank was in collectives of the group, without its waits for other islands; 0 where that is not
    known."""
    backend = _backend_of(group)
    return (lambda: 0.0) if backend is None else (lambda: backend.time_split()["inside_s"])


def _backend_of(group: dist.ProcessGroup) -> _C.Backend | None:
    from atoll.backend import backend_of

    try:
        return backend_of(group)
    except (RuntimeError, ValueError):  # another backend, or one that has no part for CPUs
        return None
