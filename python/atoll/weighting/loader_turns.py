# SPDX-License-Identifier: Apache-2.0
"""Makes loops over several loaders take turns in weighting one model's gradients."""

from atoll.weighting.batch_part import Part
from atoll.weighting.weights import Weights


class Turn:
    """One loop over a loader. From its first batch on, backward passes belong to its current batch. A loop inside
    another loop's step, such as an evaluation, returns the weights when it ends or is left."""

    def __init__(self, weights: Weights | None, before: Part | None) -> None:
        """`before`: the current part of the loader's last loop, which this one replaces. Without weights there is
        nothing to take turns in."""
        self._weights = weights
        self._part: Part | None = None
        around = weights.under_way() if weights is not None else None
        self._around = around if around is not before else None

    def begin(self, part: Part) -> None:
        if self._weights is not None:
            if self._around is not None and self._weights.part is not self._part:
                self._around = self._weights.under_way()  # which continues while this loop is open
            self._weights.begin(part)
        self._part = part

    def go_on(self) -> None:
        """Called when the loop is done with its current batch. Raises RuntimeError if gradients were weighted for a
        loop inside this one's step but none for this loop, because both were computed together with a single weight."""
        if self._weights is None or self._part is None or self._around is not None:
            return
        other = self._weights.part
        if other is not None and other is not self._part and other.is_used and not self._part.is_used:
            raise RuntimeError(
                "gradients of this atoll.DataLoader's batch were weighted as those of another atoll.DataLoader, from "
                "which a batch was taken in the meantime: call backward() for each loader's batch before taking one "
                "from the next loader, or combine both datasets in one loader"
            )

    def end(self) -> None:
        """Called when there are no more batches."""
        if self._weights is not None and self._weights.part is self._part:
            self._weights.take(self._around)

    def leave(self) -> None:
        """Called after `end`, or instead of it: then the current batch may still be computed, unless this loop is
        inside another loop's step."""
        if self._weights is None or self._part is None or self._weights.part is not self._part:
            return
        if self._around is not None:
            self._weights.take(self._around)
        else:
            self._weights.leave()
