# SPDX-License-Identifier: Apache-2.0
"""Compares the parameters of ranks that must hold equal ones, and reports differences."""

import logging
from collections import Counter

import torch
from torch import nn

from atoll.loading.exchange import Exchange, ranks_text
from atoll.watching.record import PlanEvent
from atoll.watching.watcher import Watchers
from atoll.weighting.replicas import checksum, largest_difference, replicas_of

log = logging.getLogger("atoll.plan")

ROUNDING = 1e-3
"""Relative to the largest parameter. All ranks get the same gradients, so that different devices, whose optimizers
round differently, drift apart by far less."""
COARSE = 16  # roundings of a 16-bit type


class ReplicaCheck:
    """Checks the replicas of one model. A check reads each parameter once and exchanges two numbers per rank."""

    def __init__(self, exchange: Exchange, model: nn.Module | None, every: int, watchers: Watchers) -> None:
        """`every`: steps between checks; 0: never. Nothing is compared if no two ranks hold the same parameters."""
        self._exchange, self._model, self._every, self._watchers = exchange, model, every, watchers
        self._replicas = replicas_of(model) if every else None
        self._done = 0
        self._alike_after: int | None = None
        self._told = 0.0
        self._difference: float | None = None

    def step_ended(self, steps: int) -> None:
        """Checks if due. Collective. Raises RuntimeError on all ranks if parameters differ by more than by rounding."""
        self._done += 1
        is_early = self._done < self._every and self._done & (self._done - 1) == 0
        if self._replicas is not None and (is_early or steps % self._every == 0):
            self._compare(steps)

    def take(self) -> float | None:
        """Returns the newest difference since the last call, relative to the largest parameter; None: not compared."""
        difference, self._difference = self._difference, None
        return difference

    def _compare(self, steps: int) -> None:
        assert self._model is not None
        assert self._replicas is not None
        rows = self._exchange.numbers([float(self._replicas.part), float(checksum(self._model))])
        by_part: dict[float, Counter[float]] = {}
        for part, bits in rows:
            by_part.setdefault(part, Counter())[bits] += 1
        if all(len(found) == 1 for found in by_part.values()):
            self._alike_after, self._difference = steps, 0.0
            return
        own, name = largest_difference(self._model, self._replicas.group)
        difference, name = max(map(tuple, self._exchange.facts([own, name])))
        self._difference = difference
        usual = {part: found.most_common(1)[0][0] for part, found in by_part.items()}
        others = [rank for rank, (part, bits) in enumerate(rows) if bits != usual[part]]
        self._tell(steps, difference, name, others)

    def _tell(self, steps: int, difference: float, name: str, others: list[int]) -> None:
        since = (
            "they may have differed from the first step on" if self._alike_after is None
            else f"they were still equal after step {self._alike_after}"
        )  # fmt: skip
        text = (
            f"step {steps}: the parameters of {ranks_text(others)} differ from those of other ranks by up to "
            f"{difference:.3g} of the largest one, in {name}; {since}"
        )
        assert self._model is not None
        kinds = {parameter.dtype for parameter in self._model.parameters() if parameter.dtype.is_floating_point}
        if difference > max(ROUNDING, *(COARSE * torch.finfo(kind).eps for kind in kinds)):
            raise RuntimeError(
                f"{text}. That is not rounding: some rank has changed parameters by itself, or its gradients were not "
                "reduced, so the training has been wrong since. Resume from an earlier checkpoint, or after "
                "atoll.training.align_replicas(model); if ranks are meant to differ, pass "
                "atoll.training.Settings(check_replicas=0)"
            )
        if difference > 10 * self._told:
            self._told = difference
            self._watchers.event(PlanEvent.replica_drift(steps, difference))
            if self._exchange.rank == 0:
                log.warning("%s: devices that round differently drift apart; atoll.training.align_replicas(model) "
                            "makes them equal", text)  # fmt: skip
