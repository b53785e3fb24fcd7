# SPDX-License-Identifier: Apache-2.0
"""Values that depend only on weights and constants, computed once when a model is captured.

1. A node is constant if all its operands are.
2. Backwards from the end, a node is needed if it depends on inputs or is returned. A needed constant becomes a weight.
   If it is a view, too large, made from numbers, or just its weight, it stays a node, and its operands are needed.
3. `value` computes a weight by the node's own operators on the module's tensors, with the same bits as the module."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from atoll.infer.dtypes import BY_NAME, name_of
from atoll.infer.lowering import listed_operators, name_of_operator

SMALL_BYTES = 64 << 10  # by which a result may exceed the weights it is computed from
UNLISTED_BYTES = 16 << 20  # the same if a server could not compute it
_WORKSPACE_BYTES = 256 << 20  # by which each intermediate tensor may exceed them


@dataclass(frozen=True)
class _Facts:
    """The properties of a constant node."""

    key: int  # equal for nodes that compute the same value
    weights: frozenset[fx.Node]
    most_bytes: int  # of any intermediate tensor
    listed: bool  # whether servers list all operators involved


@dataclass
class Folding:
    """Chooses and computes the constants of a graph. `tensors` are the values of the placeholders that are not inputs.
    `is_same(node)` returns whether a node just passes its operand on; `used` are the nodes that the outputs need."""

    graph: fx.Graph
    tensors: Mapping[fx.Node, torch.Tensor]
    used: set[fx.Node]
    is_same: Callable[[fx.Node], bool]
    folded: set[fx.Node] = field(default_factory=set, init=False)  # which become weights
    skipped: set[fx.Node] = field(default_factory=set, init=False)  # constants needed only by these
    _facts: dict[fx.Node, _Facts] = field(default_factory=dict, init=False)
    _keys: dict[Any, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._listed = listed_operators()
        for node in self.graph.nodes:
            if node in self.used and self._is_constant(node):
                self._facts[node] = self._facts_of(node)
        self._choose()

    def key(self, node: fx.Node) -> int:
        """Returns a key that is equal for nodes that compute the same value from the same weights."""
        return self._facts[node].key

    def weights(self, node: fx.Node) -> list[fx.Node]:
        """Returns the placeholders that a constant is computed from, in the graph's order."""
        wanted = self._facts[node].weights
        return [placeholder for placeholder in self.tensors if placeholder in wanted]

    @torch.no_grad()
    def value(self, node: fx.Node) -> torch.Tensor:
        """Returns the value that the module computes for a folded node."""
        values: dict[fx.Node, Any] = {}
        waiting = [node]
        while waiting:
            each = waiting[-1]
            missing = [source for source in each.all_input_nodes if source not in values]
            if missing and each not in self.tensors:
                waiting += missing
                continue
            values[waiting.pop()] = self._computed(each, values)
        result: torch.Tensor = values[node]
        return result.detach()

    def _computed(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        if node in self.tensors:
            return self.tensors[node].detach()
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        return node.target(*args, **kwargs)  # type: ignore[operator]

    def _is_constant(self, node: fx.Node) -> bool:
        if node.op == "placeholder":
            return node in self.tensors
        if node.op != "call_function" or not all(source in self._facts for source in node.all_input_nodes):
            return False
        target = node.target
        if target is operator.getitem:
            return True
        is_operator = isinstance(target, torch._ops.OpOverload)
        return is_operator and not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags  # type: ignore[union-attr]

    def _facts_of(self, node: fx.Node) -> _Facts:
        if node.op == "placeholder":
            return _Facts(self._keys.setdefault(node, len(self._keys)), frozenset([node]), 0, True)
        sources = [self._facts[source] for source in node.all_input_nodes]
        written = _written((node.args, node.kwargs), self._facts)
        is_listed = node.target is operator.getitem or name_of_operator(node.target) in self._listed
        return _Facts(
            self._keys.setdefault((node.target, written), len(self._keys)),
            frozenset().union(*(source.weights for source in sources)),
            max([_bytes_of(node), *(source.most_bytes for source in sources)]),
            is_listed and all(source.listed for source in sources),
        )

    def _choose(self) -> None:
        needed: set[fx.Node] = set()
        for node in reversed(self.graph.nodes):
            if node not in self.used and node.op != "output":
                continue
            is_constant = node in self._facts
            if is_constant and node not in needed:
                self.skipped.add(node)
            elif is_constant and self._folds(node):
                self.folded.add(node)
            else:
                needed.update(node.all_input_nodes)

    def _folds(self, node: fx.Node) -> bool:
        """Returns whether a needed constant becomes a weight."""
        value = node.meta.get("val")
        if node.op == "placeholder" or not isinstance(value, torch.Tensor) or self.is_same(node):
            return False
        if name_of(value.dtype) not in BY_NAME or value.layout is not torch.strided:
            return False
        facts = self._facts[node]
        if any(has_no_values(self.tensors[weight]) for weight in facts.weights):
            return False
        if (_is_view(node) or not node.all_input_nodes) and name_of_operator(node.target) in self._listed:
            return False  # the graph keeps the view, with the module's strides, and numbers need no file
        held = sum(self.tensors[weight].nbytes for weight in facts.weights)
        room = held + (SMALL_BYTES if facts.listed else UNLISTED_BYTES)
        return value.numel() * value.element_size() <= room and facts.most_bytes <= held + _WORKSPACE_BYTES


def has_no_values(tensor: Any) -> bool:
    return not isinstance(tensor, torch.Tensor) or isinstance(tensor, torch._subclasses.FakeTensor) or tensor.is_meta


def _is_view(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return any(result.alias_info is not None for result in node.target._schema.returns)


def _bytes_of(node: fx.Node) -> int:
    """Returns the size of the memory that a node allocates; a view allocates none."""
    value = node.meta.get("val")
    made = value if isinstance(value, list | tuple) else [value]
    if _is_view(node):
        return 0
    return sum(each.numel() * each.element_size() for each in made if isinstance(each, torch.Tensor))


def _written(value: Any, facts: Mapping[fx.Node, _Facts]) -> Any:
    """Returns arguments in a comparable form: True is not 1, and -0.0 is not 0.0."""
    if isinstance(value, fx.Node):
        return ("node", facts[value].key)
    if isinstance(value, list | tuple):
        return tuple(_written(each, facts) for each in value)
    if isinstance(value, Mapping):
        return tuple((name, _written(each, facts)) for name, each in sorted(value.items()))
    return (type(value).__name__, repr(value))
