# SPDX-License-Identifier: Apache-2.0
"""Copies of modules that share all their tensors."""

import copyreg
import functools
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch
from torch import nn

_ALIASED = (torch.Tensor, nn.Parameter)
_SEQUENCES = (list, tuple, set, frozenset)
_DYNAMO_ORIGINAL = "_torchdynamo_orig_callable"


def copy_of(module: nn.Module, clone_buffers: bool = False) -> nn.Module:
    """Returns a copy of the module, its layers, and their lists and dicts. Everything else is shared: the memory of
    tensors, locks, sockets, settings. Changes to the copy do not affect the original. Methods of layers and
    `functools.partial` are bound to the copies; wrappers of torch.compile are left out. With `clone_buffers` the copy
    also has its own buffers.

    A class that keeps layers outside modules, lists and dicts continues to use the originals."""
    with torch.inference_mode(False), torch.no_grad():
        copied: nn.Module = _Copier(clone_buffers).copy(module)
    return copied


class _Copier:
    def __init__(self, clone_buffers: bool) -> None:
        self._clone_buffers = clone_buffers
        self._copies: dict[int, Any] = {}  # by the identity of the originals
        self._originals: list[Any] = []  # kept alive, so that no other object gets their identity

    def copy(self, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)]
        kind = type(value)
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            return self._module(value)
        if kind in (dict, OrderedDict, defaultdict):
            made = self._keep(value, defaultdict(value.default_factory) if kind is defaultdict else kind())
            for key, item in value.items():
                made[key] = self.copy(item)
            return made
        if kind in (list, deque):
            made = self._keep(value, [] if kind is list else deque(maxlen=value.maxlen))
            made.extend(map(self.copy, value))
            return made
        if kind in _SEQUENCES:
            return self._keep(value, kind(map(self.copy, value)))
        if kind in _ALIASED:
            return self._keep(value, _alias(value))
        return self._keep(value, self._callable(value))

    def _callable(self, value: Any) -> Any:
        """Copies a callable; everything else is shared."""
        if isinstance(value, types.MethodType) and isinstance(value.__self__, nn.Module):
            return types.MethodType(value.__func__, self.copy(value.__self__))
        if type(value) is functools.partial:
            made = functools.partial(self.copy(value.func), *map(self.copy, value.args))
            made.keywords.update({name: self.copy(item) for name, item in value.keywords.items()})
            return made
        if isinstance(value, types.FunctionType) and _DYNAMO_ORIGINAL in vars(value):
            return self.copy(vars(value)[_DYNAMO_ORIGINAL])
        stands_for = getattr(type(value), "atoll_stands_for", None)  # of an attached layer's forward
        return value if stands_for is None else self.copy(stands_for(value))

    def _module(self, module: nn.Module) -> nn.Module:
        inner = vars(module).get("_modules", {}).get("_orig_mod")
        if inner is not None:  # torch.compile wraps it
            copied: nn.Module = self._keep(module, self.copy(inner))
            return copied
        made: nn.Module = self._keep(module, object.__new__(type(module)))
        for name, value in vars(module).items():
            if name != "_compiled_call_impl":
                vars(made)[name] = self.copy(value)
        for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
            if hasattr(module, name):
                object.__setattr__(made, name, self.copy(getattr(module, name)))
        if self._clone_buffers:
            cloned = {name: None if buffer is None else buffer.clone() for name, buffer in module._buffers.items()}
            vars(made)["_buffers"] = cloned
        return made

    def _keep(self, value: Any, made: Any) -> Any:
        self._copies[id(value)] = made
        self._originals.append(value)
        return made


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Returns another tensor of the same memory, so that what tracing attaches to it disappears with it."""
    if tensor.is_inference():  # only code in InferenceMode could use a view
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    else:
        made = tensor.detach()
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made
