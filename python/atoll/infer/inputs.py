# SPDX-License-Identifier: Apache-2.0
"""The inputs that a graph was made for: how the example was given, and what others must be like."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from atoll.infer.dtypes import name_of
from atoll.infer.errors import BundleError, InputError
from atoll.infer.structure import Structure


class Inputs:
    """Arguments of a module's forward as a list of tensors, and back. An argument may be given by position or by name,
    whichever the example had; everything that is not a tensor is as in the example for ever."""

    def __init__(self, parameters: Sequence[str], positional: int, structure: Structure) -> None:
        self.parameters = list(parameters)  # of forward, in order; empty where it takes *args
        self.positional = positional  # that many the example gave by position
        self.structure = structure  # of the arguments by name

    @staticmethod
    def of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple["Inputs", list[torch.Tensor]]:
        """What the example is like, and its tensors. ExportError where it holds something else than a graph can take;
        InputError where forward cannot be called like that."""
        parameters = _parameters(module)
        structure, tensors = Structure.of(_by_name(parameters, args, kwargs), "")
        return Inputs(parameters, len(args), structure), tensors

    def tensors_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors of arguments that have the example's structure and constants; else InputError."""
        return self.structure.tensors_of(_by_name(self.parameters, args, kwargs), "")

    def call(self, tensors: Iterable[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments with these tensors, given as the example was."""
        named = list(self.structure.build(tensors).items())
        return [value for _, value in named[: self.positional]], dict(named[self.positional :])

    def names(self) -> list[str]:
        """What each tensor is called, such as image or batch['mask']."""
        return self.structure.paths("")

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
