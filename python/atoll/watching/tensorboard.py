# SPDX-License-Identifier: Apache-2.0
"""Writes records as TensorBoard scalars, and events as texts."""

import re
from collections.abc import Mapping
from importlib import import_module

from atoll.watching.record import PlanEvent, WindowRecord

FLUSH_SECONDS = 10


class Board:
    """A TensorBoard writer with the tags atoll/step/... for the whole step, atoll/rank0_cuda_0/... for each rank and
    device, and atoll/events."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        try:
            module = import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise ImportError(f"{self} needs the package tensorboard ({error}): pip install tensorboard") from None
        try:
            self._writer = module.SummaryWriter(folder, flush_secs=FLUSH_SECONDS)
        except OSError as error:
            raise ValueError(f"{self} cannot be written: {error.strerror}: give a folder that can be made") from None

    def __str__(self) -> str:
        return f"Watch(tensorboard={self._folder!r})"

    def window(self, record: WindowRecord) -> None:
        whole = {
            "seconds": record.wall_seconds, "predicted_seconds": record.predicted_seconds,
            "bound_seconds": record.bound_seconds, "distance": record.distance,
            "samples_per_second": record.samples_per_second, "plan": record.plan, "replica_drift": record.replica_drift,
        }  # fmt: skip
        self._scalars("step", whole, record.step)
        self._scalars("noted", record.noted, record.step)
        by_rank = {
            "batch": record.batches, "compute_seconds": record.compute_seconds, "input_seconds": record.input_seconds,
            "waiting": record.waiting, "speed_factor": record.speed_factors,
        }  # fmt: skip
        for rank, device in enumerate(record.devices):
            values = {name: numbers[rank] for name, numbers in by_rank.items() if rank < len(numbers)}
            self._scalars(f"rank{rank}_{re.sub('[^A-Za-z0-9]+', '_', device)}", values, record.step)

    def event(self, event: PlanEvent) -> None:
        self._writer.add_text("atoll/events", f"{event.kind}: {event.text}", event.step)

    def close(self) -> None:
        self._writer.close()

    def _scalars(self, part: str, values: Mapping[str, float | None], step: int) -> None:
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(f"atoll/{part}/{name}", value, step)
