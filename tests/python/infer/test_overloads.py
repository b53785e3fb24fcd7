# SPDX-License-Identifier: Apache-2.0
"""Calls every overload that servers admit with anything its schema allows: numbers in place of tensors, None, empty
lists, tensors without dimensions and without elements. The runner gives what PyTorch gives, whole and divided, or
one sentence that names the call."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from admitted_calls import ALL
from atoll import _C
from atoll.infer import capture
from atoll.infer.arguments import Made, encode
from atoll.infer.errors import ExportError
from atoll.infer.lowering import name_of_operator
from captured import Sides
from one_node import Call, call_with, tensors_of
from own_error import largest
from testing import testing

REFUSED = torch.distributed.DistNetworkError
MODULE = "encoder.layer1"
NUMBERS: list[Any] = [2, 0, -1, 1.5, float("inf"), True]
# Of the largest value: parts are added in another order.
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 1e-1}
# One call each for overloads that admitted_calls does not have under their own names.
MORE = [
    Call(torch.ops.aten.pow.Scalar, (2, torch.randn(3, 4))),
    Call(torch.ops.aten.pow.Scalar, (2.5, torch.randn(2, 3, 4).transpose(0, 2))),
    Call(torch.ops.aten.pow.Tensor_Tensor, (2, torch.randn(3, 4))),
    Call(torch.ops.aten.add.Tensor, (2, torch.randn(3, 4))),
    Call(torch.ops.aten.mul.Tensor, (True, torch.randn(3, 4))),
    Call(torch.ops.aten.div.Tensor, (1.5, torch.randn(3, 4))),
    Call(torch.ops.aten.where.ScalarSelf, (torch.ones(4) > 0, 1.5, torch.randn(3, 4))),
]


def calls(most: int) -> Iterator[Call]:
    """Returns at most `most` calls of each overload, and at least one."""
    torch.manual_seed(5)
    dice = random.Random(5)
    yield from MORE
    seen: Counter[str] = Counter()
    left = set(_C.infer_admitted_operators())
    for _ in range(max(20, 3 * most)):
        for family in ALL:
            for call in family(dice):
                seen[name_of_operator(call.op)] += 1
                if seen[name_of_operator(call.op)] <= most:
                    yield call
        if not left - set(seen) and min(seen.values()) >= most:
            return


def replaced_at(values: list[Any], place: int, value: Any) -> list[Any]:
    return [*values[:place], value, *values[place + 1 :]]


def others(kind: str, value: Any) -> Iterator[Any]:
    """Returns other values of the schema's type, which the operator may or may not accept."""
    if kind.startswith("Optional") and value is not None:
        yield None
    if isinstance(value, torch.Tensor):
        yield from NUMBERS
        yield value.flatten()[0].clone() if value.numel() else value.new_zeros(())
        yield value[:0] if value.dim() else value.new_zeros(0)
        yield value.t() if value.dim() == 2 else value
    elif isinstance(value, list | tuple):
        yield []
        if all(type(entry) in (int, float) for entry in value) and value:
            yield [value[0]]
    elif "number" in kind.lower() or "Scalar" in kind:
        yield from NUMBERS
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, float):
        yield from (0.0, 1, True)
    elif isinstance(value, int):
        yield from (0, -1, 1)


def variants(call: Call) -> Iterator[list[Any]]:
    values = call.values()
    yield values
    for place, argument in enumerate(call.op._schema.arguments):
        for value in others(str(argument.type), values[place]):
            yield replaced_at(values, place, value)


def graph_of(op: Any, values: list[Any], made: list[dict[str, Any]]) -> str:
    """Returns the graph that the export writes for the call; `made` are the types of its outputs."""
    schema = op._schema
    tensors = tensors_of(values)
    ids = iter(range(len(tensors)))

    def placed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Made(next(ids))
        return [placed(entry) for entry in value] if isinstance(value, list | tuple) else value

    args = [encode(argument, placed(value), lambda one: one.place)
            for argument, value in zip(schema.arguments, values, strict=True)]  # fmt: skip
    outputs = list(range(len(tensors), len(tensors) + len(made)))
    is_list = len(schema.returns) == 1 and schema.returns[0].type.kind() == "ListType"
    node = {"op": schema.name, "overload": schema.overload_name, "args": args, "outputs": outputs, "list": is_list,
            "module": MODULE}  # fmt: skip
    described = [{"dtype": str(each.dtype).removeprefix("torch."), "shape": list(each.shape)} for each in tensors]
    return json.dumps(
        {
            "atoll_graph": 1,
            "tensors": [*described, *made],
            "inputs": list(range(len(tensors))),
            "weights": [],
            "nodes": [node],
            "outputs": [{"tensor": place} for place in outputs],
        }
    )


