# SPDX-License-Identifier: Apache-2.0
"""The table of PyTorch's releases: files that name a release agree with it, and `make matrix`'s page with its
record."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import matrix

        yield matrix
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_setup_installs_one_of_them(matrix: ModuleType) -> None:
    (own,) = [release.torch for release in matrix.releases() if release.is_setup]
    assert f"torch=={own}" in (ROOT / "requirements.txt").read_text().splitlines()
    assert f"PyTorch {own}" in (ROOT / "README.md").read_text()


def test_each_release_has_a_python(matrix: ModuleType) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    least = ".".join(map(str, sys.modules["releases"].MIN_PYTHON))
    assert project["requires-python"] == f">={least}"
    for release in matrix.releases():
        assert release.pythons, release
        assert least in release.pythons, release


def test_the_page_is_what_was_recorded(matrix: ModuleType) -> None:
    record = json.loads(matrix.RECORD.read_text())
    assert matrix.PAGE.read_text() == matrix.page(record)
    assert {row["torch"] for row in record["rows"]} <= {release.torch for release in matrix.releases()}


ROW = {"torch": "2.99.0", "pythons": ["3.11", "3.12"], "python": "3.11", "when": "2026-11-27", "commit": "c"}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"why": "no Python 3.20 is here"}, "not run: no Python 3.20 is here"),
        ({"status": 0, "counts": {"passed": 5, "skipped": 1}}, "5 passed"),
        ({"status": 1, "counts": {"passed": 5, "failed": 2, "error": 1}}, "5 passed, **3 failed**"),
        ({"status": 124, "counts": {}}, "0 passed, **ended with status 124**"),
    ],
)
def test_what_is_said_of_a_release(matrix: ModuleType, more: dict[str, object], words: str) -> None:
    assert matrix.verdict(ROW | more) == words
    text = matrix.page({"rows": [ROW | more], "machine": "m"})
    assert f"| 2.99.0 | 3.11 | 3.12 | - | {words} | - |" in text


def test_a_release_without_a_python_is_named(matrix: ModuleType) -> None:
    row = matrix.tried(matrix.Release("9.9.9", ("3.98", "3.99")))
    assert row["why"] == "no Python 3.98 or 3.99 is here"


def test_a_release_that_is_not_in_the_table(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix.py", "--only", "1.0"])
    with pytest.raises(SystemExit, match=r"releases.toml has no torch 1.0: it has 2\."):
        matrix.main()
