# SPDX-License-Identifier: Apache-2.0
"""Decides whether failed ranks restart: all of them, without one of the islands, or not at all. Uses no processes."""

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from atoll.launch import LaunchError, failures
from atoll.launch.output import Output

RESTARTS_OF_ELASTIC_JOBS = 10
_CONSEQUENCES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_STOPPED = (-signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True)
class Verdict:
    """The decision after a failure: whether the job `goes_on`, without the island `left_out` if any. `why` is for
    people."""

    goes_on: bool
    why: str
    left_out: str | None = None


class Restarts:
    """Counts failures by the island that caused them. Each island may cause `limit` failures and is then left out if at
    least `least` islands remain. Without `least` all of this command's ranks count together and are never left out.
    Failures that other hosts cause are limited as well, counting one island for each of `hosts`."""

    def __init__(self, limit: int, islands: Sequence[str], least: int | None, hosts: int) -> None:
        if least is not None and not 1 <= least <= len(islands):
            if not islands:
                raise LaunchError(
                    f"--min-islands={least}: --island is missing: add one for each island, or remove --min-islands"
                )
            known = f"{len(islands)} island{'s' * (len(islands) > 1)}"
            raise LaunchError(f"--min-islands={least}: this command has {known}: write 1 to {len(islands)}")
        self._limit, self._least = limit, least
        self._islands, self._is_alone = list(islands), hosts == 1
        self._elsewhere = limit if hosts == 1 else hosts * (limit + 1)
        self._counts: Counter[str | None] = Counter()

    def after(self, island: str | None) -> Verdict:
        """Returns the decision after a rank of `island` has failed first; None: no rank of this command did."""
        unit = island
        if self._least is None and (island is not None or self._is_alone):
            unit = ""
        self._counts[unit] += 1
        count, limit = self._counts[unit], self._elsewhere if unit is None else self._limit
        if count <= limit:
            return Verdict(True, f"restarting ({count} of {limit} restarts)")
        if unit is not None and self._least is not None and len(self._islands) > self._least:
            self._islands.remove(unit)
            times = "once" if count == 1 else f"{count} times"
            return Verdict(True, f"island {unit} has failed {times}: restarting without it", unit)
        return Verdict(False, "no restarts are left")


def cause(ordered: Sequence[tuple[int, ProcessFailure]], output: Output) -> tuple[int, ProcessFailure] | None:
    """Returns the first failure in failures.in_order()'s result that has its own reason; None if all ranks report that
    another rank was lost, or were stopped because of it."""
    for place, (rank, failure) in enumerate(ordered):
        if place and failure.exitcode == -signal.SIGTERM:
            continue
        said = "\n".join(failures.output_of(failure, output))
        could_follow = failure.exitcode > 0 or failure.exitcode in _STOPPED
        if not (could_follow and any(name in said for name in _CONSEQUENCES)):
            return rank, failure
    return None
