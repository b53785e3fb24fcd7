# SPDX-License-Identifier: Apache-2.0
"""Reads samples outside the training, such as those to measure with, in a separate process that ends with its rank."""

import contextlib
import logging
import multiprocessing
import os
import pickle
import select
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, default_collate

from atoll.loading.source import Source
from atoll.profiling.isolation import same_random_numbers
from atoll.profiling.python_state import PythonState

log = logging.getLogger("atoll.plan")

DEADLINE_S = 120  # if the user sets no timeout and has no workers
OF_WORKERS = ("multiprocessing_context", "timeout")


def ends_with_rank(then: Callable[[int], None] | None) -> Callable[[int], None]:
    """Returns a `worker_init_fn` of torch.utils.data.DataLoader. Its workers end as soon as this process ends, even if
    that is killed, and whatever they are doing. PyTorch's workers check only between two batches, every 5 s; they still
    do so if the system cannot report the end of a process. `then`: the user's own worker_init_fn."""
    return partial(_begin_worker, os.getpid(), then)


def _begin_worker(rank: int, then: Callable[[int], None] | None, worker: int) -> None:
    try:
        handle = os.pidfd_open(rank)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        pass
    else:
        threading.Thread(target=_end_after, args=(handle,), name="atoll-rank", daemon=True).start()
    if then is not None:
        then(worker)


def _end_after(process: int) -> None:
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.poll()
    os._exit(1)


class Reading:
    """Reads the dataset as the training's loader does, without side effects in this process: files that it opens, its
    counters and random draws belong to a process that ends with `close`. That process is forked unless the user's
    workers use another start method, so that no dataset is copied.

    If that process cannot read what this one can, samples are read here, with a warning, and the dataset's Python state
    is restored. Datasets of tensors are always read here. Not thread-safe."""

    def __init__(self, source: Source, options: dict[str, Any], workers: int = 1, seed: int = 0) -> None:
        """`options`: the user's options of torch.utils.data.DataLoader. `workers`: the number of processes, each of
        which reads every request. `seed`: of their random numbers."""
        self.source, self.options, self._workers, self._seed = source, options, workers, seed
        self._collate = options.get("collate_fn") or default_collate
        self._is_here = _is_plain(source.dataset) and self._collate is default_collate
        self._keys: list[Any] = []
        self._loader: DataLoader[Any] | None = None

    def batch(self, size: int, first: int = 0) -> Any:
        """Returns `size` collated samples from sample `first` on, wrapping around if the dataset is too short."""
        return self.batches(size, first)[0]

    def batches(self, size: int, first: int = 0) -> list[Any]:
        """Returns the same batch as read by each process; a single one if it is read here."""
        places = [(first + index) % len(self.source.dataset) for index in range(size)]
        keys = self.source.keys(places)
        if self._is_here:
            return [self._read_here(keys)]
        try:
            return self._read_elsewhere(keys)
        except Exception as error:
            self.close()
            if self.options.get("num_workers"):
                raise  # the training could not read them either
            batch = self._read_here(keys)  # may raise the dataset's own error
            log.warning(
                "samples for checks and measurements are read in the training's own process, because a separate one "
                "failed (%s): the dataset's state is restored as far as Python exposes it",
                f"{type(error).__name__}: {error}".partition("\n")[0],
            )  # fmt: skip
            self._is_here = True
            return [batch]

    def close(self) -> None:
        """Ends the processes."""
        loader, self._loader = self._loader, None
        if (reader := getattr(loader, "_iterator", None)) is not None:
            reader._shutdown_workers()  # explicitly, because the traceback of an error may keep it alive

    def __iter__(self) -> Iterator[list[Any]]:
        """Yields the request once for each process, as a batch sampler."""
        yield from [self._keys] * self._workers

    def __len__(self) -> int:
        return self._workers

    def _read_elsewhere(self, keys: list[Any]) -> list[Any]:
        self._keys = keys
        if self._loader is None:
            self._loader = self._torch_loader()
        return [pickle.loads(packed) for packed in self._loader]

    def _torch_loader(self) -> "DataLoader[Any]":
        options = {name: self.options[name] for name in OF_WORKERS if name in self.options}
        if not self.options.get("num_workers"):
            can_fork = "fork" in multiprocessing.get_all_start_methods()
            options = {"timeout": DEADLINE_S, "multiprocessing_context": "fork" if can_fork else None}
        return DataLoader(
            self.source.dataset, batch_sampler=self, num_workers=self._workers,
            collate_fn=partial(_packed, self._collate),
            worker_init_fn=ends_with_rank(self.options.get("worker_init_fn")), persistent_workers=True,
            generator=torch.Generator().manual_seed(self._seed), **options,
        )  # fmt: skip

    def _read_here(self, keys: list[Any]) -> Any:
        dataset = self.source.apart()
        state = PythonState(() if _is_plain(dataset) else (self.source.given, self._collate))
        with same_random_numbers(), contextlib.ExitStack() as stack:
            stack.callback(state.restore)
            return self._collate([dataset[key] for key in keys])


def _packed(collate: Callable[[list[Any]], Any], samples: list[Any]) -> bytes:
    """Collates samples as bytes to send: shared memory may be small, and belongs to the training."""
    return pickle.dumps(collate(samples), protocol=pickle.HIGHEST_PROTOCOL)


def _is_plain(dataset: Any) -> bool:
    """Returns whether reading the dataset has no side effects."""
    if type(dataset) is Subset:
        return _is_plain(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return all(map(_is_plain, dataset.datasets))
    return type(dataset) is TensorDataset or (type(dataset) in (list, tuple, range))
