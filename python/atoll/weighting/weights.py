# SPDX-License-Identifier: Apache-2.0
"""The common interface of all kinds of weights, the choice of the kind for a model, and whose turn they are for."""

import contextlib
import copyreg
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.batch_part import Part

OUTSIDE = (
    "a backward pass before the first batch of atoll.DataLoader, or after the last one of an epoch: its gradients have "
    "no weight. Compute each batch before requesting the next one, so put nothing around the loader that prefetches; "
    "to train without the loader wrap the net in a separate DistributedDataParallel"
)


class Weights:
    """Weights the gradients of one model by the current part. Call `begin` for each part before its forward pass. This
    class itself applies no weights, nor do copies of others, as in a copied or saved model."""

    is_copy = False
    part: Part | None = None
    parts_must_match = False
    """Whether all ranks need the same number of parts in a step, because they communicate in forward passes."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._is_left = False
        self.when_ready: Callable[[], None] = lambda: None
        """Called when this rank's last gradient of a step is computed, before it waits for other ranks; for each layer
        if layers are reduced one by one."""
        self.when_reduced: Callable[[], None] = lambda: None
        """Called when the gradients of all ranks are reduced, on any thread, before the backward pass ends. Never
        called if that moment is unknown: fully_shard communicates all the time."""

    @torch._disable_dynamo(recursive=False)
    def _before_forward(self, _model: nn.Module, _inputs: tuple[Any, ...]) -> None:
        """Runs before the model's forward pass."""
        if not self.is_copy and self.part is not None and torch.is_grad_enabled():
            self.part.is_computed = True

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self),), {"is_copy": True}  # type: ignore[attr-defined]

    def check_group(self, group: dist.ProcessGroup) -> None:
        """Raises ValueError if the group's ranks differ from those whose gradients are added up, because their shares
        would not add up to 1."""
        if group is self.group:
            return
        given, own = (sorted(dist.get_process_group_ranks(each)) for each in (group, self.group))
        if given != own:
            raise ValueError(
                f"the group has ranks {given}, but the model's gradients are added up over ranks {own}: pass the "
                "model's group, or none"
            )

    def expect_parts(self) -> None:
        """Announces that some rank's steps have several parts. Call it on all ranks."""

    def begin(self, part: Part) -> None:
        """Starts `part`, to which the next forward and backward pass belong."""
        self._is_left = False
        self.take(part)

    def take(self, part: Part | None) -> None:
        """Resumes a part that was started before, or None, with which a backward pass is an error."""
        self.part = part
        self.synchronise(part is None or part.is_last)

    def leave(self) -> None:
        """Called when the loop is left. The backward pass of its part may still follow, or something new."""
        self._is_left = True
        self.synchronise(True)

    def under_way(self) -> Part | None:
        """Returns the part of the current loop, if any."""
        return None if self._is_left else self.part

    def synchronise(self, whether: bool) -> None:
        """Sets whether the next backward pass reduces the gradients over ranks, if that can be chosen."""

    @contextlib.contextmanager
    def unweighted(self) -> Iterator[None]:
        """Inside the context passes belong to no step and are not scaled, as when the model is measured."""
        before, self.part = self.part, Part(1, lambda: 1)
        try:
            yield
        finally:
            self.part = before

    def scale(self, buffer: torch.Tensor, factor: float) -> None:
        """Multiplies a gradient in place by this rank's share and `factor`. The gradient of a part that does not count
        becomes zero, even if it is not finite. Raises RuntimeError outside steps."""
        part = self.current()
        part.is_used = True
        share = part.share()
        if share == 0:
            buffer.zero_()
        elif share * factor != 1:
            buffer.mul_(share * factor)

    def current(self) -> Part:
        if self.part is None:
            raise RuntimeError(OUTSIDE)
        return self.part


_known: "weakref.WeakKeyDictionary[nn.Module, Weights]" = weakref.WeakKeyDictionary()


def weights_of(model: nn.Module) -> Weights:
    """Returns the weights of a wrapped model: DistributedDataParallel, or FSDP2's fully_shard. Returns the same object
    each time. Raises TypeError for other models."""
    from atoll.weighting.batch_norm import SyncBatchNorm
    from atoll.weighting.ddp import weigh_ddp
    from atoll.weighting.fsdp import FsdpWeights

    if model not in _known:
        if isinstance(model, DistributedDataParallel):
            weights: Weights = weigh_ddp(model)
        elif isinstance(model, FSDPModule):
            weights = FsdpWeights(model)
        else:
            raise TypeError(
                f"model is a {type(model).__name__}: pass what reduces the gradients, DistributedDataParallel(net) or "
                "fully_shard(net)"
            )
        for module in model.modules():
            if isinstance(module, SyncBatchNorm):
                module.weights = weights
        _known[model] = weights
    return _known[model]


def know(model: nn.Module, weights: Weights) -> None:
    """Sets the weights of a model whose gradients are reduced in another way."""
    _known[model] = weights


class Turn:
    """A loop over one of the loaders that take turns in weighting a model's gradients. From its first batch on,
    backward passes belong to its current batch. A loop inside another loop's step, such as an evaluation, returns the
    weights when it ends or is left."""

    def __init__(self, weights: Weights, before: Part | None) -> None:
        """`before`: the current part of the loader's last loop, which this one replaces."""
        self._weights = weights
        self._part: Part | None = None
        around = weights.under_way()
        self._around = around if around is not before else None

    def begin(self, part: Part) -> None:
        if self._around is not None and self._weights.part is not self._part:
            self._around = self._weights.under_way()  # which continues while this loop is open
        self._weights.begin(part)
        self._part = part

    def go_on(self) -> None:
        """Called when the loop is done with its current batch. Raises RuntimeError if gradients were weighted for a
        loop inside this one's step but none for this loop, because both were computed together with a single weight."""
        if self._part is None or self._around is not None:
            return
        other = self._weights.part
        if other is not None and other is not self._part and other.is_used and not self._part.is_used:
            raise RuntimeError(
                "gradients of this atoll.DataLoader's batch were weighted as those of another atoll.DataLoader, from "
                "which a batch was taken in the meantime: call backward() for each loader's batch before taking one "
                "from the next loader, or combine both datasets in one loader"
            )

    def end(self) -> None:
        """Called when there are no more batches."""
        if self._weights.part is self._part:
            self._weights.take(self._around)

    def leave(self) -> None:
        """Called after `end`, or instead of it: then the current batch may still be computed, unless this loop is
        inside another loop's step."""
        if self._part is None or self._weights.part is not self._part:
            return
        if self._around is not None:
            self._weights.take(self._around)
        else:
            self._weights.leave()
