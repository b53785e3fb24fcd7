# SPDX-License-Identifier: Apache-2.0
"""The walks of docs/architecture.md name functions that stand in the files beside them."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "atoll"
ROW = re.compile(r"^\| \d+ \| `([\w:.]+)` \| `([\w./]+)` \|$", re.MULTILINE)
MAX_STEPS = {"A tensor from all_reduce": 40, "A tensor from a device": 29, "An image": 41}


def walks() -> dict[str, list[tuple[str, str]]]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("\n## Three walks\n")[1].split("\n## ")[0]
    parts = re.split(r"^### (.+)$", section, flags=re.MULTILINE)[1:]
    return {title: ROW.findall(body) for title, body in zip(parts[::2], parts[1::2], strict=True)}


def defines(source: str, function: str) -> bool:
    """Returns whether a line begins the definition of `function`: a C++ function by its whole name, or by its last one
    inside a class, or a method of Python."""
    if "." in function:
        return re.search(rf"^ +def {function.rpartition('.')[2]}\(", source, re.MULTILINE) is not None
    name = re.escape(function)
    outside = rf"^\w.*?(?<![:\w]){name}\("
    inside = rf"^  (?!return )\w[\w:<>&*]* {name}\([^;]*$"
    return re.search(f"{outside}|{inside}", source, re.MULTILINE) is not None


def test_a_definition_is_told_from_a_call() -> None:
    assert defines("void Group::run(const Call& call) {", "Group::run")
    assert not defines("  Group::run(call);\n// Group::run(", "Group::run")
    assert defines("class A {\n  Outcome take_turn(int a,\n                    int b) {", "take_turn")
    assert not defines("    const Outcome made = take_turn(a, b);\n  return take_turn(a)\n", "take_turn")
    assert defines("class A:\n    def run(self) -> None:", "A.run")
    assert not defines("a.run(1)", "A.run")


@pytest.mark.parametrize("title", list(walks()))
def test_each_step_stands_in_its_file(title: str) -> None:
    steps = walks()[title]
    assert steps, f"the walk '{title}' has no steps"
    for function, path in steps:
        file = (ROOT if path.startswith("python/") else SOURCES) / path
        assert file.is_file(), f"'{title}': there is no file {path}"
        assert defines(file.read_text(), function), f"'{title}': {path} does not define {function}"


def test_the_walks_are_short() -> None:
    for title, steps in walks().items():
        limit = next((limit for prefix, limit in MAX_STEPS.items() if title.startswith(prefix)), None)
        assert limit is not None, f"'{title}' has no limit in MAX_STEPS"
        assert len(steps) <= limit, f"'{title}' takes {len(steps)} steps, more than {limit}"
