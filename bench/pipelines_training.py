# SPDX-License-Identifier: Apache-2.0
"""One rank of the trainings of pipelines.py: pipelines by name, whose steps are timed in blocks."""

import sys
import time
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import atoll
import samples
from atoll.bench.devices import synchronize
from atoll.pipeline import Pipeline, Settings, initialise
from atoll.pipeline.losses import next_token_sum, next_tokens
from pipelines_cases import Case

TEXT = 1 << 19  # bytes of it


def model_of(case: Case) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=case.vocabulary, hidden_size=case.width, intermediate_size=3 * case.width,
        num_hidden_layers=case.blocks, num_attention_heads=4, max_position_embeddings=samples.LENGTH, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(getattr(torch, case.dtype))


@cache
def text() -> torch.Tensor:
    return samples.text(TEXT)[0]


def rows_of(case: Case, step: int) -> torch.Tensor:
    """Returns the samples of a step for all pipelines; they do not depend on how they are computed."""
    chance = torch.Generator().manual_seed(1_000_000 * case.seed + step)
    return text()[torch.randint(len(text()), (case.samples,), generator=chance)]


def optimizer_of(parameters: Any, case: Case) -> torch.optim.Optimizer:
    """Returns the optimizer, in the same variant on all devices."""
    return torch.optim.AdamW(parameters, lr=case.rate, foreach=False)


def alone(case: Case, steps: int) -> list[float]:
    """Returns the losses of one process with the whole model, on the CPU."""
    net = initialise(model_of(case), case.seed)
    optimizer = optimizer_of(net.parameters(), case)
    losses = []
    for step in range(steps):
        rows = rows_of(case, step)
        optimizer.zero_grad()
        loss = next_token_sum(net(rows, use_cache=False).logits, rows) / next_tokens(rows)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


class Held:
    """A pipeline and the number of steps it has done."""

    def __init__(self, case: Case, pipe: Pipeline) -> None:
        self.case, self.pipe, self.done = case, pipe, 0
        self.optimizer = optimizer_of(pipe.parameters(), case)

    def rows(self) -> torch.Tensor:
        """Returns the samples of the next step that belong to this rank's pipeline."""
        shares = self.pipe.plan.shares
        first = self.case.micro * sum(shares[: self.pipe.place])
        return rows_of(self.case, self.done)[first : first + self.case.micro * shares[self.pipe.place]]

    def step(self) -> tuple[float, float, torch.Tensor]:
        """Returns the seconds of the whole step, those of its forward and backward passes, and the loss."""
        rows = self.rows()
        begin = time.perf_counter()
        loss = self.pipe.step(rows, rows)
        synchronize(self.pipe.device)
        passed = time.perf_counter() - begin
        self.optimizer.step()
        synchronize(self.pipe.device)
        self.done += 1
        return time.perf_counter() - begin, passed, loss


class PipelineTraining:
    """All pipelines of one rank. Every rank of the job must make the same calls."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[str, Held] = {}

    def make(self, name: str, case: Case) -> dict[str, Any]:
        """Makes a pipeline; returns its plan and the request to the planner, or None if there was none."""
        pipe = Pipeline(
            lambda: model_of(case), rows_of(case, 0), micro_batches=case.micro_batches, plan=case.plan,
            replicas=case.replicas, seed=case.seed, device=self._device, settings=Settings(reuse=False),
        )  # fmt: skip
        self._held[name] = Held(case, pipe)
        return {"plan": pipe.plan.to_json(), "request": pipe.profile}

    def block(self, name: str, steps: int) -> dict[str, Any]:
        """Trains some steps, which all ranks start together."""
        held = self._held[name]
        synchronize(self._device)
        tasks, late = self._punctuality()
        dist.barrier()
        found = [held.step() for _ in range(steps)]
        after = self._punctuality()
        return {
            "seconds": [seconds for seconds, _, _ in found],
            "passes": [passed for _, passed, _ in found],
            "losses": [loss.item() for _, _, loss in found],
            "tasks": after[0] - tasks,
            "late": after[1] - late,
        }

    def drop(self, names: list[str]) -> None:
        for name in names:
            del self._held[name]

    def links(self) -> dict[str, str]:
        """Returns how this rank reaches the others, where Atoll knows."""
        try:
            return {str(peer): kind for peer, kind in atoll.links().items()}
        except (ValueError, RuntimeError):
            return {}

    def _punctuality(self) -> tuple[int, int]:
        if self._device.type != "sim":
            return 0, 0
        counts = sys.modules["atoll.sim"].punctuality(self._device.index)
        return counts["tasks"], counts["late"]
