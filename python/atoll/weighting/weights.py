# SPDX-License-Identifier: Apache-2.0
"""What all ways of weighing have in common, and which of them a model needs."""

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from atoll.weighting.part import Part, part_of


class Weights(ABC):
    """Weighs the gradients of one model by the part that is under way. `begin` each part before its forward pass."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.part: Part | None = None
        self.when_ready: Callable[[], None] = lambda: None
        """Called when this rank's last gradient of a step is computed, before it waits for other ranks."""
        self.when_reduced: Callable[[], None] = lambda: None
        """Called when the gradients of all ranks are there, on any thread, before the backward pass ends. Never where
        that is not known: fully_shard communicates all the time."""

    @property
    @abstractmethod
    def parts_must_match(self) -> bool:
        """Whether all ranks need the same number of parts in a step, because they communicate in forward passes."""

    def begin(self, part: Part) -> None:
        """The next forward and backward pass belong to `part`."""
        self.part = part

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
        where it is not finite. Raises RuntimeError before the first batch."""
        share = self.current().share()
        if share == 0:
            buffer.zero_()
        elif share * factor != 1:
            buffer.mul_(share * factor)

    def current(self) -> Part:
        if self.part is None:
            raise RuntimeError(
                "a backward pass before the first batch of atoll.DataLoader: its gradients have no weight yet; iterate "
                "over the loader, or use the model without DistributedDataParallel or fully_shard"
            )
        return self.part


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


def communicates_in_forward(model: nn.Module) -> bool:
    """Whether some layer of the model is a known one that exchanges something with other ranks in its forward pass."""
    from atoll.weighting.batch_norm import SyncBatchNorm

    return any(isinstance(module, SyncBatchNorm | nn.SyncBatchNorm) for module in model.modules())
