# SPDX-License-Identifier: Apache-2.0
"""Attaches a session to a module, so that the module's own calls are split."""

import types
import warnings
from typing import Any

import torch
from torch import nn

from atoll.infer.engine import is_inside_engine
from atoll.infer.errors import InputError, ModelChangedError
from atoll.infer.hooks import has_own_hooks
from atoll.infer.inputs import changes_arguments
from atoll.infer.session import Session, checked_key
from atoll.infer.tracing import CapturedForward, capture_forward

_FORWARD = "forward"
_USERS_CALL = 6  # frames up to the user's call


class _Forward:
    """Replaces a module's forward. Calls that the session was not made for go to the module's own forward."""

    def __init__(self, module: nn.Module, session: Session, captured: CapturedForward, before: Any) -> None:
        assert captured.bundle.watch is not None
        self.module = module
        self.session = session
        self.before = before  # an instance's own forward; None: the class's
        self.watch = captured.bundle.watch
        self.warned: set[str] = set()
        self._split = torch.compiler.disable(self._run)  # type: ignore[no-untyped-call]  # where the module is compiled in place

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._split(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        if is_inside_engine():
            return self.own(*args, **kwargs)
        if has_own_hooks(self.module) or changes_arguments(self.module):  # which may set attributes at each call
            self.watch.leave_out(of_layers=False)
        has_other_inputs = False
        try:
            if self.session.is_closed:
                kind = why = "its session was closed"
            elif self.watch.is_training():
                kind = why = "the module is in training mode"
            else:
                return self.session(*args, **kwargs)
        except InputError as error:
            kind, why, has_other_inputs = error.argument or str(error), str(error), True
        except ModelChangedError as error:
            kind, why = "the module has changed", str(error)
        self._warn(kind, why)
        answer = self.own(*args, **kwargs)
        if has_other_inputs:  # nothing had changed before forward was called
            self.watch.leave_out()
        return answer

    def own(self, *args: Any, **kwargs: Any) -> Any:
        return self.atoll_stands_for()(*args, **kwargs)

    def atoll_stands_for(self) -> Any:
        """Returns the module's own forward, for copies of the module."""
        return self.before if self.before is not None else _own_forward(self.module)

    def __reduce__(self) -> Any:
        # A copy of the module, pickled or not, is the plain module.
        if self.before is not None:
            return _same, (self.before,)
        return _own_forward, (self.module,)

    def _warn(self, kind: str, why: str) -> None:
        """Warns once of each kind, whatever the values in its text are."""
        if kind in self.warned:
            return
        self.warned.add(kind)
        warnings.warn(f"atoll: this call is not split, the module computes it itself: {why}", stacklevel=_USERS_CALL)


def attach(net: nn.Module, example_inputs: Any, server: str | None = None, **options: Any) -> Session:
    """Makes `net(x)` itself split: from now on, calls with inputs like the example go through a session, which is
    returned; `options` are those of Session. Everything else is unchanged: parameters, state_dict, pickling (a copy is
    the plain module), train(), and the module's own hooks, which Python runs at each call; hooks of its layers are part
    of the graph. Calls in training mode, with other shapes, after weights, layers or their hooks have changed, or after
    the session was closed go to the module's own forward, with one warning for each of these, and for each argument
    that differs from the example. Results carry no gradients. Raises ValueError if the module is already attached.

    Changes of weights are detected by PyTorch's version counters. Changes that bypass the counters (through `.data`, by
    fused optimizers) are detected by sampling values, of one parameter and one buffer per call, in turn: a change of
    all parameters, as by an optimizer, is detected at the next call; a change of one parameter after at most as many
    calls as there are parameters; a change of a few elements perhaps never. After such a change attach the module
    again; until then all answers use the weights at the time of attaching. Changes of numbers, texts and functions in
    attributes are detected at the next call, except those of attributes that forward sets itself, and, if the module
    has hooks of its own, of the module's own attributes."""
    if isinstance(net.__dict__.get(_FORWARD), _Forward):
        raise ValueError("the module is already attached: detach it first")
    if server is not None:
        checked_key(options.get("key_file"))
    captured = capture_forward(net, example_inputs, options.pop("example_kwargs", None))
    session = Session(captured.bundle, captured.args, server, example_kwargs=captured.kwargs, **options)
    forward: Any = _Forward(net, session, captured, net.__dict__.get(_FORWARD))
    net.forward = forward
    return session


def detach(net: nn.Module) -> None:
    """Restores the module's own forward and closes the session. Raises ValueError if no session is attached."""
    forward = net.__dict__.get(_FORWARD)
    if not isinstance(forward, _Forward):
        raise ValueError("the module is not attached")
    if forward.before is None:
        del net.__dict__[_FORWARD]
    else:
        net.__dict__[_FORWARD] = forward.before
    forward.session.close()


def _same(value: Any) -> Any:
    return value


def _own_forward(module: nn.Module) -> Any:
    return types.MethodType(type(module).forward, module)
