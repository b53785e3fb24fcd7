# SPDX-License-Identifier: Apache-2.0
"""A module whose own calls are split."""

import types
import warnings
from typing import Any

import torch
from torch import nn

from atoll.infer.engine import is_inside_engine
from atoll.infer.errors import InputError, ModelChangedError
from atoll.infer.session import Session, checked_key
from atoll.infer.tracing import CapturedForward, capture_forward

_FORWARD = "forward"
_USERS_CALL = 6  # that many frames up


class _Forward:
    """Stands in for a module's forward. Whatever the session was not made for goes to the module's own."""

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
        try:
            if self.session.is_closed:
                why = "its session was closed"
            elif self.watch.is_training():
                why = "the module is in training mode"
            else:
                return self.session(*args, **kwargs)
        except (InputError, ModelChangedError) as error:
            why = str(error)
        self._warn(why)
        return self.own(*args, **kwargs)

    def own(self, *args: Any, **kwargs: Any) -> Any:
        return self.atoll_stands_for()(*args, **kwargs)

    def atoll_stands_for(self) -> Any:
        """The module's own forward, which copies of it have."""
        return self.before if self.before is not None else types.MethodType(type(self.module).forward, self.module)

    def __reduce__(self) -> Any:
        # A copy of the module, pickled or not, is the module alone.
        if self.before is not None:
            return _same, (self.before,)
        return _own_forward, (self.module,)

    def _warn(self, why: str) -> None:
        kind = why.partition(":")[0].partition("(")[0]
        if kind in self.warned:
            return
        self.warned.add(kind)
        warnings.warn(f"atoll: this call is not split, the module computes it itself: {why}", stacklevel=_USERS_CALL)


def attach(net: nn.Module, example_inputs: Any, server: str | None = None, **options: Any) -> Session:
    """Makes `net(x)` itself split: from now on calls with inputs like the example go through a session, which is
    returned; `options` are those of Session. Everything else stays as it is: parameters, state_dict, pickling (a copy
    is the plain module), train(), and the module's own hooks, which Python runs at each call; those of its layers are
    in the graph. Calls in training mode, with other shapes, after weights, layers or their hooks have changed or the
    session was closed go to the module's own forward, with one warning. Results carry no gradients. ValueError where it
    is attached already.

    Changes of weights are seen by PyTorch's version counters. Those that do not count (through `.data`, by fused
    optimizers) are seen by samples of the values, of one parameter and one buffer at each call, in turn: what changes
    all parameters, as an optimizer does, at the next call; what changes one of them after as many calls as there are;
    and a change of a few elements perhaps never. After one of those attach it again; until then all answers come from
    the weights of the moment when it was attached."""
    if isinstance(net.__dict__.get(_FORWARD), _Forward):
        raise ValueError("the module is attached already: detach it first")
    if server is not None:
        checked_key(options.get("key_file"))
    captured = capture_forward(net, example_inputs, options.pop("example_kwargs", None))
    session = Session(captured.bundle, captured.args, server, example_kwargs=captured.kwargs, **options)
    forward: Any = _Forward(net, session, captured, net.__dict__.get(_FORWARD))
    net.forward = forward
    return session


def detach(net: nn.Module) -> None:
    """Gives the module its own forward back and closes the session. ValueError where nothing is attached."""
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
