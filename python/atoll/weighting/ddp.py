# SPDX-License-Identifier: Apache-2.0
"""Weighted gradients for DistributedDataParallel: scales each bucket before it is reduced, by whichever hook, or each
gradient before it is accumulated."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from atoll import refusals
from atoll.weighting.batch_norm import SyncBatchNorm
from atoll.weighting.batch_part import Part
from atoll.weighting.weights import OUTSIDE, Weights

_ENGINE = torch.autograd.Variable._execution_engine
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def weigh_ddp(model: DistributedDataParallel) -> Weights:
    """Returns weights that scale buckets, or single gradients if the user has already registered a communication hook,
    which PyTorch does not allow to be replaced. Hooks that are registered later get scaled buckets."""
    if not model._comm_hooks:
        try:
            return _BucketWeights(model)
        except RuntimeError:
            pass  # one of PyTorch's built-in hooks
    return _GradientWeights(model)


class _DdpWeights(Weights):
    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model.process_group)
        self._model = weakref.ref(model)  # the model owns these weights
        self.parts_must_match = any(isinstance(module, SyncBatchNorm | nn.SyncBatchNorm) for module in model.modules())
        model.register_forward_pre_hook(self._before_forward)

    def synchronise(self, whether: bool) -> None:
        if (model := self._model()) is not None:
            model.require_backward_grad_sync = whether

    def _weigh_each(self) -> None:
        """Scales each gradient as soon as autograd has computed it, before it is accumulated. So gradients of several
        parts and steps, including reduced ones, add up, and their mean over ranks must be taken."""
        model = self._model()
        assert model is not None
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._scaled)  # type: ignore[no-untyped-call]

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._model() is None:  # the net has another wrapper now
            return gradient
        scaled = gradient.clone()
        self.scale(scaled, self.group.size())
        return scaled


class _BucketWeights(_DdpWeights):
    """A communication hook in front of the user's hook.

    One factor per bucket suffices if each backward pass is reduced: contributions of earlier steps to the gradients are
    equal on all ranks, whose shares add up to 1. If gradients stay on a rank for longer (several parts in a step,
    `no_sync`), each is scaled individually."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self._weighs_each = False
        self._is_unsure = False  # whether passes over the parameters may belong to another wrapper
        self._inner: Hook | None = None
        self._inner_state: Any = None
        self._works: list[dist.Work] = []  # of this backward pass
        model.register_comm_hook(None, self._reduce)
        model.register_comm_hook = self._take_hook  # type: ignore[method-assign]

    def expect_parts(self) -> None:
        if not self._weighs_each:
            self._weighs_each = True
            self._weigh_each()

    def begin(self, part: Part) -> None:
        if not (part.is_first and part.is_last):
            self.expect_parts()
        self._works.clear()
        self._is_unsure = False
        super().begin(part)

    def leave(self) -> None:
        super().leave()
        self._is_unsure = True

    @torch._disable_dynamo(recursive=False)
    def _before_forward(self, model: nn.Module, inputs: tuple[Any, ...]) -> None:
        super()._before_forward(model, inputs)
        if self.is_copy or self.part is None or not torch.is_grad_enabled():
            return
        self._is_unsure = False
        if self.part.is_last and not model.require_backward_grad_sync:
            self.expect_parts()  # no_sync: the step's gradients stay on this rank

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.part is None or self._is_unsure:  # a pass of this wrapper is an error in _weigh_bucket
            return gradient
        return super()._scaled(gradient)

    def _take_hook(self, state: object, hook: Hook) -> None:
        """Registers a hook without PyTorch's check, which refuses bf16 without NCCL; Atoll reduces it anywhere."""
        if self.is_copy:
            raise RuntimeError(
                "register_comm_hook on a copy of a model that a loader weights: wrap the copy's module in a separate "
                "DistributedDataParallel"
            )
        if not callable(hook):
            raise TypeError(f"a communication hook must be callable, got {type(hook).__name__}")
        if self._inner is not None:
            raise RuntimeError("register_comm_hook can only be called once")  # PyTorch's own text
        self._inner, self._inner_state = hook, state

    def _weigh_bucket(self, buffer: torch.Tensor, divided_by: int) -> None:
        """Scales a bucket. `divided_by`: the later divisor of the sum over ranks."""
        ranks = self.group.size()
        if not self._weighs_each:
            self.scale(buffer, divided_by)
            return
        if self._is_unsure:
            raise RuntimeError(OUTSIDE)
        self.current()
        if divided_by != ranks:
            buffer.mul_(divided_by / ranks)

    def _reduce(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        is_last = bucket.is_last()
        if is_last:
            self.when_ready()
        buffer = bucket.buffer()
        if self._inner is not None:
            self._weigh_bucket(buffer, self.group.size())
            with refusals.reported_to(self.group, "communication hook"):
                reduced = self._inner(self._inner_state, bucket)
        else:
            self._weigh_bucket(buffer, 1)
            work = dist.all_reduce(buffer, group=self.group, async_op=True)
            self._works.append(work)
            if is_last:
                _ENGINE.queue_callback(self._wait)
            reduced = work.get_future().then(lambda done: done.value()[0])
        return reduced.then(self._last) if is_last else reduced

    def _wait(self) -> None:
        """Waits at the end of the backward pass, before DDP does: an error keeps its type here, but would become a
        RuntimeError in the callback of a future."""
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def _last(self, done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        gradients = done.value()
        self.when_reduced()
        return gradients


class _GradientWeights(_DdpWeights):
    """Scales every gradient individually, beside a hook that cannot be replaced and computes the mean."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self._is_asked = False
        self._weigh_each()

    def begin(self, part: Part) -> None:
        super().begin(part)
        self._is_asked = False

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        if self._model() is not None and not self._is_asked and self.current().is_last:
            self._is_asked = True
            _ENGINE.queue_callback(self._is_computed)
        return super()._scaled(gradient)

    def _is_computed(self) -> None:
        """Called before DistributedDataParallel waits for the other ranks, whose callback it has queued by now."""
        self.when_ready()
        _ENGINE.queue_callback(lambda: self.when_reduced())
