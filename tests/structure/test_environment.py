# SPDX-License-Identifier: Apache-2.0
"""docs/environment.md lists exactly the variables that the code reads."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "python", "scripts", "examples", "bench", "cmake")
SUFFIXES = {".cpp", ".h", ".py", ".cmake"}
IN_CODE = re.compile(r'"(ATOLL_[A-Z_]*[A-Z])"|\$ENV\{(ATOLL_[A-Z_]+)\}')
IN_TABLE = re.compile(r"^\| `(ATOLL_[A-Z_]+)`", re.MULTILINE)


def read_in_code() -> set[str]:
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    matches = (match for path in files for match in IN_CODE.finditer(path.read_text()))
    return {match.group(1) or match.group(2) for match in matches}


def test_each_variable_is_documented() -> None:
    documented = set(IN_TABLE.findall((ROOT / "docs/environment.md").read_text()))
    used = read_in_code()
    assert used - documented == set(), "read by the code, missing in docs/environment.md"
    assert documented - used == set(), "in docs/environment.md, read by nothing"


def test_a_variable_that_is_not_known_can_be_noticed() -> None:
    documented = set(IN_TABLE.findall((ROOT / "docs/environment.md").read_text()))
    names = runpy.run_path(str(ROOT / "python/atoll/_variables.py"))["NAMES"]
    assert {f"ATOLL_{name}" for name in names} == documented, "python/atoll/_variables.py lists others"
