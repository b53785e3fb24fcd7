# SPDX-License-Identifier: Apache-2.0
"""Installed headers include only headers that are installed, too."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


def installed() -> set[str]:
    """Returns the headers that cmake/AtollPackage.cmake installs: whole layers without some folders, and single
    files."""
    text = (ROOT / "cmake/AtollPackage.cmake").read_text()
    layers = re.search(r"foreach\(layer ([\w ]+)\)", text)
    assert layers is not None
    left_out = re.findall(r"PATTERN ([\w/]+) EXCLUDE", text)
    found = {
        str(path.relative_to(SOURCES))
        for layer in layers[1].split()
        for path in (SOURCES / "atoll" / layer).rglob("*.h")
        if not any(f"/{folder}/" in path.as_posix() for folder in left_out)
    }
    return found | set(re.findall(r"\$\{PROJECT_SOURCE_DIR\}/src/(\S+\.h)", text))


def test_installed_headers_include_installed_headers_only() -> None:
    headers = installed()
    assert len(headers) > 100
    missing = {
        f"{header}: {included}"
        for header in headers
        for included in re.findall(r'#include "(atoll/\S+)"', (SOURCES / header).read_text())
        if included not in headers
    }
    assert missing == set()
