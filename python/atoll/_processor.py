# SPDX-License-Identifier: Apache-2.0
"""The name of this machine's processor."""

import platform
from pathlib import Path


def processor_name(root: Path = Path("/")) -> str:
    """Returns the processor's name; on boards whose ARM processor has none, the board's name; otherwise the
    architecture."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return _text(root / "proc/device-tree/model").strip("\0\n ") or platform.machine()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
