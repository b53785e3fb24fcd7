# SPDX-License-Identifier: Apache-2.0
"""Samples for measurements are read separately: files, counters and random numbers of the training's dataset are not
affected."""

import itertools
import multiprocessing
import os
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, RandomSampler, get_worker_info

import atoll
from atoll.loading import measuring, reading
from client_ranks import on_layouts
from launching import eventually
from support import Ranks, later, warnings_of_plans
from test_loader import dataset, on_all_ranks, wrapped
from training import FEATURES
from uneven_training import workers

RECORDS, BATCH = 960, 48
RECORD = 16  # bytes


def sample(number: int) -> tuple[torch.Tensor, int]:
    return torch.full((FEATURES,), float(number), dtype=torch.float64), number


class Kept(Dataset[Any]):
    """A dataset that opens its file with the first sample."""

    def __init__(self, folder: Path) -> None:
        self.path, self.held = folder / type(self).__name__, None
        if not self.path.exists():
            self.write()

    def write(self) -> None:
        self.path.write_text("".join(f"{number:0{RECORD - 1}}\n" for number in range(RECORDS)))

    def __len__(self) -> int:
        return RECORDS

    def state(self) -> Any:
        return self.held

    def __getitem__(self, index: int) -> Any:
        if self.held is None:
            self.held = self.open()
        return sample(self.read(index))

    def open(self) -> Any:
        return self.path.open()

    def read(self, index: int) -> int:
        self.held.seek(index * RECORD)
        return int(self.held.read(RECORD))


class Unbuffered(Kept):
    """A dataset whose workers would share the position of one open file."""

    def open(self) -> Any:
        return os.open(self.path, os.O_RDONLY)

    def read(self, index: int) -> int:
        os.lseek(self.held, index * RECORD, os.SEEK_SET)
        return int(b"".join(os.read(self.held, 1) for _ in range(RECORD)))


class Mapped(Kept):
    def write(self) -> None:
        numpy.arange(RECORDS).tofile(self.path)

    def open(self) -> Any:
        return numpy.memmap(self.path, dtype=numpy.int64)

    def read(self, index: int) -> int:
        return int(self.held[index])


class Database(Kept):
    def write(self) -> None:
        with sqlite3.connect(self.path) as made:
            made.execute("create table records (id integer primary key, number integer)")
            made.executemany("insert into records values (?, ?)", [(number, number) for number in range(RECORDS)])

    def open(self) -> Any:
        return sqlite3.connect(self.path)

    def read(self, index: int) -> int:
        return self.held.execute("select number from records where id = ?", [index]).fetchone()[0]


class Counting(Kept):
    """A dataset whose samples depend on the number of earlier ones."""

    def __init__(self, folder: Path) -> None:
        self.generator, self.python = numpy.random.default_rng(5), random.Random(6)
        super().__init__(folder)
        self.count, self.cache = 0, {}

    def state(self) -> Any:
        return self.count, dict(self.cache), self.generator.bit_generator.state, self.python.getstate()

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        self.cache[index] = self.count
        inputs, number = sample(index)
        return inputs * (self.count + self.generator.random() + self.python.random()), number


KINDS: list[type[Kept]] = [Kept, Unbuffered, Mapped, Database, Counting]


def seen(data: Kept, measure: bool, number: int) -> list[Any]:
    before, files = repr(data.state()), len(os.listdir("/proc/self/fd"))
    settings = atoll.training.Settings(measure=measure, reuse=False, replay=[{"step": 0, "batches": [30, 18]}])
    loader = atoll.DataLoader(data, BATCH, model=wrapped(), settings=settings, **workers(number))
    assert repr(data.state()) == before
    # At most a new group's socket; a thread soon closes the pipes of the process that has read.
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 1, "what was opened is closed again")
    assert not multiprocessing.active_children()
    return [(inputs.tolist(), numbers.tolist()) for inputs, numbers in loader]


def each_is_read_right(rank: int, folder: str, number: int, kinds: list[type[Kept]]) -> None:
    for kind in kinds:
        unmeasured, measured = (seen(kind(Path(folder)), measure, number) for measure in (False, True))
        assert measured == unmeasured, kind.__name__
        numbers = [each for _, of_batch in measured for each in of_batch]
        assert kind is Counting or numbers == [int(row[0]) for rows, _ in measured for row in rows], kind.__name__
        assert sorted(itertools.chain(*on_all_ranks(numbers))) == list(range(RECORDS)), kind.__name__


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
@pytest.mark.parametrize(("number", "kinds"), [(0, KINDS), (2, [Unbuffered, Database]), later(2, KINDS)])
def test_datasets_are_as_they_were(ranks: Ranks, tmp_path: Path, number: int, kinds: list[type[Kept]]) -> None:
    for kind in kinds:
        kind(tmp_path)
    ranks.run(each_is_read_right, str(tmp_path), number, kinds)


