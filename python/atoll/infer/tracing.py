# SPDX-License-Identifier: Apache-2.0
"""A module as a graph of operators with its weights, by torch.export."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from atoll.infer.bundle import Bundle
from atoll.infer.complaints import complaint
from atoll.infer.convert import Converter
from atoll.infer.errors import BundleError, ExportError
from atoll.infer.inputs import Inputs
from atoll.infer.state import State
from atoll.infer.structure import Structure


def capture(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> Bundle:
    """What `module(*args, **kwargs)` computes, for tensors of the same shapes and dtypes; everything else in the
    example is fixed. Weights are shared with the module, not copied, so save the bundle before they change. `args` may
    also be a single tensor.

    The module is in eval mode and keeps no state. ExportError says what to change otherwise."""
    module = _inner(module)
    _check(module)
    args = args if isinstance(args, tuple) else (args,)
    inputs, tensors = Inputs.of(module, args, kwargs or {})
    flat = _Flat(module, inputs)
    program = _exported(flat, [tensor.detach() for tensor in tensors])
    own = {**dict(flat.named_parameters(remove_duplicate=False)), **dict(flat.named_buffers(remove_duplicate=False))}
    converter = Converter(program, {**program.constants, **own}, inputs.names())
    output = flat.seen.output
    graph = converter.graph({"input": inputs.to_json(), "output": output.to_json()})
    return Bundle(graph, converter.weights, inputs, output)


class _Seen:
    """What forward returned when it was traced. Not a container that torch.export would look into."""

    output: Structure


class _Flat(nn.Module):
    """The user's module with its tensors alone as inputs and outputs."""

    def __init__(self, module: nn.Module, inputs: Inputs) -> None:
        super().__init__()
        self.module = module
        self.inputs = inputs
        self.seen = _Seen()
        self.training = False

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            return self._outputs(tensors)
        except ExportError:
            raise
        except Exception as error:  # told here, because torch prints the graph so far beside some of its own
            raise complaint(error) from error

    def _outputs(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        args, kwargs = self.inputs.call(tensors)
        state = State(self.module)
        result = self.module(*args, **kwargs)
        state.refuse_changes()
        self.seen.output, found = Structure.of(result, "output")
        if not found:
            raise ExportError("forward returns no tensor: return what the inference is for")
        try:
            self.seen.output.build(found)
        except BundleError as error:
            raise ExportError(str(error)) from None
        return tuple(found)


def _inner(module: nn.Module) -> nn.Module:
    """Without what torch.compile and DistributedDataParallel put around it."""
    if isinstance(module, DistributedDataParallel):
        module = module.module
    return getattr(module, "_orig_mod", module)


def _check(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ExportError(f"{module!r} is a {type(module).__name__}: give a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError("the model is a ScriptModule: give the module that it was made from")
    for name, child in module.named_modules():
        if child.training:
            what = f"its {name} ({type(child).__name__})" if name else "the model"
            raise ExportError(f"{what} is in training mode: call eval() first")
    for name, weight in module.named_parameters():
        if is_lazy(weight):
            raise ExportError(f"{name} has no shape yet: call the model once with the example first")


def _exported(flat: _Flat, tensors: list[torch.Tensor]) -> torch.export.ExportedProgram:
    try:
        with torch.no_grad(), _without_chatter():
            program: torch.export.ExportedProgram = torch.export.export(flat, tuple(tensors), strict=False)
            functional: torch.export.ExportedProgram = program.run_decompositions({})
            return functional
    except ExportError:
        raise
    except Exception as error:
        raise complaint(error) from error


@contextlib.contextmanager
def _without_chatter() -> Iterator[None]:
    """Without torch's own words on what `complaint` tells."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attribute")  # State looks after them
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch warns itself
            yield
    finally:
        logger.setLevel(before)
