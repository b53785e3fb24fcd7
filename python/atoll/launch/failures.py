# SPDX-License-Identifier: Apache-2.0
"""The report on failed ranks: the first one with its output, and the others briefly."""

import os
import signal
import socket
from collections.abc import Mapping, Sequence

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from atoll.launch.output import Output

# A traceback that is older than this when its rank ends did not cause the end.
_TRACEBACK_AGE_S = 10.0
# Of a rank, and of a shell or container around it.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


def exit_status(failure: ProcessFailure) -> int:
    """Returns the status with which a shell would report the failure: the exit code, or 128 plus the signal."""
    return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode


def failed_at(failure: ProcessFailure, output: Output) -> float:
    """Returns when the rank failed, in seconds since 1970: when it wrote its error file, started its traceback or
    ended."""
    ended = output.ended_at(failure.local_rank)
    times = [float(failure.timestamp + 1) if ended is None else ended]
    traceback = output.traceback_at(failure.local_rank)
    if traceback is not None and times[0] - traceback < _TRACEBACK_AGE_S:
        times.append(traceback)
    if os.path.isfile(failure.error_file):
        times.append(os.stat(failure.error_file).st_mtime)
    return min(times)


def in_order(failures: Mapping[int, ProcessFailure], output: Output) -> list[tuple[int, ProcessFailure]]:
    """Returns (rank, failure) pairs in order of the time of failure."""
    return sorted(failures.items(), key=lambda item: (failed_at(item[1], output), item[0]))


def _exception_of(failure: ProcessFailure) -> list[str]:
    """Returns the traceback that the script's @record wrote, if any."""
    message = failure.error_file_data.get("message")
    if not isinstance(message, dict):
        return []
    text = message.get("extraInfo", {}).get("py_callstack") or message.get("message") or ""
    return str(text).rstrip().splitlines()


def output_of(failure: ProcessFailure, output: Output) -> list[str]:
    """Returns the rank's exception, or its last lines."""
    return _exception_of(failure) or output.last_lines(failure.local_rank)


def how_it_ended(failure: ProcessFailure) -> str:
    """Returns the exit code or signal in words."""
    if failure.exitcode >= 0:
        return f"exit code {failure.exitcode}"
    try:
        return f"ended by {signal.Signals(-failure.exitcode).name}"
    except ValueError:
        return f"ended by signal {-failure.exitcode}"


def hint(failure: ProcessFailure) -> str:
    """Returns a hint to follow how_it_ended() if that says little; for a rank that `atoll run` did not kill."""
    if failure.exitcode not in _KILLED:
        return ""
    return "; the system may have run out of memory: check `dmesg`, and try a smaller batch or model"


def where_of(failure: ProcessFailure, islands: Sequence[str]) -> str:
    """Names the rank's island, if it has one, before other words."""
    island = islands[failure.local_rank]
    return f"island {island}, " if island else ""


def headline(rank: int, failure: ProcessFailure, islands: Sequence[str]) -> str:
    """Names the rank, where it ran, and how it ended."""
    return (
        f"rank {rank} failed first: {where_of(failure, islands)}host {socket.gethostname()}, local rank "
        f"{failure.local_rank}, pid {failure.pid}, {how_it_ended(failure)}"
    )


def describe(
    ordered: Sequence[tuple[int, ProcessFailure]], islands: Sequence[str], output: Output, *, with_hint: bool = True
) -> str:
    """Returns the report, given in_order()'s result; `islands` are the local ranks' islands, empty for ranks without
    one."""
    rank, failure = ordered[0]
    lines = [f"atoll run: {headline(rank, failure, islands)}{hint(failure) if with_hint else ''}"]
    said = output_of(failure, output)
    lines += [f"    {line}" for line in said] or ["    (it printed nothing)"]
    for rank, failure in ordered[1:]:
        said = output_of(failure, output)
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        stopped = failure.exitcode in (-signal.SIGTERM, -signal.SIGKILL)
        tail = f": {last}" if last and not stopped else ""
        lines.append(
            f"atoll run: then rank {rank}: {where_of(failure, islands)}pid {failure.pid}, {how_it_ended(failure)}{tail}"
        )
    return "\n".join(lines) + "\n"