class OnlyHere(Counting):
    """A dataset whose samples are on an accelerator, or whose handles another process cannot use."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.process = os.getpid()

    def __getitem__(self, index: int) -> Any:
        if os.getpid() != self.process:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return super().__getitem__(index)


def only_here(rank: int, folder: str) -> None:
    data = OnlyHere(Path(folder))
    before = repr(data.state())
    with warnings_of_plans() as said:
        atoll.DataLoader(data, BATCH, model=wrapped(), settings=atoll.training.Settings(reuse=False))
    assert repr(data.state()) == before
    (text,) = [text for text in said if "and measurements are read" in text]
    assert "(RuntimeError: " in text
    assert "is restored as far as Python exposes it" in text


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_where_no_other_process_can_read(ranks: Ranks, tmp_path: Path) -> None:
    OnlyHere(tmp_path)
    ranks.run(only_here, str(tmp_path))


class Broken(Kept):
    def read(self, index: int) -> int:
        raise KeyError(f"record {index} is broken")


def broken(rank: int, folder: str) -> None:
    for number in (0, 1):
        with pytest.raises(KeyError, match="is broken"):
            atoll.DataLoader(Broken(Path(folder)), BATCH, model=wrapped(),
                             settings=atoll.training.Settings(reuse=False), **workers(number))  # fmt: skip
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_a_sample_that_cannot_be_read_is_the_datasets_error(ranks: Ranks, tmp_path: Path) -> None:
    Broken(tmp_path)
    ranks.run(broken, str(tmp_path))


class Once(IterableDataset[Any]):
    """A stream that can be iterated over only once."""

    def __init__(self) -> None:
        self._left = iter(range(RECORDS))

    def __iter__(self) -> Iterator[Any]:
        return map(sample, self._left)


@on_layouts("AA")
def test_a_stream_that_can_be_read_once_is_not_read_here(rank: int, size: int) -> None:
    settings = atoll.training.Settings(reuse=False, replay=[{"step": 0, "batches": [30, 18]}])
    loader = atoll.DataLoader(Once(), BATCH, model=wrapped(), samples=RECORDS, settings=settings)
    mine = [number for _, numbers in loader for number in numbers.tolist()]
    assert sorted(itertools.chain(*on_all_ranks(mine))) == list(range(RECORDS))


class Initialised(Kept):
    """A dataset that a worker_init_fn prepares."""

    def __getitem__(self, index: int) -> Any:
        assert self.held is not None
        return super().__getitem__(index)


def get_ready(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.held = info.dataset.open()


def initialised(rank: int, folder: str) -> None:
    loader = atoll.DataLoader(Initialised(Path(folder)), BATCH, model=wrapped(), worker_init_fn=get_ready,
                              settings=atoll.training.Settings(reuse=False), **workers(1))  # fmt: skip
    assert loader.planner.facts[0].profile is not None


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_workers_are_initialised_as_the_users(ranks: Ranks, tmp_path: Path) -> None:
    Initialised(tmp_path)
    ranks.run(initialised, str(tmp_path))


@on_layouts("AA")
def test_tensors_are_read_without_a_process(rank: int, size: int) -> None:
    profiling = mock.patch.object(measuring, "profile_device", wraps=measuring.profile_device)
    with mock.patch.object(reading, "DataLoader", side_effect=AssertionError), profiling as profiled:
        atoll.DataLoader(dataset(), BATCH, model=wrapped(), settings=atoll.training.Settings(reuse=False))
    assert profiled.called


@on_layouts("AA")
def test_a_sampler_is_asked_once_for_each_epoch(rank: int, size: int) -> None:
    """As far as the sampler can tell: it draws the first epoch's order again."""
    drawn = RandomSampler(range(RECORDS), generator=torch.Generator().manual_seed(3))
    loader = atoll.DataLoader(dataset(RECORDS), BATCH, model=wrapped(), policy="equal", sampler=drawn)
    own = RandomSampler(range(RECORDS), generator=torch.Generator().manual_seed(3))
    for _ in range(2):
        seen = on_all_ranks([numbers.tolist() for _, _, numbers in loader])
        assert [number for step in zip(*seen, strict=True) for part in step for number in part] == list(own)
    loader = atoll.DataLoader(dataset(RECORDS), BATCH, model=wrapped(), policy="equal", sampler=iter(range(RECORDS)))
    with pytest.raises(ValueError, match="the sampler gives no samples: pass one that does, at every iteration"):
        list(loader)
