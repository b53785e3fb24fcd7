# SPDX-License-Identifier: Apache-2.0
"""Detects whether a module has changed since it was captured."""

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


class Watch:
    """Detects parameters, buffers, layers, hooks and forwards that are replaced, added or removed, tensors whose memory
    changes, and changes in place, by PyTorch's version counters. Changes that bypass the counters (through `.data`, by
    fused optimizers, of inference tensors) are detected by sampling values in host memory, of one parameter and one
    other tensor per check, in turn. A check takes microseconds for hundreds of tensors. Keeps the module's tensors
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
        tensors = [self._named(name, tensor) for name, tensor in _tensors(module).items()]
        parameters = sum(1 for _ in module.parameters())
        self._core = core = _C.ModuleWatch(dicts, entries, tensors, parameters, [vars(layer) for _, layer in layers])
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
    computed = set(weights_of_hooks(layer))
    return ((name, value) for name, value in vars(layer).items() if not name.startswith("_") and name not in computed)


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
