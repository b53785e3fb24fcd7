# SPDX-License-Identifier: Apache-2.0
"""A rank as seen by the properties of the contract, and the references that they compare with."""

import functools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.distributed as dist

import support

Op = dist.ReduceOp
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]
COMPLEX = [torch.complex64, torch.complex128]
REDUCED = [*FLOATS, *INTEGERS, *NARROW, *COMPLEX, torch.bool]
MOVED = [*REDUCED, torch.uint16, torch.uint32, torch.uint64]
LIMIT = timedelta(seconds=30)


@dataclass
class Member:
    """This rank of the default group. It keeps what went wrong in each case, or "". A failed case does not end the
    property, so that ranks stay in step and one run shows all failures. `untried` are patterns of cases to leave
    out."""

    rank: int
    size: int
    untried: Sequence[str] = ()
    outcomes: dict[str, str] = field(default_factory=dict)
    _differences: list[str] = field(default_factory=list)

    @property
    def device(self) -> str:
        return support.device()

    def case(self, name: str, body: Callable[[], object]) -> None:
        """Runs one case. Its outcome is what it raises, or where its values differ."""
        assert name not in self.outcomes, f"two cases are called {name}"
        if any(fnmatchcase(name, pattern) for pattern in self.untried):
            return
        self._differences.clear()
        try:
            body()
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            self.outcomes[name] = f"{type(error).__name__}: {error} (line {line})"
        else:
            self.outcomes[name] = "; ".join(self._differences)

    def check(self, holds: bool, text: object) -> None:
        """Like assert, but the case goes on, because it does on other ranks."""
        if not holds:
            self._differences.append(f"AssertionError: {text}")

    def expect(self, found: torch.Tensor, wanted: torch.Tensor, exactly: bool = True) -> None:
        """Compares with `wanted`, which may have a wider type and is rounded once. Unless `exactly`, one more
        rounding is allowed."""
        here = found.detach().cpu()
        rounded = wanted.bool() if here.dtype is torch.bool else wanted.to(here.dtype)
        if here.shape != rounded.shape:
            same = False
        elif exactly or not (here.is_floating_point() or here.is_complex()):
            same = raw(here) == raw(rounded)
        else:
            close = 2 * torch.finfo(here.dtype).eps * wide(wanted).abs()
            same = bool(((wide(here) - wide(wanted)).abs() <= close).all())
        if not same:
            shown = [f"{list(each.shape)} {each.reshape(-1)[:8].tolist()}" for each in (here, rounded)]
            self.check(False, f"{shown[0]} instead of {shown[1]}")

    def group(self, seconds: float = LIMIT.total_seconds()) -> dist.ProcessGroup:
        """A group of all ranks that a case may break."""
        made: dist.ProcessGroup = dist.new_group(timeout=timedelta(seconds=seconds))
        return made

    def meet(self, name: str) -> None:
        """Returns when all ranks have called it. It uses the store, and so does not depend on any group."""
        store = store_of_job()
        if store.add(f"met/{name}", 1) == self.size:
            store.set(f"met/{name}/all", "")
        store.wait([f"met/{name}/all"], LIMIT)


@functools.cache
def store_of_job() -> Any:
    """Returns the job's store over a connection of its own, for notes that do not depend on any group."""
    return dist.distributed_c10d._get_default_store().clone()


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pattern(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Returns 0, 1 and 2, differing by rank and position, so that sums and products of a few are exact in every
    dtype."""
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.int64)
    whole = ((index * (rank + 1) + index // 3 + rank) % 3).reshape(shape)
    if dtype is torch.bool:
        return whole == 1
    if dtype.is_complex:
        return torch.complex(whole.double(), ((whole + rank) % 3).double()).to(dtype)
    return whole.to(torch.float32).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Converts to the type of references, which has 64 bits."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def folded(op: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """Returns the reference in 64 bits."""
    bits = [(Op.BAND, torch.bitwise_and), (Op.BOR, torch.bitwise_or), (Op.BXOR, torch.bitwise_xor)]
    stack = torch.stack([wide(part) for part in parts])
    if op == Op.SUM:
        return stack.sum(0)
    if op == Op.AVG:
        total = stack.sum(0)
        return total / len(parts) if total.is_floating_point() or total.is_complex() else total // len(parts)
    if op == Op.PRODUCT:
        return stack.prod(0)
    if op in (Op.MIN, Op.MAX):
        return stack.amin(0) if op == Op.MIN else stack.amax(0)
    result = stack[0]
    for part in stack[1:]:
        result = next(function for kind, function in bits if op == kind)(result, part)
    return result


def raw(tensor: torch.Tensor) -> bytes:
    """Returns the bits of the values, in order."""
    flat = tensor.detach().cpu().resolve_conj().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
