# SPDX-License-Identifier: Apache-2.0
"""What to show about a training, and where."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    """Rank 0 shows the measurements of all ranks once per update interval. Other ranks ignore these options."""

    live: bool | None = None
    """A line on stderr. None: if that is a terminal."""
    json_lines: str | None = None
    """A file to which a line of JSON is appended for each record and event."""
    tensorboard: str | None = None
    """A folder for TensorBoard's event files."""
    prometheus: int | None = None
    """A port that serves gauges for Prometheus, on all interfaces. 0: any free port, which a log line names."""
    record: str | None = None
    """A folder for a record of the run, from which `atoll report` makes a page. None: the folder that ATOLL_RUN_DIR
    names; "": no record."""

    def __post_init__(self) -> None:
        if self.prometheus is not None and not 0 <= self.prometheus < 1 << 16:
            raise ValueError(f"Watch(prometheus={self.prometheus}): give a port from 0 to 65535")
