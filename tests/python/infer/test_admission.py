# SPDX-License-Identifier: Apache-2.0
"""A server admits every model of the usual kinds, and no call that would crash its operator."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from admitted_calls import ALL
from atoll import _C
from atoll.infer.graph import to_text
from captured import captured
from export_models import EXAMPLES
from guarded import Guarded
from mutations import Sample, graph_of, mutated, name_of, sample_of
from one_node import Call, call_with, graph_json, padded, tensors_of
from operator_calls import FAMILIES
from support import sampled
from testing import testing

REFUSED = torch.distributed.DistNetworkError
LIMITS = json.dumps({"node_bytes": 64 << 20, "operations": 1e9})
DOCS = Path(__file__).parents[3] / "docs"
# A wrong index is an error that the process survives, and so is a type that this device does not support.
BY_INDEX = {"aten::index.Tensor", "aten::index_select", "aten::gather", "aten::embedding"}


def made_by(sample: Sample, limits: str = "{}") -> list[dict[str, Any]] | None:
    """Returns the call's results; None if it is refused."""
    try:
        found = testing.infer_admit_node(graph_of(sample), 0, "{}", limits)
    except REFUSED:
        return None
    return list(json.loads(found))


def samples(seed: int) -> Iterator[tuple[Sample, list[dict[str, Any]]]]:
    torch.manual_seed(seed)
    dice = random.Random(seed)
    with torch.no_grad():
        for family in ALL:
            for call in family(dice):
                yield sample_of(call)


# `make verify` has them.
LIKE_OTHERS = {"resnet152", "resnet101", "vgg19", "convnext", "regnet", "efficientnet", "occupancy", "bert", "encoder"}


@pytest.mark.parametrize("name", sampled(EXAMPLES, LIKE_OTHERS))
def test_models_are_admitted(name: str) -> None:
    _C.infer_admit(to_text(captured(name).bundle.graph).decode())


def test_every_operator_on_the_list_makes_what_it_says() -> None:
    known = set(_C.infer_admitted_operators())
    left = set(known)
    for seed in range(20):
        for sample, expected in samples(seed):
            if name_of(sample) in known:
                testing.infer_admit_node(graph_of(sample), 0)  # raises the reason if it is refused
                assert made_by(sample) == expected, sample
            left.discard(name_of(sample))
        if not left:
            return
    assert left == set()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_parts_of_admitted_calls_are_admitted(family: Callable[[random.Random], Iterator[Call]]) -> None:
    known = set(_C.infer_admitted_operators())
    for seed in range(5):
        torch.manual_seed(seed)
        dice = random.Random(seed)
        with torch.no_grad():
            for call in family(dice):
                schema = call.op._schema
                if schema.name + ("." + schema.overload_name if schema.overload_name else "") in known:
                    check_parts(call, dice)


def check_parts(call: Call, dice: random.Random) -> None:
    whole = call_with(call.op, call.values())
    graph = graph_json(call, whole)
    for dim in call.local:
        rows = whole[0].shape[dim]
        begin = dice.randint(0, rows - 1)
        sliced = json.loads(testing.infer_slice(graph, 0, dim, begin, dice.randint(begin + 1, rows)))
        parts = []
        for tensor, read in zip(tensors_of(call.values()), sliced["operands"], strict=True):
            part = tensor if read["dim"] < 0 else tensor.narrow(read["dim"], read["begin"], read["end"] - read["begin"])
            parts.append(part)
        for pad in sliced["pads"]:
            parts[pad["operand"]] = padded(parts[pad["operand"]], pad["dim"], pad["low"], pad["high"], 0)
        described = [{"dtype": str(part.dtype).removeprefix("torch."), "shape": list(part.shape)} for part in parts]
        asked = json.dumps({"operands": described, "changes": sliced["changes"]})
        made = json.loads(testing.infer_admit_node(graph, 0, asked))
        low, high = sliced["keep"]
        assert 0 <= low < high <= made[0]["shape"][dim], f"{call.name}, dimension {dim}"


def check_mutations(seed: int, rounds: int) -> int:
    """Checks that randomly changed calls are refused, or run in memory that ends with their operands; returns how
    many ran."""
    guarded = Guarded()
    dice = random.Random(seed)
    ran = 0
    faults = []
    try:
        for original, _ in samples(seed):
            for _ in range(rounds):
                sample = mutated(original, dice)
                made = made_by(sample, LIMITS)
                if made is None:
                    continue
                ran += 1
                request = {**sample, "front": dice.random() < 0.3, "wild": dice.random() < 0.2, "seed": seed}
                answer = guarded.call(request)
                index = name_of(sample) in BY_INDEX and answer.get("kind") in ("IndexError", "RuntimeError")
                harmless = index or answer.get("skipped") or answer.get("kind") == "NotImplementedError"
                if answer.get("outputs") != made and not harmless:
                    faults.append(f"{json.dumps(request)} gives {answer}, admitted as {made}")
    finally:
        guarded.stop()
    assert faults == []
    return ran