def check_sentence(error: BaseException, op: Any) -> None:
    """Checks that the error names the node, the operator and the module, and does not look like PyTorch's own."""
    text = str(error)
    assert re.match(rf"(a part of )?node 0 \({re.escape(name_of_operator(op))} in {MODULE}\)", text), text
    assert "\n" not in text, text
    assert "Exception raised from" not in text, text


def assert_alike(found: list[torch.Tensor], wanted: list[torch.Tensor], what: str, exact: bool) -> None:
    assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in wanted], what
    for one, other in zip(found, wanted, strict=True):
        close = 0 if exact else CLOSE.get(other.dtype, 0) * largest([other.where(other.isfinite(), 0)])
        torch.testing.assert_close(one, other, rtol=0, atol=close, equal_nan=True, msg=lambda text: f"{what}: {text}")


def check(op: Any, values: list[Any]) -> int:
    """Returns how many divisions gave the operator's answer; -1 if the call was refused."""
    what = f"{name_of_operator(op)} of {values}"
    try:
        graph = graph_of(op, values, [])
    except ExportError:
        return -1  # the export adds the operator and the line
    try:
        made = json.loads(testing.infer_admit_node(graph, 0))
    except REFUSED as error:
        check_sentence(error, op)
        return -1
    graph = graph_of(op, values, made)
    inputs = tensors_of(values)
    model = testing.InferModel(graph, {})
    try:
        wanted = call_with(op, values)
    except (RuntimeError, IndexError):  # modules do not call it like this, or its values are wrong
        try:
            model.run(inputs)
        except ValueError as error:
            check_sentence(error, op)
            assert "call the module itself" in str(error), error
        return 0
    assert_alike(model.run(inputs), wanted, what, exact=all(each.is_contiguous() for each in inputs))
    if not inputs or min(each.numel() for each in [*inputs, *wanted]) == 0:
        return 0
    for dim in range(inputs[0].dim()):
        division = testing.plan_division(graph, 0, dim, "random", json.dumps({"seed": dim}))
        assert_alike(model.run_divided(inputs, division), wanted, f"{what}, {division}", exact=False)
    return inputs[0].dim()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Uses one thread: calls are small and numerous, and each division has a thread of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_overloads(most: int) -> None:
    ran = set()
    divided = 0
    faults = []
    with torch.no_grad():
        for call in calls(most):
            for values in variants(call):
                try:
                    done = check(call.op, values)
                except Exception as error:  # all of them are checked
                    faults.append(f"{name_of_operator(call.op)}: {type(error).__name__}: {str(error)[:2000]}")
                    continue
                if done >= 0:
                    ran.add(name_of_operator(call.op))
                    divided += done
    assert not faults, "\n".join(faults)
    assert set(_C.infer_admitted_operators()) - ran == set(), "overloads that no call has reached"
    assert divided > 1000


@pytest.mark.timeout(600)
def test_every_admitted_overload_takes_what_its_schema_allows() -> None:
    check_overloads(1)


@pytest.mark.verify
@pytest.mark.timeout(1800)
def test_every_admitted_overload_takes_it_in_many_calls() -> None:
    check_overloads(8)


@pytest.mark.parametrize(
    "function",
    [lambda x: 2**x, lambda x: 2.5**x, lambda x: torch.pow(3, x) + 1, lambda x: torch.where(x > 0, 2, x)],
)
def test_numbers_to_the_power_of_tensors(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x + 1).transpose(1, 2)

    x = torch.randn(2, 6, 7)
    sides = Sides.of(capture(Net().eval(), x), [x])
    for dim in range(3):
        for seed in range(4):
            (found,) = sides.divided(sides.division(dim, "random", seed=seed))
            torch.testing.assert_close(found, Net()(x), rtol=1e-6, atol=1e-6)
