# SPDX-License-Identifier: Apache-2.0
"""Datasets that are already divided among ranks or workers are detected, and used for training if the user says so."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset, IterableDataset, Subset, get_worker_info

import atoll
from client_ranks import on_layouts
from support import later
from test_loader import EXACT, UNMEASURED, check_exactly_once, dataset, on_all_ranks, train, wrapped
from training import check_close, check_equal_bits, network
from uneven_training import sgd, workers

SAMPLES, BATCH = 120, 24
OWN = {"policy": "equal", "divided": True}


class Stream(IterableDataset[Any]):
    """Every `step`-th sample of a dataset from `begin` on, as given by the process that reads it."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._data = dataset(samples)

    def part(self) -> tuple[int, int]:
        return 0, 1

    def changed(self, sample: Any) -> Any:
        return sample

    def __iter__(self) -> Iterator[Any]:
        begin, step = self.part()
        yield from (self.changed(self._data[index]) for index in range(begin, len(self._data), step))


class ByRank(Stream):
    def part(self) -> tuple[int, int]:
        return dist.get_rank(), dist.get_world_size()


class ByWorker(Stream):
    def part(self) -> tuple[int, int]:
        worker = get_worker_info()
        return (worker.id, worker.num_workers) if worker is not None else (0, 1)


class ByBoth(ByRank):
    def part(self) -> tuple[int, int]:
        (rank, ranks), worker = super().part(), get_worker_info()
        return (rank, ranks) if worker is None else (rank + worker.id * ranks, ranks * worker.num_workers)


class Augmented(Stream):
    """Changes samples by random numbers of each kind, some of which differ between ranks."""

    def __iter__(self) -> Iterator[Any]:
        self._own = random.Random()
        yield from super().__iter__()

    def changed(self, sample: Any) -> Any:
        noise = torch.rand(()) + random.random() + self._own.random()
        return (sample[0] + noise, *sample[1:])


class AugmentedPairs(Dataset[Any]):
    def __init__(self) -> None:
        self._data = dataset(SAMPLES)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        inputs, *rest = self._data[index]
        return (inputs + random.Random().random(), *rest)


def make(data: Any, number: int = 0, **options: Any) -> atoll.DataLoader:
    return atoll.DataLoader(data, BATCH, model=wrapped(), settings=UNMEASURED, **workers(number), **options)


