# SPDX-License-Identifier: Apache-2.0
"""Weighted gradients for DistributedDataParallel: each bucket is scaled before it is reduced, whatever reduces it."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.part import Part
from atoll.weighting.weights import Weights, communicates_in_forward

_ENGINE = torch.autograd.Variable._execution_engine
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def weigh_ddp(model: DistributedDataParallel) -> Weights:
    """Scales buckets, or single gradients where the user has registered a communication hook already: PyTorch does not
    let it be replaced. Hooks that are registered later are called with scaled buckets."""
    if not model._comm_hooks:
        try:
            return _BucketWeights(model)
        except RuntimeError:
            pass  # one of PyTorch's built-in hooks
    return _GradientWeights(model)


class _DdpWeights(Weights):
    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model.process_group)
        self._model = weakref.ref(model)  # which owns these weights
        self._forward_talks = communicates_in_forward(model)

    @property
    def parts_must_match(self) -> bool:
        return self._forward_talks

    def model(self) -> DistributedDataParallel:
        model = self._model()
        assert model is not None
        return model

    def begin(self, part: Part) -> None:
        super().begin(part)
        self.model().require_backward_grad_sync = part.is_last


class _BucketWeights(_DdpWeights):
    """A communication hook in front of the user's.

    Gradients accumulate as if every part of the step had as many elements as the one under way: on a change they are
    multiplied with the ratio. So one factor per bucket is enough in the end."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self._inner: Hook | None = None
        self._inner_state: Any = None
        self._works: list[dist.Work] = []  # of this backward pass
        model.register_comm_hook(None, self._reduce)
        model.register_comm_hook = self._take_hook  # type: ignore[method-assign]

    def begin(self, part: Part) -> None:
        before = self.part
        super().begin(part)
        self._works.clear()
        if not part.is_first and before is not None and before.own != part.own:
            if part.own == 0:
                raise RuntimeError("an empty part after others of its step: empty ones come first")
            self._change_unit(before.own / part.own)

    def _change_unit(self, ratio: float) -> None:
        gradients = [parameter.grad for parameter in self.model().parameters() if parameter.grad is not None]
        if not gradients:
            return
        if ratio == 0:
            torch._foreach_zero_(gradients)
        else:
            torch._foreach_mul_(gradients, ratio)

    def _take_hook(self, state: object, hook: Hook) -> None:
        """PyTorch's own check is left out: it refuses bf16 wherever NCCL is missing, Atoll reduces it anywhere."""
        if not callable(hook):
            raise TypeError(f"a communication hook must be callable, got {type(hook).__name__}")
        if self._inner is not None:
            raise RuntimeError("register_comm_hook can only be called once")  # as PyTorch says
        self._inner, self._inner_state = hook, state

    def _reduce(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        is_last = bucket.is_last()
        if is_last:
            self.when_ready()
        buffer = bucket.buffer()
        if self._inner is not None:
            self.scale(buffer, self.group.size())  # hooks divide by the number of ranks
            result = self._inner(self._inner_state, bucket)
            return result.then(self._last) if is_last else result
        self.scale(buffer, 1)
        work = dist.all_reduce(buffer, group=self.group, async_op=True)
        self._works.append(work)
        if is_last:
            torch.autograd.Variable._execution_engine.queue_callback(self._wait)
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(self._last_of if is_last else _only)
        return reduced

    def _wait(self) -> None:
        """At the end of the backward pass, where DDP is about to wait: an error keeps its type here, and becomes a
        RuntimeError in the callback of a future."""
        works, self._works = self._works, []
        for work in works:
            work.wait()

    def _last(self, done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        gradients = done.value()
        self.when_reduced()
        return gradients

    def _last_of(self, done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        gradients = _only(done)
        self.when_reduced()
        return gradients


def _only(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
    return done.value()[0]


class _GradientWeights(_DdpWeights):
    """Each gradient is scaled as soon as autograd has it, before it is accumulated."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self._is_asked = False
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_hook(self._scaled)  # type: ignore[no-untyped-call]

    def begin(self, part: Part) -> None:
        super().begin(part)
        self._is_asked = False

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        if not self._is_asked and self.current().is_last:
            self._is_asked = True
            _ENGINE.queue_callback(self._is_computed)
        scaled = gradient.clone()
        self.scale(scaled, self.group.size())
        return scaled

    def _is_computed(self) -> None:
        """Before DistributedDataParallel waits for the others, which it has asked the engine for by now."""
        self.when_ready()
        _ENGINE.queue_callback(lambda: self.when_reduced())
