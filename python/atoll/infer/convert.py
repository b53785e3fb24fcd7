# SPDX-License-Identifier: Apache-2.0
"""Converts torch.export's graph to Atoll's: functional operators on numbered tensors, with every argument written out.

Nodes that change no value are left out: aliases, copies, dropout's clones, checks of metadata, unused nodes. Nodes that
depend only on weights are computed here (folding.py)."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from atoll.infer.arguments import Made, complete, encode, entries
from atoll.infer.dtypes import BY_NAME, CHOICE, name_of
from atoll.infer.errors import ExportError
from atoll.infer.export_errors import changes, line_of, module_of
from atoll.infer.folding import Folding, has_no_values
from atoll.infer.graph import MAX_ARGUMENTS, MAX_DIMENSIONS, MAX_NODES, VERSION, Graph
from atoll.infer.memory_layouts import STRIDED, refuse_by_memory, steps_of

aten = torch.ops.aten
_SAME_VALUE = {
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten.lift_fresh.default,
}  # fmt: skip
# Their results are unused; they stand for a condition on values, which a graph cannot express.
_CONDITIONS = ("_assert_scalar", "_assert_async", "sym_constrain_range", "sym_constrain_range_for_size")
_SHAPING = {aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.expand.default}
_BIT_VIEWS = {aten.view.dtype}
_PLAIN_BATCH_NORM = aten._native_batch_norm_legit_no_training.default
_DRAWS = ("dropout_p", "dropout", "train", "training")  # arguments that disable random numbers


@dataclass
class Converter:
    """Fills `tensors`, `nodes` and `weights` from one exported program. `values` holds the tensors of its parameters,
    buffers and constants; `inputs` the names of its inputs. `sources` gives the tensors of the module that each weight
    comes from: itself, or those that it was computed from."""

    program: torch.export.ExportedProgram
    values: Mapping[str, torch.Tensor]
    inputs: Sequence[str]
    tensors: list[dict[str, Any]] = field(default_factory=list, init=False)
    nodes: list[dict[str, Any]] = field(default_factory=list, init=False)
    weights: dict[str, torch.Tensor] = field(default_factory=dict, init=False)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    _places: dict[fx.Node, Any] = field(default_factory=dict, init=False)  # one number, or a list of them
    _weight_places: dict[str, int] = field(default_factory=dict, init=False)
    _specs: dict[str, Any] = field(default_factory=dict, init=False)  # of weights, by their nodes' names
    _known: dict[Any, int] = field(default_factory=dict, init=False)  # weights by where their elements lie
    _folding: Folding = field(init=False)
    _module: str = field(default="", init=False)  # in which the current node is called

    def graph(self, structure: dict[str, str]) -> Graph:
        """Returns the whole graph. Raises ExportError if the program keeps state or holds something that a graph
        cannot."""
        self._refuse_changes()
        outputs = list(self.program.graph.output_node().args[0])
        placeholders = {node.name: node for node in self.program.graph.nodes if node.op == "placeholder"}
        self._specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        given = [placeholders[name] for name, spec in self._specs.items() if spec.kind is InputKind.USER_INPUT]
        for name, node in zip(self.inputs, given, strict=True):
            self._places[node] = self._tensor(node.meta["val"], name)
        used = _used(outputs)
        self._folding = Folding(self.program.graph, self._weight_values(placeholders), used, _is_same_value)
        left_out = self._folding.folded | self._folding.skipped
        for node in self.program.graph.nodes:
            self._refuse_conditions(node)
            if node not in used or node in left_out or node.op in ("placeholder", "output"):
                continue
            self._module = module_of(node)
            try:
                self._convert(node)
            except ExportError as error:
                raise ExportError(f"{_called(node)}: {error}{line_of(node)}") from None
        if len(self.nodes) > MAX_NODES:
            raise ExportError(
                f"the graph has {len(self.nodes)} nodes, but at most {MAX_NODES} are allowed: export a part"
            )
        results = [{"tensor": self._place(node)} for node in outputs]  # may be weights, which this adds
        return {
            "atoll_graph": VERSION,
            "tensors": self.tensors,
            "inputs": [self._places[node] for node in given],
            "weights": [{"tensor": self._weight_places[name], "name": name} for name in self.weights],
            "nodes": self.nodes,
            "outputs": results,
            "structure": structure,
        }

    def _weight_values(self, placeholders: Mapping[str, fx.Node]) -> dict[fx.Node, torch.Tensor]:
        kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
        return {placeholders[name]: self.values[spec.target] for name, spec in self._specs.items()
                if spec.kind in kinds and spec.target in self.values}  # fmt: skip

    def _refuse_changes(self) -> None:
        names = [spec.arg.name for spec in self.program.graph_signature.input_specs
                 if spec.kind is InputKind.USER_INPUT]  # fmt: skip
        for spec in self.program.graph_signature.output_specs:
            if spec.kind is OutputKind.USER_OUTPUT:
                continue
            if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target in names:
                raise ExportError(
                    f"forward changes its input {self.inputs[names.index(spec.target)]} in place: use a clone(), "
                    f"or a new tensor (inplace=False)"
                )
            raise changes(_name(spec.target or "its state"))

    def _refuse_conditions(self, node: fx.Node) -> None:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name.endswith(_CONDITIONS):
            raise ExportError(
                f"the model checks a value that is known only when it runs, which a graph cannot: remove the check "
                f"from forward{line_of(node)}"
            )

    def _convert(self, node: fx.Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, place = node.args
            self._places[node] = self._places[source][place]  # type: ignore[index]
        elif not isinstance(target, torch._ops.OpOverload):
            raise ExportError("only operators on tensors can be captured")
        elif _is_same_value(node):
            self._places[node] = self._place(node.args[0])
        elif target is aten.copy.default:
            self._places[node] = self._copy(node)
        elif target in STRIDED:
            self._places[node] = self._strided(node)
        elif target in _BIT_VIEWS:
            self._places[node] = self._bits(node)
        elif target is _PLAIN_BATCH_NORM:
            # The checked operator, as in eager mode: the plain one reads past the end of short statistics.
            value, weight, bias, mean, variance, momentum, eps = node.args
            args = (value, weight, bias, mean, variance, False, momentum, eps, True)
            self._places[node] = [self._call(aten.batch_norm.default, args, {}, node.meta["val"][0])]
        else:
            self._places[node] = self._call(target, node.args, node.kwargs, node.meta.get("val"))

    def _call(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], value: Any) -> Any:
        """Adds a node and returns the numbers of its results."""
        schema = target._schema
        given = complete(schema, args, kwargs)
        _refuse_operator(target, {argument.name: item for argument, item in given})
        if schema.name in ("aten::slice", "aten::slice_scatter", "aten::slice_copy"):
            given = _cut_to_size(given, self.tensors)
        encoded = [encode(argument, item, self._place) for argument, item in given]
        several = isinstance(value, list | tuple)
        places = [self._tensor(item, "its result") for item in (value if several else [value])]
        is_list = several and len(schema.returns) == 1
        count = entries(encoded) + len(places)
        if count > MAX_ARGUMENTS:
            raise ExportError(
                f"it has {count} arguments and results, but at most {MAX_ARGUMENTS} are allowed: split the call"
            )
        made = {
            "op": schema.name,
            "overload": schema.overload_name,
            "args": encoded,
            "outputs": places,
            "list": is_list,
        }
        self.nodes.append(made | ({"module": self._module} if self._module else {}))
        return places if several else places[0]

    def _copy(self, node: fx.Node) -> int:
        """copy(self, source) is the source with the shape and dtype of self."""
        target, source = node.meta["val"], node.args[1]
        value = source.meta["val"]  # type: ignore[union-attr]
        place: Any = source
        if value.dtype != target.dtype:
            value = value.to(target.dtype)
            place = Made(self._call(aten._to_copy.default, (place,), {"dtype": target.dtype}, value))
        if value.shape != target.shape:
            place = Made(self._call(aten.expand.default, (place, list(target.shape)), {}, target))
        return self._place(place)

    def _strided(self, node: fx.Node) -> int:
        """Converts as_strided to operators that depend on shapes only, for a tensor with the example's layout."""
        given = {argument.name: value for argument, value in complete(node.target._schema, node.args, node.kwargs)}  # type: ignore[union-attr]
        place: Any = given["self"]
        value = place.meta["val"]
        for target, more in steps_of(value, given["size"], given["stride"], given["storage_offset"]):
            value = target(value, *more)
            place = Made(self._call(target, (place, *more), {}, value))
        return self._place(place)

    def _bits(self, node: fx.Node) -> int:
        """Converts view.dtype of a contiguous operand, which it needs if the element sizes differ."""
        source, dtype = node.args
        value = source.meta["val"].contiguous()  # type: ignore[union-attr]
        dense = self._call(aten.clone.default, (source,), {"memory_format": torch.contiguous_format}, value)
        return self._place(Made(self._call(node.target, (Made(dense), dtype), {}, node.meta["val"])))

    def _place(self, node: Any) -> int:
        if isinstance(node, fx.Node) and node not in self._places:
            if node.op == "placeholder":
                self._places[node] = self._weight(self._specs[node.name])
            elif node in self._folding.folded:
                self._places[node] = self._folded(node)
        place = node.place if isinstance(node, Made) else self._places.get(node)
        if type(place) is not int:
            raise ExportError(f"is {node}, which is not a tensor")
        return place

    def _tensor(self, value: Any, name: str) -> int:
        if not isinstance(value, torch.Tensor):
            raise ExportError(f"{name} is {_kind(value)}: a graph can hold only tensors")
        if name_of(value.dtype) not in BY_NAME:
            raise ExportError(f"{name} has the dtype {name_of(value.dtype)}: choose from {CHOICE}")
        if any(type(size) is not int for size in value.shape):
            raise ExportError(
                f"the shape of {name} depends on values: use masks or torch.where, which keep shapes fixed"
            )
        if value.layout is not torch.strided or value.dim() > MAX_DIMENSIONS:
            what = f"{value.dim()} dimensions, more than the maximum of {MAX_DIMENSIONS}"
            raise ExportError(f"{name} has {what if value.dim() > MAX_DIMENSIONS else f'the layout {value.layout}'}")
        self.tensors.append({"dtype": name_of(value.dtype), "shape": list(value.shape)})
        return len(self.tensors) - 1

    def _weight(self, spec: Any) -> int:
        """Adds a weight. Tensors that share all their elements are one weight, under the first name."""
        value = self.values.get(spec.target)
        if value is None or has_no_values(value):
            raise ExportError(f"{_name(str(spec.target))} has no values: load the model's weights first")
        key = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else id(value)
        if key not in self._known:
            name = _name(spec.target)
            self._known[key] = self._new_weight(name, value.detach(), (name,))
        return self._known[key]

    def _folded(self, node: fx.Node) -> int:
        """Adds a weight that was computed from one or several tensors, named by the first of them."""
        key = ("folded", self._folding.key(node))
        if key not in self._known:
            targets = [_name(self._specs[weight.name].target) for weight in self._folding.weights(node)]
            made_by: Any = node.args[0] if node.target is operator.getitem else node
            name = f"{targets[0] if targets else 'constant'}.{_called(made_by).rpartition('::')[2]}"
            self._known[key] = self._new_weight(name, self._folding.value(node), tuple(targets))
        return self._known[key]

    def _new_weight(self, name: str, value: torch.Tensor, sources: tuple[str, ...]) -> int:
        while name in self.weights:
            name += "_"
        self._weight_places[name] = self._tensor(value, name)
        self.weights[name] = value
        self.sources[name] = sources
        return self._weight_places[name]


