# SPDX-License-Identifier: Apache-2.0
"""Divides steps by a plan: each step owns the next positions of the epoch's order, whichever ranks compute them."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Window:
    """The half-open range of positions of one step."""

    first: int
    last: int

    @property
    def samples(self) -> int:
        return self.last - self.first


@dataclass(frozen=True)
class Slice:
    """One batch of one rank: a half-open range of positions. `counted` samples of it count; if that is 0, its only
    sample just keeps the rank in step with others."""

    window: Window
    first: int
    last: int
    counted: int
    is_first: bool
    is_last: bool


def next_window(positions: int, position: int, size: int, drop_last: bool = False) -> Window | None:
    """Returns the window of `size` samples from `position` on, or of fewer at the end of the epoch. None if no samples
    are left, or too few with `drop_last`."""
    last = min(position + size, positions)
    if last <= position or (drop_last and last - position < size):
        return None
    return Window(position, last)


def parts_needed(shares: Sequence[int], caps: Sequence[int | None], alike: bool) -> list[int]:
    """Returns by rank the number of batches of its share, none above its cap; `alike`: the same number for all."""
    needed = [1 if cap is None or share == 0 else -(-share // cap) for share, cap in zip(shares, caps, strict=True)]
    return [max(needed)] * len(needed) if alike else needed


def cut(window: Window, shares: Sequence[int], rank: int, parts: int = 1) -> list[Slice]:
    """Returns this rank's part of a window, by `shares` that add up to its samples, in `parts` batches whose sizes
    differ by at most one, empty ones first."""
    if sum(shares) != window.samples:
        raise ValueError(f"shares {list(shares)} add up to {sum(shares)}, but the step has {window.samples} samples")
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
    """An epoch in which each rank has its own samples. A step takes the rank's share of them while they last. Positions
    count the completed samples of all ranks."""

    lengths: tuple[int, ...]
    """Samples by rank."""
    shares: tuple[int, ...]
    """Samples of a whole step by rank; above 0."""
    drop_last: bool
    """Whether steps end with the last whole one."""

    def __post_init__(self) -> None:
        if 0 in self.shares:  # its samples would never be used
            raise ValueError(
                f"with divided=True rank {self.shares.index(0)} has its own samples but no share of a step: "
                f"{list(self.shares)}; give each rank a share"
            )

    @property
    def steps(self) -> int:
        whole = min(length // share for length, share in zip(self.lengths, self.shares, strict=True))
        return whole if self.drop_last else self._longest

    @property
    def _longest(self) -> int:
        """The number of steps until all samples are completed."""
        return max(-(-length // share) for length, share in zip(self.lengths, self.shares, strict=True))

    def done(self, steps: int) -> list[int]:
        """Returns the completed samples by rank after `steps` steps."""
        return [min(length, share * steps) for length, share in zip(self.lengths, self.shares, strict=True)]

    def steps_before(self, position: int) -> int:
        """Returns the number of steps before a position. Raises ValueError unless a step starts there."""
        found = bisect_left(range(self._longest), position, key=lambda steps: sum(self.done(steps)))
        if sum(self.done(found)) != position:
            raise ValueError(
                f"no step of these ranks' own samples starts at the state's position {position}: with divided=True "
                "resume with the same number of ranks, the same samples on each, and the same shares"
            )
        return found

    def cut(self, step: int, rank: int, parts_of: Callable[[list[int]], int]) -> list[Slice]:
        """Like `cut` for a step of the epoch, with positions in the rank's own samples. An empty batch repeats the
        previous sample. `parts_of`: returns the number of batches for the ranks' shares."""
        before, after = self.done(step), self.done(step + 1)
        window = Window(sum(before), sum(after))
        shares, first = [end - begin for begin, end in zip(before, after, strict=True)], before[rank]
        slices = cut(Window(first, after[rank]), [shares[rank]], 0, parts_of(shares))
        again = max(0, first - 1)
        return [Slice(window, of.first if of.counted else again, of.last if of.counted else again + 1, of.counted,
                      of.is_first, of.is_last) for of in slices]  # fmt: skip
