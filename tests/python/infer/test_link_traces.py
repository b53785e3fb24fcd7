# SPDX-License-Identifier: Apache-2.0
"""Recorded links: their files, when bytes have been carried, and how links are recorded."""

import math
import random
from pathlib import Path

import pytest

from atoll.infer.planning import rates
from atoll.infer.planning.trace import Carrier, Trace, read, record

DATA = Path(__file__).resolve().parents[2] / "data" / "intradp"


def test_a_trace_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    trace = Trace(0.1, [1e6, 0.0, 2.5e6], [1e5, 5.0, 0.0])
    trace.write(path)
    assert path.read_text().splitlines()[:2] == ["seconds,up_bytes_per_second,down_bytes_per_second", "0,1e+06,100000"]
    back = read(path)
    assert (back.bin_seconds, back.up, back.down, back.gaps) == (pytest.approx(0.1), trace.up, trace.down, 0)
    assert back.seconds == pytest.approx(0.3)
    assert back.median() == 1e6
    assert back.part(0.34, 1).up == [0.0, 2.5e6]


def test_published_traces() -> None:
    outdoors = read(DATA / "bandwidth_outdoors.csv")
    assert (len(outdoors.up), outdoors.bin_seconds, len(outdoors.down)) == (2274, 0.5, 0)
    assert outdoors.gaps == 1  # rows 112 to 431 are missing
    assert outdoors.up[0] == 52133408 / 8
    assert 8 * sum(outdoors.up) / len(outdoors.up) == pytest.approx(76.9e6, rel=0.001)
    indoors = read(DATA / "bandwidth_indoors.csv")
    assert indoors.up[0] == pytest.approx(80.687e6 / 8)
    assert "down" not in indoors.request()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has the columns a,b: give the columns seconds,up_bytes_per_second"),
        ("", r"has the columns \(none\)"),
        ("seconds,up_bytes_per_second\n0,1\n", "has 1 bins: give at least 2"),
        ("seconds,up_bytes_per_second\n0,1\n1,x\n", "line 3: up_bytes_per_second is 'x': give a number"),
        ("seconds,up_bytes_per_second\n0,1\n1,-2\n", "line 3: up_bytes_per_second is -2: give a number of at least 0"),
        ("seconds,up_bytes_per_second\n0,1\n1,inf\n", "line 3: up_bytes_per_second is inf"),
        ("seconds,up_bytes_per_second\n0,1\n1\n", "line 3: up_bytes_per_second is None"),
        ("seconds,up_bytes_per_second\n1,1\n0,1\n", "times must ascend"),
        ("seconds,up_bytes_per_second\n0,1\n1,1\n2,1\n2.5,1\n", "line 5: 0.5 s after the previous line"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.csv cannot be read: No such file"):
        read(tmp_path / "nowhere.csv")


def test_bytes_are_through_when_the_bins_have_carried_them() -> None:
    carrier = Carrier(0.5, [10, 0, 40])
    assert carrier.end(0, 2.5) == 0.25
    assert carrier.end(0.25, 4.5) == pytest.approx(1.05)
    assert carrier.end(0.75, 25) == pytest.approx(2)
    assert carrier.end(3, 0) == 3
    assert carrier.rate(1.75) == 10
    assert math.isinf(Carrier(0.5, [0, 0]).end(0, 1))


def test_pieces_take_as_long_as_the_whole() -> None:
    dice = random.Random(1)
    for _ in range(200):
        carrier = Carrier(dice.uniform(0.05, 1), [dice.choice([0, dice.uniform(1, 1000)]) for _ in range(5)] + [1.0])
        begin, count = dice.uniform(0, 20), dice.uniform(1, 2000)
        end = carrier.end(begin, count)
        part = dice.uniform(0, count)
        assert carrier.end(carrier.end(begin, part), count - part) == pytest.approx(end, rel=1e-6)
        assert carrier.end(begin, part) <= end + 1e-9


class Clock:
    """A clock that advances only during waits, sometimes by more than was requested."""

    def __init__(self, late: dict[int, float]) -> None:
        self.now, self._late, self._waits = 100.0, late, 0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds + self._late.get(self._waits, 0.0)
        self._waits += 1


@pytest.mark.parametrize("late", [{}, {2: 0.03}, {3: 0.25}])
def test_a_steady_link_is_recorded_as_steady(late: dict[int, float]) -> None:
    clock = Clock(late)
    trace = record(lambda: (int(1e6 * clock.now), int(2e5 * clock.now)), 1.0, clock=clock, wait=clock.wait)
    assert len(trace.up) == len(trace.down) == 10
    assert trace.up == pytest.approx([1e6] * 10, rel=1e-3)
    assert trace.down == pytest.approx([2e5] * 10, rel=1e-3)


def test_a_record_has_at_least_a_bin() -> None:
    with pytest.raises(ValueError, match=r"less than a bin of 0\.1 s"):
        record(lambda: (0, 0), 0.05)


def test_rates_are_bits() -> None:
    assert rates.bytes_per_second("93M") == 93e6 / 8
    assert rates.bytes_per_second("1.5Gbit/s") == 1.5e9 / 8
    assert rates.bytes_per_second("8") == 1
    assert rates.rate_text(93e6 / 8) == "93 Mbit/s"
    for text in ("", "0M", "fast", "-1M", "1T"):
        with pytest.raises(ValueError, match="give bits per second above 0"):
            rates.bytes_per_second(text)
