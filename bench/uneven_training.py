# SPDX-License-Identifier: Apache-2.0
"""One rank of a training with uneven batches: steps with their times, accuracies, and the plans that were made."""

import itertools
import logging
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
import models
import samples
from atoll.bench.devices import synchronize
from atoll.loading.timing import StepTimes
from atoll.watching.options import Watch
from uneven import Run

logging.getLogger("atoll.plan").setLevel(logging.ERROR)  # it warns of small batches, which are intended here


class UnevenTraining:
    """Construct it on all ranks at once; `run` trains and says what happened."""

    def __init__(self, run: Run, device: torch.device, group: dist.ProcessGroup) -> None:
        self.config, self.device = run, device
        self.train, self.test = samples.load(run.data, run.folder)
        self.net = models.make(run.model, run.seed, **run.options)
        if run.norm == "sync":
            atoll.training.convert_batch_norm(self.net)
        own_buffers = {"forward_sync_buffers": False} if run.norm == "merged" else {}
        self.model = DistributedDataParallel(self.net.to(device), process_group=group, **own_buffers)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=run.rate, momentum=run.momentum, weight_decay=run.decay
        )
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, run.drops)
        self.times = StepTimes(device)
        self.done = self.seen = 0
        self.loader = self._weighted() if run.weighted else None

    def _weighted(self) -> atoll.DataLoader:
        run = self.config
        settings = atoll.training.Settings(
            form=run.form, update_interval=run.interval, forward=self._forward, reuse=False, check_replicas=0,
            watch=Watch(live=False),
        )  # fmt: skip
        loader = atoll.DataLoader(
            self.train, run.batch, model=self.model, policy=run.policy, shares=run.shares, seed=run.seed,
            drop_last=True, settings=settings,  # BatchNorm may refuse the single sample that a rank has in a short step
        )  # fmt: skip
        times = loader.planner._times
        follow = times.ready

        def ready() -> None:
            self.times.ready()
            follow()

        times.ready = ready  # type: ignore[method-assign]
        return loader

    def _forward(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """The forward pass for measurements, which does the same work as the first step."""
        if self.config.slow_from == 0:
            self._do_more(batch)
        return models.loss_of(model, batch)

    def _do_more(self, batch: Any) -> None:
        """Slows the rank down with additional forward passes."""
        if dist.get_rank() == self.config.slow_rank:
            with torch.no_grad():
                for _ in range(self.config.slow_passes):
                    self.net(batch[0])

    def run(self) -> dict[str, Any]:
        tasks, late = self._punctuality()
        steps, accuracy = [], []
        for batch in self._batches():
            steps.append(self._step(batch))
            if self.done in self.config.tests:
                accuracy.append([self.done, self._accuracy()])
                self._start_together()
        after = self._punctuality()
        return {
            "steps": steps,
            "accuracy": accuracy,
            "gradient_bytes": sum(each.nbytes for each in self.net.parameters() if each.requires_grad),
            "late": 20 * (after[1] - late) > after[0] - tasks,
            **self._planned(),
        }

    def _batches(self) -> Iterator[Any]:
        """Yields batches, epoch after epoch, until there were enough steps."""
        loader, sampler = (self.loader, None) if self.loader is not None else self._unweighted()
        self._start_together()
        for epoch in itertools.count():
            if sampler is not None:
                sampler.set_epoch(epoch)
            for batch in loader:
                yield batch
                if self.done == self.config.steps:
                    return

    def _unweighted(self) -> tuple[torch.utils.data.DataLoader[Any], atoll.training.BatchSampler]:
        run = self.config
        scores = run.shares or [1.0] * dist.get_world_size()
        sampler = atoll.training.BatchSampler(self.train, run.batch, scores, seed=run.seed)
        return torch.utils.data.DataLoader(self.train, batch_sampler=sampler), sampler

    def _start_together(self) -> None:
        synchronize(self.device)
        dist.barrier()
        self.stepped = time.perf_counter()

    def _step(self, batch: Any) -> list[float]:
        """Returns the seconds since the last step, the seconds of computing without waiting for others, and the
        samples."""
        self.times.begin()
        inputs, targets = batch[0].to(self.device), batch[1].to(self.device)
        if self.done >= self.config.slow_from:
            self._do_more([inputs, targets])
        self.optimizer.zero_grad()
        models.loss_of(self.model, [inputs, targets]).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.schedule.step()
        synchronize(self.device)
        now = time.perf_counter()
        seconds, self.stepped = now - self.stepped, now
        is_empty = self.loader is not None and self.loader.weight == 0
        count = 0 if is_empty else len(targets)
        self.done, self.seen = self.done + 1, self.seen + count
        return [seconds, self.times.take().compute, count]

    def _accuracy(self) -> float:
        """Returns the accuracy on the test samples, computed on the host so that it takes no device time.
        Collective."""
        if self.config.norm == "merged":
            atoll.training.merge_batch_norm(self.model, self.seen)
        if dist.get_rank() != 0:
            return 0.0
        config = self.config
        net = models.make(config.model, config.seed, **config.options)
        net.load_state_dict({name: value.detach().cpu() for name, value in self.net.state_dict().items()})
        net.eval()
        inputs, targets = self.test.tensors
        with torch.no_grad():
            found = torch.cat([net(part).argmax(-1) for part in inputs.split(256)])
        return float((found == targets).float().mean())

    def _punctuality(self) -> tuple[int, int]:
        if self.device.type != "sim":
            return 0, 0
        counts = sys.modules["atoll.sim"].punctuality(self.device.index)
        return counts["tasks"], counts["late"]

    def _planned(self) -> dict[str, Any]:
        if self.loader is None:
            return {"batches": [], "plans": [], "profiles": [], "predicted": 0.0}
        planner = self.loader.planner
        return {
            "batches": list(planner.newest.batches),
            "plans": planner.history(),
            "predicted": planner.newest.seconds,
            "profiles": [facts.profile for facts in planner.facts],
        }
