# SPDX-License-Identifier: Apache-2.0
"""Saves and restores the Python state in and around a model: attributes, containers, closures, globals, generators."""

import functools
import itertools
import queue
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy
import torch
import torch.utils.data
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FOLLOWED_ITEMS = 10_000  # longer containers are restored, but not what their items hold
COPIED_BYTES = 64 << 20  # of an array; larger ones are data rather than state
MISSING = object()
_ATOMS = (str, bytes, int, float, complex, type(None), ModuleType, range, torch.dtype, torch.device)
_SHARED = (threading.Thread, threading.Event, threading.Condition, type(threading.Lock()), type(threading.RLock()),
           queue.Queue)  # fmt: skip
_FOLLOWED = (SimpleNamespace, torch.utils.data.Dataset, torch.utils.data.Sampler)
_OTHERS = {*sys.stdlib_module_names, "torch", "numpy", "atoll"} - {"__main__"}


class PythonState:
    """Records, when constructed, everything that `roots` reach: instances, containers, closures, and the globals that
    functions of the user's own files name. `restore` restores it in place, for all references.

    Not recorded: the state of the standard library, PyTorch (except modules, datasets and generators), NumPy and Atoll;
    objects that threads share, recognised by a lock or a queue in them; iterators and open files. Tensors are recorded,
    not their values."""

    def __init__(self, roots: Iterable[Any], *, leave: tuple[str, ...] = ()) -> None:
        """`leave`: attributes of modules to skip."""
        self._leave = leave
        self._known: dict[int, Any] = {}  # keeps objects alive, so that no identity is reused
        self._restores: list[Callable[[], object]] = []
        self.modules: list[nn.Module] = []
        self.tensors: list[torch.Tensor] = []
        self.containers: list[dict[Any, Any] | list[Any]] = []
        """The places where tensors may be replaced; `restore` undoes that."""
        waiting = deque(roots)
        while waiting:
            value = waiting.popleft()
            if not isinstance(value, _ATOMS) and id(value) not in self._known:
                self._known[id(value)] = value
                waiting.extend(self._keep(value))

    def restore(self) -> None:
        for restore in self._restores:
            restore()

    def _keep(self, value: Any) -> Iterable[Any]:
        """Records how to restore `value`, and returns what it holds."""
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return ()
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, value.args, value.keywords
        if isinstance(value, type):
            return self._class(value) if _is_users(value.__module__) else ()
        if self._generator(value) or isinstance(value, DistributedDataParallel):
            return ()
        held = [self._container(value), self._instance(value)]
        return itertools.chain(*(items if len(items) <= FOLLOWED_ITEMS else () for items in held))

    def _container(self, value: Any) -> list[Any]:
        if isinstance(value, tuple | frozenset):
            return list(value)
        if isinstance(value, dict):
            return self._dict(value)
        if isinstance(value, list | deque | bytearray):
            items = list(value)
            self._restores.append(functools.partial(_restore_list, value, items))
            if isinstance(value, list):
                self.containers.append(value)
            return [] if isinstance(value, bytearray) else items
        if isinstance(value, set):
            self._restores.append(functools.partial(_restore_set, value, set(value)))
            return list(value)
        return []

    def _dict(self, value: dict[Any, Any]) -> list[Any]:
        self._restores.append(functools.partial(_restore_dict, value, dict(value)))
        self.containers.append(value)
        return list(value.values())

    def _instance(self, value: Any) -> list[Any]:
        kind = type(value)
        is_module = isinstance(value, nn.Module)
        if not is_module and not isinstance(value, _FOLLOWED) and kind.__module__.partition(".")[0] in _OTHERS:
            return []
        try:
            own = object.__getattribute__(value, "__dict__")
        except AttributeError:
            own = {}
        if not isinstance(own, dict) or any(isinstance(held, _SHARED) for held in own.values()):
            return []
        if is_module:
            self.modules.append(value)
            self._known.update((id(own[name]), own[name]) for name in self._leave if name in own)
        for name in (name for base in kind.__mro__ for name in _slots(base)):
            held = getattr(value, name, MISSING)
            self._restores.append(functools.partial(_restore_attribute, value, name, held))
        return [*self._dict(own), *kind.__mro__]

    def _class(self, kind: type) -> list[Any]:
        before = {name: held for name, held in vars(kind).items() if not name.startswith("__")}
        self._restores.append(functools.partial(_restore_class, kind, before))
        return list(before.values())

    def _function(self, function: FunctionType) -> list[Any]:
        held: list[Any] = [function.__defaults__, function.__kwdefaults__, function.__dict__]
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # the cell is empty
                continue
            self._restores.append(functools.partial(_restore_attribute, cell, "cell_contents", content))
            held.append(content)
        if _is_users(function.__module__):
            names = {name for name in _names(function.__code__) if not name.startswith("__")}
            before = {name: function.__globals__.get(name, MISSING) for name in names}
            self._restores.append(functools.partial(_restore_globals, function.__globals__, before))
            held += before.values()
        return held

    def _generator(self, value: Any) -> bool:
        """Records a random generator or an array, whose state is copied; returns whether it was one."""
        if isinstance(value, torch.Generator):
            self._restores.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._restores.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, numpy.random.RandomState):
            self._restores.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            self._restores.append(functools.partial(setattr, bits, "state", bits.state))
        elif isinstance(value, numpy.ndarray):
            if value.flags.writeable and value.nbytes <= COPIED_BYTES and not isinstance(value, numpy.memmap):
                self._restores.append(functools.partial(numpy.copyto, value, value.copy()))
        else:
            return False
        return True


@functools.cache
def _is_users(name: str | None) -> bool:
    """Returns whether a module is the user's own, not a library or part of Python."""
    if name is None or name.partition(".")[0] in _OTHERS:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def _names(code: CodeType) -> Iterable[str]:
    """Yields the names of globals and attributes, including those in inner functions."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return itertools.chain(code.co_names, *inner)


def _slots(kind: type) -> Iterable[str]:
    if kind.__module__.partition(".")[0] in _OTHERS:
        return ()
    names = vars(kind).get("__slots__", ())
    return (names,) if isinstance(names, str) else names


def _restore_list(value: Any, items: list[Any]) -> None:
    if len(value) == len(items) and all(held is then for held, then in zip(value, items, strict=True)):
        return
    value.clear()
    value.extend(items)


def _restore_set(value: set[Any], items: set[Any]) -> None:
    if value != items:
        value.clear()
        value.update(items)


def _restore_dict(value: dict[Any, Any], items: dict[Any, Any]) -> None:
    if list(value) != list(items):
        value.clear()
        value.update(items)
    for name, then in items.items():
        if value[name] is not then:
            value[name] = then


def _restore_attribute(value: Any, name: str, then: Any) -> None:
    if getattr(value, name, MISSING) is then:
        return
    if then is MISSING:
        delattr(value, name)
    else:
        setattr(value, name, then)


def _restore_class(kind: type, before: dict[str, Any]) -> None:
    for name in [name for name in vars(kind) if name not in before and not name.startswith("__")]:
        delattr(kind, name)
    for name, then in before.items():
        if vars(kind).get(name, MISSING) is not then:
            setattr(kind, name, then)


def _restore_globals(names: dict[str, Any], before: dict[str, Any]) -> None:
    for name, then in before.items():
        if names.get(name, MISSING) is then:
            continue
        if then is MISSING:
            del names[name]
        else:
            names[name] = then
