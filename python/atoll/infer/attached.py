# SPDX-License-Identifier: Apache-2.0
"""A module whose own calls are split."""

import types
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from atoll.infer.engine import is_inside_engine
from atoll.infer.errors import InputError
from atoll.infer.session import Session

_FORWARD = "forward"
_MOST_SAMPLES = 128


class _Forward:
    """Stands in for a module's forward. Whatever the session was not made for goes to the module's own."""

    def __init__(self, module: nn.Module, session: Session, before: Any) -> None:
        self.module = module
        self.session = session
        self.before = before  # an instance's own forward; None: the class's
        self.weights = _marks(module)
        self.samples = [_Samples(module.parameters()), _Samples(module.buffers())]
        self.changed = False
        self.warned: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_inside_engine():
            return self.own(*args, **kwargs)
        why = self._unfit()
        if why is None:
            try:
                return self.session(*args, **kwargs)
            except InputError as error:
                why = str(error)
        self._warn(why)
        return self.own(*args, **kwargs)

    def own(self, *args: Any, **kwargs: Any) -> Any:
        if self.before is not None:
            return self.before(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __reduce__(self) -> Any:
        # A copy of the module, pickled or not, is the module alone.
        if self.before is not None:
            return _same, (self.before,)
        return _own_forward, (self.module,)

    def _unfit(self) -> str | None:
        if any(module.training for module in self.module.modules()):
            return "the module is in training mode"
        if not self.changed:
            differ = [samples.differ() for samples in self.samples]
            self.changed = _marks(self.module) != self.weights or any(differ)
        if self.changed:
            return "its weights have changed since it was attached: attach it again"
        return None

    def _warn(self, why: str) -> None:
        kind = why.partition(":")[0]
        if kind in self.warned:
            return
        self.warned.add(kind)
        warnings.warn(f"atoll: this call is not split, the module computes it itself: {why}", stacklevel=4)


def attach(net: nn.Module, example_inputs: Any, server: str | None = None, **options: Any) -> Session:
    """Makes `net(x)` itself split: from now on calls with inputs like the example go through a session, which is
    returned; `options` are those of Session. Everything else stays as it is: parameters, state_dict, pickling (a copy
    is the plain module), train(). Calls in training mode, with other shapes, or after the weights have changed go to
    the module's own forward, with one warning. Results carry no gradients. ValueError where it is attached already.

    Changes of weights are seen by PyTorch's version counters. Those through `.data`, which do not count, are seen by
    samples of the values, of one parameter and one buffer at each call, in turn: what changes all parameters, as an
    optimizer does, at the next call; what changes one of them after as many calls as there are; and a change of a few
    elements perhaps never. After one of those attach it again."""
    if isinstance(net.__dict__.get(_FORWARD), _Forward):
        raise ValueError("the module is attached already: detach it first")
    session = Session(net, example_inputs, server, **options)
    forward: Any = _Forward(net, session, net.__dict__.get(_FORWARD))
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


def _marks(module: nn.Module) -> list[tuple[int, int]]:
    """Differ when a parameter or buffer is another tensor, or was changed in place."""
    tensors = [*module.parameters(), *module.buffers()]
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]


class _Samples:
    """Some elements of tensors, as they were. One tensor is looked at each time, so that it costs microseconds however
    many and large they are."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._seen = [(tensor, _sample(tensor)) for tensor in tensors if tensor.numel()]
        self._next = 0

    def differ(self) -> bool:
        if not self._seen:
            return False
        tensor, seen = self._seen[self._next]
        self._next = (self._next + 1) % len(self._seen)
        return not torch.equal(_sample(tensor), seen)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of up to 128 elements from all over a tensor's memory, with whatever strides it lies there."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    step = max(1, -(-span // _MOST_SAMPLES))
    return tensor.detach().as_strided((-(-span // step),), (step,)).clone().view(torch.uint8)


def _same(value: Any) -> Any:
    return value


def _own_forward(module: nn.Module) -> Any:
    return types.MethodType(type(module).forward, module)
