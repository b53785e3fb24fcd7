# SPDX-License-Identifier: Apache-2.0
"""One time for all ranks: their clocks brought to that of the lowest rank, with a bound for what may be wrong."""

import heapq
from bisect import bisect
from collections.abc import Iterable, Sequence
from itertools import count

from atoll.diagnosis.records import Record, Sample

_Step = tuple[int, Sequence[Sample]]  # sign, and what is known of the two clocks


class Clocks:
    """Processes on one machine share a clock. Others have compared theirs with the first rank of a group, which may
    have done so with another one; of several chains the one with the smallest error counts."""

    def __init__(self, records: Iterable[Record]) -> None:
        records = list(records)
        self.reference = min(record.rank for record in records)
        self._chains: dict[int, list[_Step]] = {}
        self._errors: dict[int, int] = {}
        self._find_chains(_edges(records))

    def common(self, rank: int, time: int) -> int:
        """`time` of this rank's clock by the reference's; unchanged where nothing is known of it."""
        for sign, samples in self._chains.get(rank, ()):
            time += sign * offset_at(samples, time)
        return time

    def error(self, rank: int) -> int | None:
        """By how many microseconds common() may be wrong; None: nobody knows."""
        return self._errors.get(rank)

    def _find_chains(self, edges: dict[int, list[tuple[int, int, _Step]]]) -> None:
        """Dijkstra's, by error, from the reference outwards; chains lead from each rank to the reference."""
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
    """Between two samples the offset is taken to have changed steadily, before the first and after the last not."""
    after = bisect([sample.at for sample in samples], time)
    if after == 0:
        return samples[0].offset
    if after == len(samples):
        return samples[-1].offset
    low, high = samples[after - 1], samples[after]
    share = (time - low.at) / max(1, high.at - low.at)
    return round(low.offset + share * (high.offset - low.offset))


def _edges(records: list[Record]) -> dict[int, list[tuple[int, int, _Step]]]:
    """From a rank to others: who, the error, and the step that brings the other's time to this rank's."""
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
            # The samples are by the other clock's times, which are the same but for the offset.
            turned = tuple(Sample(each.at + each.offset, each.offset, each.error) for each in record.samples)
            edges.setdefault(record.rank, []).append((first, error, (-1, turned)))
    return edges