@on_layouts("AAA")
def test_datasets_that_divide_themselves_are_refused(rank: int, size: int) -> None:
    own = Subset(dataset(SAMPLES), range(rank, SAMPLES, size))
    ranks = "ranks do not read the same samples: sample 0 on rank 1 always differs from that on rank 0.*divided=True"
    cases: list[tuple[Any, int, str]] = [
        (ByRank(), 0, ranks), (ByRank(), 2, ranks), (own, 0, ranks), (own, 2, ranks),
        (ByWorker(), 2, "sample 0 in worker 1 of rank 0 always differs from that in worker 0.*pass num_workers=1"),
        (ByBoth(), 2, "workers do not read the same samples"),
    ]  # fmt: skip
    for data, number, said in cases:
        options = {"samples": SAMPLES // size} if isinstance(data, Stream) else {}
        with pytest.raises(ValueError, match=said):
            make(data, number, **options)
        if data is not own:
            make(data, number, **options, divided=False)
    with pytest.raises(ValueError, match=r"workers do not read the same samples: .* pass num_workers=1"):
        make(ByBoth(), 2, samples=SAMPLES // size, **OWN)


@on_layouts("AA")
def test_random_changes_are_not_a_division(rank: int, size: int) -> None:
    for number in (0, 2):
        for data in (Augmented(), AugmentedPairs(), ByWorker()):
            if isinstance(data, Augmented | AugmentedPairs) or number == 0:
                make(data, number, samples=SAMPLES)


def train_alone(lengths: list[int], shares: list[int], epochs: int, begin: int = 0, model: nn.Module | None = None
                ) -> nn.Module:  # fmt: skip
    """Trains one process with the samples of all ranks: the share of each, as long as its samples last."""
    model, data, size = model or network(), dataset(sum(lengths)), len(lengths)
    own = [list(range(rank, sum(lengths), size))[: lengths[rank]] for rank in range(size)]
    update = sgd(model.parameters())
    for _ in range(epochs):
        for step in itertools.count(begin):
            taken = [each for mine, share in zip(own, shares, strict=True)
                     for each in mine[step * share : (step + 1) * share]]  # fmt: skip
            if not taken:
                break
            inputs, targets, _ = data[taken]
            update.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            update.step()
        begin = 0
    return model


def part_of(rank: int, size: int, lengths: list[int]) -> Subset[Any]:
    return Subset(dataset(sum(lengths)), list(range(rank, sum(lengths), size))[: lengths[rank]])


@on_layouts("AAA", later("ABA"))
def test_parts_are_trained_on_exactly_once(rank: int, size: int) -> None:
    """The parts have equal or unequal lengths, several batches, and workers."""
    lengths = [SAMPLES // size] * size
    for data, number in ((ByRank(), 0), (ByRank(), 2), (part_of(rank, size, lengths), 0)):
        for options in ({}, {"micro_batch": 3 + rank}):
            given = options | ({"samples": lengths[rank]} if isinstance(data, Stream) else {"shuffle": False})
            loader = make(data, number, **OWN, **given)
            assert len(loader) == 5
            model = loader.planner._model
            assert model is not None
            check_exactly_once(train(model, loader, 2), SAMPLES)
            check_equal_bits(model)
            check_close(model.module, train_alone(lengths, [8] * size, 2), EXACT)


@on_layouts("AAA")
def test_parts_of_unequal_lengths(rank: int, size: int) -> None:
    lengths = [3, 52, 40]
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"policy": "equal"}, [8, 8, 8]),
        ({"policy": "fixed", "shares": [1, 13, 10]}, [1, 13, 10]),
    ]
    for options, shares in cases:
        loader = make(Own(rank, lengths), samples=lengths[rank], divided=True, **options)
        assert len(loader) == max(-(-length // share) for length, share in zip(lengths, shares, strict=True))
        model = loader.planner._model
        assert model is not None
        seen = train(model, loader, 1)
        assert [len(of_epoch) for (of_epoch,) in on_all_ranks(seen)] == lengths
        check_exactly_once(seen, sum(lengths))
        check_equal_bits(model)


class Own(IterableDataset[Any]):
    """Yields the ranks' samples one after another."""

    def __init__(self, rank: int, lengths: list[int]) -> None:
        self._data, begin = dataset(sum(lengths)), sum(lengths[:rank])
        self._range = range(begin, begin + lengths[rank])

    def __iter__(self) -> Iterator[Any]:
        return (self._data[index] for index in self._range)


@on_layouts("AA")
def test_parts_go_on_where_they_were(rank: int, size: int) -> None:
    lengths = [30, 44]
    seen: list[int] = []
    loader = make(Own(rank, lengths), samples=lengths[rank], **OWN)
    for batch in loader:
        seen += batch[2].tolist()
        if loader.state_dict()["steps"] == 2:
            break
    state = loader.state_dict()
    assert len(set(map(str, on_all_ranks(state)))) == 1
    again = make(Own(rank, lengths), samples=lengths[rank], **OWN)
    again.load_state_dict(state)
    for batch in again:
        seen += batch[2].tolist() if again.weight else []
    check_exactly_once([seen], sum(lengths))
    other = make(Own(rank, lengths), samples=lengths[rank], **OWN)
    other.load_state_dict(state | {"position": 7})
    with pytest.raises(
        ValueError, match=r"no step of these ranks' own samples starts at the state's position 7: .*same nu"
    ):
        next(iter(other))


@on_layouts("AA")
def test_what_divided_datasets_cannot_have(rank: int, size: int) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"divided": True}, 'policy "minmax" gives fast ranks more .*pass policy="equal"'),
        ({"divided": True, "policy": "equal", "settings": atoll.training.Settings(replay=[])},
         r"Settings\(replay=...\) gives"),
        ({"divided": True, "policy": "fixed", "shares": [0, 1], "settings": atoll.training.Settings(least=0)},
         "rank 0 has its own samples but no share"),
        ({"divided": [True, None][rank], "policy": "equal"}, 'dataset differs: "divided" on rank 0; 120 on rank 1'),
        ({"dataset": dataset(BATCH + rank)}, 'dataset differs: 24 on rank 0; 25 on rank 1. .* divided=True and policy'),
    ]  # fmt: skip
    for options, said in cases:
        given: dict[str, Any] = {"dataset": dataset(SAMPLES), "settings": UNMEASURED} | options
        with pytest.raises(ValueError, match=said):
            atoll.DataLoader(given.pop("dataset"), BATCH, model=wrapped(), **given)
    with pytest.raises(ValueError, match="drop_last=True leaves no steps"):
        make(Own(rank, [5, 40]), samples=[5, 40][rank], drop_last=True, **OWN)
