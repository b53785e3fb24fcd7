# SPDX-License-Identifier: Apache-2.0
"""Calls of operators as JSON, and the same calls with something changed."""

import copy
import json
import random
from typing import Any

from one_node import Call, call_with, graph_json, tensors_of

EXTREMES = [-1, 0, 1, 2, 3, 7, 255, 4096, 65536, 2**31 - 1, 2**31, -(2**31), 2**39, -(2**39), 2**40 - 1]
REALS = [0.0, -1.0, 1e-300, 1e300, 0.5, 3.0, 1e-8, 65536.0]
DTYPES = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]

Sample = dict[str, Any]  # "op", "overload", "args", "operands": [{"dtype", "shape"}]


def sample_of(call: Call) -> tuple[Sample, list[dict[str, Any]]]:
    """Returns the call and the types of its results."""
    made = call_with(call.op, call.values())
    graph = json.loads(graph_json(call, made))
    (node,) = graph["nodes"]
    count = len(tensors_of(call.values()))
    sample = {key: node[key] for key in ("op", "overload", "args")}
    return {**sample, "operands": graph["tensors"][:count]}, graph["tensors"][count:]


def name_of(sample: Sample) -> str:
    return sample["op"] + ("." + sample["overload"] if sample["overload"] else "")


def graph_of(sample: Sample) -> str:
    """Returns a graph with only this call, without the types of its results."""
    count = len(sample["operands"])
    node = {"op": sample["op"], "overload": sample["overload"], "args": sample["args"], "outputs": [], "list": False}
    return json.dumps(
        {
            "atoll_graph": 1,
            "tensors": sample["operands"],
            "inputs": list(range(count)),
            "weights": [],
            "nodes": [node],
            "outputs": [],
        }
    )


def mutated(sample: Sample, dice: random.Random) -> Sample:
    sample = copy.deepcopy(sample)
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        if sample["operands"] and dice.random() < 0.5:
            _change_operand(dice.choice(sample["operands"]), dice)
        elif sample["args"]:
            place = dice.randrange(len(sample["args"]))
            sample["args"][place] = _changed(sample["args"][place], sample, dice)
    return sample


def _integer(value: int, dice: random.Random) -> int:
    return dice.choice([*EXTREMES, value + 1, value - 1, 2 * value, -value])


def _change_operand(operand: dict[str, Any], dice: random.Random) -> None:
    shape = operand["shape"]
    kind = dice.randrange(5)
    if kind == 0:
        operand["dtype"] = dice.choice(DTYPES)
    elif kind == 1:
        shape.insert(dice.randint(0, len(shape)), dice.choice([1, 2, 3]))
    elif kind == 2 and shape:
        del shape[dice.randrange(len(shape))]
    elif shape:
        place = dice.randrange(len(shape))
        shape[place] = dice.choice([0, 1, 2, 3, 5, 17, shape[place] + 1, max(0, shape[place] - 1), 2 * shape[place]])
    del shape[8:]


def _changed(value: Any, sample: Sample, dice: random.Random) -> Any:
    if dice.random() < 0.1:
        return dice.choice([None, True, 1, 0.5, {"ints": [1, 1]}, {"ints": []}, {"text": "none"}, {"dtype": "int64"}])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _integer(value, dice)
    if isinstance(value, float):
        return dice.choice([*REALS, {"float": "nan"}, {"float": "inf"}, {"float": "-inf"}, -value])
    if not isinstance(value, dict):
        return dice.choice([value, True, 1, 0.5, {"ints": [1, 1]}, {"dtype": dice.choice(DTYPES)}])
    ((kind, content),) = value.items()
    if kind == "ints":
        return {"ints": _changed_list(content, dice, lambda item: _integer(item, dice))}
    if kind == "floats":
        return {"floats": _changed_list(content, dice, lambda _: dice.choice(REALS))}
    if kind == "dtype":
        return {"dtype": dice.choice(DTYPES)}
    if kind == "text":
        return {"text": dice.choice(["", "none", "same", "valid", "floor", "reflect", "circular", "ij", "ij->i"])}
    if kind == "float":
        return dice.choice(REALS)
    return value  # tensors are changed as operands: their numbers remain the indices of the operands


def _changed_list(values: list[Any], dice: random.Random, changed: Any) -> list[Any]:
    values = list(values)
    kind = dice.randrange(4)
    if kind == 0:
        values.append(changed(1))
    elif kind == 1 and values:
        del values[dice.randrange(len(values))]
    elif values:
        place = dice.randrange(len(values))
        values[place] = changed(values[place])
    return values
