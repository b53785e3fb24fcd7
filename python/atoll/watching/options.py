# SPDX-License-Identifier: Apache-2.0
"""What of a training is shown, and where."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """Rank 0 shows what all ranks measured, once in every update interval. The other ranks do not read it."""

    live: bool | None = None
    """A line on standard error. None: when that is a terminal."""
    json_lines: str | None = None
    """A file that gets a line of JSON for each record and event, behind what it holds already."""
    tensorboard: str | None = None
    """A folder for TensorBoard's event files."""
    prometheus: int | None = None
    """A port where Prometheus reads gauges, on all interfaces. 0: any free port, which a log line names."""
    record: str | None = None
    """A folder for a record of the run, which `atoll report` makes a page of. None: the folder that ATOLL_RUN_DIR
    names; "": none at all."""

    def __post_init__(self) -> None:
        if self.prometheus is not None and not 0 <= self.prometheus < 1 << 16:
            raise ValueError(f"Watch(prometheus={self.prometheus}): give a port from 0 to 65535")
