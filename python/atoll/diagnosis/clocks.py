# SPDX-License-Identifier: Apache-2.0
"""A common time for all ranks: their clocks converted to that of the lowest rank, with an error bound."""

import heapq
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import count

from atoll.diagnosis.records import Record, Sample

_Step = tuple[int, Sequence[Sample]]  # sign, and the samples of the two clocks


class Clocks:
    """Converts times of the ranks' clocks. Processes on one machine share a clock. Other processes have compared their
    clocks with that of the first rank of a group, which may have done so with another one; of several chains the one
    with the smallest error is used."""

    def __init__(self, records: Iterable[Record]) -> None:
        records = list(records)
        self.reference = min(record.rank for record in records)
        self._chains: dict[int, list[_Step]] = {}
        self._errors: dict[int, int] = {}
        self._find_chains(_edges(records))

    def common(self, rank: int, time: int) -> int:
        """Converts `time` of this rank's clock to the reference clock; unchanged if the rank's clock is unknown."""
        for sign, samples in self._chains.get(rank, ()):
            time += sign * offset_at(samples, time)
        return time

    def error(self, rank: int) -> int | None:
        """Returns the error bound of common() in microseconds; None if it is unknown."""
        return self._errors.get(rank)

    def _find_chains(self, edges: dict[int, list[tuple[int, int, _Step]]]) -> None:
        """Finds the chain from each rank to the reference with the smallest error, by Dijkstra's algorithm."""
        order = count()
        queue: list[tuple[int, int, int, list[_Step]]] = [(0, next(order), self.reference, [])]
        while queue:
            error, _, rank, chain = heapq.heappop(queue)
            if rank in self._errors:
                continue
            self._errors[rank], self._chains[rank] = error, [step for step in chain if step[1]]
            for other, more, step in edges.get(rank, []):
                if other not in self._errors:
                    heapq.heappush(queue, (error + more, next(order), other, [step, *chain]))


def offset_at(samples: Sequence[Sample], time: int) -> int:
    """Returns the offset at `time`: linear between two samples, constant before the first and after the last."""
    after = bisect([sample.at for sample in samples], time)
    if after == 0:
        return samples[0].offset
    if after == len(samples):
        return samples[-1].offset
    low, high = samples[after - 1], samples[after]
    share = (time - low.at) / max(1, high.at - low.at)
    return round(low.offset + share * (high.offset - low.offset))


def _edges(records: list[Record]) -> dict[int, list[tuple[int, int, _Step]]]:
    """Returns for each rank the other ranks, the error, and the step that converts the other's time to this rank's."""
    edges: dict[int, list[tuple[int, int, _Step]]] = {}
    homes: dict[str, int] = {}
    for record in sorted(records, key=lambda record: record.rank):
        home = homes.setdefault(record.clock or f"rank {record.rank}", record.rank)
        if home != record.rank:
            edges.setdefault(home, []).append((record.rank, 0, (1, ())))
            edges.setdefault(record.rank, []).append((home, 0, (1, ())))
        if record.samples and record.members[0] != record.rank:
            first, error = record.members[0], max(sample.error for sample in record.samples)
            edges.setdefault(first, []).append((record.rank, error, (1, record.samples)))
            # The samples have the other clock's times, which differ only by the offset.
            turned = tuple(Sample(each.at + each.offset, each.offset, each.error) for each in record.samples)
            edges.setdefault(record.rank, []).append((first, error, (-1, turned)))
    return edges
