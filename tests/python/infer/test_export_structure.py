# SPDX-License-Identifier: Apache-2.0
"""Nested values are taken apart and put together again unchanged; text that names a class imports nothing."""

import collections
import json
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.infer import BundleError, ExportError, InputError
from atoll.infer.inputs import Inputs
from atoll.infer.structure import MAX_LEVELS, Structure


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Answer:
    logits: Any
    extra: Any = None
    calls: int = field(default=0, init=False)


@dataclass(frozen=True)
class Frozen:
    value: Any
    late: Any = field(default=None, init=False)


CLASSES = [Pair, Answer, Frozen]


def tensor() -> torch.Tensor:
    return torch.zeros(1)


def same(one: Any, two: Any) -> bool:
    """Compares structures, with the identity of tensors."""
    if isinstance(one, torch.Tensor):
        return one is two
    if type(one) is not type(two):
        return False
    if isinstance(one, Answer | Frozen):
        return all(same(getattr(one, each.name), getattr(two, each.name)) for each in fields(one))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two or (one != one and two != two))


_LEAVES = st.one_of(st.builds(tensor), st.none(), st.booleans(), st.integers(), st.floats(), st.text())
NESTED = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=3),
        st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Answer, inner, inner),
        st.builds(Frozen, inner),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_there_and_back(value: Any) -> None:
    structure, tensors = Structure.of(value, "value")
    assert len(structure.paths("value")) == len(tensors)
    read = Structure.from_json(structure.to_json(), CLASSES)
    for each in (structure, read):
        assert same(each.build(tensors), value)
        assert [id(one) for one in each.tensors_of(value, "value")] == [id(one) for one in tensors]


@given(NESTED, NESTED)
def test_another_structure_is_told_apart(one: Any, two: Any) -> None:
    structure, _ = Structure.of(one, "value")
    other, _ = Structure.of(two, "value")
    if structure.to_json() == other.to_json():
        structure.tensors_of(two, "value")
    else:
        try:
            structure.tensors_of(two, "value")
        except InputError:
            return
        # Only the order of keys may differ.
        assert sorted(structure.to_json()) == sorted(other.to_json())


def test_fields_that_are_not_arguments() -> None:
    answer = Answer(tensor())
    answer.calls = 7
    frozen = Frozen([1])
    object.__setattr__(frozen, "late", tensor())
    for value in (answer, frozen):
        structure, tensors = Structure.of(value, "value")
        assert same(structure.build(tensors), value)


def test_paths() -> None:
    value = {"a": [tensor(), 1, Pair(tensor(), 2)], 3: Answer(tensor())}
    structure, _ = Structure.of(value, "output")
    assert structure.paths("output") == ["output['a'][0]", "output['a'][2].left", "output[3].logits"]


def test_a_class_is_never_imported() -> None:
    text = json.dumps({"class": "os.PathLike", "fields": []})
    with pytest.raises(BundleError, match=r"hold an unknown class os.PathLike: pass the class"):
        Structure.from_json(text).build([])
    structure, tensors = Structure.of(Answer(tensor()), "value")
    read = Structure.from_json(structure.to_json())
    assert read.paths("value") == ["value.logits"]
    with pytest.raises(BundleError, match=r"hold an unknown class .*Answer"):
        read.build(tensors)


def test_classes_of_one_name() -> None:
    def local(fields: list[str]) -> Any:
        kind = collections.namedtuple("kind", fields)  # type: ignore[misc]
        return kind(*fields)

    Structure.of([local(["a"])], "value")
    with pytest.raises(ExportError, match=r"value\[1\]: two classes are called .*kind"):
        Structure.of([local(["a"]), local(["b"])], "value")


def test_too_deep() -> None:
    value: Any = tensor()
    for _ in range(MAX_LEVELS):
        value = [value]
    structure, tensors = Structure.of(value, "value")
    assert same(Structure.from_json(structure.to_json()).build(tensors), value)
    with pytest.raises(ExportError, match=f"nested deeper than {MAX_LEVELS}"):
        Structure.of([value], "value")


@pytest.mark.parametrize(
    "text",
    ["", "3", "null", '"tensors"', "{}", '{"set": []}', '{"tuple": {}}', '{"tuple": [], "list": []}', '{"dict": [1]}',
     '{"dict": [["a"]]}', '{"dict": [[1.5, "tensor"]]}', '{"class": 3, "fields": []}', '{"class": "A"}',
     '{"constant": [1]}', '{"constant": {"float": "1"}}', '{"constant": 1, "tuple": []}', '{"list": ["tensor", 1]}',
     '{"list": [' * 100 + "]}" * 100, "[" * 100_000, '{"class": "A", "fields": [], "more": 1}'],
)  # fmt: skip
def test_text_that_is_no_structure(text: str) -> None:
    with pytest.raises(BundleError, match="structure"):
        Structure.from_json(text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"parameters": [1], "positional": 0, "arguments": {"dict": []}}',
     '{"parameters": [], "positional": 1, "arguments": {"dict": []}}',
     '{"parameters": [], "positional": true, "arguments": {"dict": [["x", "tensor"]]}}',
     '{"parameters": [], "positional": 0, "arguments": {"dict": 3}}',
     '{"parameters": [], "positional": 0, "arguments": {"list": []}}',
     '{"parameters": 3, "positional": 0, "arguments": {"dict": []}}',
     '{"parameters": "ab", "positional": 0, "arguments": {"dict": []}}'],
)  # fmt: skip
def test_text_that_is_no_inputs(text: str) -> None:
    with pytest.raises(BundleError, match="structure"):
        Inputs.from_json(text)
