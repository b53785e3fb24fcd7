# SPDX-License-Identifier: Apache-2.0
"""atoll.DataLoader for pipelines: the ranks of one pipeline get the same samples, and pipelines get their parts of the
batch."""

import torch.distributed as dist

from atoll.weighting.weights import Weights


class PipelineWeights(Weights):
    """Weighs nothing: Pipeline.step divides by the elements of all pipelines itself."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(group)

    @property
    def parts_must_match(self) -> bool:
        return False


def check_batch(global_batch: int, shares: list[int]) -> None:
    """Raises ValueError where the micro-batches of all pipelines cannot have one size, with the nearest batches."""
    total = sum(shares)
    if global_batch > 0 and global_batch % total == 0:
        return
    below = global_batch // total * total
    near = f"{below} or {below + total}" if below > 0 else f"{total}"
    raise ValueError(
        f"a batch of {global_batch} samples cannot be divided into {total} micro-batches of one size (by pipeline "
        f"{shares}): give {near}"
    )


def check_lengths(lengths: list[int]) -> None:
    """Raises ValueError where pipelines have unlike numbers of ranks: loaders agree among one rank of each, and some
    rank would have to do so for several."""
    if len(set(lengths)) > 1:
        raise ValueError(
            f"pipelines of {lengths} ranks cannot share a loader: give each its part with a loader of your "
            "own (pipe.place is its number, pipe.plan.shares are the parts), or make a plan whose pipelines have "
            "equally many ranks"
        )
