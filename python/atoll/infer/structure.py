# SPDX-License-Identifier: Apache-2.0
"""The structure of tensors in tuples, lists, dicts and classes: takes values apart and puts them together again.

A structure is JSON: "tensor" takes the next tensor; {"constant": value} is a constant;
{"tuple": [...]}, {"list": [...]} and {"dict": [[key, ...], ...]} hold structures; so does
{"class": "module.Name", "fields": [[name, ...], ...]}, a dataclass, a named tuple or another mapping. Classes are
looked up only among those that the caller gave, in an example or explicitly: text from elsewhere imports nothing."""

import collections
import dataclasses
import json
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from atoll.infer.errors import BundleError, ExportError, InputError

Spec = Any  # as above
Classes = dict[str, type]
TENSOR = "tensor"
MAX_LEVELS = 64
_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list}


def class_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_ALWAYS: Classes = {class_name(collections.OrderedDict): collections.OrderedDict}


@dataclasses.dataclass
class Structure:
    """One nested value, without its tensors."""

    spec: Spec
    classes: Classes

    @staticmethod
    def of(value: Any, name: str) -> tuple["Structure", list[torch.Tensor]]:
        """Returns the structure of `value` and its tensors in order. Raises ExportError if it holds something else;
        messages call the value `name`."""
        taking = _Taking()
        return Structure(taking.spec(value, name, 0), taking.classes), taking.tensors

    def tensors_of(self, value: Any, name: str) -> list[torch.Tensor]:
        """Returns the tensors of a `value` of this structure. Raises InputError if its structure or constants differ.
        Dicts may have another order."""
        tensors: list[torch.Tensor] = []
        _match(self.spec, value, name, tensors)
        return tensors

    def build(self, tensors: Iterable[Any]) -> Any:
        """Returns the nested value with these tensors, one for each place. Raises BundleError for an unknown class."""
        return _build(self.spec, iter(tensors), self.classes)

    def refuse_computing_classes(self, tensors: Sequence[torch.Tensor], name: str) -> None:
        """Raises ExportError for a class that changes what it is made of: making a value of these tensors, which came
        from one, would change them again. Messages call the value `name`."""
        try:
            again, found = Structure.of(self.build(tensors), name)
        except BundleError as error:
            raise ExportError(str(error)) from None
        if again.spec != self.spec or any(map(operator.is_not, found, tensors)):
            raise ExportError(
                f"{name} holds a {' or a '.join(self.classes)}, which changes its fields when it is made, as in "
                f"__post_init__, and a session makes it again: compute in forward, or use a plain dict or tuple"
            )

    def paths(self, name: str) -> list[str]:
        """Returns the name of each tensor, such as output.logits or images[0]."""
        return list(_paths(self.spec, name))

    def to_json(self) -> str:
        return json.dumps(self.spec, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str, classes: Iterable[type] = ()) -> "Structure":
        """Parses a structure. Raises BundleError for other texts. Classes may be missing until something is built."""
        try:
            spec = json.loads(text)
            _check(spec, 0)
        except BundleError:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise BundleError(f"the structure of inputs or outputs is not JSON: {error}") from None
        return Structure(spec, {class_name(kind): kind for kind in classes})


