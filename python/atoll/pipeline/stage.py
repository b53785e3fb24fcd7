# SPDX-License-Identifier: Apache-2.0
"""One stage as a module: some items of the model in turn."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from atoll.packing.boundary import BoundaryCodec
from atoll.pipeline.items import Call, Item, Parts


class Elsewhere(nn.Module):
    """Replaces a module that other ranks hold."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{self.name} is on another rank: run the model with Pipeline.step or Pipeline.evaluate")


def prune(module: nn.Module, kept: Sequence[str], prefix: str = "") -> None:
    """Keeps only these modules of the model; names stay those of the whole model, inside `module` with the prefix."""
    for name, child in list(module.named_children()):
        path = f"{prefix}{name}"
        if path in kept:
            continue
        if any(each.startswith(f"{path}.") for each in kept):
            prune(child, kept, f"{path}.")
        elif any(True for _ in (*child.parameters(), *child.buffers())):
            setattr(module, name, Elsewhere(path))


@dataclass(frozen=True)
class Computing:
    """How a stage computes."""

    recompute: bool = False
    """Whether blocks keep only their inputs and are recomputed for their gradients."""
    autocast: torch.dtype | None = None

    def context(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=self.autocast)


class StageModule(nn.Module):
    """The module of a torch.distributed.pipelining stage. It maps the model's inputs, or the hidden states of the
    previous stage, to the next hidden states or the model's output."""

    def __init__(
        self, whole: nn.Module, parts: Parts, numbers: Sequence[int], computing: Computing, device: torch.device,
        passed: torch.dtype | None, incoming: BoundaryCodec | None = None, outgoing: BoundaryCodec | None = None,
    ) -> None:  # fmt: skip
        """`numbers`: of its items, which are consecutive. `passed`: the type of the tensor for the next stage.
        `incoming` and `outgoing`: the codecs of its input and output."""
        super().__init__()
        self.numbers = list(numbers)
        self.is_first, self.is_last = self.numbers[0] == 0, self.numbers[-1] == len(parts.items) - 1
        self._whole, self._parts = (whole,), parts  # in a tuple, so that it is not a child module
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
        call.context(value)  # once, instead of for each recomputed block
        again: torch.Tensor = checkpoint(item.run, whole, value, call, use_reentrant=False)
        return again

    def _sendable(self, value: torch.Tensor) -> torch.Tensor:
        value = value.to(self._passed).contiguous()
        if self._outgoing is not None:
            value = self._outgoing.encode(value)
        if torch.is_grad_enabled() and value.is_floating_point() and not value.requires_grad:
            value.requires_grad_()  # nothing before it is trained, but the next stage still sends a gradient
        return value


class _Received(torch.autograd.Function):
    """The identity, with a gradient whose memory layout is the one that the previous stage expects to receive."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def passes(whole: nn.Module, parts: Parts, inputs: torch.Tensor) -> list[torch.Tensor]:
    """Returns the output of each item except the last for inputs of this shape, without data; `whole` has none either.
    Raises ValueError if an output is not a tensor."""
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
                    f"item {item.name!r} returns a {type(value).__name__}, but stages send one tensor: combine "
                    "items that share more than one tensor"
                )
            found.append(value)
    return found
