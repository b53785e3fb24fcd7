# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.pipelining computes the loss and the gradients of one process."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import _PipelineSchedule

from client_ranks import EVERYWHERE, ON_CPUS, on_layouts
from support import device

# torch 2.12 saves the random state of CUDA devices, whatever device the stages are on (schedules.py, fork_rng).
LAYOUTS = ON_CPUS if torch.__version__.startswith("2.12.") else EVERYWHERE
WIDTH, SAMPLES, MICROBATCHES = 6, 12, 6


def blocks(count: int) -> list[nn.Module]:
    torch.manual_seed(5)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).double() for _ in range(count)]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(6)
    inputs, targets = torch.randn(2, SAMPLES, WIDTH, generator=random, dtype=torch.float64)
    return inputs, targets


def run(schedule: _PipelineSchedule, is_first: bool, is_last: bool) -> list[torch.Tensor]:
    """Runs one step; returns the losses of the microbatches on the last stage."""
    inputs, targets = (part.to(device()) for part in batch())
    losses: list[torch.Tensor] = []
    arguments = (inputs,) if is_first else ()
    schedule.step(*arguments, **({"target": targets, "losses": losses} if is_last else {}))
    return losses


def check(stages: dict[int, nn.Module], count: int, losses: list[torch.Tensor]) -> None:
    alone = blocks(count)
    inputs, targets = batch()
    parts = [
        nn.functional.mse_loss(nn.Sequential(*alone)(part), target)
        for part, target in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)
    ]
    torch.stack(parts).mean().backward()
    if losses:
        torch.testing.assert_close(torch.stack(losses).cpu(), torch.stack(parts))
    for index, stage in stages.items():
        for mine, expected in zip(stage.parameters(), alone[index].parameters(), strict=True):
            torch.testing.assert_close(mine.grad.cpu(), expected.grad)


def check_single(kind: type[_PipelineSchedule], rank: int, count: int, group: dist.ProcessGroup) -> None:
    module = blocks(count)[rank].to(device())
    stage = PipelineStage(module, rank, count, torch.device(device()), group=group)
    schedule = kind(stage, n_microbatches=MICROBATCHES, loss_fn=nn.MSELoss())  # type: ignore[call-arg]
    losses = run(schedule, rank == 0, rank == count - 1)
    assert len(losses) == (MICROBATCHES if rank == count - 1 else 0)
    check({rank: module}, count, losses)


@on_layouts(*LAYOUTS)
def test_one_forward_one_backward_three_stages(rank: int, size: int) -> None:
    check_single(Schedule1F1B, rank, size, dist.group.WORLD)


@on_layouts(*LAYOUTS)
def test_one_forward_one_backward_two_stages(rank: int, size: int) -> None:
    group = dist.new_group([0, 1])
    if rank < 2:
        check_single(Schedule1F1B, rank, 2, group)


@on_layouts(*LAYOUTS)
def test_all_forward_all_backward(rank: int, size: int) -> None:
    check_single(ScheduleGPipe, rank, size, dist.group.WORLD)


@on_layouts(*LAYOUTS)
def test_interleaved_stages(rank: int, size: int) -> None:
    count = 2 * size
    modules = {index: blocks(count)[index].to(device()) for index in (rank, rank + size)}
    stages = [
        PipelineStage(module, index, count, torch.device(device()), group=dist.group.WORLD)
        for index, module in modules.items()
    ]
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=MICROBATCHES, loss_fn=nn.MSELoss())
    losses = run(schedule, rank == 0, rank == size - 1)
    check(modules, count, losses)
