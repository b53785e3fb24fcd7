# SPDX-License-Identifier: Apache-2.0
"""The inputs that a graph was made for: how the example was given, and what others must be like."""

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
    """Arguments of a module's forward as a list of tensors, and back. An argument may be given by position or by name,
    whichever the example had; everything that is not a tensor is as in the example for ever."""

    def __init__(self, parameters: Sequence[str], positional: int, structure: Structure) -> None:
        self.parameters = list(parameters)  # of forward, in order; empty where it takes *args
        self.positional = positional  # that many the example gave by position
        self.structure = structure  # of the arguments by name
        self._kinds = set(_PLAIN)  # those of the example too: they were compared with the graph, which has none

    @staticmethod
    def of(
        module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], is_whole_call: bool = True
    ) -> tuple["Inputs", list[torch.Tensor]]:
        """What the example is like, and its tensors: of a call of the module, or of its forward alone. ExportError
        where it holds something else than a graph can take; InputError where forward cannot be called like that."""
        parameters = [] if is_whole_call and changes_arguments(module) else _parameters(module)
        structure, tensors = Structure.of(_by_name(parameters, args, kwargs), "")
        inputs = Inputs(parameters, len(args), structure)
        inputs._kinds |= {type(tensor) for tensor in tensors}
        for odd in inputs._odd(tensors):
            raise ExportError(odd)
        return inputs, tensors

    def tensors_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of arguments that have the example's structure and constants; else InputError. Their values
        count, not how they lie in memory, nor where."""
        tensors = self.structure.tensors_of(_by_name(self.parameters, args, kwargs), "")
        if not _PLAIN.issuperset([type(tensor) for tensor in tensors]) or not all(map(_has_values, tensors)):
            for odd in self._odd(tensors):
                raise InputError(odd)
        return tensors

    def call(self, tensors: Iterable[torch.Tensor], is_turned: bool = False) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with these tensors, given as the example was; with the keys of dicts turned round where that is
        asked for."""
        named = list(self.structure.build(tensors).items())
        args, kwargs = [value for _, value in named[: self.positional]], dict(named[self.positional :])
        return (_turned(args), _turned(kwargs)) if is_turned else (args, kwargs)

    def have_order(self) -> bool:
        """Whether there are dicts whose keys may come in another order."""
        named = self.structure.spec["dict"]
        others = [name for name, _ in named[self.positional :] if name not in self.parameters]
        return len(others) > 1 or any(has_dict_with_order(spec) for _, spec in named)

    def names(self) -> list[str]:
        """What each tensor is called, such as image or batch['mask']."""
        return self.structure.paths("")

    def _odd(self, tensors: Sequence[torch.Tensor]) -> Iterator[str]:
        """What to say of tensors that are more, or less, than values with a dtype and a shape."""
        for name, tensor in zip(self.names(), tensors, strict=True):
            kind = type(tensor)
            if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or not _has_values(tensor):
                what = kind.__name__ if kind not in _PLAIN else f"{_without_values(tensor)} tensor"
                yield f"{name} is a {what}: give a dense tensor that has its values in memory"
            elif kind not in self._kinds and _changes_operators(kind):
                yield (
                    f"{name} is a {kind.__name__}, for which operators may do something else, and the example's was a "
                    f"plain tensor: give {name}.as_subclass(torch.Tensor)"
                )

    def to_json(self) -> str:
        fields = {"parameters": self.parameters, "positional": self.positional, "arguments": self.structure.spec}
        return json.dumps(fields, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str, classes: Iterable[type] = ()) -> "Inputs":
        """BundleError where the text is something else."""
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
    """InputError unless each tensor has the dtype and the shape that the graph was made for."""
    for tensor, like, name in zip(tensors, wanted, names, strict=True):
        if name_of(tensor.dtype) != like["dtype"]:
            raise InputError(f"{name} is {name_of(tensor.dtype)}, the example's was {like['dtype']}: convert it")
        if list(tensor.shape) != like["shape"]:
            raise InputError(
                f"{name} has the shape {list(tensor.shape)}, the example's was {like['shape']}: a graph is for one "
                f"shape, prepare another session for this one"
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
    """What kind of tensor it is instead of one with values in memory; nothing where it is one."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "transformed (torch.func)"
    return "meta" if tensor.is_meta else "nested" if tensor.is_nested else ""


def changes_arguments(module: nn.Module) -> bool:
    """Whether a call of the module may reach its forward with other arguments: by its pre-hooks, or by a __call__ of
    its class."""
    own_call = not str(type(module).__call__.__module__).startswith("torch.")
    return own_call or len(module._forward_pre_hooks) > 0


def _parameters(module: nn.Module) -> list[str]:
    """Names by which every argument can be given; none where forward has others."""
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
        raise InputError(f"{len(args)} arguments are given by position, the model takes {len(names)}: leave some out")
    named = dict(zip(names, args, strict=False))
    for twice in (name for name in kwargs if name in named):
        raise InputError(f"{twice} is given by position and by name: give it once")
    return named | dict(kwargs)
