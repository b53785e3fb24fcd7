# SPDX-License-Identifier: Apache-2.0
"""Features of newer releases of torch.distributed for older ones: renamed functions, the grace period between SIGTERM
and SIGKILL (fixed in 2.11), and groups whose ranks are not sorted."""

import inspect
import os
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def grace_seconds(config: Any) -> float:
    """Returns the seconds between SIGTERM and SIGKILL from a torch.distributed.launcher.api.LaunchConfig."""
    known = getattr(config, "shutdown_timeout", None)
    return float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30") if known is None else known)


class _Placed(int):
    """A rank that compares less than the ranks after it in its list, for sorted()."""

    place: int

    def __lt__(self, other: int) -> bool:
        return self.place < other.place if isinstance(other, _Placed) else int(self) < other


def group_in_order(ranks: Sequence[int]) -> dist.ProcessGroup:
    """Makes a new group of these ranks, in this order. All ranks of the job must call it."""
    wanted: list[int] = list(ranks)
    options: dict[str, Any] = {}
    if wanted != sorted(wanted):
        if "sort_ranks" in inspect.signature(dist.new_group).parameters:
            options["sort_ranks"] = False
        else:
            placed = [_Placed(rank) for rank in wanted]
            for place, rank in enumerate(placed):
                rank.place = place
            wanted = [*placed]
    group: dist.ProcessGroup = dist.new_group(wanted, **options)
    return group