def _used(outputs: Sequence[Any]) -> set[fx.Node]:
    """The nodes that the outputs need."""
    found: set[fx.Node] = set()
    waiting = [node for node in outputs if isinstance(node, fx.Node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            is_copy = node.target is aten.copy.default  # of which only the source matters
            waiting += [node.args[1]] if is_copy else node.all_input_nodes  # type: ignore[list-item]
    return found


def _is_same_value(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.target in _SAME_VALUE:
        return True
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    source = node.args[0].meta.get("val")
    if not isinstance(source, torch.Tensor) or not isinstance(value, torch.Tensor):
        return False
    if node.target is aten.clone.default:  # left by dropout; one that changes strides may be needed by later views
        keeps_format = node.kwargs.get("memory_format") in (None, torch.preserve_format)
        return keeps_format and value.stride() == source.stride()
    if node.target is aten.slice.Tensor:
        return bool(value.shape == source.shape and (len(node.args) < 5 or node.args[4] == 1))
    if node.target in _SHAPING:
        return bool(value.shape == source.shape)
    return bool(node.target is aten.dropout.default and node.args[2] is False)


def _refuse_operator(target: Any, given: Mapping[str, Any]) -> None:
    if target._schema.is_mutable:
        raise ExportError("it changes its operands in place")
    refuse_by_memory(target)
    draws = torch.Tag.nondeterministic_seeded in target.tags
    if draws and not any(name in given and not given[name] for name in _DRAWS):
        raise ExportError(
            "it draws random numbers, which two machines cannot share: draw them outside and pass them as an input"
        )


def _cut_to_size(given: list[tuple[Any, Any]], tensors: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Replaces the largest 64-bit integer, which marks slices to the end, by the size of the dimension."""
    values = {argument.name: value for argument, value in given}
    source = values["self"]
    shape = tensors[source.place]["shape"] if isinstance(source, Made) else list(source.meta["val"].shape)
    size = shape[values["dim"]] if shape else 0

    def cut(argument: Any, value: Any) -> Any:
        return max(-size, min(size, value)) if argument.name in ("start", "end") and type(value) is int else value

    return [(argument, cut(argument, value)) for argument, value in given]


def _name(target: str) -> str:
    """Returns the name in the user's module, which the captured one holds as `module`."""
    return target.removeprefix("module.")


def _called(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name if schema is not None else str(node.target)


def _kind(value: Any) -> str:
    return "a number that depends on values" if isinstance(value, torch.SymInt | torch.SymFloat) else f"{value!r}"
