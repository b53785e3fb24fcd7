# SPDX-License-Identifier: Apache-2.0
"""Lines that ranks print reach the terminal whole, and the rank that failed first is named first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from atoll.launch import failures
from atoll.launch.lines import MAX_LINE_BYTES, Lines
from atoll.launch.output import STDERR, STDOUT, Copy, Output
from launching import eventually


# Proves S-3.
@given(st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\r", b"")), max_size=12))
def test_lines_come_whole_however_they_are_cut(pieces: list[bytes]) -> None:
    lines = Lines(b"> ")
    shown = [lines.feed(piece, 0) for piece in pieces] + [lines.end()]
    text = b"".join(pieces)
    expected = text.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert b"".join(shown) == b"".join(b"> " + line + b"\n" for line in expected)
    assert all(part.endswith(b"\n") for part in shown if part)


def test_without_prefix_bytes_pass_at_once() -> None:
    lines = Lines(None)
    assert lines.feed(b"(Pdb) ", 0) == b"(Pdb) "
    assert lines.end() == b""


def test_a_very_long_line_comes_in_pieces() -> None:
    lines = Lines(b">")
    shown = lines.feed(b"x" * (MAX_LINE_BYTES + 5), 0) + lines.feed(b"y\n", 0)
    assert shown == b">" + b"x" * MAX_LINE_BYTES + b"\n>xxxxxy\n"


def test_a_progress_bar_is_shown_once_a_second() -> None:
    lines = Lines(b"> ")
    assert lines.feed(b"\r10%", 0.0) == b"> 10%\n"
    assert lines.feed(b"\r20%", 0.5) == b""
    assert lines.feed(b"\r30%", 1.1) == b"> 30%\n"
    assert lines.feed(b"\r100%\nend\r\n", 1.2) == b"> 100%\n> end\n"


class Writer:
    """A local rank that writes to the streams that Output has opened."""

    def __init__(self, output: Output, local_rank: int = 0, prefix: bytes | None = b"> ") -> None:
        self.out = os.open(output.open(local_rank, STDOUT, prefix), os.O_WRONLY)
        self.err = os.open(output.open(local_rank, STDERR, prefix), os.O_WRONLY)

    def close(self) -> None:
        os.close(self.out)
        os.close(self.err)


def test_streams_stay_apart(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    writer = Writer(output)
    output.watch({})
    os.write(writer.out, b"to stdout\npartial")
    os.write(writer.err, b"to stderr\n")
    output.close()
    writer.close()
    assert capfd.readouterr() == ("> to stdout\n> partial\n", "> to stderr\n")


def test_last_lines(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = Output()
    quiet, loud = Writer(output, 0), Writer(output, 1)
    (tmp_path / "stderr.log").write_text("from the file\n")
    output.remember_file(2, STDERR, str(tmp_path / "stderr.log"))
    os.write(quiet.out, b"only stdout\n")
    os.write(loud.err, b"".join(b"line %d\n" % number for number in range(100)))
    output.close()
    quiet.close()
    loud.close()
    capfd.readouterr()
    assert output.last_lines(0) == ["only stdout"]
    assert output.last_lines(1) == [f"line {number}" for number in range(80, 100)]
    assert output.last_lines(2) == ["from the file"]
    assert output.last_lines(3) == []


def test_a_copy_that_cannot_be_written_is_reported_once(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = Output()
    path = tmp_path / "missing" / "stdout.log"
    end = os.open(output.open(0, STDOUT, b"> ", [Copy(str(path))]), os.O_WRONLY)
    for _ in range(2):
        os.write(end, b"line\n")
    output.close()
    os.close(end)
    out, err = capfd.readouterr()
    assert out == "> line\n" * 2
    assert err == f"atoll run: cannot write to {path} any more: No such file or directory\n"


def ended_process(output: Output, local_rank: int) -> subprocess.Popen[bytes]:
    """A process whose end Output has noticed."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    output.watch({local_rank: process.pid})
    process.communicate(b"\n")
    eventually(lambda: output.ended_at(local_rank) is not None, "the end is seen")
    return process


def failure(local_rank: int, code: int = 1, error_file: str = "") -> ProcessFailure:
    return ProcessFailure(local_rank, 1000 + local_rank, code, error_file)


def test_the_rank_that_ended_first_is_first() -> None:
    output = Output()
    for local_rank in (1, 0):
        ended_process(output, local_rank)
    output.close()
    # Torch's own time stamps have the opposite order.
    found = {0: failure(0), 1: failure(1)}
    found[0].timestamp = 0
    assert [rank for rank, _ in failures.in_order(found, output)] == [1, 0]


def test_a_traceback_counts_before_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    writer = Writer(output, 1)
    os.write(writer.err, b"Traceback (most recent call last):\n")
    eventually(lambda: output.traceback_at(1) is not None, "the traceback is seen")
    for local_rank in (0, 1):
        ended_process(output, local_rank)
    output.close()
    writer.close()
    capfd.readouterr()
    assert [rank for rank, _ in failures.in_order({0: failure(0), 1: failure(1)}, output)] == [1, 0]


def test_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    output = Output()
    first, second = Writer(output, 0), Writer(output, 1)
    os.write(first.err, b"cause\n")
    os.write(second.err, b"noise\nRuntimeError: rank 0 has died\n\n")
    output.close()
    first.close()
    second.close()
    capfd.readouterr()
    ordered = [(4, failure(0, 7)), (5, failure(1, 1)), (6, failure(2, -15))]
    report = failures.describe(ordered, ["slow", "fast", ""], output).splitlines()
    assert report[0].startswith("atoll run: rank 4 failed first: island slow, host ")
    assert report[0].endswith(", local rank 0, pid 1000, exit code 7")
    assert report[1:] == [
        "    cause",
        "atoll run: then rank 5: island fast, pid 1001, exit code 1: RuntimeError: rank 0 has died",
        "atoll run: then rank 6: pid 1002, ended by SIGTERM",
    ]


@pytest.mark.parametrize("code", [-9, 137])
def test_a_rank_that_was_killed(code: int) -> None:
    """Only the first killed rank counts, because `atoll run` stops the others."""
    output = Output()
    output.close()
    ordered = [(0, failure(0, code)), (1, failure(1, code))]
    first, _, other = failures.describe(ordered, ["", ""], output).splitlines()
    hint = "; the system may have run out of memory: check `dmesg`, and try a smaller batch or model"
    assert first.endswith(hint)
    assert "memory" not in other
    plain, *_ = failures.describe(ordered, ["", ""], output, with_hint=False).splitlines()
    assert plain + hint == first
    assert not failures.hint(failure(0, 1)) + failures.hint(failure(0, -15))


@pytest.mark.parametrize(("code", "status"), [(3, 3), (-9, 137), (-15, 143)])
def test_exit_status(code: int, status: int) -> None:
    assert failures.exit_status(failure(0, code)) == status
