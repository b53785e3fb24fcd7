# SPDX-License-Identifier: Apache-2.0
"""Advice to leave ranks out of a training, for made-up numbers and for measured ones."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import atoll
from atoll.loading import planner
from atoll.loading.communication import islands_of, library_seconds, seconds_inside
from atoll.loading.membership import PAUSE, Advice, Membership
from atoll.loading.policy import Plan
from atoll.loading.timing import NOT_MEASURED, Seen, StepTimes
from atoll.plan import BatchRequest, Cost, plan_batches
from atoll.plan.documents import document_of
from atoll.profiling.device import DeviceProfile, Measured
from client_ranks import on_layouts
from support import Ranks, device, later, warnings_of_plans

GPU, MLU = 0.001, 0.004  # seconds for a sample
KAITIAN = [GPU, GPU, MLU]  # "2G + 1M"
BATCH = 256
ISLANDS = [[0, 1], [2]]
SLOW_BRIDGE, FAST_BRIDGE, INSIDE = 0.112, 0.002, 0.010


class Training:
    """Ranks with these seconds per sample, and the communication that a step exposes. `inside`: the part within
    islands."""

    def __init__(
        self, seconds: Sequence[float], islands: list[list[int]], exposed: float, *, inside: float = INSIDE,
        most: int | None = None,
    ) -> None:  # fmt: skip
        costs = [Cost.affine(0, each) for each in seconds]
        self.ranks: list[dict[str, Any]] = [{"cost": document_of(cost)} for cost in costs]
        if most is not None:
            self.ranks = [{**rank, "most": most} for rank in self.ranks]
        self.costs, self.exposed, self.inside = costs, exposed, inside
        self.loads = [0.0] * len(costs)
        self.rest = 0.0
        self.plan = Plan(1, 0, tuple(plan_batches(BatchRequest(self.ranks, BATCH)).batches))
        self.membership = Membership(self.ranks, costs, islands, atoll.training.Settings())

    def seen(self) -> list[Seen]:
        busy = [cost.seconds(batch) for cost, batch in zip(self.costs, self.plan.batches, strict=True)]
        longest = max(load + compute for load, compute in zip(self.loads, busy, strict=True))
        return [
            Seen(compute, load, batch, 0, 0, 0, 0, wall=longest + self.exposed + self.rest,
                 exposed=self.exposed + longest - load - compute, inside=self.inside)
            for compute, load, batch in zip(busy, self.loads, self.plan.batches, strict=True)
        ]  # fmt: skip

    def window(self, seen: list[Seen] | None = None) -> Advice | None:
        return self.membership.observe(seen or self.seen(), [1.0] * len(self.costs), self.plan)

    def windows(self, count: int) -> list[Advice]:
        """Returns the advice after this number of windows."""
        told = [self.window() for _ in range(count)]
        return [advice for advice in told if advice is not None]


def test_a_third_rank_over_a_slow_bridge_makes_two_slower() -> None:
    training = Training(KAITIAN, ISLANDS, SLOW_BRIDGE)
    assert training.window() is None, "one window may be chance"
    advice = training.window()
    assert advice is not None
    assert advice.left_out == (2,)
    # With all: 114 samples on each GPU, 28 on the MLU, and the bridge. The GPUs alone: 128 each, and what is inside.
    assert advice.seconds == pytest.approx(0.114 + SLOW_BRIDGE - 0.128 - INSIDE)
    assert advice.gain == pytest.approx(advice.seconds / (0.114 + SLOW_BRIDGE))
    assert training.windows(3 * PAUSE) == [], "the same is not told again"


def test_all_ranks_help_over_a_fast_bridge() -> None:
    assert Training(KAITIAN, ISLANDS, FAST_BRIDGE).windows(3 * PAUSE) == []


def test_one_alone_pays_nothing() -> None:
    (advice,) = Training([GPU, GPU], [[0], [1]], 0.2).windows(5)
    assert advice.left_out == (1,)
    assert advice.seconds == pytest.approx(0.128 + 0.2 - 0.256)
    (advice,) = Training(KAITIAN, ISLANDS, 0.6, inside=0.5).windows(5)
    assert advice.left_out == (1, 2), "inside the island it is slow too"


def test_islands_that_are_not_known_are_not_taken_for_fast() -> None:
    assert Training(KAITIAN, [], SLOW_BRIDGE).windows(5) == []


def test_a_small_gain_is_not_reported() -> None:
    """0.256 s alone against 0.128 and what is exposed."""
    assert Training([GPU, GPU], [[0], [1]], 0.135).windows(5) == []
    assert len(Training([GPU, GPU], [[0], [1]], 0.145).windows(5)) == 1


def test_time_that_no_rank_saves_counts_only_in_the_step() -> None:
    training = Training(KAITIAN, ISLANDS, SLOW_BRIDGE)
    training.rest = 1.0
    (advice,) = training.windows(2)
    assert advice.seconds == pytest.approx(0.088)
    assert advice.gain == pytest.approx(0.088 / 1.226)


def test_waiting_for_data_counts() -> None:
    for loads, expected in ((0.0, []), (0.2, [(1,)])):
        training = Training([GPU, GPU], [[0], [1]], 0.1)
        training.loads[1] = loads
        assert [advice.left_out for advice in training.windows(5)] == expected


def test_no_advice_without_measurements() -> None:
    training = Training(KAITIAN, ISLANDS, SLOW_BRIDGE)
    seen = training.seen()
    for _ in range(5):
        assert training.window([replace(seen[0], exposed=NOT_MEASURED), *seen[1:]]) is None
        assert training.window([*seen[:2], replace(seen[2], compute=0.0)]) is None
    assert len(training.windows(2)) == 1


def test_a_rank_without_samples_is_no_hindrance() -> None:
    training = Training([GPU, GPU, 1.0], ISLANDS, SLOW_BRIDGE)
    training.plan = Plan(1, 0, (128, 128, 0))
    training.ranks[2]["least"] = 0
    (advice,) = training.windows(5)
    assert advice.left_out == (2,)


def test_chance_is_not_advice() -> None:
    training = Training(KAITIAN, ISLANDS, SLOW_BRIDGE)
    for _ in range(10):
        for exposed in (SLOW_BRIDGE, FAST_BRIDGE):
            training.exposed = exposed
            assert training.window() is None


def test_equal_ranks_alone_are_equally_good() -> None:
    """Which of them is faster in a window is chance; the first one that was found is reported, once."""
    training = Training([GPU, GPU], [[0], [1]], 0.3)
    told = []
    for window in range(40):
        seen = training.seen()
        seen[window % 2] = replace(seen[window % 2], compute=1.1 * seen[window % 2].compute)
        told.append(training.window(seen))
    assert [advice.left_out for advice in told if advice is not None] == [(0,)]
    assert told[1] is not None


def test_much_better_advice_replaces_the_last_one() -> None:
    training = Training([GPU, GPU], [[0], [1]], 0.3)
    training.loads[1] = 0.1
    assert [advice.left_out for advice in training.windows(2)] == [(1,)]
    training.loads = [0.4, 0.0]
    assert [advice.left_out for advice in training.windows(PAUSE + 2)] == [(0,)]


def test_advice_is_given_again_when_it_changes() -> None:
    training = Training(KAITIAN, ISLANDS, SLOW_BRIDGE)
    assert len(training.windows(2)) == 1
    training.exposed = FAST_BRIDGE
    assert training.windows(PAUSE) == [], "until it is looked at again"
    assert training.windows(2) == [Advice()]
    training.exposed = SLOW_BRIDGE
    training.plan = replace(training.plan, version=2)
    assert [advice.left_out for advice in training.windows(2)] == [(2,)], "at once with a new plan"


def test_advice_holds_while_it_gains_anything() -> None:
    training = Training([GPU, GPU], [[0], [1]], 0.2)
    assert len(training.windows(2)) == 1
    training.exposed = 0.129  # 1 ms more than the second rank saves
    assert training.windows(PAUSE + 2) == []
    training.exposed = 0.127
    assert training.windows(PAUSE + 2) == [Advice()]


def test_the_batch_must_fit() -> None:
    assert Training([GPU, GPU], [[0], [1]], 0.2, most=200).windows(5) == []
    training = Training([GPU, GPU], [[0], [1]], 0.2, most=200)
    training.plan = Plan(1, 0, (300, 300))  # a literal plan, which ignores caps
    assert training.windows(5) == []


def test_an_island_among_many_ranks() -> None:
    """Four of twenty ranks are fast."""
    island = [3, 7, 11, 15]
    seconds = [GPU if rank in island else 30 * GPU for rank in range(20)]
    others = [rank for rank in range(20) if rank not in island]
    (advice,) = Training(seconds, [others, island], SLOW_BRIDGE, inside=0.001).windows(5)
    assert advice.left_out == tuple(others)


class Heavy(nn.Module):
    """A model with 16 MB of gradients and hardly any computation."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.ones(count)), nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs) * self.weight[0]


