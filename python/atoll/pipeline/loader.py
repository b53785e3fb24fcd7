# SPDX-License-Identifier: Apache-2.0
"""atoll.DataLoader for pipelines: the ranks of one pipeline get the same samples, and each pipeline gets its part of
the batch."""

import torch.distributed as dist

from atoll.weighting.weights import Weights


class PipelineWeights(Weights):
    """Applies no weights: Pipeline.step itself divides by the elements of all pipelines."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)

    @property
    def parts_must_match(self) -> bool:
        return False


def check_batch(global_batch: int, shares: list[int]) -> None:
    """Raises ValueError if the micro-batches of all pipelines cannot have one size, and names the nearest batches."""
    total = sum(shares)
    if global_batch > 0 and global_batch % total == 0:
        return
    below = global_batch // total * total
    near = f"{below} or {below + total}" if below > 0 else f"{total}"
    raise ValueError(
        f"a batch of {global_batch} samples cannot be divided into {total} micro-batches of one size (by pipeline "
        f"{shares}): use {near}"
    )


def check_lengths(lengths: list[int]) -> None:
    """Raises ValueError if pipelines have different numbers of ranks: loaders agree among one rank of each pipeline,
    and some rank would have to do so for several."""
    if len(set(lengths)) > 1:
        raise ValueError(
            f"pipelines of {lengths} ranks cannot share a loader: give each its part with your own "
            "loader (pipe.place is its number, pipe.plan.shares are the parts), or make a plan whose pipelines have "
            "equally many ranks"
        )
