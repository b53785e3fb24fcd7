# SPDX-License-Identifier: Apache-2.0
"""`atoll.ElasticTrainer`: data-parallel training that survives the loss of ranks."""

import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from atoll.loading.exchange import Exchange
from atoll.loading.loader import DataLoader
from atoll.recovering import world
from atoll.recovering.member import Member
from atoll.recovering.notices import AWAY, BACK, FRESH, TORN, Roster
from atoll.recovering.replica import Buffers, Replica
from atoll.recovering.sharing import share, share_tensors
from atoll.recovering.steps import Applied, Step, restart_scalers

log = logging.getLogger("atoll.recovering")

_MAX_TRIES = 20


class _GroupLeftError(Exception):
    """The group is gone, or must be left for a larger one; the message says why."""


class ElasticTrainer:
    """Runs a training in which every rank holds the whole model, and continues when some ranks end.

    Under `atoll run --on-failure=shrink` the remaining ranks form a new group at the last step boundary, keep
    parameters and optimizer, divide the rest of the epoch again and continue; restarted ranks receive the state from
    the others. Under other launchers the same program runs, and a lost rank is an error as usual.

    module: on its device, not wrapped. optimizers: one or several, over its parameters.
    loader: makes the atoll.DataLoader for the model that it is passed; called for each group.
    extra: further objects with state_dict and load_state_dict (a scheduler, a GradScaler), whose state is also sent to
        ranks that join later.
    timeout: of operations. It also limits how long others wait for a rank that is alive but does not respond.
    ddp: options of DistributedDataParallel.

    It makes the process group, so the program must not make one before. The constructor is collective, and raises the
    loader's errors for invalid arguments."""

    def __init__(
        self, module: nn.Module, optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        loader: Callable[[nn.Module], DataLoader], *, extra: Mapping[str, Any] | None = None,
        timeout: timedelta = timedelta(minutes=30), ddp: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        self._make_loader, self._extra, self._timeout = loader, dict(extra or {}), timeout
        self.model = Replica(module, ddp or {})
        """The model to call in the loop, instead of the module."""
        self._buffers = Buffers(module)
        self.applied = Applied(self._optimizers, self.model.device)
        self._loader: DataLoader | None = None
        self._state: dict[str, Any] | None = None  # the loader's, at the last step boundary
        self._done = FRESH
        self._is_in_step, self._is_torn = False, False
        self._roster: Roster | None = None
        self._is_away = False
        self._member = Member.from_environment(timeout)
        self.is_supervised = self.applied.is_guarded = self._member is not None
        if self._member is None:
            if not dist.is_initialized():
                dist.init_process_group("atoll", timeout=timeout)
            self._wrap()
            self._done = 0
        elif dist.is_initialized():
            raise RuntimeError(
                "atoll.ElasticTrainer makes the process group, and replaces it whenever ranks come or go: remove "
                "init_process_group"
            )
        else:
            self._regroup("")

    @property
    def loader(self) -> DataLoader:
        """The loader of the newest group."""
        assert self._loader is not None
        return self._loader

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self.loader.epoch

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return self._done

    @property
    def group(self) -> int:
        """The number of the newest group, which increases whenever ranks come or go. 0: without a supervisor."""
        return 0 if self._roster is None else self._roster.number

    @property
    def members(self) -> list[int]:
        """The local ranks of the newest group, by rank."""
        if self._roster is None:
            return list(range(dist.get_world_size()))
        return [seat.local_rank for seat in self._roster.seats]

    def steps(self, epochs: int) -> Iterator[Step]:
        """Yields steps until the training has completed `epochs` epochs in total. Compute each batch in
        `with step as batch:`, with the forward and backward pass and the optimizer's step inside. All ranks must call
        it with the same argument and run it to its end."""
        if self._is_away and self._member and self._roster:
            self._member.report(BACK, self._roster.number)
            self._is_away = False
        while True:
            try:
                yield from self._through(epochs)
                self._finish()
                return
            except Exception as error:
                if not isinstance(error, _GroupLeftError) and not (self.is_supervised and world.is_of_group(error)):
                    raise
                reason = str(error)
            self._regroup(reason)

    def _through(self, epochs: int) -> Iterator[Step]:
        while self.epoch < epochs:
            batches = iter(self.loader)
            with contextlib.closing(batches):  # type: ignore[type-var]
                is_first = True
                for batch in batches:
                    if is_first:
                        self._begin_step()
                    step = Step(self, batch, self._done, self.loader.epoch)
                    yield step
                    self._end_part(step)
                    is_first = step.is_done

    def _begin_step(self) -> None:
        self.applied.begin()
        if self.is_supervised:
            self._buffers.keep()
        self._is_in_step = True

    def _end_part(self, step: Step) -> None:
        if not step.was_entered:
            raise RuntimeError(
                "a step of atoll.ElasticTrainer was not computed: write `with step as batch:` in the loop"
            )
        if step.is_done:
            self._done += 1
            self._state = self.loader.state_dict()
            self._is_in_step = False
        if step.lost is not None:
            raise _GroupLeftError(step.lost)
        if step.is_done and self._roster is not None and self._roster.grows:
            self._admit(self._roster)

    def _admit(self, roster: Roster) -> None:
        """Leaves the group if other ranks wait to join. Collective."""
        assert self._member is not None
        wanted = dist.get_rank() == 0 and self._member.others_wait(roster.number)
        flag = torch.tensor(float(wanted), device=self.model.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if flag.item():
            raise _GroupLeftError("")

    def _finish(self) -> None:
        """Waits until all ranks have completed the last step, after which no rank needs another's state."""
        if self._member is None or self._roster is None:
            return
        dist.all_reduce(torch.zeros(1, device=self.model.device))
        if self.model.device.type != "cpu":
            torch.accelerator.synchronize(self.model.device)
        self._member.report(AWAY, self._roster.number)
        self._is_away = True

    def _regroup(self, reason: str) -> None:
        """Waits for the next group and enters it. An empty reason: nothing has failed."""
        assert self._member is not None
        self._undo_step()
        for _ in range(_MAX_TRIES):
            if reason:
                log.info("group %d is lost after step %d: %s", self.group, self._done, reason)
            self._member.ready(self.group, TORN if self._is_torn else self._done, self._suspects(reason), reason)
            self._leave(bool(reason))
            self._roster = self._member.roster()
            try:
                self._enter(self._roster)
                return
            except Exception as error:
                if not world.is_of_group(error):
                    raise
                reason = str(error)
        raise RuntimeError(
            f"{_MAX_TRIES} groups in a row were lost before a step was completed; the last one: {reason}"
        )

    def _undo_step(self) -> None:
        """Undoes an incomplete step, except for changes by the optimizers."""
        if self._is_in_step:
            self._is_torn = self._is_torn or self.applied.torn
            self._buffers.put_back()
            restart_scalers(self._extra.values(), self._optimizers)
        self._is_in_step = False

    def _suspects(self, reason: str) -> tuple[str, ...]:
        if self._roster is None:
            return ()
        ranks = world.named_ranks(reason)
        own = self._member.name if self._member else ""
        return tuple(seat.member for seat in self._roster.seats if seat.rank in ranks and seat.member != own)

    def _leave(self, has_failed: bool) -> None:
        self.model.unwrap()
        self._loader = None
        world.leave(has_failed)
        gc.collect()  # objects that held the group: hooks of its gradients, workers of its loader

    def _enter(self, roster: Roster) -> None:
        assert self._member is not None
        world.join(self._member.store_of(roster), roster, self._member.name, self._timeout)
        self._catch_up(Exchange(dist.distributed_c10d._get_default_group(), self.model.device))
        self._wrap()
        self._done = max(self._done, 0)
        log.info("group %d: rank %d of %d resumes at step %d", roster.number, dist.get_rank(), len(roster.seats),
                 self._done)  # fmt: skip

    def _catch_up(self, exchange: Exchange) -> None:
        """If ranks have completed unequal numbers of steps, gives all the state of the lowest rank with the most."""
        everyone = [int(steps) for (steps,) in exchange.numbers([TORN if self._is_torn else self._done])]
        most = max(everyone)
        if most == min(everyone) and most != TORN:
            return
        if most < 0:
            raise RuntimeError(
                "the ranks that hold the state of this training are gone, or were interrupted in an optimizer's step: "
                "resume from a checkpoint"
            )
        source = everyone.index(most)
        own = exchange.rank == source
        state = share(self._whole_state() if own else None, source, exchange)
        self._is_torn = self._is_torn or self._done < most  # until all of it has arrived
        share_tensors([*self.model.module.parameters(), *self.model.module.buffers()], source, exchange)
        if not own:
            self._load(state)
        self._done, self._is_torn = most, False

    def _whole_state(self) -> dict[str, Any]:
        return {
            "loader": self._state,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "extra": {name: held.state_dict() for name, held in self._extra.items()},
        }

    def _load(self, state: dict[str, Any]) -> None:
        self._state = state["loader"]
        for optimizer, its in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(its)
        for name, held in self._extra.items():
            held.load_state_dict(state["extra"][name])

    def _wrap(self) -> None:
        wrapper = self.model.wrap()
        self._loader = self._make_loader(wrapper)
        if self._state is not None:
            self._loader.load_state_dict(self._state)
        else:
            self._state = self._loader.state_dict()
