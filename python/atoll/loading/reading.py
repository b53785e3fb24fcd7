# SPDX-License-Identifier: Apache-2.0
"""Samples that are not the training's own, such as those to measure with: read by a process of their own."""

import contextlib
import logging
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate

from atoll.loading.source import Source
from atoll.loading.workers import EndsWithRank
from atoll.profiling.isolation import same_random_numbers
from atoll.profiling.python_state import PythonState

log = logging.getLogger("atoll.plan")

DEADLINE_S = 120  # where the user gives no timeout and has no workers
OF_WORKERS = ("multiprocessing_context", "timeout")


class Reading:
    """Reads the dataset as the training's loader does, and leaves nothing of it here: the files that it opens, what it
    counts and draws, belong to a process that ends with `close`. It is forked, where the user's workers are not
    started in another way, so that no dataset is copied.

    Where that process cannot read what this one can, samples are read here, with a warning, and the state that Python
    holds in the dataset is put back. Datasets of tensors alone are read here in any case. One thread at a time."""

    def __init__(self, source: Source, options: dict[str, Any], workers: int = 1, seed: int = 0) -> None:
        """`options`: those of torch.utils.data.DataLoader that the user gave. `workers`: processes, each of which reads
        what is asked for. `seed`: of their random numbers."""
        self._source, self._options, self._workers, self._seed = source, options, workers, seed
        self._collate = options.get("collate_fn") or default_collate
        self._is_here = _is_plain(source.dataset) and self._collate is default_collate
        self._keys: list[Any] = []
        self._loader: DataLoader[Any] | None = None

    def batch(self, size: int, first: int = 0) -> Any:
        """`size` collated samples, from one of the dataset's first on, again from the beginning where it is too
        short."""
        return self.batches(size, first)[0]

    def batches(self, size: int, first: int = 0) -> list[Any]:
        """The same as each process reads it; one, where it is read here."""
        places = [(first + index) % len(self._source.dataset) for index in range(size)]
        keys = self._source.keys(places)
        if self._is_here:
            return [self._read_here(keys)]
        try:
            return self._read_elsewhere(keys)
        except Exception as error:
            self.close()
            if self._options.get("num_workers"):
                raise  # the training could not read them either
            batch = self._read_here(keys)  # may raise what the dataset itself does
            log.warning(
                "samples to look at and to measure with are read in the training's own process, because another one "
                "could not (%s): what the dataset opens or counts is put back as far as Python shows it", _short(error),
            )  # fmt: skip
            self._is_here = True
            return [batch]

    def close(self) -> None:
        """Ends the processes."""
        loader, self._loader = self._loader, None
        if (reader := getattr(loader, "_iterator", None)) is not None:
            reader._shutdown_workers()  # now: the traceback of an error may hold it

    def __iter__(self) -> Iterator[list[Any]]:
        """A batch sampler: what is asked for, once for each process."""
        yield from [self._keys] * self._workers

    def __len__(self) -> int:
        return self._workers

    def _read_elsewhere(self, keys: list[Any]) -> list[Any]:
        self._keys = keys
        if self._loader is None:
            self._loader = self._torch_loader()
        return [pickle.loads(packed) for packed in self._loader]

    def _torch_loader(self) -> "DataLoader[Any]":
        options = {name: self._options[name] for name in OF_WORKERS if name in self._options}
        if not self._options.get("num_workers"):
            can_fork = "fork" in multiprocessing.get_all_start_methods()
            options = {"timeout": DEADLINE_S, "multiprocessing_context": "fork" if can_fork else None}
        return DataLoader(
            self._source.dataset, batch_sampler=self, num_workers=self._workers, collate_fn=_Packed(self._collate),
            worker_init_fn=EndsWithRank(self._options.get("worker_init_fn")), persistent_workers=True,
            generator=torch.Generator().manual_seed(self._seed), **options,
        )  # fmt: skip

    def _read_here(self, keys: list[Any]) -> Any:
        dataset = self._source.apart()
        state = PythonState(() if _is_plain(dataset) else (self._source.given, self._collate))
        with same_random_numbers(), contextlib.ExitStack() as stack:
            stack.callback(state.restore)
            return self._collate([dataset[key] for key in keys])


class _Packed:
    """Sends what is made as bytes: shared memory may be small, and is the training's."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> bytes:
        return pickle.dumps(self._collate(samples), protocol=pickle.HIGHEST_PROTOCOL)


def _is_plain(dataset: Any) -> bool:
    """Whether reading it changes nothing."""
    if type(dataset) is Subset:
        return _is_plain(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(_is_plain, dataset.datasets))
    return type(dataset) is TensorDataset or (type(dataset) in (list, tuple, range))


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
