# SPDX-License-Identifier: Apache-2.0
"""Loops over several loaders take turns in weighing one model's gradients."""

from atoll.weighting.part import Part
from atoll.weighting.weights import Weights


class Turn:
    """One loop over a loader: from its first batch on, backward passes belong to its batch at hand. A loop inside
    another's step, such as an evaluation, gives the weights back when it ends or is left."""

    def __init__(self, weights: Weights | None, before: Part | None) -> None:
        """`before`: the part at hand in the loader's last loop, which this one replaces. Without weights there is
        nothing to take turns in."""
        self._weights = weights
        self._part: Part | None = None
        around = weights.under_way() if weights is not None else None
        self._around = around if around is not before else None

    def begin(self, part: Part) -> None:
        if self._weights is not None:
            if self._around is not None and self._weights.part is not self._part:
                self._around = self._weights.under_way()  # which goes on while this loop is open
            self._weights.begin(part)
        self._part = part

    def go_on(self) -> None:
        """The loop is done with its batch at hand. Raises RuntimeError where the gradients of a loop inside this one's
        step were taken, and none of its own: they were computed together, and had the weight of one alone."""
        if self._weights is None or self._part is None or self._around is not None:
            return
        other = self._weights.part
        if other is not None and other is not self._part and other.is_used and not self._part.is_used:
            raise RuntimeError(
                "gradients of this atoll.DataLoader's batch were weighted as those of another atoll.DataLoader, which "
                "was asked for a batch since: call backward() for each loader's batch before the next loader is asked "
                "for one, or join both datasets in one loader"
            )

    def end(self) -> None:
        """There are no more batches."""
        if self._weights is not None and self._weights.part is self._part:
            self._weights.take(self._around)

    def leave(self) -> None:
        """After `end`, or instead of it: then the batch at hand may still be computed, where this is no loop inside
        another's step."""
        if self._weights is None or self._part is None or self._weights.part is not self._part:
            return
        if self._around is not None:
            self._weights.take(self._around)
        else:
            self._weights.leave()
