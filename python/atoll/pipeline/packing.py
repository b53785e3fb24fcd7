# SPDX-License-Identifier: Apache-2.0
"""The data of a pipeline that is sent between islands as packed blocks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from atoll.packing.blocks import check_format, packed_bytes
from atoll.packing.boundary import BoundaryCodec
from atoll.pipeline.items import Parts
from atoll.pipeline.plan import Pipe

_log = logging.getLogger("atoll.packing")


@dataclass(frozen=True)
class Packing:
    """Block formats, or None for what stays exact."""

    boundaries: str | None = None
    gradients: str | None = None

    def check(self, islands: Sequence[Sequence[int]], rank: int) -> None:
        """Raises ValueError for unknown formats, and for backends without islands."""
        for name in ("boundaries", "gradients"):
            if (format := getattr(self, name)) is None:
                continue
            check_format(format)
            if not islands:
                raise ValueError(
                    f"{name}={format!r} packs data between islands, and only the backend atoll has islands: "
                    'start with torch.distributed.init_process_group("atoll"), or remove it'
                )
            if len(islands) == 1 and rank == 0:
                _log.warning(
                    f"atoll.pipeline.Pipeline: all ranks are one island, so {name}={format!r} packs nothing; "
                    "ATOLL_ISLAND sets the island of a rank"
                )

    def link_ratio(self, between: Sequence[torch.Tensor], replicas: int) -> float:
        """Returns the share of bytes that links between islands carry, for the planner; 1 if some data stays exact."""
        if self.boundaries is None or (replicas > 1 and self.gradients is None):
            return 1.0
        rows = [(each.shape[-1], each.element_size()) for each in between if _can_be_packed(each)]
        return sum(packed_bytes(width) / (width * size) for width, size in rows) / len(rows) if rows else 1.0

    def codecs(
        self, pipe: Pipe, parts: Parts, between: Sequence[torch.Tensor], islands: Sequence[Sequence[int]]
    ) -> list[BoundaryCodec | None]:
        """Returns for each stage of a pipeline the codec of its input. Raises TypeError if a stage's output cannot be
        packed. `between`: the output of each item, without data."""
        found: list[BoundaryCodec | None] = [None]
        for before, behind in zip(pipe.stages, pipe.stages[1:], strict=False):
            if self.boundaries is None or any(before.rank in ranks and behind.rank in ranks for ranks in islands):
                found.append(None)
                continue
            value = between[before.last - 1]
            if not _can_be_packed(value):
                raise TypeError(
                    f"boundaries={self.boundaries!r}: item {parts.names[before.last - 1]!r}, the last of a stage, "
                    f"gives {value.dtype} of shape (samples, {', '.join(map(str, value.shape[1:]))}), but only "
                    "floating-point tensors of at least two dimensions can be packed: cut elsewhere, or remove "
                    "boundaries"
                )
            found.append(BoundaryCodec(self.boundaries, value.shape[-1], value.dtype))
        return found


def _can_be_packed(value: torch.Tensor) -> bool:
    return value.is_floating_point() and value.element_size() >= 2 and value.dim() >= 2 and value.shape[-1] > 0
