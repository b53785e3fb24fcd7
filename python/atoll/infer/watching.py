# SPDX-License-Identifier: Apache-2.0
"""Detects whether a module has changed since it was captured."""

import enum
import operator
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from atoll.infer.errors import ModelChangedError
from atoll.infer.hooks import HOOKS, global_hook, weights_of_hooks

_HELD = {"_modules": "the layers", "_parameters": "the parameters", "_buffers": "the buffers"}
_PARTS = _HELD | dict.fromkeys(HOOKS, "the hooks")
_OF_EVERY_LAYER = {*vars(nn.Module()), "forward"}
_NUMBERS_AND_TEXTS = (bool, int, float, str, types.NoneType, torch.dtype, enum.Enum)
_PLAIN = (*_NUMBERS_AND_TEXTS, types.FunctionType, types.BuiltinFunctionType)
_ANYTHING = ...  # equals everything
_MAX_ITEMS = 256  # of a list or dict, which every check reads
_MAX_LEVELS = 8
_COMPILED = "._orig_mod"  # in the paths of layers that torch.compile wraps


class Watch:
    """Detects parameters, buffers, layers, hooks and forwards that are replaced, added or removed, tensors whose memory
    changes, and changes in place, by PyTorch's version counters. Changes that bypass the counters (through `.data`, by
    fused optimizers, of inference tensors) are detected by sampling values in host memory, of one parameter and one
    other tensor per check, in turn. Numbers, texts and functions that are attributes, also in lists and dicts, are
    compared with those of the beginning. A check takes microseconds for hundreds of tensors. Keeps the module's tensors
    alive until the module is gone."""

    def __init__(self, module: nn.Module, is_called: bool) -> None:
        """`is_called`: the module's own hooks and forward are watched too, not only those of its layers."""
        from atoll import _C

        self._names: list[str] = []
        layers = list(module.named_modules())
        own = [(path, layer) for path, layer in layers if is_called or layer is not module]
        dicts = [*self._dicts(layers, _HELD), *self._dicts(own, HOOKS)]
        entries = [self._named(_of("the forward", path), (vars(layer), "forward")) for path, layer in own]
        entries += [self._named(_path(path, name), (vars(layer), name)) for path, layer in layers
                    for name, value in _attributes(layer) if isinstance(value, torch.Tensor)]  # fmt: skip
        plain = [(path, layer, name, value) for path, layer in layers for name, value in _plain_attributes(layer)]
        values = [self._named(_path(path, name), (vars(layer), name, value)) for path, layer, name, value in plain]
        self._paths = [path for path, *_ in plain]
        tensors = [self._named(name, tensor) for name, tensor in _tensors(module).items()]
        parameters = sum(1 for _ in module.parameters())
        every = [vars(layer) for _, layer in layers]
        self._core = core = _C.ModuleWatch(dicts, entries, values, tensors, parameters, every)
        self._module = weakref.ref(module, lambda _: core.forget())

    def refuse_changes(self) -> None:
        """Raises ModelChangedError if anything has changed."""
        place = self._core.changed()
        if place is not None or global_hook() is not None:
            what = "the hooks on all modules" if place is None else self._names[place]
            raise ModelChangedError(
                f"the model has changed since it was captured ({what}), but the graph has the old state: "
                f"capture it again, or make another session"
            )

    def leave_out(self, called: nn.Module | None = None, of_layers: bool = True) -> None:
        """Stops watching the plain attributes that differ in `called`, a copy that was called, or have changed by now:
        calls change them, and they change no answer. `of_layers`: also those of layers inside of the module."""
        others: list[dict[str, Any]] | None = None
        if called is not None:
            layers = dict(called.named_modules())
            found = [layers.get(path.replace(_COMPILED, "")) for path in self._paths]
            others = [{} if layer is None else layer.__dict__ for layer in found]
        self._core.leave_out(len(self._paths) if of_layers else self._paths.count(""), others)

    def is_training(self) -> bool:
        """Returns whether any layer is in training mode."""
        return self._core.is_training()

    def _dicts(self, layers: list[tuple[str, nn.Module]], kinds: Iterable[str]) -> Iterator[dict[Any, Any]]:
        for path, layer in layers:
            for kind in (kind for kind in kinds if kind in vars(layer)):
                yield self._named(_of(_PARTS[kind], path), vars(layer)[kind])

    def _named(self, name: str, what: Any) -> Any:
        self._names.append(name)
        return what


def _of(what: str, path: str) -> str:
    return f"{what} of {path}" if path else what


def _path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields a layer's own attributes, except those that its hooks compute."""
    others = _OF_EVERY_LAYER.union(weights_of_hooks(layer))
    return ((name, value) for name, value in vars(layer).items() if name not in others)


def _plain_attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields the plain attributes of a layer with copies of their values, and those of its class, which attributes of
    the layer may replace."""
    classes = [vars(kind) for kind in type(layer).__mro__ if kind not in nn.Module.__mro__]
    of_class = {name: value for held in reversed(classes) for name, value in held.items()
                if isinstance(value, _NUMBERS_AND_TEXTS) and not name.startswith("__")}  # fmt: skip
    for name, value in (of_class | dict(_attributes(layer))).items():
        if (copied := _copied(value, 0)) is not _ANYTHING:
            yield name, copied


def _copied(value: Any, level: int) -> Any:
    """Returns a copy of the lists and dicts in a value, with _ANYTHING in the places of what is not plain."""
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, tuple | list | dict) or len(value) > _MAX_ITEMS or level > _MAX_LEVELS:
        return _ANYTHING
    if isinstance(value, dict):
        return {key: _copied(item, level + 1) for key, item in value.items()}
    items = [_copied(item, level + 1) for item in value]
    if isinstance(value, list):
        return items
    return value if all(map(operator.is_, items, value)) else tuple(items)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns each tensor once: parameters, buffers and those that layers hold as attributes."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        found.setdefault(id(tensor), (name, tensor))
    for path, layer in module.named_modules():
        for name, value in _attributes(layer):
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, torch.Tensor):
                    found.setdefault(id(leaf), (_path(path, name), leaf))
    return dict(found.values())
