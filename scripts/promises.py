# SPDX-License-Identifier: Apache-2.0
"""Writes docs/promises.md: the promises of all layers, and the tests that prove them.

A promise is a line such as "// T-3: A sender ..." in the header comment of a layer's interface; lines that continue it
are indented. A test that proves it has the comment "// Proves T-3." directly above, and likewise in Python.
tests/structure/test_promises.py fails where promises and tests do not match, and where the page is not what this script
writes."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/promises.md"
LAYERS = {
    "T": "Transport",
    "C": "Collectives",
    "D": "Devices",
    "P": "Planners",
    "I": "Split inference",
    "E": "Training",
    "S": "Launcher and stores",
    "M": "Simulated device",
}
OPENING = """\
# Promises

This page lists what users of each layer rely on. A promise is stated in the header comment of the interface that is
linked above its table, and is proven by the tests in its row: each of them fails if the promise is broken.
`.venv/bin/python scripts/promises.py` writes this page from the sources, and `make check` fails where a promise has no
test, or where the page is out of date.
"""
STATED = re.compile(r"(?://|#) ([A-Z]-\d+): (.+)")
CONTINUED = re.compile(r"(?://|#) {3,}(\S.*)")
PROVES = re.compile(r"\s*(?://|#) Proves [A-Z]-\d")
NAME = re.compile(r"\b[A-Z]-\d+\b")
COMMENT = re.compile(r"\s*(?://|#)")
TEST = re.compile(r"TEST(?:_F|_P)?\((\w+), (\w+)\)|def (test_\w+)\(")


class Promise(NamedTuple):
    name: str
    text: str
    path: str

    @property
    def order(self) -> tuple[int, int]:
        letter, number = self.name.split("-")
        return [*LAYERS, letter].index(letter), int(number)


class Proof(NamedTuple):
    promise: str
    test: str  # "" if there is no test below the comment
    path: str


def promises_in(text: str, path: str) -> list[Promise]:
    found: list[Promise] = []
    continues = False
    for line in text.splitlines():
        stated, continued = STATED.fullmatch(line), CONTINUED.fullmatch(line)
        if stated:
            found.append(Promise(stated[1], stated[2], path))
        elif continues and continued:
            found[-1] = found[-1]._replace(text=f"{found[-1].text} {continued[1]}")
        continues = bool(stated or (continues and continued))
    return found


def test_below(lines: Sequence[str]) -> str:
    """Returns the name of the test that begins with these lines, after comments and decorators; "" if none does."""
    is_decorated = False
    for line in lines:
        if found := TEST.match(line):
            return found[3] or f"{found[1]}.{found[2]}"
        is_decorated = is_decorated or line.startswith("@")
        if line.startswith("def ") or not (is_decorated or COMMENT.match(line)):
            return ""
    return ""


def proofs_in(text: str, path: str) -> list[Proof]:
    lines = text.splitlines()
    return [
        Proof(name, test_below(lines[number:]), path)
        for number, line in enumerate(lines, start=1)
        if PROVES.match(line)
        for name in NAME.findall(line)
    ]


def faults(promises: Iterable[Promise], proofs: Iterable[Proof]) -> list[str]:
    """Returns what is wrong with the numbers of promises, and between promises and tests."""
    stated = Counter(promise.name for promise in promises)
    found = [f"{name} is stated {count} times" for name, count in stated.items() if count > 1]
    for letter in sorted({name[0] for name in stated}):
        if letter not in LAYERS:
            found.append(f"{letter} is not a layer's letter: add it to LAYERS in scripts/promises.py")
        numbers = {int(name[2:]) for name in stated if name[0] == letter}
        found += [f"{letter}-{number} is missing" for number in range(1, max(numbers)) if number not in numbers]
    proven = {proof.promise for proof in proofs if proof.test}
    found += [f"{each.path}: no test proves {each.name}" for each in promises if each.name not in proven]
    for proof in proofs:
        if not proof.test:
            found.append(f'{proof.path}: "Proves {proof.promise}" is not directly above a test')
        if proof.promise not in stated:
            found.append(f"{proof.path}: {proof.promise} is not a promise of any interface")
    return found


def stated_promises(root: Path = ROOT) -> list[Promise]:
    paths = sorted([*root.glob("src/atoll/**/*.h"), *root.glob("python/atoll/**/*.py")])
    found = [each for path in paths for each in promises_in(path.read_text(), path.relative_to(root).as_posix())]
    return sorted(found, key=lambda promise: promise.order)


def stated_proofs(root: Path = ROOT) -> list[Proof]:
    paths = sorted([*root.glob("tests/**/*_test.cpp"), *root.glob("tests/**/test_*.py")])
    return [each for path in paths for each in proofs_in(path.read_text(), path.relative_to(root).as_posix())]


def link(text: str, path: str) -> str:
    return f"[{text}](../{path})"


def page(promises: Sequence[Promise], proofs: Sequence[Proof]) -> str:
    text = OPENING
    letter = path = ""
    for promise in promises:
        if promise.name[0] != letter:
            letter, path = promise.name[0], ""
            text += f"\n## {LAYERS[letter]}\n"
        if promise.path != path:
            path = promise.path
            text += f"\n{link(f'`{path}`', path)}\n\n| | promise | proven by |\n|---|---|---|\n"
        tests = ", ".join(link(f"`{proof.test}`", proof.path) for proof in proofs if proof.promise == promise.name)
        text += f"| {promise.name} | {promise.text.replace('|', chr(92) + '|')} | {tests} |\n"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(stated_promises(), stated_proofs()))
