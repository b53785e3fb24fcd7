# SPDX-License-Identifier: Apache-2.0
"""Runs a model as in the training, and undoes all effects afterwards."""

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from atoll.profiling.python_state import PythonState
from atoll.weighting.batch_norm import SyncBatchNorm
from atoll.weighting.replicas import checksum

CHANGED = (
    "measuring changed parameters of the model, which its forward or backward pass seems to write at times: pass "
    "atoll.training.Settings(measure=False)"
)


@contextlib.contextmanager
def same_random_numbers(*devices: torch.device) -> Iterator[None]:
    """Random draws inside from the generators of PyTorch, numpy and Python do not affect later draws."""
    others = {device.type: [each for each in devices if each.type == device.type] for device in devices}
    others.pop("cpu", None)
    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([]))
            for kind, those in others.items():
                stack.enter_context(torch.random.fork_rng(those, device_type=kind))
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)


class Trace:
    """The state to restore after a model has run."""

    def __init__(self) -> None:
        self._writes = _Writes()
        self.is_watched = True

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Records writes of the passes inside, which are slow; memory that they write is restored at the end, even if
        it is written again later. Run them before timed passes, which must not write other lasting memory."""
        with uncompiled(), self._writes if self.is_watched else contextlib.nullcontext():
            yield

    def held_bytes(self, device: torch.device) -> int:
        """Returns the bytes of the device's memory held here, besides those of the training."""
        return sum(kept.nbytes for _, kept in self._writes.kept.values() if kept.device == device)

    def undo(self) -> None:
        self._writes.undo()


@contextlib.contextmanager
def without_trace(model: nn.Module, device: torch.device, *others: Any) -> Iterator[Trace]:
    """Restores parameters, gradients, buffers, random states, caches, and the Python state of the model and `others`
    (functions that call it) afterwards. In the meantime Atoll's SyncBatchNorm normalises over this rank's samples.

    Stand-ins with the same memory replace parameters, so that their hooks do not run and nothing else sees a gradient:
    neither DistributedDataParallel's reducer nor an optimizer in the backward pass. With fully_shard parameters cannot
    be replaced; the user's hooks on them are disabled.

    Raises RuntimeError if parameters have changed nevertheless."""
    sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    trace = Trace()
    trace.is_watched = not sharded
    state = PythonState([model, *others], leave=("_parameters",) if sharded else ())
    before = checksum(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_same_caches())
        stack.enter_context(same_random_numbers(*{device, *(parameter.device for parameter in model.parameters())}))
        stack.callback(state.restore)
        stack.callback(trace.undo)
        stack.enter_context(_without_hooks(model) if sharded else _stand_ins(model, state))
        _replace_buffers(state)
        for module in state.modules:
            if isinstance(module, SyncBatchNorm):
                module.is_alone = True
        yield trace
    if checksum(model) != before:
        raise RuntimeError(CHANGED)


@contextlib.contextmanager
def _same_caches() -> Iterator[None]:
    """Restores the caches of torch.compile and autocast. Graphs compiled for other sizes, and outside
    DistributedDataParallel, would change the training's own graphs."""
    before = _compiled_frames()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        if _compiled_frames() != before:
            torch.compiler.reset()


def _compiled_frames() -> int:
    convert = sys.modules.get("torch._dynamo.convert_frame")
    return 0 if convert is None else int(convert.FRAME_COUNTER)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Disables torch.compile for code that inspects each operator: it would never again compile what it meets then."""
    is_used = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if is_used else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _stand_ins(model: nn.Module, state: PythonState) -> Iterator[None]:
    """Replaces parameters, and other leaves with gradients, wherever `state` has found them; restoring `state` undoes
    it. In the meantime no gradient can reach the real ones."""
    real = {id(each): each for each in [*model.parameters(), *state.tensors]
            if each.is_leaf and (each.requires_grad or isinstance(each, nn.Parameter))}  # fmt: skip
    trained = [each for each in real.values() if each.requires_grad]
    standing = {name: _stand_in(parameter) for name, parameter in real.items()}
    scripted = _tensors_of_scripts(model)
    try:
        for parameter in trained:
            parameter.requires_grad_(False)
        for container in state.containers:
            for place, held in list(container.items() if isinstance(container, dict) else enumerate(container)):
                if isinstance(held, torch.Tensor) and id(held) in standing:
                    container[place] = standing[id(held)]
        for module, name, tensor in scripted:
            setattr(module, name, standing.get(id(tensor), tensor.detach().clone()))
        yield
    finally:
        for module, name, tensor in scripted:
            setattr(module, name, tensor)
        for parameter in trained:
            parameter.requires_grad_(True)


def _tensors_of_scripts(model: nn.Module) -> list[tuple[nn.Module, str, torch.Tensor]]:
    """Returns the tensors of TorchScript modules, which Python's containers do not show."""
    scripts = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    return [
        (script, name, tensor) for script in scripts
        for name, tensor in (*script.named_parameters(recurse=False), *script.named_buffers(recurse=False))
    ]  # fmt: skip


def _stand_in(real: torch.Tensor) -> torch.Tensor:
    own = real.detach()
    if isinstance(real, nn.Parameter):
        kind = nn.Parameter if is_traceable_wrapper_subclass(own) else type(real)
        own = torch.Tensor._make_subclass(kind, own) if kind is type(real) else nn.Parameter(own, False)
    own.requires_grad_(real.requires_grad)
    vars(own).update(vars(real))
    return own


@contextlib.contextmanager
def _without_hooks(model: nn.Module) -> Iterator[None]:
    """Restores the gradients of parameters afterwards, and disables hooks on them."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    hooks = [(held, dict(held)) for parameter, _ in gradients
             for held in (parameter._post_accumulate_grad_hooks, parameter._backward_hooks) if held]  # fmt: skip
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        for held, _ in hooks:
            held.clear()
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for held, before in hooks:
            held.update(before)


def _replace_buffers(state: PythonState) -> None:
    """Replaces buffers by copies, which may be written, resized and replaced; restoring `state` undoes it."""
    copies: dict[int, torch.Tensor] = {}
    for module in state.modules:
        for name, buffer in module._buffers.items() if isinstance(module._buffers, dict) else ():
            if buffer is not None:
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = copies[id(buffer)]


class _Writes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Copies memory before an operator writes it, unless an operator inside has allocated it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> Any:
        keywords = keywords or {}
        for place, argument in enumerate(operator._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = arguments[place] if place < len(arguments) else keywords.get(argument.name)
                for written in tree_leaves(value):
                    self._keep(written)
        made = operator(*arguments, **keywords)
        before = {_memory(value) for value in tree_leaves((arguments, keywords))}
        self._made |= {_memory(value) for value in tree_leaves(made)} - before
        return made

    def _keep(self, written: Any) -> None:
        memory = _memory(written)
        if not memory or memory in self._made or memory in self.kept:
            return
        whole = torch.empty(0, dtype=torch.uint8, device=written.device).set_(written.untyped_storage())
        self.kept[memory] = whole, whole.clone()

    def undo(self) -> None:
        for whole, before in self.kept.values():
            whole.untyped_storage().resize_(before.nbytes)
            whole.copy_(before)
        self.kept.clear()


def _memory(value: Any) -> int:
    """Returns an identifier of a tensor's memory; 0 if it has none of its own."""
    if not isinstance(value, torch.Tensor) or is_traceable_wrapper_subclass(value) or value.layout != torch.strided:
        return 0
    return 0 if value.is_meta else value.untyped_storage()._cdata
