# SPDX-License-Identifier: Apache-2.0
"""Checks that ranks, and the workers of each rank, read the same samples. If a dataset divided itself, ranks would
train on a share of a share."""

import contextlib
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from atoll.loading.exchange import Exchange
from atoll.loading.reading import Reading

log = logging.getLogger("atoll.plan")

SAMPLES_COMPARED = 4  # samples
Row = list[str]  # hashes of the first samples, as one worker of one rank reads them

OF_RANKS = (
    "ranks do not read the same samples: sample {place} on rank {rank} always differs from that on rank 0. "
    "atoll.DataLoader gives each rank its share of a dataset that every rank holds whole: disable the dataset's own "
    "division (webdataset: nodesplitter=None; datasets: no split_dataset_by_node; no files[rank::ranks]). Or pass "
    'divided=True and policy="equal" if each rank is to train on its own dataset; divided=False if all ranks have the '
    "same samples and only transform them differently"
)
OF_WORKERS = (
    "workers do not read the same samples: sample {place} in worker {worker} of rank {rank} always differs from that "
    "in worker 0. The loader gives each worker its share: disable the dataset's own division (webdataset: "
    "workersplitter=None), or pass num_workers=1, as for streams of the datasets library, which always divide "
    "themselves; divided=False if workers only transform the same samples differently"
)


def check_alike(exchange: Exchange, reading: Reading, *, divided: bool | None) -> None:
    """Raises ValueError on all ranks if some ranks read other samples than others, although each reads the same samples
    when it restarts. If rereading gives other samples, as with random transforms, the check is inconclusive. With
    `divided` only a rank's own workers are compared. Collective."""
    first = _rows_of_all_ranks(exchange, reading)
    problem = "" if first is None else _difference(first, bool(divided))
    if problem and _rows_of_all_ranks(exchange, reading, again=True) == first:
        raise ValueError(f"atoll.DataLoader: {problem}")
    if problem and exchange.rank == 0:
        log.info("whether all ranks and workers read the same samples is unknown: samples change when read again")


def _rows_of_all_ranks(exchange: Exchange, reading: Reading, again: bool = False) -> list[list[Row]] | None:
    """Returns the rows by rank and worker; None if some rank cannot read the samples, in which case the training will
    raise the error. `again`: reads with other seeds, alike on all ranks, in new processes."""
    source, options = reading.source, reading.options
    workers = options.get("num_workers", 0) if source.is_stream else 0
    own: list[tuple[str, ...]] | None = None
    with contextlib.ExitStack() as stack:
        if again or workers > 1:
            fresh = Reading(source, options, max(1, workers), seed=int(again))
            reading = stack.enter_context(contextlib.closing(fresh))
        try:
            read = [reading.batches(1, place) for place in range(min(SAMPLES_COMPARED, len(source.dataset)))]
            own = list(zip(*(map(hash_of, batches) for batches in read), strict=True))
        except Exception as error:
            log.info("whether all ranks and workers read the same samples is unknown: %s", error)
    everyone = exchange.facts(own)
    return None if None in everyone else everyone


def _difference(everyone: list[list[Row]], only_workers: bool) -> str:
    """Describes the difference; "" if there is none."""
    for rank, rows in enumerate(everyone):
        for worker, row in enumerate(rows):
            if row != rows[0]:
                return OF_WORKERS.format(place=_first_unlike(row, rows[0]), worker=worker, rank=rank)
        if rows[0] != everyone[0][0] and not only_workers:
            return OF_RANKS.format(place=_first_unlike(rows[0], everyone[0][0]), rank=rank)
    return ""


def _first_unlike(row: Row, other: Row) -> int:
    return next(place for place, (a, b) in enumerate(zip(row, other, strict=True)) if a != b)


def hash_of(value: Any) -> str:
    """Returns a hash that is equal on all machines for equal values of usual types. Of others only the type counts."""
    found = hashlib.blake2b(digest_size=12)
    _add(found, value)
    return found.hexdigest()


def _add(found: Any, value: Any) -> None:
    found.update(f"{type(value).__name__}:".encode())
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        found.update(f"{value.dtype}{list(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, numpy.ndarray) and value.dtype != object:
        found.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif isinstance(value, Mapping):
        for name, held in value.items():
            _add(found, name)
            _add(found, held)
    elif isinstance(value, list | tuple | numpy.ndarray):
        found.update(str(len(value)).encode())
        for held in value:
            _add(found, held)
    elif isinstance(value, str | bytes | int | float | complex | numpy.generic | None):
        found.update(repr(value).encode())
