# SPDX-License-Identifier: Apache-2.0
"""Buffers of which every element can be predicted after any number of calls.

Rank r's element i is vector[i % period] of a short vector that depends on r. The period is odd, so that a chunk in the
wrong place is detected. All arithmetic of the reference happens on one period."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce as fold

import torch

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")
_BITWISE = {"band", "bor", "bxor"}
_TILE_ELEMENTS = 1 << 18
MAX_CALLS = 1000  # between two checks, unless the values set a lower limit


@dataclass(frozen=True)
class NumberType:
    """The properties of a dtype on which the choice of values depends."""

    dtype: torch.dtype
    period: int  # odd; values are 1..period, small enough that their sum over some ranks is exact
    scale: float  # first values are multiplied with it, to leave room for growth
    room_bits: float  # how often a value may double before it overflows, or (integers) loses its information


NUMBER_TYPES = {
    "float32": NumberType(torch.float32, 61, 2.0**-118, 230),
    "float64": NumberType(torch.float64, 61, 2.0**-900, 1800),
    "float16": NumberType(torch.float16, 13, 2.0**-10, 18),
    "bfloat16": NumberType(torch.bfloat16, 13, 2.0**-118, 230),
    "int64": NumberType(torch.int64, 61, 1, 48),
    "int32": NumberType(torch.int32, 61, 1, 20),
    "int8": NumberType(torch.int8, 13, 1, 4),
    "uint8": NumberType(torch.uint8, 13, 1, 4),
}


def contribution(number: NumberType, rank: int, op: str = "sum") -> torch.Tensor:
    """Returns one period of `rank`'s contribution, in the type in which references are computed."""
    index = torch.arange(number.period)
    if op == "product":
        return _widen(1 - 2 * ((index + rank) % 2), number)
    vector = _widen((index + 7 * rank) % number.period + 1, number)
    return vector * number.scale if number.dtype.is_floating_point else vector


def reduced(vectors: Sequence[torch.Tensor], op: str) -> torch.Tensor:
    if op == "sum":
        return fold(torch.add, vectors)
    if op == "avg":
        return fold(torch.add, vectors) / len(vectors)
    functions = {
        "product": torch.mul,
        "min": torch.minimum,
        "max": torch.maximum,
        "band": torch.bitwise_and,
        "bor": torch.bitwise_or,
        "bxor": torch.bitwise_xor,
    }
    return fold(functions[op], vectors)


def reduced_repeatedly(vectors: Sequence[torch.Tensor], op: str, calls: int) -> torch.Tensor:
    """Returns the result of `calls` reductions, each over the results of the previous one on every rank."""
    value = reduced(vectors, op)
    for _ in range(calls - 1):
        value = reduced([value] * len(vectors), op)
    return value


def most_calls(number: NumberType, op: str, ranks: int) -> int:
    """Returns how many reductions in a row still have a result that can be checked."""
    limit = MAX_CALLS
    if op == "sum":
        limit = min(limit, int(number.room_bits / max(1, (ranks - 1).bit_length())))
    if not _is_exact(number, op, ranks):
        limit = min(limit, int(0.05 / torch.finfo(number.dtype).eps))  # each call rounds
    return max(1, limit)


def tolerance(number: NumberType, op: str, ranks: int, calls: int) -> float:
    """Returns the relative deviation that rounding explains; 0 if every operation is exact."""
    return 0.0 if _is_exact(number, op, ranks) else torch.finfo(number.dtype).eps * (ranks + calls)


def fill(buffer: torch.Tensor, vector: torch.Tensor, phase: int = 0) -> None:
    """Fills the buffer with repetitions of the vector; the first element is vector[phase]."""
    tile = _tile(buffer, vector, phase)
    for begin in range(0, buffer.numel(), max(1, tile.numel())):
        part = buffer[begin : begin + tile.numel()]
        part.copy_(tile[: part.numel()])


def wrong(buffer: torch.Tensor, vector: torch.Tensor, phase: int = 0, relative: float = 0.0) -> int:
    """Counts the elements that deviate by more than `relative` from what fill() would write."""
    tile = _tile(buffer, vector, phase)
    count = 0
    for begin in range(0, buffer.numel(), max(1, tile.numel())):
        part = buffer[begin : begin + tile.numel()].cpu()
        expected = tile[: part.numel()]
        if relative:
            good = (part.double() - expected.double()).abs() <= relative * expected.double().abs()
            count += int((~good).sum())
        else:
            count += int((part != expected).sum())
    return count


def check_supported(dtype: str, op: str) -> None:
    """Raises ValueError for an unsupported combination."""
    if dtype not in NUMBER_TYPES:
        raise ValueError(f"dtype {dtype!r}: choose from {', '.join(NUMBER_TYPES)}")
    if op not in REDUCTIONS:
        raise ValueError(f"reduction {op!r}: choose from {', '.join(REDUCTIONS)}")
    floating = NUMBER_TYPES[dtype].dtype.is_floating_point
    if (op in _BITWISE and floating) or (op == "avg" and not floating):
        raise ValueError(f"reduction {op!r} is not defined for {dtype}")


def _is_exact(number: NumberType, op: str, ranks: int) -> bool:
    if not number.dtype.is_floating_point or op not in ("sum", "avg"):
        return True
    return ranks & (ranks - 1) == 0 and ranks * number.period <= 2 / torch.finfo(number.dtype).eps


def _widen(vector: torch.Tensor, number: NumberType) -> torch.Tensor:
    return vector.to(torch.float64 if number.dtype.is_floating_point else torch.int64)


def _tile(buffer: torch.Tensor, vector: torch.Tensor, phase: int) -> torch.Tensor:
    rotated = torch.roll(vector.to(buffer.dtype), -(phase % vector.numel()))
    repeats = min(_TILE_ELEMENTS, buffer.numel()) // vector.numel() + 1
    return rotated.repeat(repeats)
