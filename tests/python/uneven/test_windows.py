# SPDX-License-Identifier: Apache-2.0
"""Every position comes once, whatever plans, restarts and numbers of ranks come in between."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.loading.feed import Feed
from atoll.loading.windows import Window, cut, next_window, parts_needed


def random_shares(samples: int, ranks: int, chance: random.Random) -> list[int]:
    cuts = sorted(chance.randint(0, samples) for _ in range(ranks - 1))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, samples], strict=True)]


class ChangingPlan:
    """A plan with different shares and numbers of parts in every step; each rank's own copy gives the same ones."""

    def __init__(self, ranks: int, seed: int, rank: int, global_batch: int) -> None:
        self._ranks, self._seed, self._rank, self._global_batch = ranks, seed, rank, global_batch

    def samples(self, step: int) -> int:
        """Returns the samples of a step, which plans with a paper's own integers change."""
        return self._global_batch + step % 3

    def cut(self, step: int, samples: int) -> tuple[list[int], int]:
        chance = random.Random(self._seed * 1000 + step)
        shares = random_shares(samples, self._ranks, chance)
        parts = [chance.randint(1, 3) for _ in shares]
        return shares, parts[self._rank]


# Proves E-2.
@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 10**6))
def test_every_position_once_over_restarts(samples: int, global_batch: int, seed: int) -> None:
    """Runs an epoch in several parts, each with other ranks; a part may end after any step."""
    chance = random.Random(seed)
    order = torch.randperm(samples)
    position, step, seen = 0, 0, []
    while position < samples:
        ranks = chance.randint(1, 5)
        stop_after = chance.randint(1, 8)
        ended = []
        for rank in range(ranks):
            feed = Feed(ChangingPlan(ranks, seed, rank, global_batch), rank, drop_last=False)
            feed.begin(order, position, step, None)
            steps = 0
            for keys in feed:
                of = feed.handed.popleft()
                seen += keys[: of.counted]
                assert len(keys) == max(1, of.counted)
                if of.is_last:
                    steps += 1
                    if steps == stop_after:
                        break
            ended.append((of.window.last, feed.next_step))
        assert len(set(ended)) == 1
        ((position, step),) = set(ended)
    assert sorted(seen) == list(range(samples))


@given(st.integers(0, 60), st.integers(1, 7))
def test_parts_differ_by_at_most_one(share: int, parts: int) -> None:
    slices = cut(Window(100, 100 + share + 5), [share, 5], 0, parts)
    sizes = [of.counted for of in slices]
    assert sum(sizes) == share
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes)
    assert [of.is_first for of in slices] == [True] + [False] * (parts - 1)
    assert [of.is_last for of in slices] == [False] * (parts - 1) + [True]
    if share:
        assert next(of.first for of in slices if of.counted) == 100
        assert slices[-1].last == 100 + share


def test_shares_must_add_up() -> None:
    with pytest.raises(ValueError, match="add up to 5, but the step has 6"):
        cut(Window(0, 6), [2, 3], 0)


def test_the_last_window() -> None:
    assert next_window(10, 4, 4) == Window(4, 8)
    assert next_window(10, 8, 4) == Window(8, 10)
    assert next_window(10, 8, 4, drop_last=True) is None
    assert next_window(10, 10, 4) is None


def test_parts_needed() -> None:
    assert parts_needed([10, 0, 7], [4, 2, None], alike=False) == [3, 1, 1]
    assert parts_needed([10, 0, 7], [4, 2, None], alike=True) == [3, 3, 3]


class SmallerLater:
    """A plan whose global batch becomes smaller at a step."""

    def __init__(self) -> None:
        self.changes_at = 1000

    def samples(self, step: int) -> int:
        return 10 if step < self.changes_at else 4

    def cut(self, step: int, samples: int) -> tuple[list[int], int]:
        return [samples], 1


def test_what_is_dropped_stays_dropped() -> None:
    """When plans with smaller steps are made, one rank's workers have reached the end of the epoch and another's
    have not."""
    shares = SmallerLater()
    ahead, behind = (Feed(shares, 0, drop_last=True) for _ in range(2))
    for feed in (ahead, behind):
        feed.begin(torch.arange(25), 0, 0, None)
    assert len(list(ahead)) == 2
    steps = iter(behind)
    next(steps)
    shares.changes_at = max(ahead.next_step, behind.next_step)
    assert len(list(steps)) == 1
