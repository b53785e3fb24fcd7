# SPDX-License-Identifier: Apache-2.0
"""From what is known of the ranks to their shares, by the name of a policy."""

from collections.abc import Sequence

from atoll import _C
from atoll.loading.facts import RankFacts
from atoll.loading.plans import Plan
from atoll.loading.settings import Settings

NEED_NO_COSTS = ("equal", "random", "fixed")


class Policy:
    """Raises ValueError for one that does not exist, and for what no policy can do."""

    def __init__(
        self, name: str, global_batch: int, ranks: int, shares: Sequence[float] | None, settings: Settings, *,
        is_weighted: bool,
    ) -> None:  # fmt: skip
        self._name, self._global_batch, self._shares, self._settings = name, global_batch, shares, settings
        if global_batch < ranks * settings.least:
            raise ValueError(
                f"a global batch of {global_batch} samples cannot give {settings.least} to each of {ranks} ranks: raise "
                "global_batch, or Settings(least=0)"
            )
        if (name == "fixed") != (shares is not None):
            raise ValueError('shares and policy="fixed" belong together: give both, or neither')
        if shares is not None and len(shares) != ranks:
            raise ValueError(f"{len(shares)} shares for {ranks} ranks: give one for each")
        if name != "equal" and not is_weighted:
            raise ValueError(
                f'policy "{name}" makes uneven shares, and without their weights gradients would be wrong: give '
                'model=DistributedDataParallel(net), or policy="equal"'
            )
        self.needs_costs = name not in NEED_NO_COSTS

    def plan(self, facts: list[RankFacts], version: int, first_step: int) -> Plan:
        batches = self.split(facts, self._global_batch, self._settings.least)
        return Plan(version, first_step, tuple(batches))

    def split(self, facts: list[RankFacts], samples: int, least: int) -> list[int]:
        quantum = self._settings.quantum if samples == self._global_batch else 1
        ranks = [rank.as_planned(min(least, samples), quantum) for rank in facts]
        if self._name == "minmax":
            return _C.split_batches(ranks, samples)[0]
        bounds = [(rank["least"], rank.get("most"), rank["quantum"]) for rank in ranks]
        return _C.apportion(self._shares or [1.0] * len(ranks), samples, bounds)
