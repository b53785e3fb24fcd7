# SPDX-License-Identifier: Apache-2.0
"""Makes and destroys the default process group while the process continues."""

import contextlib
import os
import re
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import distributed_c10d

from atoll import vendors
from atoll.backend import backend_of, dump
from atoll.recovering.notices import Roster

# How long a rank that dies between the roster and the group can delay the others, which wait for it.
_MEETING = timedelta(seconds=30)


def join(store: dist.Store, roster: Roster, member: str, timeout: timedelta) -> None:
    """Makes the group of `roster` the default group, with a separate store. Collective. Raises torch.distributed's
    errors if one of its ranks does not join."""
    rank, size = roster.seat(member).rank, len(roster.seats)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    # A library takes its own time limits from the timeout with which the group is made.
    limit = timeout if vendors.this_place().library else min(timeout, _MEETING)
    dist.init_process_group("atoll", store=store, rank=rank, world_size=size, timeout=limit)
    backend = backend_of()
    set_timeout = getattr(backend, "set_timeout", None) or backend._set_default_timeout  # its name before PyTorch 2.13
    set_timeout(timeout)


def leave(has_failed: bool) -> None:
    """Ends all groups of this process. If they have failed, threads that still wait in them are woken first."""
    if dist.is_initialized():
        if has_failed:
            for group in list(distributed_c10d._world.pg_names):
                with contextlib.suppress(RuntimeError):  # one without a device's backend
                    group.abort()
        dist.destroy_process_group()
    # Names use this count, which also includes groups that could not be made; it must be equal on all ranks.
    distributed_c10d._world.group_count = 0


def has_failed() -> bool:
    """Returns whether the default group has had its first error, which is final."""
    return dist.is_initialized() and "error" in dump()


def is_of_group(error: BaseException) -> bool:
    """Returns whether the error comes from a group, not from the program or the store."""
    if not isinstance(error, Exception) or isinstance(error, dist.DistStoreError):
        return False
    return isinstance(error, dist.DistError) or has_failed()


def named_ranks(text: str) -> set[int]:
    """Returns the ranks that a message names: "rank 3 ...", "ranks 1, 2 ..."."""
    found = re.findall(r"\branks? (\d+(?:, \d+)*)", text)
    return {int(rank) for ranks in found for rank in ranks.split(", ")}
