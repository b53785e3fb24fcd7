# SPDX-License-Identifier: Apache-2.0
"""One rank of a training of fewer_bytes.py: what it sent, and the loss at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import atoll
import models
import samples
from fewer_bytes import EXACT, HALF, NO_FEEDBACK, PIPELINES, Run

MICROBATCHES = 4
TEST_SAMPLES = 512


def train(run: Run) -> dict[str, float]:
    """Collective. The loss is the last rank's; bytes are those of the steps after the first one."""
    train_on, test = samples.load("text")
    inputs, targets = train_on.tensors
    training = TRAININGS[run.kind](run)
    before = 0
    for step, chosen in enumerate(order(len(inputs), run)):
        if step == 1:
            dist.barrier()
            before = sent_bytes()
        training.step(inputs[chosen], targets[chosen])
    dist.barrier()
    sent = sent_bytes() - before
    loss = training.loss(*(part[:TEST_SAMPLES] for part in test.tensors))
    training.close()
    return {"bytes": float(sent), "loss": loss}


def order(count: int, run: Run) -> Iterator[torch.Tensor]:
    """The samples of each step on both ranks together; the same whatever is packed."""
    chance = torch.Generator().manual_seed(run.seed)
    for _ in range(run.steps):
        yield torch.randint(count, (2 * run.batch,), generator=chance)


def sent_bytes() -> int:
    """The bytes that the interface between the namespaces has sent since it was created."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "bridge0":
            return int(figures.split()[8])
    raise RuntimeError("this process has no interface bridge0")


def byte_model(run: Run) -> models.ByteModel:
    torch.manual_seed(run.seed)
    return models.ByteModel(run.width, run.layers)


def mean_loss(found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(found.reshape(-1, found.size(-1)), targets.reshape(-1))


class Replica:
    """One of two ranks that hold the whole model."""

    def __init__(self, run: Run) -> None:
        self._half = slice(dist.get_rank() * run.batch, (dist.get_rank() + 1) * run.batch)
        self._model = DistributedDataParallel(byte_model(run))
        self._compressed: atoll.training.CompressedGradients | None = None
        if run.packing == HALF:
            self._model.register_comm_hook(None, bfloat16_hook)
        elif run.packing != EXACT:
            format, feeds_back = run.packing.partition(",")[0], run.packing != NO_FEEDBACK
            self._compressed = atoll.training.compress_gradients(self._model, format, error_feedback=feeds_back)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=run.rate)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        mean_loss(self._model(inputs[self._half]), targets[self._half]).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    @torch.no_grad()
    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        return mean_loss(self._model.module(inputs), targets).item()

    def close(self) -> None:
        if self._compressed is not None:
            self._compressed.close()


def bfloat16_hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """PyTorch's own hook, which DDP refuses under its own name on machines without a GPU."""
    return default_hooks.bf16_compress_hook(None, bucket)


class Half(nn.Module):
    """A part of the model."""

    def __init__(self, whole: models.ByteModel, parts: slice, is_first: bool) -> None:
        super().__init__()
        self.embedding, self.place = (whole.embedding, whole.place) if is_first else (None, None)
        self.body = whole.body[parts]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None and self.place is not None:
            x = self.embedding(x) + self.place[: x.size(1)]
        found: torch.Tensor = self.body(x)
        return found


class Stage:
    """One of two consecutive stages."""

    def __init__(self, run: Run) -> None:
        self._rank, self._batch = dist.get_rank(), 2 * run.batch
        whole = byte_model(run)
        middle = run.layers  # every layer is an attention and a perceptron
        is_first = self._rank == 0
        self._module = Half(whole, slice(0, middle) if is_first else slice(middle, None), is_first)
        if run.packing == HALF:
            cast(self._module, is_first)
        elif run.packing != EXACT:
            codec = atoll.pipeline.BoundaryCodec(run.packing, run.width)
            atoll.pipeline.pack_boundaries(self._module, None if is_first else codec, codec if is_first else None)
        stage = PipelineStage(self._module, self._rank, 2, torch.device("cpu"))
        self._schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES, loss_fn=mean_loss)
        self._optimizer = torch.optim.Adam(self._module.parameters(), lr=run.rate)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._optimizer.zero_grad()
        self._run(self._schedule.step, inputs, targets)
        self._optimizer.step()

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        """Evaluates in batches of the training's size, because stages keep their shapes."""
        found: list[torch.Tensor] = []
        for part, expected in zip(inputs.split(self._batch), targets.split(self._batch), strict=True):
            losses: list[torch.Tensor] = []
            self._run(self._schedule.eval, part, expected, losses)
            found += losses
        return torch.stack(found).mean().item() if found else 0.0

    def _run(
        self, call: object, inputs: torch.Tensor, targets: torch.Tensor, losses: list[torch.Tensor] | None = None
    ) -> None:
        assert callable(call)
        if self._rank == 0:
            call(inputs)
        else:
            call(target=targets, losses=losses)

    def close(self) -> None:
        pass


class Start(nn.Module):
    """The embedding before the layers."""

    def __init__(self, whole: models.ByteModel) -> None:
        super().__init__()
        self.embedding, self.place = whole.embedding, whole.place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.embedding(x) + self.place[: x.size(1)]
        return found


class Pipelines:
    """One of four ranks in two pipelines of two stages."""

    def __init__(self, run: Run) -> None:
        whole = byte_model(run)
        model = nn.Sequential(Start(whole), *whole.body)
        first = 1 + run.layers  # as in Stage
        example = torch.zeros(run.batch, len(whole.place), dtype=torch.long)
        packing = None if run.packing == EXACT else run.packing
        self._batch = run.batch
        self._pipe = atoll.pipeline.Pipeline(
            model, (example, example), items=[name for name, _ in model.named_children()],
            plan=[first, len(model) - first], micro_batches=MICROBATCHES, replicas=2, boundaries=packing,
            gradients=packing, loss=atoll.pipeline.Loss(sum_of_losses, torch.Tensor.numel),
        )  # fmt: skip
        self._optimizer = torch.optim.Adam(self._pipe.parameters(), lr=run.rate)

    def _mine(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.chunk(2)[self._pipe.place] for tensor in tensors]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        self._pipe.step(*self._mine(inputs, targets))
        self._optimizer.step()

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> float:
        return self._pipe.evaluate(*self._mine(inputs, targets)).item()

    def close(self) -> None:
        self._pipe.close()


def sum_of_losses(found: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(found.reshape(-1, found.size(-1)), targets.reshape(-1), reduction="sum")


TRAININGS: dict[str, Callable[[Run], Replica | Stage | Pipelines]] = {
    "gradients": Replica, "boundary": Stage, PIPELINES: Pipelines
}  # fmt: skip


def cast(module: nn.Module, is_first: bool) -> None:
    """The boundary in bfloat16, forward and backward."""
    if is_first:
        module.register_forward_hook(lambda _module, _inputs, found: found.bfloat16())
    else:
        module.register_forward_pre_hook(lambda _module, inputs: (inputs[0].float(),))