# Proves I-8.
def test_changed_calls_are_refused_or_harmless() -> None:
    assert check_mutations(seed=0, rounds=4) > 100


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_changed_calls_are_refused_or_harmless(seed: int) -> None:
    assert check_mutations(seed, rounds=60) > 1000


def t(number: int) -> dict[str, int]:
    return {"tensor": number}


def ints(*values: int) -> dict[str, list[int]]:
    return {"ints": list(values)}


@pytest.mark.parametrize(
    ("name", "args", "shapes", "reason"),
    [
        ("_native_batch_norm_legit_no_training", [t(0), None, None, t(1), t(2), 0.1, 1e-5], [[1, 6, 4, 4], [1], [1]],
         "argument 3 has the wrong shape"),
        ("scaled_dot_product_attention", [t(0), t(1), t(2), None, 0.0, False, None, False],
         [[1, 2, 5, 4], [1, 2, 7, 4], [1, 2, 3, 4]], "its keys and values differ in number"),
        ("scaled_dot_product_attention", [t(0), t(1), t(2), None, 0.0, False, None, False], [[0, 2, 5, 4]] * 3,
         "no elements"),
        ("lstm.input", [t(0), {"tensors": [1, 2]}, {"tensors": [3, 4]}, False, 1, 0.0, False, False, False],
         [[7, 2, 6], [1, 2, 5], [1, 2, 5], [20, 6], [20, 1]], "weight 1 has the wrong shape"),
        ("col2im", [t(0), ints(4, 4), ints(2, 2), ints(1, 1), ints(0, 0), ints(2, 2)], [[1, 4, 4]],
         "not on the server's list"),
        ("embedding_bag", [t(0), t(1), t(2), False, 0, False, None, False], [[5, 4], [3], [1]],
         "not on the server's list"),
        ("max_pool1d", [t(0), ints(2), ints(2), ints(2), ints(1), False], [[1, 2, 8]],
         "more than half of its window"),
        ("_native_batch_norm_legit.no_stats", [t(0), None, None, True, 0.1, 1e-5], [[1, 6, 4, 4]],
         "not on the server's list"),
        ("copy", [t(0), None, False], [[2, 2]], "argument 1 must be a tensor"),
        ("full", [ints(2**34), 1.0, None, None, None, None], [], "integers from 0"),
        ("conv2d", [t(0), t(1), None, ints(1, 1), ints(2**31, 2**31), ints(1, 1), 1], [[1, 3, 8, 8], [4, 3, 3, 3]],
         "integers from 0 to 4096"),
    ],
)  # fmt: skip
def test_calls_that_crash_kernels_are_refused(name: str, args: list[Any], shapes: list[list[int]], reason: str) -> None:
    op, _, overload = name.partition(".")
    operands = [{"dtype": "float32", "shape": shape} for shape in shapes]
    sample = {"op": f"aten::{op}", "overload": overload, "args": args, "operands": operands}
    with pytest.raises(REFUSED, match=reason):
        testing.infer_admit_node(graph_of(sample), 0)


def test_types_are_promoted_as_torch_does() -> None:
    names = ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]
    kinds: list[Any] = [*((name, shape) for name in names for shape in ([2], [])), True, 3, 1.5]
    for left in kinds:
        for right in kinds:
            operands: list[Any] = []
            values: list[Any] = []
            args: list[Any] = []
            for kind in (left, right):
                if isinstance(kind, tuple):
                    args.append({"tensor": len(operands)})
                    operands.append({"dtype": kind[0], "shape": kind[1]})
                    values.append(torch.ones(kind[1], dtype=getattr(torch, kind[0])))
                else:
                    args.append(kind)
                    values.append(kind)
            if not operands:
                continue
            sample = {"op": "aten::mul", "overload": "Tensor", "args": args, "operands": operands}
            expected = {"dtype": str(torch.result_type(*values)).removeprefix("torch."),
                        "shape": list(torch.broadcast_shapes(*(operand["shape"] for operand in operands)))}  # fmt: skip
            assert made_by(sample) == [expected], sample


def test_limits_are_read() -> None:
    graph = graph_of({"op": "aten::relu", "overload": "", "args": [{"tensor": 0}],
                      "operands": [{"dtype": "float32", "shape": [1024, 1024]}]})  # fmt: skip
    testing.infer_admit_node(graph, 0)
    with pytest.raises(REFUSED, match="of memory"):
        testing.infer_admit_node(graph, 0, "{}", '{"node_bytes": 4000000}')
    with pytest.raises(ValueError, match="there is no limit memory"):
        testing.infer_admit_node(graph, 0, "{}", '{"memory": 1}')
    with pytest.raises(ValueError, match="there is no node 1"):
        testing.infer_admit_node(graph, 1)


def test_the_table_of_operators_is_the_list() -> None:
    table = (DOCS / "safety.md").read_text().partition("## Operators")[2]
    written = {
        f"aten::{name}" + (f".{overload}" if overload else "")
        for line in table.splitlines()
        if line.startswith("| `")
        for name, overloads in [re.findall(r"`([^`]*)`", line)]
        for overload in (part.strip() for part in overloads.replace("-", "").split(","))
    }
    assert sorted(written) == _C.infer_admitted_operators()
