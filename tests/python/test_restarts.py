# SPDX-License-Identifier: Apache-2.0
"""Which ranks start again after a failure, and which rank caused it; without processes."""

from pathlib import Path
from typing import Any

import pytest

from atoll.launch import LaunchError
from atoll.launch.restarts import Restarts, cause
from atoll.launch.run import run


class Said:
    """An Output with only the ranks' last lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def last_lines(self, local_rank: int) -> list[str]:
        return [self._lines[local_rank]]


class Failure:
    """The part of a ProcessFailure that is used."""

    error_file_data: dict[str, Any] = {"message": "<NONE>"}  # noqa: RUF012

    def __init__(self, local_rank: int, exitcode: int) -> None:
        self.local_rank, self.exitcode = local_rank, exitcode


LOST = "torch.distributed.DistNetworkError: all_reduce #4: rank 2 has ended"


@pytest.mark.parametrize(
    ("codes", "lines", "expected"),
    [
        ([-9, 1], ["", LOST], 0),
        ([1, -9], [LOST, ""], 1),  # both have ended before the launcher looks, so their times mean little
        ([-15, -9], [LOST, ""], 1),  # it printed its error, but was stopped before it ended
        ([1, -15], [LOST, ""], None),
        ([-15, 1], ["", LOST], 0),
        ([1, 1], [LOST, LOST], None),
        ([1, 1], [LOST, "ValueError: own"], 1),
        ([0x7F, -15], ["cannot start", ""], 0),
    ],
)
def test_the_cause_is_no_consequence(codes: list[int], lines: list[str], expected: int | None) -> None:
    ordered: Any = [(rank + 10, Failure(rank, code)) for rank, code in enumerate(codes)]
    output: Any = Said(*lines)
    found = cause(ordered, output)
    assert (None if found is None else found[1].local_rank) == expected


def test_all_ranks_count_together() -> None:
    restarts = Restarts(2, ["a", "b"], None, 1)
    assert [restarts.after(island).goes_on for island in ("a", None, "b")] == [True, True, False]


def test_islands_count_apart_and_are_left_out() -> None:
    restarts = Restarts(1, ["a", "b", "c"], 2, 1)
    verdicts = [restarts.after(island) for island in ("a", "b", "c", "b", "c")]
    assert [verdict.goes_on for verdict in verdicts] == [True, True, True, True, False]
    assert [verdict.left_out for verdict in verdicts] == [None, None, None, "b", None]
    assert verdicts[3].why == "island b has failed 2 times: restarting without it"
    assert verdicts[4].why == "no restarts are left"


def test_what_other_hosts_cause_counts_apart() -> None:
    restarts = Restarts(1, ["a"], None, 3)
    assert [restarts.after(None).goes_on for _ in range(7)] == [True] * 6 + [False]
    assert [restarts.after("a").goes_on for _ in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("islands", "least", "message"),
    [
        (["a", "b"], 3, "--min-islands=3: this command has 2 islands: write 1 to 2"),
        (["a"], 0, "--min-islands=0: this command has 1 island: write 1 to 1"),
        ([], 1, "--min-islands=1: --island is missing: add one for each island, or remove --min-islands"),
    ],
)
def test_refused(islands: list[str], least: int, message: str) -> None:
    with pytest.raises(LaunchError) as found:
        Restarts(0, islands, least, 1)
    assert str(found.value) == message


def test_refused_by_the_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--min-islands=2", "--island=a:1", str(tmp_path / "x.py")]) == 2
    assert capfd.readouterr().err == "atoll run: --min-islands=2: this command has 1 island: write 1 to 1\n"


def test_a_restart_does_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ranks' output is read as soon as they have ended, whatever the limit for that is."""
    monkeypatch.setattr("atoll.launch.run._SETTLE_S", 3600.0)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho began\n[ $TORCHELASTIC_RESTART_COUNT = 1 ] || kill -9 $$\n")
    program.chmod(0o755)
    assert run(["--nproc-per-node=2", "--max-restarts=1", "--no-python", str(program)]) == 0
