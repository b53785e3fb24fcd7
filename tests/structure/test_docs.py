# SPDX-License-Identifier: Apache-2.0
"""The site is complete, and loads nothing from other hosts. mkdocs checks links and the table of contents in `make
docs`."""

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
COMPARED = ["FlagCX", "torchcomms", "Gloo", "UCC", "FlagScale", "hivemind", "Intra-DP's own code"]
ELSEWHERE = {"__version__", "Options", "infer", "pipeline", "plan", "training"}  # documented by their members


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "scripts/docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names() -> set[str]:
    for node in ast.walk(ast.parse((ROOT / "python/atoll/__init__.py").read_text())):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("atoll has no __all__")


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference/python.md").read_text()
    assert {name for name in public_names() - ELSEWHERE if f"::: atoll.{name}\n" not in text} == set()


def test_headers_are_found_and_read(pages: ModuleType) -> None:
    names = {path.relative_to(ROOT / "src/atoll").as_posix() for path in pages.installed()}
    assert {name for group in pages.ENTRY.values() for name in group} <= names
    assert not any("/serve/" in name or "infer/operators/" in name for name in names)
    text = pages.page()
    assert "### atoll/infer/session/session.h" in text
    assert "class Session\n```\nOne model, divided between this robot and a server" in text


def test_comments_of_headers_are_read(pages: ModuleType) -> None:
    text = """
/// Adds.
///
/// Twice.
int add(int a,
        int b);
int silent();
class A {
 public:
  /// Says.
  void say() {
 private:
  /// Hidden.
  int hidden_;
};
"""
    assert list(pages.documented(text)) == [("int add(int a, int b);", "Adds.  Twice."), ("void say()", "Says.")]


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_nothing_is_loaded_from_other_hosts(path: Path) -> None:
    text = path.read_text()
    loaded = re.findall(r"!\[[^\]]*\]\(https?:[^)]*\)|<(?:script|img|link|iframe)[^>]*https?:[^>]*>", text)
    assert loaded == []


def test_drawings_stand_alone() -> None:
    for path in DOCS.rglob("*.svg"):
        assert set(re.findall(r"https?://[^\"' <]*", path.read_text())) <= {"http://www.w3.org/2000/svg"}, path


def test_each_compared_project_has_its_sources() -> None:
    opening, *sections = (DOCS / "comparison.md").read_text().split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections] == [*COMPARED, "KAITIAN, BalanceNet, joint training"]
    rows = re.findall(r"^\| ([^|*]+) \|", opening, re.MULTILINE)
    assert [row.replace("'s code", "'s own code") for row in rows] == COMPARED
    for section in sections[: len(COMPARED)]:
        assert re.search(r"`[\w./-]+`\s+at\s+[0-9a-f]{7}", section), section.splitlines()[0]


def test_each_question_has_its_thread() -> None:
    questions = re.findall(r"^\*\*.*?(?=\n\n|\Z)", (DOCS / "faq.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(questions) >= 16
    for question in questions:
        assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/issues/\d+\)", question), question


def test_the_citation_is_of_this_version() -> None:
    (version,) = re.findall(r"project\(atoll VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_workflow_runs_what_everybody_runs() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    commands = re.findall(r"- run: (.*)", text)
    assert commands[-1] == ".ci/run"
    assert not any(word in command for command in commands for word in ("pytest", "ctest", "pip ", "cmake", "mkdocs"))


def test_whoever_builds_is_told_all_of_it() -> None:
    """Without isolation pip installs none of the build's requirements; with it the build would get another torch
    than the environment's."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        (backend,) = tomllib.load(file)["build-system"]["requires"]
    tools = f'install "{backend}" cmake ninja'
    for path in DOCS.rglob("*.md"):
        for block in re.findall(r"^```\w+\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            assert "--no-build-isolation" not in block or tools in block, path
