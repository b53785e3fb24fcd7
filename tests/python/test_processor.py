# SPDX-License-Identifier: Apache-2.0
"""Readable names of processors, including those of boards."""

import platform
from pathlib import Path

from atoll._processor import processor_name


def machine(root: Path, cpuinfo: str, board: str | None = None) -> Path:
    (root / "proc/device-tree").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(cpuinfo)
    if board is not None:
        (root / "proc/device-tree/model").write_text(board)
    return root


def test_a_processor_with_a_name(tmp_path: Path) -> None:
    root = machine(tmp_path, "processor\t: 0\nmodel name\t: Fast 9000: turbo\n", "Some Board\0")
    assert processor_name(root) == "Fast 9000: turbo"


def test_a_board(tmp_path: Path) -> None:
    root = machine(tmp_path, "processor\t: 0\nCPU implementer\t: 0x41\n", "Raspberry Pi 5 Model B Rev 1.0\0")
    assert processor_name(root) == "Raspberry Pi 5 Model B Rev 1.0"


def test_neither(tmp_path: Path) -> None:
    assert processor_name(machine(tmp_path, "processor\t: 0\n")) == platform.machine()
    assert processor_name(tmp_path / "nowhere") == platform.machine()
