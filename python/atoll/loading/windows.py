# SPDX-License-Identifier: Apache-2.0
"""Steps, and how a plan cuts them: each step owns the next positions of the epoch's order, whoever computes them."""

from bisect import bisect_left
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


@dataclass(frozen=True)
class Divided:
    """An epoch in which each rank has samples of its own: of these a step takes the rank's share while they last. Its
    positions count what all ranks have done."""

    lengths: tuple[int, ...]
    """Samples by rank."""
    shares: tuple[int, ...]
    """Samples of a whole step by rank; above 0."""
    drop_last: bool
    """Whether steps end with the last one that is whole."""

    @property
    def samples(self) -> int:
        return sum(self.lengths)

    @property
    def steps(self) -> int:
        both = list(zip(self.lengths, self.shares, strict=True))
        return (
            min(length // share for length, share in both) if self.drop_last
            else max(-(-length // share) for length, share in both)
        )  # fmt: skip

    def done(self, steps: int) -> list[int]:
        """By rank, after so many steps."""
        return [min(length, share * steps) for length, share in zip(self.lengths, self.shares, strict=True)]

    def steps_before(self, position: int) -> int:
        """Raises ValueError for a position at which no step begins."""
        longest = max(-(-length // share) for length, share in zip(self.lengths, self.shares, strict=True))
        found = bisect_left(range(longest), position, key=lambda steps: sum(self.done(steps)))
        if sum(self.done(found)) != position:
            raise ValueError(
                f"no step of these ranks' own samples begins at the state's position {position}: a training with "
                "divided=True goes on with as many ranks, the same samples on each, and the same shares"
            )
        return found

    def cut(self, step: int, rank: int, parts: int) -> list[Slice]:
        """As `cut` of the epoch's step, whose positions are those of the rank's own samples. An empty batch is of the
        last one before."""
        before, after = self.done(step), self.done(step + 1)
        window = Window(sum(before), sum(after))
        share, first = after[rank] - before[rank], before[rank]
        slices = cut(Window(first, first + share), [share], 0, parts)
        again = max(0, first - 1)
        return [Slice(window, of.first if of.counted else again, of.last if of.counted else again + 1, of.counted,
                      of.is_first, of.is_last) for of in slices]  # fmt: skip
