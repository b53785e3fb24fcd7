# SPDX-License-Identifier: Apache-2.0
"""Captures a module as a graph of operators with its weights, by torch.export."""

import contextlib
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from atoll.infer.bundle import Bundle
from atoll.infer.capture_lock import is_disturbed, is_disturbed_now, turn, wait_for_others
from atoll.infer.comparison import compare, compare_orders
from atoll.infer.convert import Converter
from atoll.infer.errors import ExportError
from atoll.infer.export_errors import complaint
from atoll.infer.fast_paths import refuse_fast_paths
from atoll.infer.graph import refuse_default_dtype
from atoll.infer.hooks import has_own_hooks, refuse_global_hooks, refuse_observers
from atoll.infer.inputs import Inputs, changes_arguments
from atoll.infer.lowering import decompositions
from atoll.infer.module_copy import copy_of
from atoll.infer.placement import Place, device_for
from atoll.infer.plain_state import plain_state
from atoll.infer.state import refuse_state
from atoll.infer.structure import Structure
from atoll.infer.watching import Watch

_MAX_ATTEMPTS = 10  # that a torch.export in another thread disturbs


def capture(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None) -> Bundle:
    """Captures `module(*args, **kwargs)` for tensors of the same shapes and dtypes; everything else in the example is
    fixed. Weights are shared with the module, not copied, so save the bundle before they change. `args` may also be a
    single tensor.

    The module must be in eval mode and must not keep state; otherwise ExportError says what to change. It is also
    raised if the graph gives other values for the example than the module. Other threads may use the module at the same
    time; captures in several threads take turns."""
    return _captured(module, args, kwargs or {}, True).bundle


@dataclass(frozen=True)
class CapturedForward:
    """A captured forward, and the arguments with which a call like the example reaches it."""

    bundle: Bundle
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def capture_forward(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None) -> CapturedForward:
    """The same for `module.forward`, without the module's own hooks and its class's `__call__`."""
    return _captured(module, args, kwargs or {}, False)


@plain_state()
def _captured(module: nn.Module, args: Any, kwargs: Mapping[str, Any], is_called: bool) -> CapturedForward:
    inner = _inner(module)
    _check(inner)
    args = args if isinstance(args, tuple) else (args,)
    with turn(), torch.inference_mode(False), torch.no_grad():
        refuse_global_hooks()
        call = _Call(is_called or inner is not module)
        watch = Watch(inner, call.is_whole)
        if not call.is_whole:
            args, kwargs = _reaching_forward(inner, args, kwargs)
        inputs, tensors = Inputs.of(inner, args, kwargs, call.is_whole)
        refuse_observers(inner, lambda copied: call.of(copied, inputs, tensors))
        flat = _Flat(copy_of(inner), call, inputs)
        refuse_fast_paths(flat.module)
        program = _exported(flat, [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors])
        own = [*flat.named_parameters(remove_duplicate=False), *flat.named_buffers(remove_duplicate=False)]
        converter = Converter(program, {**program.constants, **dict(own)}, inputs.names())
        output = flat.seen.output
        graph = converter.graph({"input": inputs.to_json(), "output": output.to_json()})
        bundle = Bundle(graph, converter.weights, inputs, output, watch, converter.sources)
        refuse_default_dtype(graph)
        copied = copy_of(inner)
        devices = compare(bundle, lambda tensors: call.explained(copied, inputs, tensors), tensors)
        if inputs.have_order():
            compare_orders(bundle, lambda is_turned: call.explained(copy_of(inner), inputs, tensors, is_turned))
        watch.leave_out(copied)
        bundle.place = Place(device_for(module, (args, kwargs)), devices)
        return CapturedForward(bundle, args, dict(kwargs))


class _Seen:
    """What forward returned when it was traced. It is not a container that torch.export would look into."""

    output: Structure


@dataclass(frozen=True)
class _Call:
    """A call of a module, or of its forward alone."""

    is_whole: bool

    def of(self, module: nn.Module, inputs: Inputs, tensors: Sequence[torch.Tensor], is_turned: bool = False) -> Any:
        args, kwargs = inputs.call(tensors, is_turned)
        return module(*args, **kwargs) if self.is_whole else module.forward(*args, **kwargs)

    def explained(
        self, module: nn.Module, inputs: Inputs, tensors: Sequence[torch.Tensor], is_turned: bool = False
    ) -> Any:
        """The same; errors say what to change."""
        try:
            return self.of(module, inputs, tensors, is_turned)
        except Exception as error:
            raise complaint(error) from error


