# SPDX-License-Identifier: Apache-2.0
"""Tests that an emulator leaves out exist, each with its reason."""

import re
from fnmatch import fnmatch
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LISTED = re.compile(r"^    (\S+)(  # .+)?$", re.MULTILINE)
DEFINED = re.compile(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", re.MULTILINE)


def test_what_an_emulator_leaves_out() -> None:
    listed = LISTED.findall((TESTS / "emulator.cmake").read_text())
    texts = [path.read_text() for path in TESTS.rglob("*_test.cpp")]
    defined = [f"{suite}.{name}" for text in texts for suite, name in DEFINED.findall(text)]
    assert listed
    assert defined
    assert [pattern for pattern, reason in listed if not reason] == []
    assert [pattern for pattern, _ in listed if not any(fnmatch(name, pattern) for name in defined)] == []
