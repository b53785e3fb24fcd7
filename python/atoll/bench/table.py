# SPDX-License-Identifier: Apache-2.0
"""Results of one size, and their table in the format of nccl-tests."""

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.bench.block import Block, quantile


@dataclass
class Timing:
    """One backend at one size; times in seconds per call, the slowest rank's."""

    backend: str
    rounds: list[float]  # each block's mean
    p50: float  # over single calls of all ranks
    p99: float
    wrong: int

    @property
    def seconds(self) -> float:
        return quantile(self.rounds, 0.5)

    @classmethod
    def of_blocks(cls, backend: str, blocks: Sequence[Sequence[Block]], messages_per_call: int) -> "Timing":
        """`blocks[rank][round]`."""
        rounds = [
            max(block.seconds / block.calls for block in at_once) / messages_per_call
            for at_once in zip(*blocks, strict=True)
        ]
        calls = [ns * 1e-9 / messages_per_call for of_rank in blocks for block in of_rank for ns in block.call_ns]
        wrong = sum(block.wrong for of_rank in blocks for block in of_rank)
        return cls(backend, rounds, quantile(calls, 0.5), quantile(calls, 0.99), wrong)


@dataclass
class Row:
    bytes: int
    count: int
    dtype: str
    reduction: str  # "none" for operations that reduce nothing
    bus_factor: float
    timings: list[Timing]

    @property
    def wrong(self) -> int:
        return sum(timing.wrong for timing in self.timings)

    def ratios(self) -> list[float]:
        """Returns by round how many times faster than the second backend the first one was."""
        first, second = self.timings
        return [theirs / ours for ours, theirs in zip(first.rounds, second.rounds, strict=True)]

    def as_json(self) -> dict[str, object]:
        row: dict[str, object] = {
            "bytes": self.bytes, "count": self.count, "dtype": self.dtype, "reduction": self.reduction,
            "wrong": self.wrong,
        }  # fmt: skip
        for timing in self.timings:
            bandwidth = self.bytes / timing.seconds * 1e-9
            row[timing.backend] = {
                "us": timing.seconds * 1e6, "call_p50_us": timing.p50 * 1e6, "call_p99_us": timing.p99 * 1e6,
                "algbw_gb_s": bandwidth, "busbw_gb_s": bandwidth * self.bus_factor, "wrong": timing.wrong,
                "rounds_us": [seconds * 1e6 for seconds in timing.rounds],
            }  # fmt: skip
        if len(self.timings) == 2:
            ratios = self.ratios()
            row["ratio"] = {name: quantile(ratios, share) for name, share in SPREAD.items()}
        return row


SPREAD = {"median": 0.5, "p10": 0.1, "p90": 0.9}
_WIDTHS = (12, 12, 9, 8, 11, 9, 9, 8)
_TITLES = ("size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong")
_UNITS = ("(B)", "(elements)", "", "", "(us)", "(GB/s)", "(GB/s)", "")


def heading(against: str) -> list[str]:
    lines = []
    for titles, extra in ((_TITLES, (against, "ratio", "p10", "p90")), (_UNITS, ("(us)", "", "", ""))):
        line = _line(titles)
        lines.append("#" + (line + _extra(extra) if against else line)[1:])
    return lines


def line_of(row: Row) -> str:
    first = row.timings[0]
    bandwidth = row.bytes / first.seconds * 1e-9
    cells = [str(row.bytes), str(row.count), row.dtype, row.reduction, f"{first.seconds * 1e6:.2f}"]
    cells += [f"{bandwidth:.2f}", f"{bandwidth * row.bus_factor:.2f}", str(row.wrong)]
    if len(row.timings) == 1:
        return _line(cells)
    ratios = row.ratios()
    spread = [f"{quantile(ratios, share):.2f}x" for share in SPREAD.values()]
    return _line(cells) + _extra([f"{row.timings[1].seconds * 1e6:.2f}", *spread])


def _line(cells: Sequence[str]) -> str:
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, _WIDTHS, strict=True))


def _extra(cells: Sequence[str]) -> str:
    return f"{cells[0]:>12}" + "".join(f"{cell:>9}" for cell in cells[1:])
