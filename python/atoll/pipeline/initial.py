# SPDX-License-Identifier: Apache-2.0
"""The initial parameters of a rank: drawn for each module by its name, on whichever rank, or copied from a model."""

import contextlib
import copy
import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.pipeline.items import named_tensors, ties_of

Draw = Callable[[nn.Module], object]


@torch.no_grad()
def initialise(model: nn.Module, seed: int, draw: Draw | None = None) -> nn.Module:
    """Gives the parameters of a whole model the values that `atoll.pipeline.Pipeline(..., seed=seed)` gives them,
    however it is divided. Each module is drawn by its own rule (transformers' `_init_weights`, `reset_parameters`, or
    `draw`) from random numbers that depend on its name and the seed; the program's random state is unchanged. Returns
    the model."""
    _draw(model, model, "", seed, draw)
    for names in ties_of(model):
        _copy_tied(model, model, names, seed, draw)
    return model


def without_data(model: nn.Module | Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module | None]:
    """Returns the model on the meta device, which takes no memory, and the given model itself if it has data."""
    is_given = isinstance(model, nn.Module)
    if not isinstance(model, nn.Module):
        with torch.device("meta"):
            made = model()
        if not isinstance(made, nn.Module):
            raise TypeError(f"model() returned a {type(made).__name__}: pass a function that returns a torch.nn.Module")
        model = made
    if not (on_meta := {tensor.is_meta for tensor in model.parameters()}):
        raise ValueError(f"{type(model).__name__} has no parameters to train")
    if on_meta == {True}:
        return copy.deepcopy(model) if is_given else model, None  # a copy parts views of one memory
    if True in on_meta:
        raise ValueError("some parameters of the model are on the meta device and others are not: use one kind for all")
    data: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    known: dict[int, Any] = {id(tensor): _like(tensor, torch.empty_like(tensor, device="meta")) for tensor in data}
    return copy.deepcopy(model, known), model


def check_rules(whole: nn.Module, modules: Iterable[str]) -> None:
    """Raises ValueError if a module that holds several of `modules`, those of all items, has its own rule: no rank has
    all the parameters that it initialises, so values would differ from those of `initialise`."""
    if hasattr(whole, "_init_weights"):
        return  # it takes precedence over reset_parameters, and works on one module
    paths = [name.split(".") for name in modules]
    for holder in sorted({".".join(path[:depth]) for path in paths for depth in range(len(path))}):
        module = whole.get_submodule(holder)
        if hasattr(module, "reset_parameters"):
            raise ValueError(
                f"{holder or 'the model'} ({type(module).__name__}) has reset_parameters() and is divided between "
                "ranks, none of which has all parameters that it initialises: pass initial=, a function of a module, "
                "pass a model that has its values, or make it one item"
            )


@torch.no_grad()
def fill(
    whole: nn.Module, names: list[str], source: nn.Module | None, seed: int, draw: Draw | None, device: torch.device
) -> None:
    """Gives these modules of a model without data their initial values on `device`: those of `source`, or drawn ones.
    What several of them share stays shared."""
    ties = ties_of(whole)
    drawn_like = {first: copy.deepcopy(whole.get_submodule(_parent(first))) for first, *_ in ties}
    held = [module for name in names for module in whole.get_submodule(name).modules()]
    _replace(held, _with_memory)
    for name in names:
        if source is None:
            _draw(whole, whole.get_submodule(name), name, seed, draw)
            continue
        values = dict(named_tensors(source.get_submodule(name)))
        for inner, tensor in named_tensors(whole.get_submodule(name)):
            tensor.copy_(values[inner])
    for tied in ties if source is None else ():
        if any(_is_inside(each, names) for each in tied):
            _copy_tied(whole, drawn_like[tied[0]], tied, seed, draw, names)
    _replace(held, lambda tensor: tensor.to(device))


def _like(tensor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Returns the values, as a parameter if the tensor is one."""
    return nn.Parameter(values, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor


def _replace(modules: Iterable[nn.Module], change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces the modules' own parameters and buffers by what `change` returns. What several share stays shared."""
    known: dict[int, Any] = {}  # pairs with the replaced one, which stays alive while ids are compared
    for tensors in (held for module in modules for held in (module._parameters, module._buffers)):
        for key, tensor in tensors.items():
            if tensor is not None:
                if id(tensor) not in known:
                    changed = change(tensor)
                    known[id(tensor)] = tensor, tensor if changed is tensor else _like(tensor, changed)
                _, tensors[key] = known[id(tensor)]


def _draw(whole: nn.Module, top: nn.Module, prefix: str, seed: int, draw: Draw | None) -> None:
    """Draws children before the modules that hold them, as their own rules expect."""
    of_all: Draw | None = draw or getattr(whole, "_init_weights", None)
    for name, module in reversed(list(top.named_modules(prefix=prefix))):
        rule = getattr(module, "reset_parameters", None) if of_all is None else partial(of_all, module)
        if rule is not None:
            with _numbers_of(seed, name):
                rule()
        elif any(tensor is not None for tensor in (*module._parameters.values(), *module._buffers.values())):
            raise ValueError(
                f"{name or 'the model'} ({type(module).__name__}) has no rule to initialise it: add "
                "reset_parameters(), pass initial=, a function of a module, or pass a model that has its values"
            )


def _copy_tied(
    whole: nn.Module, origin: nn.Module, tied: tuple[str, ...], seed: int, draw: Draw | None,
    names: list[str] | None = None,
) -> None:  # fmt: skip
    """Gives a parameter with several names the value of its first name, even if that module is on another rank.
    `origin`: a model that has it, or a copy of its module without data."""
    first = tied[0]
    parent, key = _parent(first), first.rpartition(".")[2]
    module = copy.deepcopy(whole.get_submodule(parent) if origin is whole else origin)
    _replace(module.modules(), _with_memory)
    _draw(whole, module, parent, seed, draw)
    for name in tied:
        if names is None or _is_inside(name, names):
            whole.get_parameter(name).copy_(module.get_parameter(key))


@contextlib.contextmanager
def _numbers_of(seed: int, name: str) -> Iterator[None]:
    """Inside the context, random numbers of the CPU depend only on `seed` and `name`."""
    generator = torch.default_generator
    before = generator.get_state()
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
    generator.manual_seed(int.from_bytes(digest, "big"))
    try:
        yield
    finally:
        generator.set_state(before)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _is_inside(name: str, modules: list[str]) -> bool:
    return any(name.startswith(f"{module}.") for module in modules)
