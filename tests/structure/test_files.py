# SPDX-License-Identifier: Apache-2.0
"""Files stay short, carry their licence line, and mention no particular machine."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", "bench", "cmake", "docs", "examples", "python", "scripts", "src", "tests")
CODE = {".cpp", ".h", ".py"}
MARKED = CODE | {".cmake", ".toml", ".map"}
TEXT = MARKED | {".md", ".txt", ".yml", ".json", ".in", ""}
LICENCE = "SPDX-License-Identifier: Apache-2.0"
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_RESULT_BYTES = 100 << 10

# Written in pieces, so that this file does not contain the words itself.
FORBIDDEN = [
    "/" + r"work/(main|shared)", "/" + "root/", "/" + "opt/", r"\bTO" + r"DO\b", r"\bFIX" + r"ME\b",
    r"\bfor " + r"now\b", "pypi" + r"\.org", "download" + r"\.pytorch", "pythonhosted" + r"\.org",
]  # fmt: skip


def files(suffixes: set[str]) -> list[Path]:
    folders = [ROOT / name for name in FOLDERS]
    nested = (path for folder in folders for path in folder.rglob("*"))
    found = [path for path in [*ROOT.iterdir(), *nested] if path.is_file() and path.suffix in suffixes]
    skipped = {"__pycache__", "seeds", ".git"}  # .git is a file in a linked work tree
    return sorted(path for path in found if not skipped.intersection(path.relative_to(ROOT).parts))


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def long_functions(text: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield node.name, lines


def test_files_are_short() -> None:
    counts = {relative(path): len(path.read_text().splitlines()) for path in files(CODE)}
    assert counts
    assert {name: lines for name, lines in counts.items() if lines >= MAX_FILE_LINES} == {}


def test_python_functions_are_short() -> None:
    """clang-tidy does the same for C++ (readability-function-size)."""
    found = {relative(path): list(long_functions(path.read_text())) for path in files({".py"})}
    assert {name: functions for name, functions in found.items() if functions} == {}


def test_tests_have_names_of_their_own() -> None:
    """pytest imports each test by its file's name alone, and does not collect a second one of that name."""
    names = [path.name for path in files({".py"}) if path.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_results_are_small() -> None:
    """What a page does not show is left out of the repository (bench/result_files.py)."""
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs/results").iterdir()}
    assert len(sizes) > 50
    assert {name: size for name, size in sizes.items() if size > MAX_RESULT_BYTES} == {}


def test_files_carry_their_licence() -> None:
    marked = [*files(MARKED), *(path for path in files({".txt"}) if path.name == "CMakeLists.txt")]
    first_lines = {relative(path): path.read_text().splitlines()[:2] for path in marked}
    assert [name for name, lines in first_lines.items() if not any(LICENCE in line for line in lines)] == []


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_forbidden_words(pattern: str) -> None:
    found = [
        f"{relative(path)}:{number}"
        for path in files(TEXT)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_a_long_function_is_found() -> None:
    body = "    pass\n" * MAX_FUNCTION_LINES
    assert list(long_functions(f"def long():\n{body}")) == [("long", MAX_FUNCTION_LINES + 1)]
