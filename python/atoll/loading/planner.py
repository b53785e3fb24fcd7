# SPDX-License-Identifier: Apache-2.0
"""The plans of a training. All ranks hold the same plans, because they make them from the same facts."""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atoll.loading.communication import library_seconds, seconds_inside
from atoll.loading.exchange import Exchange
from atoll.loading.facts import RankFacts, require_room, smaller
from atoll.loading.follower import Follower
from atoll.loading.measuring import measure
from atoll.loading.policy import Plan, PlanBook, Policy
from atoll.loading.replica_check import ReplicaCheck
from atoll.loading.settings import Settings
from atoll.loading.timing import StepTimes
from atoll.loading.windows import parts_needed
from atoll.plan.documents import record_of
from atoll.profiling.device import DeviceProfile
from atoll.profiling.device_memory import memory_used
from atoll.profiling.forward import to_device
from atoll.profiling.isolation import same_random_numbers, without_trace
from atoll.redis import members
from atoll.weighting.limits import depends_on_batch, local_norms, warnings_for
from atoll.weighting.weights import Weights

log = logging.getLogger("atoll.plan")


class Planner:
    """Makes the plans of one loader and follows the training's times. Constructing it measures the devices. That is
    collective, and so is `step_ended` after every update interval."""

    def __init__(
        self, exchange: Exchange, global_batch: int, *, policy: str, shares: Sequence[float] | None,
        max_batch: int | None, micro_batch: int | None, model: nn.Module | None, weights: Weights, settings: Settings,
        seed: int, batch_of: Callable[..., Any],
    ) -> None:  # fmt: skip
        self._exchange, self._settings, self._model, self._weights = exchange, settings, model, weights
        self._policy = Policy(policy, global_batch, exchange.ranks, shares, settings, seed=seed,
                              is_weighted=model is not None)  # fmt: skip
        own = RankFacts(str(exchange.device), max_batch, micro_batch, settings.watts)
        if model is not None and settings.measure and self._policy.needs_costs:
            own.profile = self._measured(model, batch_of, global_batch, own)
            members.publish_score(exchange.group, own.profile.to_json())
        self.facts = [record_of(RankFacts, facts) for facts in exchange.facts(asdict(own))]
        require_room(self.facts, global_batch)
        self._times = StepTimes(exchange.device, seconds_inside(exchange.group))
        self._library: float | None = None
        if isinstance(model, DistributedDataParallel) and own.profile is not None:
            self._library = library_seconds(exchange.group, model)
        if any(rank.micro_batch is not None for rank in self.facts):
            weights.expect_parts()
        self._tails: dict[tuple[int, int], list[int]] = {}
        with self._aside():  # importing a watcher may draw random numbers
            self._follower = Follower(exchange, self._policy, self.facts, settings)
        self._replicas = ReplicaCheck(exchange, model, settings.check_replicas, self._follower.watchers)
        self._book = PlanBook(self._follower.first_plan())
        batches = self.newest.batches
        if model is None and max(batches) - min(batches) > settings.quantum:
            raise ValueError(
                f"max_batch makes the shares {list(batches)} uneven, and unweighted gradients would be "
                "wrong: pass model=DistributedDataParallel(net), or lower global_batch"
            )
        log.info("plan %d: batches %s", self.newest.version, list(batches))
        if model is not None:
            self._warn(model, batch_of)

    def _measured(
        self, model: nn.Module, batch_of: Callable[..., Any], global_batch: int, own: RankFacts
    ) -> DeviceProfile:
        most = smaller(own.max_batch, own.micro_batch)
        with self._aside():
            profile = measure(
                model, batch_of, self._exchange, self._settings, global_batch, most, own.micro_batch is not None
            )
        if own.micro_batch is not None and 0 < profile.cap < own.micro_batch:
            log.warning("micro_batch=%d does not fit into memory: passes have at most %d samples", own.micro_batch,
                        profile.cap)  # fmt: skip
        return profile

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Inside the context, what is read and computed belongs to no step and does not advance random generators."""
        with same_random_numbers(self._exchange.device), self._weights.unweighted():
            yield

    def _warn(self, model: nn.Module, batch_of: Callable[..., Any]) -> None:
        """Warns on rank 0 of what weights cannot make exact. All check: the user's forward pass may need all ranks."""
        by_speed = self._policy.needs_costs and self._settings.measure and self._exchange.ranks > 1
        found = list(warnings_for(model, self.newest.batches, by_speed))
        forward, device = self._settings.forward, self._exchange.device
        if forward is not None and isinstance(model, DistributedDataParallel):
            try:
                with self._aside(), without_trace(model.module, device, forward) as trace, trace.watched():
                    whole, *halves = (to_device(batch_of(*rows), device) for rows in ((4,), (2,), (2, 2)))
                    is_mean = not depends_on_batch(forward, model.module, whole, halves)
            except Exception as error:  # not a reason to end the training
                log.info("whether the loss of a batch is the mean over its samples is unknown: %s", error)
                is_mean = True
            if not is_mean:
                found.append(
                    "the loss of a batch is not the mean over its samples: uneven shares cannot be exact with it"
                )
        for text in found if self._exchange.rank == 0 else []:
            log.warning("%s", text)

    @property
    def newest(self) -> Plan:
        """The newest plan, which may apply from a later step on."""
        return self._book.plans[-1]

    def history(self) -> list[dict[str, Any]]:
        """Returns all plans so far with the steps from which they apply, for Settings(replay=...)."""
        return self._follower.adapter.history

    def freeze(self, frozen: bool = True) -> None:
        """Keeps the current plan, or follows the times again. Must be called on all ranks after the same step."""
        self._follower.freeze(frozen)

    def note(self, weight: float, values: Mapping[str, torch.Tensor | float]) -> None:
        """Adds values to be shown with the window; `weight`: of the batch in its step."""
        self._follower.notes.add(weight, values)

    def alike(self) -> dict[str, Any]:
        """Returns what must be equal on all ranks about their plans, as JSON values."""
        return self._follower.alike()

    def samples(self, step: int) -> int:
        """Returns the number of samples in a whole step, over all ranks."""
        return self._book.at(step).total

    def cut(self, step: int, samples: int) -> tuple[list[int], int]:
        """Returns each rank's share of a step of `samples` samples, and the number of batches in this rank's share."""
        plan = self._book.at(step)
        shares = list(plan.batches) if samples == plan.total else self._tail(plan, samples)
        return shares, self.batches(shares)

    def batches(self, shares: list[int]) -> int:
        """Returns the number of batches in which this rank computes its share."""
        caps = [facts.largest_pass() for facts in self.facts]
        return parts_needed(shares, caps, self._weights.parts_must_match)[self._exchange.rank]

    def _tail(self, plan: Plan, samples: int) -> list[int]:
        """Returns the shares of an epoch's last step: the same policy on fewer samples, of which a rank may get none.
        It depends only on the plan, because ranks hand the step out at different times."""
        key = (plan.version, samples)
        if key not in self._tails:
            self._tails[key] = shares = self._policy.tail(self.facts, plan.factors, samples)
            if min(shares) < 2 and self._exchange.rank == 0:
                self._warn_of_tail(samples, shares)
        return self._tails[key]

    def _warn_of_tail(self, samples: int, shares: list[int]) -> None:
        told = ""
        if self._model is None and 0 in shares:
            told = (
                "without model=... a rank without samples trains on one as if it counted: pass drop_last=True or "
                "another global_batch; an evaluation can exclude it by loader.weight or loader.mean"
            )
        elif self._model is not None and local_norms(self._model):
            told = (
                "BatchNorm may refuse the single sample of a rank: pass drop_last=True, or wrap "
                "atoll.training.convert_batch_norm(net)"
            )
        if told:
            log.warning("the last step of an epoch has %d samples for %d ranks; %s", samples, len(shares), told)

    def asks(self) -> None:
        self._times.asks()

    def step_begins(self) -> None:
        """Claims the next backward passes for this loader; earlier ones may belong to other loaders of the model."""
        self._weights.when_ready, self._weights.when_reduced = self._times.ready, self._times.reduced
        self._times.begin()

    def step_ended(self, steps: int, epoch: int, next_step: int, trained: bool = True) -> None:
        """Notes that `steps` steps of the training are done and those before `next_step` have been handed out.
        `trained`: whether this step had gradients; in an evaluation ranks may be at different positions."""
        self._times.end()
        if trained:
            self._replicas.step_ended(steps)
        plan = self._book.at(steps - 1)
        interval = self._settings.update_interval
        if interval and steps % interval == 0:
            memory, drift = memory_used(self._exchange.device), self._replicas.take()
            first_step = max(next_step, self.newest.first_step + 1)  # several steps may wait for one with many parts
            taken = self._times.take()
            if self._library is not None:  # Atoll does not see the time inside an island where a library works
                taken = replace(taken, inside=self._library)
            if made := self._follower.observe(taken, plan, steps, epoch, first_step, memory, drift):
                self._book.plans.append(made)
                log.info("plan %d from step %d on: batches %s", made.version, made.first_step, list(made.batches))
        if self._book.at(steps).version != plan.version:
            self._times.forget()

    def resume(self, step: int) -> None:
        """Resumes at `step` with this run's own first plan, because its ranks and devices may differ."""
        self._book = PlanBook(self._follower.first_plan(step))
        self._tails.clear()  # ranks may have requested different ones
