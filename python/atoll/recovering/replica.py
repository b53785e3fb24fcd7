# SPDX-License-Identifier: Apache-2.0
"""The model that a loop calls: the same object for the whole training, whichever group reduces its gradients."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Replica(nn.Module):
    """Calls `module` through a DistributedDataParallel of the newest group. Parameters stay the same tensors."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = dict(options)
        self._wrappers: list[DistributedDataParallel] = []  # none or one; not a submodule

    @property
    def device(self) -> torch.device:
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def wrap(self) -> DistributedDataParallel:
        """Wraps the module in the default group. Collective: afterwards the module equals that of rank 0."""
        options = dict(self._options)
        if self.device.type != "cpu":
            options.setdefault("device_ids", [self.device])
        wrapper = DistributedDataParallel(self.module, **options)
        wrapper.train(self.training)  # type: ignore[no-untyped-call]
        self._wrappers = [wrapper]
        return wrapper

    def unwrap(self) -> None:
        """Drops the group, and gradients that may have been reduced partially."""
        for wrapper in self._wrappers:
            wrapper.reducer._remove_autograd_hooks()
        self._wrappers = []
        for parameter in self.module.parameters():
            parameter.grad = None

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._wrapper()(*arguments, **named)

    def no_sync(self) -> AbstractContextManager[None]:
        return self._wrapper().no_sync()

    def train(self, mode: bool = True) -> "Replica":
        super().train(mode)
        for wrapper in self._wrappers:
            wrapper.train(mode)  # type: ignore[no-untyped-call]
        return self

    def _wrapper(self) -> DistributedDataParallel:
        if not self._wrappers:
            raise RuntimeError("the model currently has no group: call it inside `with step as batch:`")
        return self._wrappers[0]


class Buffers:
    """Saves and restores the buffers of a module that a forward pass changes, such as running statistics."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept: dict[str, torch.Tensor] = {}

    def keep(self) -> None:
        for name, buffer in self._module.named_buffers():
            kept = self._kept.get(name)
            if kept is None or kept.shape != buffer.shape:
                self._kept[name] = buffer.detach().clone()
            else:
                kept.copy_(buffer.detach())

    def put_back(self) -> None:
        with torch.no_grad():
            for name, buffer in self._module.named_buffers():
                if name in self._kept:
                    buffer.copy_(self._kept[name])
