# SPDX-License-Identifier: Apache-2.0
"""The inputs that a graph was made for: how the example was passed, and what later inputs must match."""

import inspect
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from atoll.infer.dtypes import name_of
from atoll.infer.errors import BundleError, ExportError, InputError
from atoll.infer.structure import Structure, has_dict_with_order

_PLAIN = {torch.Tensor, nn.Parameter, nn.Buffer}


class Inputs:
    """Converts the arguments of a module's forward to a list of tensors and back. An argument may be passed by position
    or by name, whichever the example used; everything that is not a tensor stays as in the example forever."""

    def __init__(self, parameters: Sequence[str], positional: int, structure: Structure) -> None:
        self.parameters = list(parameters)  # of forward, in order; empty if it takes *args
        self.positional = positional  # the number of arguments that the example passed by position
        self.structure = structure  # of the arguments by name
        # And those of the example: they were compared with the graph, which has plain tensors.
        self._kinds = set(_PLAIN)

    @staticmethod
    def of(
        module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_whole_call: bool = True
    ) -> tuple["Inputs", list[torch.Tensor]]:
        """Returns the structure of the example and its tensors, for a call of the module or of its forward alone.
        Raises ExportError if it holds something that a graph cannot take, and InputError if forward cannot be called
        so."""
        parameters = [] if is_whole_call and changes_arguments(module) else _parameters(module)
        structure, tensors = Structure.of(_by_name(parameters, args, kwargs), "")
        inputs = Inputs(parameters, len(args), structure)
        inputs._kinds |= {type(tensor) for tensor in tensors}
        for odd in inputs._odd(tensors):
            raise ExportError(odd)
        structure.refuse_computing_classes(tensors, "the example")
        return inputs, tensors

    def tensors_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Returns the tensors of arguments that have the example's structure and constants; raises InputError
        otherwise. Only values matter, not memory layout or device."""
        tensors = self.structure.tensors_of(_by_name(self.parameters, args, kwargs), "")
        if not _PLAIN.issuperset([type(tensor) for tensor in tensors]) or not all(map(_has_values, tensors)):
            for odd in self._odd(tensors):
                raise InputError(odd)
        return tensors

    def call(self, tensors: Iterable[torch.Tensor], is_turned: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Returns arguments with these tensors, passed as in the example; with the keys of dicts reversed if
        `is_turned`."""
        named = list(self.structure.build(tensors).items())
        args, kwargs = [value for _, value in named[: self.positional]], dict(named[self.positional :])
        return (_turned(args), _turned(kwargs)) if is_turned else (args, kwargs)

    def have_order(self) -> bool:
        """Returns whether there are dicts whose keys may come in another order."""
        named = self.structure.spec["dict"]
        others = [name for name, _ in named[self.positional :] if name not in self.parameters]
        return len(others) > 1 or any(has_dict_with_order(spec) for _, spec in named)

    def names(self) -> list[str]:
        """Returns the name of each tensor, such as image or batch['mask']."""
        return self.structure.paths("")

    def _odd(self, tensors: Sequence[torch.Tensor]) -> Iterator[str]:
        """Yields a message for each tensor that is not plain values with a dtype and a shape."""
        for name, tensor in zip(self.names(), tensors, strict=True):
            kind = type(tensor)
            if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or not _has_values(tensor):
                what = kind.__name__ if kind not in _PLAIN else f"{_without_values(tensor)} tensor"
                yield f"{name} is a {what}: give a dense tensor that has its values in memory"
            elif kind not in self._kinds and _changes_operators(kind):
                yield (
                    f"{name} is a {kind.__name__}, for which operators may behave differently, but in the example it "
                    f"was a plain tensor: pass {name}.as_subclass(torch.Tensor)"
                )

    def to_json(self) -> str:
        fields = {"parameters": self.parameters, "positional": self.positional, "arguments": self.structure.spec}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str, classes: Iterable[type] = ()) -> "Inputs":
        """Parses the text of to_json(). Raises BundleError for other texts."""
        try:
            fields = json.loads(text)
            parameters, positional, spec = fields["parameters"], fields["positional"], fields["arguments"]
            good = isinstance(parameters, list) and all(isinstance(name, str) for name in parameters)
            good = good and type(positional) is int
            spec_text = json.dumps(spec)
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise BundleError(f"the structure of the inputs cannot be read: {error}") from None
        structure = Structure.from_json(spec_text, classes)
        if not good or "dict" not in spec or not 0 <= positional <= len(spec["dict"]):
            raise BundleError("the structure of the inputs is not one that atoll export writes")
        return Inputs(parameters, positional, structure)


def check_tensors(tensors: Sequence[torch.Tensor], wanted: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Raises InputError unless each tensor has the dtype and shape that the graph was made for."""
    for tensor, like, name in zip(tensors, wanted, names, strict=True):
        if name_of(tensor.dtype) != like["dtype"]:
            dtype = name_of(tensor.dtype)
            raise InputError(f"{name} is {dtype}, but the example's was {like['dtype']}: convert it", name)
        if list(tensor.shape) != like["shape"]:
            raise InputError(
                f"{name} has the shape {list(tensor.shape)}, but the example's was {like['shape']}: a graph has one "
                f"fixed shape, make another session for this one",
                name,
            )


def _turned(value: Any) -> Any:
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _turned(item)) for key, item in reversed(value.items()))
    return type(value)(map(_turned, value)) if type(value) in (list, tuple) else value


def _changes_operators(kind: type[torch.Tensor]) -> bool:
    own: Any = kind.__torch_function__
    usual: Any = torch.Tensor.__torch_function__
    return getattr(own, "__func__", own) is not usual.__func__


def _has_values(tensor: torch.Tensor) -> bool:
    return not _without_values(tensor)


def _without_values(tensor: torch.Tensor) -> str:
    """Returns the kind of a tensor without values in memory; "" for a tensor with values."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "transformed (torch.func)"
    return "meta" if tensor.is_meta else "nested" if tensor.is_nested else ""


def changes_arguments(module: nn.Module) -> bool:
    """Returns whether forward may be called with other arguments than the module: by pre-hooks, or by a __call__ of the
    module's class."""
    own_call = not str(type(module).__call__.__module__).startswith("torch.")
    return own_call or len(module._forward_pre_hooks) > 0


def _parameters(module: nn.Module) -> list[str]:
    """Returns the names of forward's parameters; an empty list if some cannot be passed by name."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY) for parameter in parameters):
        return []
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _by_name(parameters: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = parameters or [f"args[{place}]" for place in range(len(args))]
    if len(args) > len(names):
        raise InputError(f"{len(args)} arguments are passed by position, but the model takes {len(names)}: remove some")
    named = dict(zip(names, args, strict=False))
    for twice in (name for name in kwargs if name in named):
        raise InputError(f"{twice} is passed by position and by name: pass it once")
    return named | dict(kwargs)
