# SPDX-License-Identifier: Apache-2.0
"""A model as a list of items, between any two of which it may be divided."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

KINDS = ("embedding", "block", "norm", "head", "other")


class Call:
    """One forward pass of a stage: the step's arguments besides the inputs, and what items share."""

    def __init__(self, parts: "Parts", whole: nn.Module, given: Mapping[str, Any]) -> None:
        self.given = given
        self._parts, self._whole = parts, whole
        self._context: Any = None
        self._is_known = False

    def context(self, hidden: torch.Tensor) -> Any:
        """Returns masks, positions and the like, computed once from the hidden states."""
        if not self._is_known:
            self._context, self._is_known = self._parts.context(self._whole, hidden, self.given), True
        return self._context


Run = Callable[[nn.Module, torch.Tensor, Call], torch.Tensor]


@dataclass(frozen=True)
class Item:
    """One item of a model. It takes one tensor, and returns the input of the next item."""

    name: str
    """The name that is shown and used in plans; unique in a model."""
    modules: tuple[str, ...]
    """The modules with its parameters, by their names in the whole model."""
    run: Run
    """Computes the item's output from the model (without the other items' modules), a value and the pass."""
    kind: str = "block"
    """embedding, block, norm, head or other. Plans count blocks, and only blocks can be recomputed."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"item {self.name!r}: unknown kind {self.kind!r}: choose from {', '.join(KINDS)}")


def _no_context(whole: nn.Module, hidden: torch.Tensor, given: Mapping[str, Any]) -> None:
    return None


@dataclass(frozen=True)
class Parts:
    """A model that is divided into items."""

    items: tuple[Item, ...]
    everywhere: tuple[str, ...] = ()
    """Modules without parameters that every stage has, such as rotary embeddings."""
    context: Callable[[nn.Module, torch.Tensor, Mapping[str, Any]], Any] = _no_context
    """Computes the result of Call.context from the model, the hidden states and the step's arguments."""
    given: frozenset[str] = frozenset()
    """The names of further arguments of `step`: tensors with a row for each sample."""
    hidden: Callable[[nn.Module, torch.Tensor], torch.Tensor] | None = None
    """Returns, from the model and the inputs, both without data, a tensor with the shape and type of the hidden states.
    Without it the items are run on the meta device to find out."""

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.items]

    @property
    def blocks(self) -> list[int]:
        """Returns the numbers of the items that are blocks."""
        return [number for number, item in enumerate(self.items) if item.kind == "block"]

    def modules(self, numbers: Iterable[int]) -> list[str]:
        """Returns the names of the modules of these items, each once, in order."""
        return list(dict.fromkeys(name for number in numbers for name in self.items[number].modules))


def in_turn(names: Sequence[str]) -> Parts:
    """Returns the parts of a model whose modules are called one after the other."""
    items, seen = [], dict.fromkeys(names, 0)
    for name in names:
        shown = name if not seen[name] else f"{name} again {seen[name]}"
        seen[name] += 1
        items.append(Item(shown, (name,), calls(name)))
    return Parts(tuple(items))


def calls(name: str) -> Run:
    """Returns the run function of an item that is one module of one tensor."""

    def run(whole: nn.Module, value: torch.Tensor, call: Call) -> torch.Tensor:
        output: torch.Tensor = whole.get_submodule(name)(value)
        return output

    return run


def check_parts(whole: nn.Module, parts: Parts) -> None:
    """Raises ValueError unless the items are the whole model, with each parameter in one item or shared."""
    if not parts.items:
        raise ValueError("items: the list is empty; a model is divided between its items, so pass at least one")
    if len(set(parts.names)) != len(parts.items):
        raise ValueError(f"items: two have the same name: {parts.names}")
    known = dict(whole.named_modules())
    covered: set[str] = set()
    for name in [*parts.modules(range(len(parts.items))), *parts.everywhere]:
        if not name or name not in known:
            raise ValueError(f"items: the model has no module {name!r}: use names from named_modules()")
        covered.update(f"{name}.{inner}" for inner, _ in named_tensors(known[name]))
    if left := [name for name, _ in named_tensors(whole) if name not in covered]:
        raise ValueError(
            f"items: {len(left)} parameters and buffers are in no item, the first is {left[0]!r}: no stage would have "
            "them; name their modules in an item"
        )
    for name in parts.everywhere:
        if any(True for _ in known[name].parameters()):
            raise ValueError(
                f"items: {name!r} is on every stage but has parameters, of which there must be only one copy: name it "
                "in an item"
            )


def named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def first_named(whole: nn.Module, modules: Iterable[str], ties: Iterable[Sequence[str]]) -> dict[str, nn.Parameter]:
    """Returns the parameters in these modules by their first names in the whole model."""
    first = {name: names[0] for names in ties for name in names}
    found: dict[str, nn.Parameter] = {}
    for module in modules:
        inside = whole.get_submodule(module).named_parameters(prefix=module, remove_duplicate=False)
        for name, parameter in inside:
            found.setdefault(first.get(name, name), parameter)
    return found


def ties_of(whole: nn.Module) -> list[tuple[str, ...]]:
    """Returns the names of each parameter that has several. Raises ValueError for parameters that are views of each
    other, because on two ranks they would be separate."""
    by_parameter: dict[int, list[str]] = {}
    by_storage: dict[int, tuple[int, str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        by_parameter.setdefault(id(parameter), []).append(name)
        storage = parameter.untyped_storage()._cdata
        other, other_name = by_storage.setdefault(storage, (id(parameter), name))
        if other != id(parameter):
            raise ValueError(
                f"tied weights: {name!r} and {other_name!r} are two views of one memory, which two ranks cannot share: "
                "use one torch.nn.Parameter in both modules"
            )
    return [tuple(names) for names in by_parameter.values() if len(names) > 1]
