# SPDX-License-Identifier: Apache-2.0
"""Notifies the other ranks of calls of torch.distributed that fail on one rank before they reach the backend.

PyTorch checks arguments, and serializes objects, in Python. An exception there would leave the other ranks waiting for
their timeout. Every such function of torch.distributed is a wrapper around another function; the inner one is replaced,
so that this also works if a program imported the function before Atoll. `isend`, `irecv` and `batch_isend_irecv` have
no wrapper: their code is replaced, so that they stay the objects that `P2POp` compares with."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from atoll import _C

_SENDS = {"send", "isend", "send_object_list"}
_RECEIVES = {"recv", "irecv", "recv_object_list"}
_SAMPLE = distributed_c10d.all_reduce  # wrapped like all the others
_is_installed = False
_calls_entered = _C.calls_entered


def wrapped_functions() -> list[Callable[..., Any]]:
    """Returns the functions of torch.distributed that communicate in a group."""
    found = [
        function
        for name, function in vars(distributed_c10d).items()
        if type(function) is FunctionType  # `isinstance` would trigger a deprecation warning
        and function.__code__ is _SAMPLE.__code__
        and name != "init_process_group"
    ]
    return [function for function in found if "group" in inspect.signature(function).parameters]


def install() -> None:
    """Installs the replacements once, before the first group."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    for function in wrapped_functions():
        place = function.__code__.co_freevars.index("func")
        cell = (function.__closure__ or ())[place]
        cell.cell_contents = _reporting(cell.cell_contents)
    for function in (distributed_c10d.isend, distributed_c10d.irecv):
        _replace_code(function, _reporting)
    _replace_code(distributed_c10d.batch_isend_irecv, _reporting_each)
    _report_hook_errors()


def _report_hook_errors() -> None:
    """Reports exceptions in communication hooks of DistributedDataParallel, for any group."""
    register = DistributedDataParallel.register_comm_hook

    @functools.wraps(register)
    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> Any:
        return register(self, state, _ReportingHook(hook, self.process_group) if callable(hook) else hook)

    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]


class _ReportingHook:
    """A communication hook whose exceptions are reported to the group. It does not hold the model, which would keep
    itself alive, and is copied and saved as the plain hook: DistributedDataParallel keeps it, and copies do not
    register it."""

    def __init__(self, hook: Callable[..., Any], group: dist.ProcessGroup) -> None:
        functools.update_wrapper(self, hook)
        self._hook, self._group = hook, group

    def __call__(self, *arguments: Any) -> Any:
        with reported_to(self._group, "communication hook"):
            return self._hook(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._hook,)


def _itself(hook: Callable[..., Any]) -> Callable[..., Any]:
    return hook


def _replace_code(function: Any, telling: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the function's code by a call of the reporting function, for all references to it."""
    own = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    own.__kwdefaults__ = function.__kwdefaults__
    name = f"_atoll_{function.__name__}"
    function.__globals__[name] = telling(own)
    function.__signature__ = inspect.signature(function)
    code: dict[str, Any] = {}
    exec(f"def {function.__name__}(*arguments, **named): return {name}(*arguments, **named)", code)
    function.__code__ = code[function.__name__].__code__
    function.__defaults__ = function.__kwdefaults__ = None


def _reporting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        before = _calls_entered()
        try:
            return function(*arguments, **named)
        except Exception as error:
            if _calls_entered() == before:
                _tell(function, arguments, named, error)
            raise

    return call


def _reporting_each(batch: Callable[..., Any]) -> Callable[..., Any]:
    """Reports the messages after a failed one, which are not issued."""

    @functools.wraps(batch)
    def call(p2p_op_list: list[dist.P2POp]) -> Any:
        before = _calls_entered()
        try:
            return batch(p2p_op_list)
        except Exception as error:
            for left in p2p_op_list[_calls_entered() - before :]:
                if isinstance(left, dist.P2POp):
                    peer = "group_dst" if left.op is distributed_c10d.isend else "group_src"
                    named = {"group": left.group, "tag": left.tag, peer: left.group_peer}
                    _tell(left.op, (left.tensor,), named, error)
            raise

    return call


@contextlib.contextmanager
def reported_to(group: dist.ProcessGroup, what: str) -> Iterator[None]:
    """Reports an exception inside, raised before a collective was called there, to the group's other ranks, which wait
    for this one."""
    from atoll.backend import backend_of

    before = _calls_entered()
    try:
        yield
    except Exception as error:
        if _calls_entered() == before:
            with contextlib.suppress(ValueError):
                backend_of(group).refuse(f"{what}: {type(error).__name__}: {error}")
        raise


def _tell(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], error: Exception) -> None:
    from atoll.backend import backend_of

    try:
        given = inspect.signature(function).bind(*arguments, **named)
        given.apply_defaults()
        group = given.arguments["group"] or distributed_c10d._get_default_group()
        if not isinstance(group, dist.ProcessGroup):
            return  # this rank is not a member
        backend = backend_of(group)
    except (TypeError, ValueError, RuntimeError):
        return  # an invalid call, no group, or the group of another backend
    name = function.__name__
    why = f"{name}: {type(error).__name__}: {error}"
    if name in _SENDS or name in _RECEIVES:
        peer = _peer(group, given.arguments, "dst" if name in _SENDS else "src")
        if peer is not None:
            backend.refuse_message(peer, given.arguments.get("tag", 0), name in _SENDS, why)
    else:
        backend.refuse(why)


def _peer(group: dist.ProcessGroup, given: dict[str, Any], name: str) -> int | None:
    """Returns the peer's rank in the group; -1: any. None if the arguments name no peer."""
    inside, outside = given.get(f"group_{name}"), given.get(name)
    if inside is None and outside is None:
        return -1
    if isinstance(inside, int):
        return inside
    members = dist.get_process_group_ranks(group)
    return members.index(outside) if outside in members else None