class _Taking:
    """Takes one value apart."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.classes: Classes = {}

    def spec(self, value: Any, path: str, level: int) -> Spec:
        if level > MAX_LEVELS:
            raise ExportError(f"{path} is nested deeper than {MAX_LEVELS} levels: return less nested values")
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return TENSOR
        if type(value) in _PLAIN:
            return {"constant": _encoded(value)}
        if type(value) in (tuple, list):
            items = [self.spec(item, f"{path}[{place}]", level + 1) for place, item in enumerate(value)]
            return {type(value).__name__: items}
        if type(value) is dict:
            return {"dict": self._fields(value.items(), path, "[{!r}]", level)}
        return self._class(value, path, level)

    def _class(self, value: Any, path: str, level: int) -> Spec:
        fields = fields_of(value)
        if fields is None:
            raise ExportError(f"{path} is a {class_name(type(value))}, {_advice(value)}")
        name = class_name(type(value))
        if self.classes.setdefault(name, type(value)) is not type(value):
            raise ExportError(f"{path}: two classes are called {name}: give them different names")
        suffix = ".{}" if dataclasses.is_dataclass(value) or isinstance(value, tuple) else "[{!r}]"
        return {"class": name, "fields": self._fields(fields, path, suffix, level)}

    def _fields(self, items: Iterable[tuple[Any, Any]], path: str, suffix: str, level: int) -> list[Any]:
        found = []
        for key, item in items:
            if type(key) not in (str, int):
                raise ExportError(f"{path} has the key {key!r}: use strings or integers as keys")
            found.append([key, self.spec(item, path + suffix.format(key) if path else str(key), level + 1)])
        return found


def _advice(value: Any) -> str:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return "a number that is computed from tensors: return the tensor itself"
    if "Cache" in type(value).__name__:
        return "which keeps state between calls: disable it, as with transformers' use_cache=False"
    return "which is not a tensor, number, string, tuple, list, dict, dataclass or named tuple: convert it"


def fields_of(value: Any) -> list[tuple[Any, Any]] | None:
    """Returns names and values of a class's fields; None if the class is not of a known kind."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None)
        return None if names is None else list(zip(names, value, strict=True))
    return list(value.items()) if isinstance(value, Mapping) else None


def has_dict_with_order(spec: Spec) -> bool:
    """Returns whether a value of this structure holds a dict with several keys, whose order may vary."""
    if spec == TENSOR or "constant" in spec:
        return False
    fields = spec.get("dict", spec.get("fields"))
    if fields is None:
        return any(map(has_dict_with_order, spec.get("tuple", spec.get("list"))))
    return ("dict" in spec and len(fields) > 1) or any(has_dict_with_order(inner) for _, inner in fields)


def _match(spec: Spec, value: Any, path: str, tensors: list[torch.Tensor]) -> None:
    if spec == TENSOR:
        if not isinstance(value, torch.Tensor):
            what = path or "the input"
            raise InputError(f"{what} is {_told(value)}, but the example's was a tensor: pass a tensor", what)
        tensors.append(value)
        return
    ((kind, content),) = ((key, item) for key, item in spec.items() if key != "fields")
    if kind == "constant":
        _match_constant(_decoded(content), value, path)
    elif kind in ("tuple", "list"):
        items = list(value) if isinstance(value, tuple | list) else []
        if type(value) is not _SEQUENCES[kind] or len(items) != len(content):
            raise InputError(f"{path} is {_told(value)}, but the example's was a {kind} of {len(content)}", path)
        for place, inner in enumerate(content):
            _match(inner, items[place], f"{path}[{place}]", tensors)
    elif kind == "dict":
        _match_fields(content, value if type(value) is dict else None, value, "dict", path, tensors)
    else:
        fields = dict(fields_of(value) or ()) if class_name(type(value)) == content else None
        _match_fields(spec["fields"], fields, value, content, path, tensors)


def _match_constant(pinned: Any, value: Any, path: str) -> None:
    if type(value) is not type(pinned) or repr(value) != repr(pinned):  # NaN equals itself, -0.0 is not 0.0
        raise InputError(
            f"{path} is {_told(value)}, but the example's was {pinned!r}, which the graph holds: "
            f"pass that, or make another session",
            path,
        )


def _match_fields(
    content: list[Any], fields: dict[Any, Any] | None, value: Any, kind: str, path: str, tensors: list[torch.Tensor]
) -> None:
    if fields is None:
        raise InputError(f"{path} is {_told(value)}, but the example's was a {kind}", path)
    wanted = [key for key, _ in content]
    what = path or "the arguments"
    for missing in (key for key in wanted if key not in fields):
        raise InputError(f"{_at(path, missing)} is missing, but the example had it", what)
    for extra in (key for key in fields if key not in wanted):
        raise InputError(f"{_at(path, extra)} was not in the example: remove it, or make another session with it", what)
    for key, inner in content:
        _match(inner, fields[key], _at(path, key), tensors)


