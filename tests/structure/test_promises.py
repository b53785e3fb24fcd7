# SPDX-License-Identifier: Apache-2.0
"""Each promise of a layer is proven by a test, and docs/promises.md lists both."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = "\n".join(
    [
        "// T-1: Bytes arrive in",
        "//   order, or not at all.",
        "// T-2: A peer that dies is noticed.",
        "//   // T-8: indented, and thus a part of T-2",
        "#pragma once",
        "/// T-9: not a promise, because this is a comment of the interface",
        "//   no part of a promise either",
        "constexpr int kUnit = 1;  // T-7: nor is this",
    ]
)
TESTS = "\n".join(
    [
        "// Proves T-1 and T-2.",
        "TEST_P(Links, KeepOrder) {",
        "}",
        "// Proves T-2.",
        "// A comment may follow.",
        "TEST(Death, IsNoticed) { run(); }",
        "// Nothing proves T-3.",
        "TEST(Another, One) {",
    ]
)
PYTHON = "\n".join(
    [
        "# Proves T-2.",
        "@pytest.mark.parametrize(",
        '    ("name", "number"), [("a", 1)],',
        ")",
        "def test_a_killed_rank() -> None:",
        "    pass",
        "",
        "",
        "# Proves T-1.",
        "def helper() -> None:",
        "    pass",
        "",
        "",
        "def test_that_proves_nothing() -> None:",
    ]
)


@pytest.fixture(scope="module")
def read() -> ModuleType:
    spec = importlib.util.spec_from_file_location("promises", ROOT / "scripts/promises.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_promise_is_proven(read: ModuleType) -> None:
    promises = read.stated_promises()
    assert {promise.name[0] for promise in promises} == set(read.LAYERS), "layers with promises"
    assert read.faults(promises, read.stated_proofs()) == []


def test_the_page_lists_them(read: ModuleType) -> None:
    page = read.page(read.stated_promises(), read.stated_proofs())
    assert page == read.PAGE.read_text(), "run .venv/bin/python scripts/promises.py"


def test_promises_are_read(read: ModuleType) -> None:
    assert [(each.name, each.text) for each in read.promises_in(HEADER, "link.h")] == [
        ("T-1", "Bytes arrive in order, or not at all."),
        ("T-2", "A peer that dies is noticed. // T-8: indented, and thus a part of T-2"),
    ]
    assert [each.name for each in read.promises_in("# S-1: Of Python.\n#S-2: Of nothing.\n", "a.py")] == ["S-1"]


def test_proofs_are_read(read: ModuleType) -> None:
    assert [(each.promise, each.test) for each in read.proofs_in(TESTS, "a_test.cpp")] == [
        ("T-1", "Links.KeepOrder"),
        ("T-2", "Links.KeepOrder"),
        ("T-2", "Death.IsNoticed"),
    ]
    assert [(each.promise, each.test) for each in read.proofs_in(PYTHON, "test_a.py")] == [
        ("T-2", "test_a_killed_rank"),
        ("T-1", ""),
    ]
    gap = "// Proves T-1.\n\nTEST(Links, KeepOrder) {"
    assert [each.test for each in read.proofs_in(gap, "a_test.cpp")] == [""], "a blank line lies between"


@pytest.mark.parametrize(
    ("stated", "proven", "fault"),
    [
        (["T-1", "T-2", "C-1"], ["T-1", "T-2", "T-2", "C-1"], None),
        (["T-1", "T-2"], ["T-1"], "link.h: no test proves T-2"),
        (["T-1"], ["T-1", "T-2"], "a_test.cpp: T-2 is not a promise of any interface"),
        (["T-1", "T-1"], ["T-1"], "T-1 is stated 2 times"),
        (["T-1", "T-3"], ["T-1", "T-3"], "T-2 is missing"),
        (["T-2"], ["T-2"], "T-1 is missing"),
        (["X-1"], ["X-1"], "X is not a layer's letter: add it to LAYERS in scripts/promises.py"),
    ],
)
def test_faults_are_found(read: ModuleType, stated: list[str], proven: list[str], fault: str | None) -> None:
    promises = [read.Promise(name, "It works.", "link.h") for name in stated]
    proofs = [read.Proof(name, "Links.Work", "a_test.cpp") for name in proven]
    assert read.faults(promises, proofs) == ([] if fault is None else [fault])


def test_a_comment_above_no_test_proves_nothing(read: ModuleType) -> None:
    promises = [read.Promise("T-1", "It works.", "link.h")]
    assert read.faults(promises, [read.Proof("T-1", "", "a_test.cpp")]) == [
        "link.h: no test proves T-1",
        'a_test.cpp: "Proves T-1" is not directly above a test',
    ]


def test_the_page_links_to_headers_and_tests(read: ModuleType) -> None:
    promises = [read.Promise("T-1", "This | that.", "src/link.h"), read.Promise("S-1", "It ends.", "python/run.py")]
    proofs = [read.Proof("T-1", "Links.Work", "tests/a_test.cpp"), read.Proof("S-1", "test_end", "tests/test_b.py")]
    text = read.page(promises, proofs)
    assert text.startswith(read.OPENING)
    assert re.findall(r"^##? .*|^\| [TS]-.*|^\[.*", text.removeprefix(read.OPENING), re.MULTILINE) == [
        "## Transport",
        "[`src/link.h`](../src/link.h)",
        "| T-1 | This \\| that. | [`Links.Work`](../tests/a_test.cpp) |",
        "## Launcher and stores",
        "[`python/run.py`](../python/run.py)",
        "| S-1 | It ends. | [`test_end`](../tests/test_b.py) |",
    ]


def test_the_site_has_no_links_out_of_it(read: ModuleType) -> None:
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "scripts/docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    text = "[`a.h`](../src/a.h), [there](../bench/b.py) and [a page](rails.md#cost)"
    assert hooks.on_page_markdown(text) == "`a.h`, there and [a page](rails.md#cost)"
    assert "](../" not in hooks.on_page_markdown(read.PAGE.read_text())
