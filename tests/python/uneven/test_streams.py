# SPDX-License-Identifier: Apache-2.0
"""Iterable datasets: the processes that read them, their iterators, and how they skip the samples of others."""

import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import atoll
from atoll.loading import measuring
from atoll.loading.source import Stream
from support import Ranks
from test_loader import on_all_ranks, wrapped
from training import FEATURES

LINES = 6000  # many times what a file's buffer holds
BATCH = 240


class Lines(IterableDataset[Any]):
    """The lines of a file, each a sample and its number."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Any]:
        with open(self._path) as file:
            for line in file:
                yield torch.full((FEATURES,), float(line), dtype=torch.float64), int(line)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number:08}\n" for number in range(LINES)))
    return path


def each_line_once(rank: int, path: str, start: str, number: int, profiles: list[str]) -> None:
    for profile in profiles:
        settings = atoll.training.Settings(reuse=profile == "cached", update_interval=0)
        with mock.patch.object(measuring, "profile_device", wraps=measuring.profile_device) as profiled:
            loader = atoll.DataLoader(Lines(path), BATCH, model=wrapped(), samples=LINES, settings=settings,
                                      num_workers=number, multiprocessing_context=start)  # fmt: skip
        assert profiled.called == (profile == "fresh")
        seen = [line for _, lines in loader if loader.weight for line in lines.tolist()]
        assert sorted(itertools.chain(*on_all_ranks(seen))) == list(range(LINES))


@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_workers_do_not_go_on_with_what_measured(ranks: Ranks, file: Path) -> None:
    ranks.run(each_line_once, str(file), "fork", 3, ["fresh", "cached"])


@pytest.mark.verify
@pytest.mark.parametrize("ranks", ["AA"], indirect=True)
def test_workers_that_are_started_again(ranks: Ranks, file: Path) -> None:
    ranks.run(each_line_once, str(file), "spawn", 1, ["fresh"])


def test_forked_workers_do_not_go_on_with_what_was_read(file: Path) -> None:
    stream = Stream(Lines(str(file)), LINES)
    assert stream[0, 0][1] == 0
    keys = [[(0, position)] for position in range(1, LINES, 7)]
    loader = DataLoader(stream, batch_sampler=keys, num_workers=2, multiprocessing_context="fork", collate_fn=list)
    assert [number for ((_, number),) in loader] == list(range(1, LINES, 7))


class Counted(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(9)


def test_a_copy_reads_from_the_start() -> None:
    stream = Stream(Counted(), 9)
    assert stream[0, 3] == 3
    copy = pickle.loads(pickle.dumps(stream))
    assert [copy[0, 4], stream[0, 4], stream.reopened()[0, 2], stream[0, 5]] == [4, 4, 2, 5]


class Skips(Counted):
    """Has the skip() of Hugging Face's datasets."""

    def skip(self, n: int) -> "Skips":
        raise AssertionError(f"gives another dataset, without {n} samples")


class SkipsSamples(Counted):
    def __init__(self) -> None:
        self.skipped: list[int] = []

    def skip_samples(self, iterator: Iterator[int], count: int) -> None:
        self.skipped.append(count)
        next(itertools.islice(iterator, count - 1, count))


def test_how_samples_are_passed_over() -> None:
    for dataset in (Counted(), Skips(), SkipsSamples()):
        stream = Stream(dataset, 9)
        assert [stream[0, position] for position in (2, 3, 7, 1)] == [2, 3, 7, 1]
    assert dataset.skipped == [2, 3, 1]