class _Flat(nn.Module):
    """The user's module with only its tensors as inputs and outputs."""

    def __init__(self, module: nn.Module, call: _Call, inputs: Inputs) -> None:
        super().__init__()
        self.module = module
        self.call = call
        self.inputs = inputs
        self.seen = _Seen()
        self.training = False

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        try:
            return self._outputs(tensors)
        except ExportError:
            raise
        except Exception as error:  # converted here, because torch prints the graph so far with some errors
            if is_disturbed(error):
                raise
            raise complaint(error) from error

    def _outputs(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        with refuse_state(self.module):
            result = self.call.of(self.module, self.inputs, tensors)
        self.seen.output, found = Structure.of(result, "output")
        if not found:
            raise ExportError("forward returns no tensors: return the results of the inference")
        return tuple(found)


class _Reached(Exception):  # noqa: N818
    """A call has reached forward with these arguments."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = args, kwargs


def _reaching_forward(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with which a call of the module, with its pre-hooks, reaches its forward."""
    if not changes_arguments(module):
        return args, dict(kwargs)

    def forward(*args: Any, **kwargs: Any) -> None:
        raise _Reached(args, kwargs)

    copied = copy_of(module, clone_buffers=True)
    vars(copied).update(forward=forward, _forward_hooks=OrderedDict())
    try:
        copied(*args, **kwargs)
    except _Reached as reached:
        return reached.arguments
    except Exception as error:
        raise complaint(error) from error
    raise ExportError("a call of the model does not reach its forward: attach the module that computes")


def _inner(module: nn.Module) -> nn.Module:
    """Returns the module inside wrappers of torch.compile, DataParallel and DistributedDataParallel."""
    inner = module.module if isinstance(module, DistributedDataParallel | nn.DataParallel) else module
    inner = getattr(inner, "_orig_mod", inner)
    if inner is not module and has_own_hooks(module):
        raise ExportError(
            f"the {type(module).__name__} around the model has its own hooks: register them on the model inside"
        )
    return inner


def _check(module: nn.Module) -> None:
    if isinstance(module, torch.export.ExportedProgram):
        raise ExportError("the model is an ExportedProgram: pass its module()")
    if not isinstance(module, nn.Module):
        raise ExportError(f"{module!r} is a {type(module).__name__}: pass a torch.nn.Module")
    if isinstance(module, torch.jit.ScriptModule):
        raise ExportError("the model is a ScriptModule: pass the module that it was made from")
    has_fixed_mode = "eval" in vars(module)  # as made by torch.export; the conversion refuses what differs in training
    for name, child in module.named_modules():
        if child.training and not has_fixed_mode:
            what = f"its {name} ({type(child).__name__})" if name else "the model"
            raise ExportError(f"{what} is in training mode: call eval() first")
    for name, weight in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(weight):
            raise ExportError(f"{name} has no shape yet: call the model once with the example first")
        if weight.is_meta:
            raise ExportError(f"{name} has no values: load the model's weights first")


def _exported(flat: _Flat, tensors: list[torch.Tensor]) -> torch.export.ExportedProgram:
    for _ in range(_MAX_ATTEMPTS):
        try:
            with _without_torch_messages():
                program: torch.export.ExportedProgram = torch.export.export(flat, tuple(tensors), strict=False)
                functional: torch.export.ExportedProgram = program.run_decompositions(decompositions())
                return functional
        except Exception as error:
            if not is_disturbed_now(error):
                raise error if isinstance(error, ExportError) else complaint(error) from error
            wait_for_others()
    raise ExportError(
        "torch.export in another thread repeatedly disturbs the capture, because PyTorch traces one model at a "
        "time: make the session before or after it"
    )


@contextlib.contextmanager
def _without_torch_messages() -> Iterator[None]:
    """Suppresses torch's own messages about errors that `complaint` reports."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The tensor attribute")  # refuse_state checks for them
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch warns itself
            yield
    finally:
        logger.setLevel(before)
