# SPDX-License-Identifier: Apache-2.0
"""Every package has a reason in the docs and an entry in the list; an audit that did not happen is reported as such."""

import re
import runpy
import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTED = re.sub(r"[-_.]+", "-", (ROOT / "docs/dependencies.md").read_text().lower())


@pytest.fixture(scope="module")
def chain() -> SimpleNamespace:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return SimpleNamespace(**runpy.run_path(str(ROOT / "scripts/supply_chain.py")))
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def documented(name: str) -> bool:
    plain = re.escape(re.sub(r"[-_.]+", "-", name.lower()))
    return re.search(rf"(?<![a-z0-9-]){plain}(?![a-z0-9-])", DOCUMENTED) is not None


def test_every_requirements_file_pins_and_explains(chain: SimpleNamespace) -> None:
    files = {path.name: chain.pins(path.read_text()) for path in ROOT.glob("requirements*.txt")}
    assert set(files) == set(chain.REQUIREMENTS)
    assert all(files.values())
    assert {name for names in files.values() for name in names if not documented(name)} == set()


def test_every_debian_package_is_explained(chain: SimpleNamespace) -> None:
    names = chain.debian_names((ROOT / "scripts/debian-packages.txt").read_text())
    assert names
    assert {name for name in names if not documented(name.partition(":")[0])} == set()


@pytest.mark.parametrize("line", ["numpy", "numpy>=2", "numpy==2.*", "numpy==2; python_version > '3'", "a[b]==1"])
def test_what_pins_nothing_is_refused(chain: SimpleNamespace, line: str) -> None:
    with pytest.raises(ValueError, match="pins no version"):
        chain.pins(f"# a comment\ntyper==0.1\n{line}\n")


def about(**fields: str | list[str]) -> Any:
    metadata = Message()
    for name, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            metadata[name.replace("_", "-")] = each
    return SimpleNamespace(metadata=metadata)


def test_licences_of_python_packages(chain: SimpleNamespace) -> None:
    osi = "License :: OSI Approved :: MIT License"
    assert chain.python_licence(about(License_Expression="MIT AND Apache-2.0", License="text")) == "MIT AND Apache-2.0"
    assert chain.python_licence(about(License="BSD-3-Clause")) == "BSD-3-Clause"
    assert chain.python_licence(about(License="x" * 500, Classifier=["Topic :: Any", osi])) == "MIT License"
    assert chain.python_licence(about(License="UNKNOWN", Classifier=[osi])) == "MIT License"
    assert chain.python_licence(about()) == ""


def test_licences_of_debian_packages(chain: SimpleNamespace) -> None:
    fields = "Format: x\n\nFiles: *\nLicense: Apache-2.0\n\nFiles: debian/*\nLicense: GPL-2+ \n\n"
    fields += "License: Apache-2.0\n text\n"
    assert chain.debian_licence(fields) == "Apache-2.0, GPL-2+"
    assert chain.debian_licence("see /usr/share/common-licenses/GPL-3.\n") == "GPL-3"
    assert chain.debian_licence("all mine") == ""


def test_the_list_is_cyclonedx(chain: SimpleNamespace) -> None:
    packages = [
        chain.Package("pypi", "NumPy", "2.4.6", "BSD-3-Clause AND MIT", "requirements.txt"),
        chain.Package("deb", "g++", "4:12", "GPL-3, other", "scripts/debian-packages.txt"),
    ]
    listed = chain.bill(packages)
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    deb, pypi = listed["components"]
    assert pypi["purl"] == "pkg:pypi/numpy@2.4.6"
    assert pypi["licenses"] == [{"expression": "BSD-3-Clause AND MIT"}]
    assert deb["purl"] == "pkg:deb/debian/g%2B%2B@4%3A12"
    assert deb["licenses"] == [{"license": {"name": "GPL-3, other"}}]


def test_what_was_not_looked_up_is_not_called_audited(chain: SimpleNamespace) -> None:
    vulnerability = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"], "description": ""}
    report = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "weak", "version": "1", "vulns": [vulnerability]},
            {"name": "unknown", "skip_reason": "not found"},
        ]
    }
    audited, unknown, weak = chain.verdict(report)
    assert audited == 2
    assert unknown == ["unknown"]
    assert weak == ["weak 1: PYSEC-1 (fixed in: 2.0)"]
