# SPDX-License-Identifier: Apache-2.0
"""Plans given by the user: their meaning, and the errors of invalid ones."""

import itertools
import json
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from atoll.pipeline.items import Item, Parts
from atoll.pipeline.plan import (
    Pipe,
    Plan,
    Stage,
    _nearest,
    check_plan,
    equal_counts,
    from_counts,
    nearest_shares,
    ranks_in_lines,
)
from atoll.pipeline.schedules import KINDS, schedule_of


def nothing(whole: torch.nn.Module, value: torch.Tensor, call: object) -> torch.Tensor:
    return value


def model(blocks: int) -> Parts:
    middle = [Item(f"block {number}", (), nothing) for number in range(blocks)]
    ends = [Item(name, (), nothing, name) for name in ("embedding", "norm", "head")]
    return Parts((ends[0], *middle, *ends[1:]))


def ranges(counts: list[int], blocks: int = 4) -> list[tuple[int, int]]:
    lines = [list(range(len(counts)))]
    (pipe,) = from_counts(counts, model(blocks), lines, KINDS["gpipe"], [1], False).pipes
    return [(stage.first, stage.last) for stage in pipe.stages]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([4], [(0, 7)]),
        ([1, 3], [(0, 2), (2, 7)]),
        ([0, 4], [(0, 1), (1, 7)]),
        ([4, 0], [(0, 5), (5, 7)]),
        ([2, 5], [(0, 2), (2, 7)]),  # items
        ([6, 1], [(0, 6), (6, 7)]),
    ],
)
def test_blocks_or_items(counts: list[int], expected: list[tuple[int, int]]) -> None:
    assert ranges(counts) == expected


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ([2, 3], r"\[2, 3\] adds up to 5, but the model has 4 blocks \(7 items.*nearest: \[2, 2\]"),
        ([15, 17], r"nearest: \[2, 2\]"),
        ([2, 0, 2], r"stage 1 is empty.*nearest: \[1, 1, 2\]|stage 1 is empty.*nearest: \[2, 1, 1\]"),
        ([-1, 5], "at least 0"),
        ([], "at least 0"),
    ],
)
def test_counts_that_do_not_fit(counts: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        ranges(counts)


@given(some.lists(some.integers(0, 40), min_size=1, max_size=6), some.integers(6, 40))
def test_the_nearest_plan_is_valid(counts: list[int], blocks: int) -> None:
    near = _nearest(counts, model(blocks))
    assert sum(near) == blocks
    assert min(near) >= 1
    assert len(near) == len(counts)
    ranges(near, blocks)


@given(some.integers(1, 8), some.integers(8, 40))
def test_equal_counts(stages: int, blocks: int) -> None:
    counts = equal_counts(model(blocks), stages)
    assert sum(counts) == blocks
    assert max(counts) - min(counts) <= 1


def test_ranks_of_pipelines_are_neighbours() -> None:
    assert ranks_in_lines(4, 2) == [[0, 2], [1, 3]]
    assert ranks_in_lines(3, 1) == [[0, 1, 2]]
    with pytest.raises(ValueError, match=r"3 pipelines .* 4 ranks: start 6 ranks, or use replicas="):
        ranks_in_lines(4, 3)


def test_where_stages_go_back() -> None:
    assert KINDS["zbv"].ranks_of_stages(3, 6) == [0, 1, 2, 2, 1, 0]
    assert KINDS["interleaved"].ranks_of_stages(3, 6) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("name", KINDS)
def test_micro_batches_as_pytorch_takes_them(name: str) -> None:
    """PyTorch can schedule every number that is allowed here, and the numbers that errors suggest are allowed."""
    kind = schedule_of(name)
    for positions, chunks in itertools.product(range(1, 5), [kind.chunks] if kind.chunks else [1, 2]):
        for count in range(12):
            try:
                kind.check_micro_batches(count, positions, positions * chunks)
            except ValueError as error:
                for near in str(error).rpartition("use ")[2].split(" or "):
                    kind.check_micro_batches(int(near), positions, positions * chunks)
            else:
                assert count > 0


def test_schedules_and_stages() -> None:
    with pytest.raises(ValueError, match="unknown schedule '2f2b': choose from 1f1b, gpipe"):
        schedule_of("2f2b")
    with pytest.raises(ValueError, match="3 stages on 2 ranks"):
        KINDS["interleaved"].check(2, 3)
    with pytest.raises(ValueError, match=r"'1f1b' has 1 stages on each rank, but the plan has 2 .*'interleaved'"):
        KINDS["1f1b"].check(2, 4)
    with pytest.raises(ValueError, match=r"pass a plan of 4 stages, or schedule='1f1b'"):
        KINDS["zbv"].check(2, 2)


GOOD = Plan((Pipe((Stage(0, 3, 0), Stage(3, 7, 1)), 2),))


def broken(**changes: object) -> Plan:
    pipe = GOOD.pipes[0]
    return Plan((replace(pipe, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "schedule", "ranks", "text"),
    [
        (
            GOOD,
            "gpipe",
            1,
            r"needs rank 1, but the job has ranks 0 to 0: start 2 ranks.* nearest: plan=\[4\], micro_batches=2$",
        ),
        (GOOD, "gpipe", 3, "rank 2 has no stage"),
        (Plan(GOOD.pipes * 2), "gpipe", 2, "rank 0 is in two pipelines"),
        (broken(stages=(Stage(0, 3, 0), Stage(4, 7, 1))), "gpipe", 2, "are not contiguous"),
        (broken(stages=(Stage(0, 3, 0), Stage(3, 6, 1))), "gpipe", 2, "for 6 items.* the model has 7"),
        (broken(stages=(Stage(0, 7, 0), Stage(7, 7, 1))), "gpipe", 2, "at least one"),
        (broken(stages=()), "gpipe", 2, "are not contiguous"),
        (broken(micro_batches=1), "1f1b", 2, "into 1 micro-batches: use 2"),
        (GOOD, "zbv", 2, "'zbv' has 2 stages on each rank"),
        (broken(stages=(Stage(0, 3, 0, True), Stage(3, 7, 1))), "zero-bubble", 2, "recompute a block for each"),
    ],
)
def test_impossible_plans(plan: Plan, schedule: str, ranks: int, text: str) -> None:
    check_plan(GOOD, model(4), KINDS["gpipe"], 2)
    with pytest.raises(ValueError, match=text):
        check_plan(plan, model(4), KINDS[schedule], ranks)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("positions", [3, 4, 6])
@pytest.mark.parametrize("replicas", [1, 2])
def test_the_nearest_plan_for_fewer_ranks_is_valid(name: str, positions: int, replicas: int) -> None:
    """Whatever is wrong with a plan, the error suggests a valid one for the ranks of the job."""
    kind = KINDS[name]
    chunks = kind.chunks or 2
    lines = ranks_in_lines(positions * replicas, replicas)
    stages = positions * chunks
    whole = from_counts(equal_counts(model(12), stages), model(12), lines, kind, [2 * stages] * replicas, False)
    check_plan(whole, model(12), kind, positions * replicas)
    for ranks in range(1, positions * replicas):
        with pytest.raises(ValueError, match="the plan needs rank") as caught:
            check_plan(whole, model(12), kind, ranks)
        text = r"nearest: (?:(\d+) ranks with )?plan=(\[.*\]), micro_batches=(\d+)(?:, replicas=(\d+))?$"
        given = re.search(text, str(caught.value))
        assert given, caught.value
        used = int(given[1] or ranks)
        assert used == ranks or chunks * ranks > 15, "the model has items for all"
        side_by_side = ranks_in_lines(used, int(given[4] or 1))
        shares = [int(given[3])] * len(side_by_side)
        near = from_counts(json.loads(given[2]), model(12), side_by_side, kind, shares, False)
        check_plan(near, model(12), kind, used)


def side_by_side(shares: list[int], lengths: list[int]) -> Plan:
    pipes: list[Pipe] = []
    rank = 0
    for share, length in zip(shares, lengths, strict=True):
        pipes.append(Pipe(tuple(Stage(place, place + 1, rank + place) for place in range(length)), share))
        rank += length
    return Plan(tuple(pipes))


@given(some.sampled_from(sorted(KINDS)), some.lists(some.tuples(some.integers(1, 30), some.integers(1, 5)), min_size=1))
def test_the_nearest_shares_are_possible(name: str, pipes: list[tuple[int, int]]) -> None:
    kind = schedule_of(name)
    shares, lengths = [share for share, _ in pipes], [length for _, length in pipes]
    near = nearest_shares(side_by_side(shares, lengths), kind)
    can = [kind.is_possible(share, length, length) for share, length in pipes]
    if all(can):
        assert near == shares
    elif near is None:
        assert not kind.needs_stages or sum(shares) < sum(lengths)
        assert kind.needs_stages or len(set(lengths)) > 1 or sum(shares) % lengths[0]
    else:
        assert sum(near) == sum(shares)
        assert all(kind.is_possible(share, length, length) for share, length in zip(near, lengths, strict=True))


def test_shares_that_are_too_small_for_their_stages() -> None:
    assert nearest_shares(side_by_side([7, 1], [2, 3]), KINDS["1f1b"]) == [5, 3]
    assert nearest_shares(side_by_side([5, 1, 6], [2, 2, 2]), KINDS["1f1b"]) == [4, 2, 6]
    assert nearest_shares(side_by_side([3, 1], [2, 3]), KINDS["1f1b"]) is None
    assert nearest_shares(side_by_side([7, 5], [2, 2]), KINDS["interleaved"]) in ([6, 6], [8, 4])
    stages = [(Stage(0, 3, 2 * place), Stage(3, 7, 2 * place + 1)) for place in range(2)]
    plan = Plan((Pipe(stages[0], 7), Pipe(stages[1], 1)))
    with pytest.raises(ValueError, match=r"pipeline 1 of .* into 1 micro-batches: use 2; nearest .* \[6, 2\]"):
        check_plan(plan, model(4), KINDS["1f1b"], 4)


def test_plans_as_json_and_text() -> None:
    assert Plan.from_json(GOOD.to_json()) == GOOD
    assert GOOD.table(model(4)).splitlines() == [
        "pipeline 0 stage 0 on rank 0: embedding to block 1",
        "pipeline 0 stage 1 on rank 1: block 2 to head",
    ]
