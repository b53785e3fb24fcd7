# SPDX-License-Identifier: Apache-2.0
"""Hooks of a captured module. Their computation is part of the graph. A hook that only has a side effect, such as
storing a value, would run while the model is captured and never again, so it is refused."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from atoll.infer.errors import ExportError
from atoll.infer.export_errors import complaint
from atoll.infer.module_copy import copy_of
from atoll.infer.structure import Structure

HOOKS = ("_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = tuple(getattr(torch_module, f"_global{name}") for name in HOOKS)
_OF_TORCH = "torch.nn.utils."  # weight_norm and others, which compute a weight before each call


def refuse_global_hooks() -> None:
    """Raises ExportError if hooks on all modules are registered, which Python runs for a layer but a graph does not."""
    hook = global_hook()
    if hook is not None:
        raise ExportError(
            f"{_name(hook)} is a hook on all modules (register_module_forward_hook or _pre_hook), which a graph cannot "
            f"call: remove it first"
        )


def global_hook() -> Any | None:
    """Returns a hook on all modules that was not registered by PyTorch itself, if any."""
    if not any(GLOBAL_HOOKS):
        return None
    hooks = (hook for hooks in GLOBAL_HOOKS for hook in hooks.values())
    return next((hook for hook in hooks if not _only_watches(hook)), None)


def has_own_hooks(module: nn.Module) -> bool:
    return any(vars(module).get(name) for name in HOOKS)


def weights_of_hooks(module: nn.Module) -> Iterator[str]:
    """Yields the attributes of one layer that hooks of torch.nn.utils compute from parameters before each call."""
    for hook in module._forward_pre_hooks.values():
        if _is_of_torch(hook):
            yield from (found for name in ("name", "_tensor_name") if (found := getattr(hook, name, None)) is not None)


def refuse_observers(module: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    """Raises ExportError for a hook that returns nothing and does not change the result of `call` on the module. Calls
    a copy of the module once per such hook, and once more."""
    if not any(map(has_own_hooks, module.modules())):
        return
    copied = copy_of(module, clone_buffers=True)
    seen = [
        _Seen(hooks, key, path)
        for path, layer in copied.named_modules()
        for hooks in (vars(layer).get(name, {}) for name in HOOKS)
        for key, hook in hooks.items()
        if not (_is_of_torch(hook) or _only_watches(hook))
    ]
    with torch.no_grad():
        try:
            wanted = call(copied) if seen else None
        except Exception as error:
            raise complaint(error) from error
        for each in (each for each in seen if each.was_silent):
            if _is_same(each.without(lambda: call(copied)), wanted):
                where = f" of {each.path}" if each.path else ""
                raise ExportError(
                    f"the hook {_name(each.hook)}{where} does not change what the model computes: its side effects "
                    f"would happen while the model is captured and never again. Remove it first, or return its value "
                    f"as an output"
                )


class _Seen:
    """Replaces a hook and notes whether it returns anything."""

    def __init__(self, hooks: dict[int, Any], key: int, path: str) -> None:
        self.path = path
        self.hook = hooks[key]
        self._hooks, self._key = hooks, key
        self._was_called = self._has_returned = False
        hooks[key] = self

    @property
    def was_silent(self) -> bool:
        return self._was_called and not self._has_returned

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.hook(*args, **kwargs)
        self._was_called = True
        self._has_returned |= result is not None
        return result

    def without(self, call: Callable[[], Any]) -> Any:
        """Returns the result of the call while this hook does nothing; None if the call then fails."""
        self._hooks[self._key] = lambda *_, **__: None
        try:
            return call()
        except Exception:
            return None
        finally:
            self._hooks[self._key] = self


def _is_of_torch(hook: Any) -> bool:
    return f"{getattr(type(hook), '__module__', '')}.".startswith(_OF_TORCH)


def _only_watches(hook: Any) -> bool:
    """Returns whether the hook is one of PyTorch's that change no value, as of FlopCounterMode and exported modules."""
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _is_same(one: Any, other: Any) -> bool:
    """Returns whether two results are bit for bit equal, as if the same operators ran."""
    if one is None:
        return False
    structure, tensors = Structure.of(one, "output")
    other_structure, other_tensors = Structure.of(other, "output")
    return structure.spec == other_structure.spec and all(map(_is_same_tensor, tensors, other_tensors))


def _is_same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
