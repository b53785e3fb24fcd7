# SPDX-License-Identifier: Apache-2.0
"""Runs stages and schedules of torch.distributed.pipelining, which are made once for each shape of batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from atoll.packing.boundary import BoundaryCodec
from atoll.pipeline.plan import Pipe, nearest_batches
from atoll.pipeline.schedules import Kind
from atoll.pipeline.stage import StageModule

Passes = Callable[[torch.Tensor], list[torch.Tensor]]
LossOf = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Given = Mapping[str, torch.Tensor]

SHAPES = 16
"""The number of kept schedules, each with memory for what it receives."""


class _Stage(PipelineStage):
    """Skips a check of the last stage: PyTorch 2.11 compares a stage's outputs with `output_args`, which are unknown
    for the last stage, because it sends nothing."""

    def _validate_fwd_outputs(self, outputs: tuple[torch.Tensor, ...]) -> None:
        if not self.is_last:
            super()._validate_fwd_outputs(outputs)  # type: ignore[misc]


class Runner:
    """Runs this rank's stages of one pipeline for batches of any shape; keeps schedules for the last SHAPES shapes."""

    def __init__(
        self, modules: Mapping[int, StageModule], pipe: Pipe, kind: Kind, group: dist.ProcessGroup,
        device: torch.device, passes: Passes, codecs: Sequence[BoundaryCodec | None],
    ) -> None:  # fmt: skip
        """`modules`: by the stage's number. `passes`: returns the outputs of items for inputs without data
        (stage.passes). `codecs`: the codec of each stage's input."""
        self._modules, self._pipe, self._kind, self._group = dict(sorted(modules.items())), pipe, kind, group
        self._device, self._passes, self._codecs = device, passes, codecs
        self._made: dict[tuple[Any, ...], Any] = {}
        self._loss: LossOf

    @property
    def has_last(self) -> bool:
        return len(self._pipe.stages) - 1 in self._modules

    def check_batch(self, samples: int) -> None:
        """Raises ValueError for a batch that cannot be cut into equal micro-batches, and names the nearest that can."""
        count, sizes = self._pipe.micro_batches, (len(self._pipe.ranks), len(self._pipe.stages))
        if not (near := nearest_batches(samples, count)):
            return
        able = (each for each in range(1, samples + 1) if self._kind.is_possible(each, *sizes))
        dividing = [each for each in able if samples % each == 0]
        nearest = min(dividing, key=lambda each: abs(each - count), default=None)
        other = "" if nearest is None else f", or make the pipeline with micro_batches={nearest}"
        raise ValueError(
            f"a batch of {samples} samples cannot be divided into {count} micro-batches of one size: use {near} "
            f"samples{other}"
        )

    def train(self, inputs: torch.Tensor, labels: torch.Tensor, given: Given, loss: LossOf) -> torch.Tensor:
        """Runs the forward and backward passes of this pipeline's batch, and returns the sum of the micro-batches'
        losses; 0 if the last stage is on another rank. Adds gradients to those of the parameters."""
        key = (tuple(inputs.shape), inputs.dtype)
        schedule = self._made.pop(key, None) or self._schedule(inputs)
        self._made[key] = schedule  # now the newest
        if len(self._made) > SHAPES:
            del self._made[next(iter(self._made))]
        arguments = (inputs,) if 0 in self._modules else ()
        losses: list[torch.Tensor] = []
        ends: dict[str, Any] = {"target": labels, "losses": losses} if self.has_last else {}
        self._loss = loss
        with torch.enable_grad():
            schedule.step(*arguments, **ends, return_outputs=False, **given)
        return self._sum(losses)

    @torch.no_grad()
    def evaluate(self, inputs: torch.Tensor, labels: torch.Tensor, given: Given, loss: LossOf) -> torch.Tensor:
        """The same without gradients. All micro-batches pass one stage of a rank before the next."""
        count = self._pipe.micro_batches
        rows = {name: value.chunk(count) for name, value in given.items()}
        values, targets = list(inputs.chunk(count)), labels.chunk(count)
        losses: list[torch.Tensor] = []
        sent: list[tuple[Any, torch.Tensor]] = []
        for number, module in self._modules.items():
            before, behind = self._neighbour(number - 1), self._neighbour(number + 1)
            if before is not None:
                like = self._received(self._micro(inputs))[number - 1]
                values = [torch.empty_like(like, device=self._device) for _ in range(count)]
            for place in range(count):
                if before is not None:
                    dist.recv(values[place], group=self._group, group_src=before)
                value = module(values[place], **{name: parts[place] for name, parts in rows.items()})
                if module.is_last:
                    losses.append(loss(value, targets[place]))
                    continue  # outputs are large, and no longer needed
                if behind is not None:
                    sent.append((dist.isend(value, group=self._group, group_dst=behind), value))
                values[place] = value
        for work, _ in sent:
            work.wait()
        return self._sum(losses)

    def _neighbour(self, number: int) -> int | None:
        """Returns the position of the rank with this stage; None if there is none, or it is this rank."""
        if number in self._modules or not 0 <= number < len(self._pipe.stages):
            return None
        return self._pipe.ranks.index(self._pipe.stages[number].rank)

    def _sum(self, losses: list[torch.Tensor]) -> torch.Tensor:
        if not losses:
            return torch.zeros((), dtype=torch.float64, device=self._device)
        return torch.stack([each.detach() for each in losses]).to(torch.float64).sum()

    def _micro(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns a tensor with the shape of a micro-batch."""
        samples = inputs.shape[0] // self._pipe.micro_batches
        return torch.empty(samples, *inputs.shape[1:], dtype=inputs.dtype, device="meta")

    def _received(self, micro: torch.Tensor) -> list[torch.Tensor]:
        """Returns the input of each stage except the first for inputs of this shape, without data. Raises ValueError on
        all ranks of the pipeline if a packed one is not as wide as in the example."""
        between = self._passes(micro)
        values = [between[stage.first - 1] for stage in self._pipe.stages[1:]]
        pairs = zip(values, self._codecs[1:], strict=True)
        return [value if codec is None else codec.encode(value) for value, codec in pairs]

    def _schedule(self, inputs: torch.Tensor) -> Any:
        """Makes the schedule with explicit shapes, so that PyTorch does not run the model to infer them."""
        micro = self._micro(inputs)
        received = [_trained(each) for each in self._received(micro)]
        stages = []
        for number, module in self._modules.items():
            stages.append(_Stage(
                module, number, len(self._pipe.stages), self._device, group=self._group,
                input_args=micro if module.is_first else received[number - 1],
                output_args=micro if module.is_last else received[number],  # the last stage sends nothing
            ))  # fmt: skip
        is_single = isinstance(self._kind.build, type) and issubclass(self._kind.build, PipelineScheduleSingle)
        held: Any = stages[0] if is_single else stages
        return self._kind.build(
            held, n_microbatches=self._pipe.micro_batches, loss_fn=lambda *of: self._loss(*of), scale_grads=False
        )


def _trained(value: torch.Tensor) -> torch.Tensor:
    value = torch.empty(value.shape, dtype=value.dtype, device="meta")
    return value.requires_grad_() if value.is_floating_point() else value
