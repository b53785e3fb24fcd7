# SPDX-License-Identifier: Apache-2.0
"""Who computes how much from which step on. All ranks hold the same plans, because they make them of the same facts."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from atoll.loading.exchange import Exchange
from atoll.loading.facts import RankFacts
from atoll.loading.measuring import measure
from atoll.loading.plans import Plan, PlanBook
from atoll.loading.policy import Policy
from atoll.loading.settings import Settings
from atoll.loading.timing import StepTimes
from atoll.loading.windows import parts_needed
from atoll.weighting.weights import Weights

log = logging.getLogger("atoll.plan")


class Planner:
    """Makes the plans of one loader and follows the training's times. Constructing it measures the devices, which is
    collective; so are `step_ended`, at steps that all ranks know, and nothing else."""

    def __init__(
        self, exchange: Exchange, global_batch: int, *, policy: str, shares: Sequence[float] | None,
        max_batch: int | None, micro_batch: int | None, model: nn.Module | None, weights: Weights | None,
        settings: Settings, seed: int, batch_of: Callable[[int], Any],
    ) -> None:  # fmt: skip
        self._exchange, self._settings = exchange, settings
        self._policy = Policy(policy, global_batch, exchange.ranks, shares, settings, seed=seed, is_weighted=model is not None)
        device = next(model.parameters()).device if model is not None else torch.device("cpu")
        own = RankFacts(str(device), max_batch, micro_batch, settings.watts)
        if model is not None and settings.measure and self._policy.needs_costs:
            own.profile = measure(model, batch_of, exchange, settings, global_batch, own.cap()).to_json()
        self.facts = [RankFacts.from_json(facts) for facts in exchange.facts(own.to_json())]
        self._parts_alike = weights is not None and weights.parts_must_match
        self._times = StepTimes(device)
        if weights is not None:
            weights.when_ready = self._times.ready
        self._tails: dict[tuple[int, int], list[int]] = {}
        self._book = PlanBook(self._policy.plan(self.facts, version=0, first_step=0))
        log.info("plan 0: batches %s", list(self._book.plans[0].batches))

    def batch_sizes(self) -> list[int]:
        """Of the newest plan, which may hold from a later step on."""
        return list(self._book.plans[-1].batches)

    def history(self) -> list[dict[str, Any]]:
        """All plans so far, for Settings(replay=...)."""
        return [plan.to_json() for plan in self._book.plans]

    # For the feed.

    def samples(self, step: int) -> int:
        return self._book.at(step).total

    def cut(self, step: int, samples: int) -> tuple[list[int], int]:
        plan = self._book.at(step)
        shares = list(plan.batches) if samples == plan.total else self._tail(plan, samples)
        caps = [facts.micro_batch for facts in self.facts]
        return shares, parts_needed(shares, caps, self._parts_alike)[self._exchange.rank]

    def _tail(self, plan: Plan, samples: int) -> list[int]:
        """The last step of an epoch: the same policy on fewer samples, of which a rank may get none."""
        key = (plan.version, samples)
        if key not in self._tails:
            self._tails[key] = self._policy.tail(self.facts, samples)
        return self._tails[key]

    # For the loader.

    def step_begins(self) -> None:
        self._times.begin()

    def state(self) -> list[dict[str, Any]]:
        return self.history()

    def load_state(self, plans: list[dict[str, Any]], step: int) -> None:
        """Goes on with another run's plan when it was made for as many ranks; its facts about devices are this run's."""
        last = Plan.from_json(plans[-1])
        if len(last.batches) == self._exchange.ranks:
            self._book = PlanBook(Plan(last.version, step, last.batches, last.seconds))

    def step_ended(self, steps: int, next_step: int) -> None:
        """`steps` are done; those before `next_step` are handed out already."""