class Light(nn.Module):
    """A model with small gradients whose samples take 2 ms each, however busy the machine is."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(0.002 * len(inputs))
        return self.layer(inputs)


def advised(
    rank: int, model: nn.Module, folder: str, *, batch: int, with_file: bool = True, windows: int = 3
) -> list[dict[str, Any]]:
    """Returns the advice of rank 0 in some windows of a training."""
    watch = atoll.training.Watch(live=False, json_lines=f"{folder}/lines-{len(list(Path(folder).iterdir()))}")
    settings = atoll.training.Settings(
        update_interval=4, reuse=False, watch=watch if with_file else atoll.training.Watch(live=False)
    )
    samples = 4 * windows * batch
    data = TensorDataset(torch.ones(samples, 8), torch.zeros(samples, dtype=torch.int64))
    dist.barrier()  # the file is named before it is created
    loader = atoll.DataLoader(data, batch, model=model, settings=settings)
    for inputs, targets in loader:
        nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device())).backward()
        model.zero_grad()
    loader.planner._follower.watchers.close()
    membership = loader.planner._follower._membership
    told = [] if membership is None else [membership._told]
    assert all(each == told for each in gathered(told)), "all ranks come to the same advice"
    if rank != 0 or not with_file:
        return []
    assert watch.json_lines is not None
    lines = [json.loads(line) for line in Path(watch.json_lines).read_text().splitlines()]
    return [line for line in lines if line.get("kind") == "leave out"]


def gathered(own: Any) -> list[Any]:
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    return everyone


def on_a_bridge(rank: int, folder: str, count: int) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    return advised(rank, DistributedDataParallel(Heavy(count).to(device())), folder, batch=8)


# A profile that a busy machine cannot disturb: one sample takes as long as all.
FLAT = DeviceProfile("flat", [Measured(size, 1e-3) for size in (1, 2, 4, 8)])


def on_memory(rank: int, folder: str, **options: Any) -> list[dict[str, Any]]:
    """The environments of islands on one host."""
    with mock.patch.object(planner, "measure", return_value=FLAT):
        # More windows than advice needs, because counting restarts when one is disturbed or the plan changes.
        return advised(rank, DistributedDataParallel(Heavy(4 << 20)), folder, batch=8, windows=8, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def check_told(events: list[dict[str, Any]], size: int) -> None:
    """Checks that one rank alone is reported as much faster; which one does not matter."""
    (event,) = events
    assert len(event["ranks"]) == size - 1
    assert event["value"] > 0.05
    assert event["seconds"] > 1e-3
    assert f"{1e3 * event['seconds']:.3g} ms ({100 * event['value']:.0f} %) less" in event["text"]


@pytest.mark.parametrize("ranks", [later("AB"), "ABA"], indirect=True)
def test_large_gradients_make_one_alone_faster(ranks: Ranks, folder: Path) -> None:
    told, *silent = ranks.run(on_memory, str(folder))
    check_told(told, ranks.size)
    assert not any(silent)


@pytest.fixture(scope="module")
def slow_copies() -> Iterator[Ranks]:
    """Two islands of one simulated device each, with 20 MB/s between them."""
    ranks = Ranks(2, "AB", {"ATOLL_SIM_BANDWIDTH": "20M"}, ["sim", "sim"])
    yield ranks
    ranks.stop()


def test_a_throttled_bridge_makes_one_alone_faster(slow_copies: Ranks, folder: Path) -> None:
    """A gradient of 1 MB takes 50 ms to the host, and the same time back."""
    told, _ = slow_copies.run(on_a_bridge, str(folder), 1 << 18)
    check_told(told, 2)
    assert told[0]["seconds"] > 0.02
    assert told[0]["value"] > 0.2


@pytest.fixture(scope="module")
def with_library(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    """An island of two simulated devices with their library, and one with another device."""
    ranks = Ranks(3, "AAB", {"ATOLL_SIM_BANDWIDTH": "20M", **request.param}, ["sim"] * 3)
    yield ranks
    ranks.stop()


STEEP = DeviceProfile("steep", [Measured(size, 10e-3 * size) for size in (1, 2, 4, 8)])


def with_pace(rank: int, folder: str) -> list[dict[str, Any]]:
    """Makes a rank report the computing times of STEEP."""
    model = DistributedDataParallel(Heavy(1 << 18).to(device()))

    def take(times: StepTimes) -> Any:
        taken = summary(times)
        return replace(taken, compute=10e-3 * 8 / dist.get_world_size())

    summary = StepTimes.take
    with mock.patch.object(planner, "measure", return_value=STEEP), mock.patch.object(StepTimes, "take", take):
        return advised(rank, model, folder, batch=8)


@pytest.mark.parametrize(
    ("with_library", "left_out"), [({}, [2]), ({"ATOLL_SIM_LINK": "10M"}, [])], indirect=["with_library"]
)
def test_the_time_of_a_library_counts(with_library: Ranks, left_out: list[int], folder: Path) -> None:
    """1 MB takes 0.1 s over the bridge. Two ranks compute for 40 ms, one alone for 80 ms, which is still better if
    the library takes 0.1 s."""
    (event,), *_ = with_library.run(with_pace, str(folder))
    assert event["ranks"] == left_out if left_out else len(event["ranks"]) == 2


def helping(rank: int, folder: str) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    batch = 128 if dist.get_world_size() > 1 else 8
    return advised(rank, DistributedDataParallel(Light().to(device())), folder, batch=batch)


@pytest.mark.parametrize("ranks", ["A", "AB"], indirect=True)
def test_no_advice_if_all_ranks_help(ranks: Ranks, folder: Path) -> None:
    assert not any(ranks.run(helping, str(folder)))


@on_layouts("AB")
def test_advice_is_a_warning_without_watchers(rank: int, size: int) -> None:
    with warnings_of_plans() as caught:
        on_memory(rank, "/", with_file=False)
    told = [text for text in caught if "leave rank" in text]
    assert len(told) == (1 if rank == 0 else 0)
    assert all(text.startswith("step ") and text.endswith("less; start the training without it") for text in told)


@on_layouts("ABA")
def test_other_backends_tell_nothing_of_their_communication(rank: int, size: int) -> None:
    assert islands_of(dist.group.WORLD) == [[0, 2], [1]]
    dist.all_reduce(torch.ones(1000))
    assert seconds_inside(dist.group.WORLD)() > 0
    other = dist.new_group(backend="gloo")
    assert islands_of(other) == []
    assert seconds_inside(other)() == 0
    assert library_seconds(other, nn.Linear(2, 2)) is None
    assert library_seconds(dist.group.WORLD, nn.Linear(2, 2)) is None, "Atoll reduces, and counts"
    dist.destroy_process_group(other)
