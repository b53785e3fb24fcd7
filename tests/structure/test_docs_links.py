# SPDX-License-Identifier: Apache-2.0
"""Links and pictures of the pages lead to files of the repository, and to headings that exist."""

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MADE = {"reference/cpp.md"}  # by scripts/docs_pages.py, when the site is built
LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
CODE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    return [*sorted(root.glob("*.md")), *sorted(root.glob("docs/**/*.md"))]


def slug(heading: str) -> str:
    """Makes an anchor as mkdocs' toc does; GitHub's is the same for plain words."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    text = page.read_text()
    return {slug(heading) for heading in HEADING.findall(CODE.sub("", text))} | set(re.findall(r'id="([^"]+)"', text))


def broken(root: Path) -> list[str]:
    found = []
    for page in pages(root):
        for link in LINK.findall(CODE.sub("", page.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            said = f"{page.relative_to(root)}: {link}"
            if str(target).removeprefix(f"{root}/docs/") in MADE:
                continue
            if not target.exists() or root not in target.parents:
                found.append(f"{said}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                found.append(f"{said}: no such heading")
    return found


def test_links_and_pictures_lead_somewhere() -> None:
    assert broken(ROOT) == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[a](other.md)", None), ("[a](other.md#two-words)", None), ("[a](#here)", None),
        ("![a](x.png)", "no such file"),
        ("[a](no.md)", "no such file"), ("[a](other.md#none)", "no such heading"), ("[a](https://a.example/b)", None),
        ("[a](../../etc/passwd)", "no such file"), ("`[a](no.md)`", "no such file"), ("```\n[a](no.md)\n```", None),
    ],
)  # fmt: skip
def test_broken_ones_are_found(link: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/other.md").write_text("# Other\n\n## Two `words`\n")
    (tmp_path / "docs/page.md").write_text(f"# Here\n\n{link}\n")
    found = broken(tmp_path)
    assert [line.rpartition(": ")[2] for line in found] == ([] if problem is None else [problem])
