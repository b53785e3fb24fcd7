# SPDX-License-Identifier: Apache-2.0
"""What ranks exchange about a window of steps."""

from dataclasses import dataclass

NOT_MEASURED = -1.0


@dataclass(frozen=True)
class Seen:
    """One rank's numbers of a window, in the order in which they are exchanged. Times are seconds of one step."""

    compute: float
    input: float
    batch: float
    next_step: float
    operations: float
    memory: float
    latency: float
    wall: float = 0.0
    exposed: float = NOT_MEASURED  # from the rank's last gradient to that of all ranks
    inside: float = 0.0  # in collectives, without waits for other islands
    plans: float = 0.0  # a hash of what must be equal on all ranks

    def numbers(self) -> list[float]:
        return list(vars(self).values())
