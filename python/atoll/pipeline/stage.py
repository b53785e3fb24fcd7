# SPDX-License-Identifier: Apache-2.0
"""One stage as a module: some items of the model in turn."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from atoll.packing.boundary import BoundaryCodec
from atoll.pipeline.items import Call, Item, Parts


class Elsewhere(nn.Module):
    """In the place of a module that other ranks hold."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{self.name} is on another rank: run the model with Pipeline.step or Pipeline.evaluate")


def prune(whole: nn.Module, kept: Iterable[str]) -> None:
    """Leaves these modules of the model; names stay those of the whole model."""
    _prune(whole, "", set(kept))


def _prune(module: nn.Module, prefix: str, kept: set[str]) -> None:
    for name, child in list(module.named_children()):
        path = f"{prefix}{name}"
        if path in kept:
            continue
        if any(each.startswith(f"{path}.") for each in kept):
            _prune(child, f"{path}.", kept)
        elif any(True for _ in (*child.parameters(), *child.buffers())):
            setattr(module, name, Elsewhere(path))


@dataclass(frozen=True)
class Computing:
    """How a stage computes."""

    recompute: bool = False
    """Whether blocks keep their inputs alone and are computed again for their gradients."""
    autocast: torch.dtype | None = None

    def context(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


class StageModule(nn.Module):
    """What a torch.distributed.pipelining stage computes: of the model's inputs or the hidden states before it the
    hidden states behind it or the model's output."""

    def __init__(
        self, whole: nn.Module, parts: Parts, numbers: Sequence[int], computing: Computing, device: torch.device,
        passed: torch.dtype | None, incoming: BoundaryCodec | None = None, outgoing: BoundaryCodec | None = None,
    ) -> None:  # fmt: skip
        """`numbers`: of its items, in a row. `passed`: the type of what it sends to the next stage. `incoming` and
        `outgoing`: how that comes packed and leaves packed."""
        super().__init__()
        self.numbers = list(numbers)
        self.is_first, self.is_last = self.numbers[0] == 0, self.numbers[-1] == len(parts.items) - 1
        self._whole, self._parts = (whole,), parts  # in a tuple, so that it is no child
        self._computing, self._device, self._passed = computing, device, passed
        self._incoming, self._outgoing = incoming, outgoing
        self.held = nn.ModuleDict(
            {name.replace(".", "/"): whole.get_submodule(name) for name in parts.modules(self.numbers)}
        )

    def forward(self, value: torch.Tensor, **given: Any) -> torch.Tensor:
        (whole,) = self._whole
        if self._incoming is not None:
            value = self._incoming.decode(value)
        elif not self.is_first:
            value = _Received.apply(value)  # type: ignore[no-untyped-call]
        call = Call(self._parts, whole, given)
        with self._computing.context(self._device):
            for number in self.numbers:
                value = self._run(self._parts.items[number], whole, value, call)
        return value if self.is_last else self._sendable(value)

    def _run(self, item: Item, whole: nn.Module, value: torch.Tensor, call: Call) -> torch.Tensor:
        if not (self._computing.recompute and item.kind == "block" and torch.is_grad_enabled()):
            return item.run(whole, value, call)
        call.context(value)  # once, and not again with each block
        again: torch.Tensor = checkpoint(item.run, whole, value, call, use_reentrant=False)
        return again

    def _sendable(self, value: torch.Tensor) -> torch.Tensor:
        value = value.to(self._passed).contiguous()
        if self._outgoing is not None:
            value = self._outgoing.encode(value)
        if torch.is_grad_enabled() and value.is_floating_point() and not value.requires_grad:
            value.requires_grad_()  # nothing before it is trained; the next stage sends a gradient all the same
        return value


class _Received(torch.autograd.Function):
    """Nothing, but that the gradient lies in memory as the stage before expects to receive it."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def passes(whole: nn.Module, parts: Parts, inputs: torch.Tensor) -> list[torch.Tensor]:
    """What each item but the last gives for inputs of this shape, without data; `whole` has none either. Raises
    ValueError where that is no tensor."""
    inputs = torch.empty_like(inputs, device="meta")
    count = len(parts.items) - 1
    if parts.hidden is not None:
        return [parts.hidden(whole, inputs)] * count
    call, value, found = Call(parts, whole, {}), inputs, []
    with torch.no_grad():
        for item in parts.items[:-1]:
            value = item.run(whole, value, call)
            if not isinstance(value, torch.Tensor):
                raise ValueError(
                    f"item {item.name!r} gives a {type(value).__name__}: stages send one tensor; put what belongs "
                    "together in one item"
                )
            found.append(value)
    return found
