# SPDX-License-Identifier: Apache-2.0
"""Steps, and how a plan cuts them: each step owns the next positions of the epoch's order, whoever computes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Window:
    """The positions of one step: half open."""

    first: int
    last: int

    @property
    def samples(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Slice:
    """One batch of one rank: half-open positions. `counted` samples of it count; where that is 0 the one sample in it
    only keeps the rank in step with others."""

    window: Window
    first: int
    last: int
    counted: int
    is_first: bool
    is_last: bool


def next_window(positions: int, position: int, size: int, drop_last: bool = False) -> Window | None:
    """Of `size` samples from `position` on: fewer when fewer are left, or None then with `drop_last`, and at the
    end."""
    last = min(position + size, positions)
    if last <= position or (drop_last and last - position < size):
        return None
    return Window(position, last)


def parts_needed(shares: Sequence[int], caps: Sequence[int | None], alike: bool) -> list[int]:
    """By rank, in how many batches it computes its share so that none is larger than its cap; `alike`: all the same
    number."""
    needed = [1 if cap is None or share == 0 else -(-share // cap) for share, cap in zip(shares, caps, strict=True)]
    return [max(needed)] * len(needed) if alike else needed


def cut(window: Window, shares: Sequence[int], rank: int, parts: int = 1) -> list[Slice]:
    """This rank's part of a window, by `shares` that add up to its samples, in `parts` batches of sizes that differ by
    at most one, empty ones first."""
    if sum(shares) != window.samples:
        raise ValueError(f"shares {list(shares)} add up to {sum(shares)}, the step has {window.samples} samples")
    begin = window.first + [0, *accumulate(shares)][rank]
    share = shares[rank]
    sizes = sorted(share // parts + (1 if part < share % parts else 0) for part in range(parts))
    slices = []
    for part, size in enumerate(sizes):
        first = begin if size else window.first
        last = first + max(size, 1)
        slices.append(Slice(window, first, last, size, part == 0, part == parts - 1))
        begin += size
    return slices
