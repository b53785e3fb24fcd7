# SPDX-License-Identifier: Apache-2.0
"""`atoll.Checkpointer`: the state of a training run in a folder, from which the run resumes on any number of ranks."""

import io
import logging
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from atoll.loading.exchange import Exchange
from atoll.loading.loader import DataLoader
from atoll.saving import files
from atoll.saving.states import check_item, check_plain, own_random, restore, restore_random, unwrapped

_CHUNK_BYTES = 32 << 20
logger = logging.getLogger("atoll.saving")


class Checkpointer:
    """Saves and resumes `items`: models, optimizers, an atoll.DataLoader, schedulers, and anything else that has
    state_dict and load_state_dict and is the same on all ranks. Every rank must hold the whole model
    (DistributedDataParallel).

        checkpointer = atoll.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader, every=100)
        checkpointer.resume()
        while loader.epoch < EPOCHS:
            for inputs, targets in loader:
                ...
                optimizer.step()
                checkpointer.step()
        checkpointer.save()

    folder: holds the checkpoints of this training run only. The hosts may share it, or each host has its own.
    every: step() saves after this many steps.
    keep: the number of checkpoints to keep.
    each_host: the first rank of each host writes, not only rank 0; for hosts that share no folder and may be lost.
    random: saves the random states of each rank too; saving is then collective.
    group: the process group; the default group if omitted. A single process needs none.

    All ranks construct it with the same arguments and call its methods at the same steps."""

    def __init__(
        self, folder: str | os.PathLike[str], *, every: int = 100, keep: int = 2, each_host: bool = False,
        random: bool = False, group: dist.ProcessGroup | None = None, **items: Any,
    ) -> None:  # fmt: skip
        for name, value in (("every", every), ("keep", keep)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"atoll.Checkpointer: {name}={value!r}: must be an integer of at least 1")
        if not items:
            raise ValueError("atoll.Checkpointer: nothing to save: pass model=..., optimizer=..., loader=...")
        for name, item in items.items():
            check_item(name, item)
        self._items = {name: unwrapped(item) for name, item in items.items()}
        self._loaders = [item for item in items.values() if isinstance(item, DataLoader)]
        self._folder, self._every, self._keep, self._random = Path(folder), every, keep, random
        self._device = _device_of(self._items.values())
        self._exchange = None
        if group is not None or dist.is_initialized():
            self._exchange = Exchange(group or dist.distributed_c10d._get_default_group(), self._device)
        self._rank = self._exchange.rank if self._exchange else 0
        self._writes = self._rank == 0 or (each_host and os.environ.get("LOCAL_RANK") == "0")
        self.steps = 0
        """The number of completed steps, including those before a resume."""
        self._newest = -1

    def resume(self) -> int:
        """Restores the newest intact checkpoint that any rank has, and returns its number of steps. Returns 0 and
        changes nothing if there is no checkpoint. Damaged checkpoints are skipped with a warning. Collective. Raises
        ValueError on all ranks if the checkpoint belongs to another training run or to a newer Atoll."""
        if self._writes:
            files.remove_unfinished(self._folder)
        passed_over: set[int] = set()
        while True:
            step, holder = self._agree(passed_over)
            if step < 0:
                return 0
            data = self._receive(step, holder)
            if data is not None:
                break
            if self._rank == holder:
                passed_over.add(step)
        where = f"{files.path_of(self._folder, step)}" + (f" of rank {holder}" if holder != self._rank else "")
        try:
            state = torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(f"{where} is intact, but does not hold a valid state: {error}") from error
        restore(self._items, state["items"], where)
        self._restore_random(state["random"])
        self.steps = step
        self._newest = step if self._rank == holder else -1
        return step

    def step(self) -> None:
        """Counts one completed step, and saves after every `every` steps; call it after the optimizer's step. A
        checkpoint that cannot be written is a warning, and is tried again `every` steps later. Raises RuntimeError
        if called before the last micro-batch of a step."""
        if any(not loader.step_complete for loader in self._loaders):
            raise RuntimeError(
                "atoll.Checkpointer.step: the step is not complete: call it when loader.step_complete is true"
            )
        self.steps += 1
        if self.steps % self._every:
            return
        try:
            self.save()
        except OSError as error:
            logger.warning("%s; training continues, and the next attempt is in %d steps", error, self._every)

    def save(self) -> None:
        """Saves now, unless this step has been saved; call it between two steps. Raises OSError if the checkpoint
        cannot be written; earlier checkpoints are then kept."""
        random = None
        if self._random:
            own = own_random(self._device)
            random = self._exchange.facts(own) if self._exchange else [own]
        if not self._writes or self._newest == self.steps:
            return
        items = {name: item.state_dict() for name, item in self._items.items()}
        for name, state in items.items():
            check_plain(state, name)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            files.write(self._folder, self.steps, {"items": items, "random": random})
        except OSError as error:
            raise OSError(
                error.errno, f"step {self.steps} could not be saved in {self._folder}: {error.strerror or error}"
            ) from error
        self._newest = self.steps
        files.remove_older(self._folder, self.steps, self._keep)

    def _agree(self, passed_over: set[int]) -> tuple[int, int]:
        """Returns the newest step that any rank has, and the first rank that has it; -1 if no rank has one."""
        step, problem = -1, ""
        try:
            step = self._own_newest(passed_over)
        except files.NewerVersionError as error:
            problem = str(error)
        everyone: list[Any] = self._exchange.facts([step, problem]) if self._exchange else [[step, problem]]
        for rank, (_, its) in enumerate(everyone):
            if its:
                raise ValueError(its if rank == self._rank else f"rank {rank}: {its}")
        newest: int = max(step for step, _ in everyone)
        return newest, [step for step, _ in everyone].index(newest)

    def _own_newest(self, passed_over: set[int]) -> int:
        for step in files.steps_in(self._folder):
            if step not in passed_over:
                try:
                    files.check(files.path_of(self._folder, step), step)
                    return step
                except files.UnreadableError as error:
                    logger.warning("%s; looking for an older checkpoint", error)
                    passed_over.add(step)
        return -1

    def _receive(self, step: int, holder: int) -> io.BytesIO | None:
        """Returns the checkpoint's bytes, sent by the rank that has it; None if it is damaged."""
        data = b""
        if self._rank == holder:
            try:
                data = files.read(files.path_of(self._folder, step), step)
            except files.UnreadableError as error:
                logger.warning("%s; looking for an older checkpoint", error)
        if self._exchange is None or self._exchange.ranks == 1:
            return io.BytesIO(data) if data else None
        size = int(self._exchange.numbers([len(data)])[holder][0])
        found = io.BytesIO(data)
        for begin in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - begin)
            if self._rank == holder:
                chunk = torch.frombuffer(bytearray(data[begin : begin + length]), dtype=torch.uint8)
            else:
                chunk = torch.empty(length, dtype=torch.uint8)
            chunk = chunk.to(self._device)
            dist.broadcast(chunk, group=self._exchange.group, group_src=holder)
            if self._rank != holder:
                found.write(chunk.cpu().numpy().data)
        found.seek(0)
        return found if size else None

    def _restore_random(self, states: list[str] | None) -> None:
        if not self._random or states is None:
            return
        ranks = self._exchange.ranks if self._exchange else 1
        if len(states) != ranks and self._rank == 0:
            logger.warning(
                "random states of %d ranks were saved, but %d ranks resume: the rest keep fresh random states",
                len(states),
                ranks,
            )
        if self._rank < len(states):
            restore_random(states[self._rank], self._device)


def _device_of(items: Any) -> torch.device:
    """Returns the device that the group communicates on: the one with the first model's parameters."""
    for item in items:
        parameter = next(item.parameters(), None) if isinstance(item, nn.Module) else None
        if parameter is not None:
            return parameter.device
    return torch.device("cpu")
