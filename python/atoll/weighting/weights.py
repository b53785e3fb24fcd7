# SPDX-License-Identifier: Apache-2.0
"""What all ways of weighing have in common, and which of them a model needs."""

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.part import Part, part_of

OUTSIDE = (
    "a backward pass before the first batch of atoll.DataLoader, or after the last one of an epoch: its gradients have "
    "no weight. Compute each batch before the loader is asked for the next one, so put nothing around it that fetches "
    "ahead; to train without it wrap the net in a DistributedDataParallel of its own"
)


class Weights(ABC):
    """Weighs the gradients of one model by the part that is under way. `begin` each part before its forward pass.

    Copies, as a copied or saved model has them, weigh nothing."""

    is_copy = False
    part: Part | None = None

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._is_left = False
        self.when_ready: Callable[[], None] = lambda: None
        """Called when this rank's last gradient of a step is computed, before it waits for other ranks; where layers
        are reduced one by one, for each of them."""
        self.when_reduced: Callable[[], None] = lambda: None
        """Called when the gradients of all ranks are there, on any thread, before the backward pass ends. Never where
        that is not known: fully_shard communicates all the time."""

    @torch._disable_dynamo(recursive=False)
    def _before_forward(self, _model: nn.Module, _inputs: tuple[Any, ...]) -> None:
        """A hook of the model."""
        if not self.is_copy and self.part is not None and torch.is_grad_enabled():
            self.part.is_computed = True

    def __reduce__(self) -> tuple[Callable[["type[Weights]"], "Weights"], tuple["type[Weights]"]]:
        return _copy_of, (type(self),)

    @property
    @abstractmethod
    def parts_must_match(self) -> bool:
        """Whether all ranks need the same number of parts in a step, because they communicate in forward passes."""

    def check_group(self, group: dist.ProcessGroup) -> None:
        """Raises ValueError for a group of other ranks than those whose gradients are added up: their shares would add
        up to something else than 1."""
        if group is self.group:
            return
        given, own = (sorted(dist.get_process_group_ranks(each)) for each in (group, self.group))
        if given != own:
            raise ValueError(
                f"the group has ranks {given}, the model's gradients are added up over ranks {own}: give the model's "
                "group, or none"
            )

    def expect_parts(self) -> None:  # noqa: B027 - not all ways of weighing need it
        """Some rank's steps have several parts. To be said on all ranks."""

    def begin(self, part: Part) -> None:
        """The next forward and backward pass belong to `part`."""
        self._is_left = False
        self.take(part)

    def take(self, part: Part | None) -> None:
        """As `begin`, of a part that was begun before, or of none: then a backward pass is an error."""
        self.part = part
        self.synchronise(part is None or part.is_last)

    def leave(self) -> None:
        """The loop is left. What comes next may still be the backward pass of its part, or something new."""
        self._is_left = True
        self.synchronise(True)

    def under_way(self) -> Part | None:
        """Of the loop that goes on; None where there is none."""
        return None if self._is_left else self.part

    def synchronise(self, whether: bool) -> None:  # noqa: B027 - not all can
        """Whether the next backward pass ends with the gradients of all ranks, where that can be chosen."""

    @contextlib.contextmanager
    def unweighted(self) -> Iterator[None]:
        """Passes inside belong to no step, as when the model is measured: they count whole."""
        before, self.part = self.part, part_of(1, 1)
        try:
            yield
        finally:
            self.part = before

    def scale(self, buffer: torch.Tensor, factor: float) -> None:
        """Multiplies a gradient in place with this rank's share and `factor`. What counts nothing becomes zero, also
        where it is not finite. Raises RuntimeError outside steps."""
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


def _copy_of(kind: type[Weights]) -> Weights:
    copied = kind.__new__(kind)
    copied.is_copy = True
    return copied


_known: "weakref.WeakKeyDictionary[nn.Module, Weights]" = weakref.WeakKeyDictionary()


def weights_of(model: nn.Module) -> Weights:
    """The weights of a model that is wrapped already: DistributedDataParallel, or FSDP2's fully_shard. The same ones
    when asked again. Raises TypeError for other models."""
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
                f"model is a {type(model).__name__}: give what reduces the gradients, DistributedDataParallel(net) or "
                "fully_shard(net)"
            )
        for module in model.modules():
            if isinstance(module, SyncBatchNorm):
                module.weights = weights
        _known[model] = weights
    return _known[model]


def know(model: nn.Module, weights: Weights) -> None:
    """From now on these are the weights of the model, for what reduces gradients in a way of its own."""
    _known[model] = weights


def communicates_in_forward(model: nn.Module) -> bool:
    """Whether some layer of the model is a known one that exchanges something with other ranks in its forward pass."""
    from atoll.weighting.batch_norm import SyncBatchNorm

    return any(isinstance(module, SyncBatchNorm | nn.SyncBatchNorm) for module in model.modules())
