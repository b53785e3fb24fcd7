# SPDX-License-Identifier: Apache-2.0
"""Words that a reader stumbles over, and what to write instead."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".cpp", ".py", ".pyi", ".md", ".cmake", ".txt", ".toml"}
# Generated pages, texts from elsewhere, past entries, and this list.
LEFT_OUT = ("docs/results/", "tests/data/", "CHANGELOG.md", "tests/structure/test_english.py")

# What is found, by what it is to be.
LEXICON = {
    r"\banew\b": "again",
    r"\bfor ever\b": "forever",
    r"\bat hand\b": "current, available",
    r"\bk(Most|Least|Longest|Shortest|Largest|Smallest)(?=[A-Z]|\b)": "kMax…, kMin…",
    r"\b[Ww]hoever\b": "the rank, the peer, the caller",
    r"\bbefall(s|en)?\b|\bbefell\b": "happens to",
    r"\bin vain\b": "without success, or what became of it",
    r"\b(is|are|was|were) let go of\b": "is released",
    r"\bgives? its turn back\b": "yields",
    r"\bbegun again\b": "restarted",
    r"\b[Bb]y so much\b": "the quantity by its name",
    r'^\s*(///|""") ?(Of|That|Whose) ': "a verb or the thing first: Hashes…, Returns…",
    r"(?<![Tt]here )\b(is|are) no (number|rank|list|text|name|file|port|address|count|size|type)s?\b": "is not a …",
    r"\b(Saved|Recovering)\(": "Checkpointer, ElasticTrainer",
}


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT)]
    return [ROOT / name for name in names if Path(name).suffix in SUFFIXES and (ROOT / name).is_file()]


def faults_in(text: str) -> list[str]:
    faults = []
    before = ""
    for number, line in enumerate(text.splitlines(), 1):
        continues = before.lstrip().startswith("//")  # so that its first word begins no sentence
        before = line
        for pattern, instead in LEXICON.items():
            found = re.search(pattern, line)
            if found and not (continues and found[0].lstrip().startswith("//")):
                faults.append(f'{number}: "{found[0].strip()}": write {instead}')
    return faults


def test_the_lexicon_is_kept() -> None:
    paths = files()
    assert paths
    faults = [f"{path.relative_to(ROOT)}:{fault}" for path in paths for fault in faults_in(path.read_text())]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("constexpr int kMostRows = 1;", 1),
        ("/// Of the values, a hash.", 1),
        ('    """That a rank waits."""', 1),
        ("there is no name for it", 0),
        ("'two' is no rank", 1),
        ("// Tries again, forever.", 0),
    ],
)
def test_the_lexicon_itself(line: str, count: int) -> None:
    assert len(faults_in(line)) == count