def _at(path: str, key: Any) -> str:
    return f"{path}[{key!r}]" if path else str(key)


def _told(value: Any) -> str:
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {class_name(type(value))}"


def _build(spec: Spec, tensors: Iterator[Any], classes: Classes) -> Any:
    if spec == TENSOR:
        return next(tensors)
    if "constant" in spec:
        return _decoded(spec["constant"])
    if "class" in spec:
        return _made(spec["class"], [(key, _build(inner, tensors, classes)) for key, inner in spec["fields"]], classes)
    if "dict" in spec:
        return {key: _build(inner, tensors, classes) for key, inner in spec["dict"]}
    items = [_build(inner, tensors, classes) for inner in spec.get("tuple", spec.get("list"))]
    return tuple(items) if "tuple" in spec else items


def _made(name: str, items: list[tuple[Any, Any]], classes: Classes) -> Any:
    kind: Any = classes.get(name) or _ALWAYS.get(name)
    if kind is None:
        raise BundleError(f"the values hold an unknown class {name}: pass the class, as in classes=[...]")
    try:
        if dataclasses.is_dataclass(kind):
            late = {field.name for field in dataclasses.fields(kind) if not field.init}
            make: Any = kind
            made = make(**{key: item for key, item in items if key not in late})
            for key, item in items:
                if key in late:
                    object.__setattr__(made, key, item)
            return made
        if issubclass(kind, tuple):
            return kind(**dict(items))
        return kind(dict(items))
    except (TypeError, ValueError) as error:
        raise BundleError(f"a {name} cannot be made from its fields: {error}: return a plain dict or tuple") from error


def _paths(spec: Spec, path: str) -> Iterator[str]:
    if spec == TENSOR:
        yield path
    elif "class" in spec:
        for key, inner in spec["fields"]:
            yield from _paths(inner, f"{path}.{key}" if path else str(key))
    elif "dict" in spec:
        for key, inner in spec["dict"]:
            yield from _paths(inner, _at(path, key))
    else:
        for place, inner in enumerate(spec.get("tuple", spec.get("list", ()))):
            yield from _paths(inner, f"{path}[{place}]")


def _encoded(value: Any) -> Any:
    """Encodes infinities, which JSON lacks."""
    return {"float": repr(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    return float(value["float"]) if isinstance(value, dict) else value


def _check(spec: Any, level: int) -> None:
    """Raises BundleError unless the other functions can read the structure."""
    if spec == TENSOR:
        return
    if level > MAX_LEVELS or not isinstance(spec, dict) or not spec:
        raise BundleError(f"the structure of inputs or outputs has {str(spec)[:80]!r} on level {level}")
    kind = next(iter(spec))
    if kind == "constant" and len(spec) == 1 and _is_constant(spec[kind]):
        return
    if kind in ("tuple", "list") and len(spec) == 1 and isinstance(spec[kind], list):
        for inner in spec[kind]:
            _check(inner, level + 1)
        return
    fields = spec.get("fields") if kind == "class" and isinstance(spec[kind], str) else spec.get("dict")
    known = {"class", "fields"} if kind == "class" else {"dict"}
    if set(spec) != known or not isinstance(fields, list) or not all(_is_field(field) for field in fields):
        raise BundleError(f"the structure of inputs or outputs has {str(spec)[:80]!r}")
    for _, inner in fields:
        _check(inner, level + 1)


def _is_field(field: Any) -> bool:
    return isinstance(field, list) and len(field) == 2 and type(field[0]) in (str, int)


def _is_constant(value: Any) -> bool:
    return type(value) in _PLAIN or (
        isinstance(value, dict) and set(value) == {"float"} and value["float"] in ("inf", "-inf", "nan")
    )
