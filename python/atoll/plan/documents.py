# SPDX-License-Identifier: Apache-2.0
"""The planners' requests and answers as plain objects (mappings, lists, numbers, texts), and their conversion from and
to dataclasses. All JSON that passes between Python and the planners passes here."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from atoll import _C

Document = Mapping[str, Any]
Record = TypeVar("Record")


def plan_layers(request: Document) -> dict[str, Any]:
    return _answered(_C.plan_layers, request)


def price_layers(request: Document) -> dict[str, Any]:
    return _answered(_C.price_layers, request)


def plan_operators(request: Document) -> dict[str, Any]:
    return _answered(_C.plan_operators, {**request, "model": _with_profile_as_text(request.get("model"))})


def simulate(plan: Document) -> dict[str, Any]:
    return _answered(_C.simulate, plan)


def trace_text(plan: Document) -> str:
    """Returns the Chrome trace of a simulation, as its file holds it."""
    return _C.simulate_trace(_text(plan))


def actions(schedule: str, ranks: int, stages: int, micro_batches: int) -> list[list[str]]:
    rows: list[list[str]] = json.loads(_C.pipeline_actions(schedule, ranks, stages, micro_batches))
    return rows


def _answered(planner: Callable[[str], str], request: Document) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(planner(_text(request)))
    return answer


def _with_profile_as_text(model: Any) -> Any:
    """Returns a model with its published profile, if it has one, as the planner takes it: as the text of its file."""
    if not isinstance(model, Mapping) or not isinstance(model.get("profile"), Mapping):
        return model
    return {**model, "profile": _text(model["profile"])}


def _text(request: Document) -> str:
    return json.dumps(request, allow_nan=False)


def cost_of(document: Document) -> _C.Cost:
    return _C.Cost.from_json(_text(document))


@cache
def _fields_of(kind: type[Any]) -> list[tuple[str, str, Any]]:
    """Returns of each field of a dataclass its name, its key in documents, and its type."""
    hints = get_type_hints(kind)
    return [(each.name, each.metadata.get("key", each.name), hints[each.name]) for each in fields(kind)]


def document_of(value: Any) -> Any:
    """Returns the value as the planners take it: dataclasses become mappings without the fields that are None."""
    if isinstance(value, _C.Cost):
        return json.loads(value.to_json())
    if is_dataclass(value) and not isinstance(value, type):
        found = {key: getattr(value, name) for name, key, _ in _fields_of(type(value))}
        return {key: document_of(each) for key, each in found.items() if each is not None}
    if isinstance(value, Mapping):
        return {key: document_of(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [document_of(each) for each in value]
    return value


def record_of(kind: type[Record], document: Document) -> Record:
    """Returns the dataclass with the fields that the document has."""
    return kind(
        **{name: _converted(hint, document[key]) for name, key, hint in _fields_of(cast(Any, kind)) if key in document}
    )


def _converted(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    inner = [each for each in get_args(hint) if each is not NoneType]
    origin = get_origin(hint)
    if origin is list:
        return [_converted(inner[0], each) for each in value]
    if origin is dict:
        return {key: _converted(inner[1], each) for key, each in value.items()}
    if origin is tuple:
        return tuple(value)
    if origin is UnionType and len(inner) == 1:
        return _converted(inner[0], value)
    if hint is _C.Cost:
        return cost_of(value)
    return record_of(hint, value) if isinstance(hint, type) and is_dataclass(hint) else value
