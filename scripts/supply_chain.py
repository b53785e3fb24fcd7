# SPDX-License-Identifier: Apache-2.0
"""The packages that Atoll is made with: a list of each with version and licence, and those with known vulnerabilities.

The list is CycloneDX 1.6 in build/sbom.cdx.json. Vulnerabilities come from pip-audit (requirements-check.txt, in
build/audit), which queries PyPI; packages that it could not look up are reported, and never counted as looked up."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from common import BUILD, ROOT, VENV, VENV_BIN, content_hash, run_logged, say

AUDIT = BUILD / "audit"
LIST = BUILD / "sbom.cdx.json"
REQUIREMENTS = ("requirements.txt", "requirements-verify.txt", "requirements-check.txt")
AUDIT_TIMEOUT_S = 180
MAX_NAME = 100  # characters of a licence's name; anything longer is a licence's text

# Vulnerabilities that do no harm here, by id, with the reason.
ACCEPTED: Mapping[str, str] = {}


@dataclass(frozen=True)
class Package:
    """One package of the list; `licence` is an SPDX expression or a name, "" where none is known."""

    kind: str  # "pypi" or "deb"
    name: str
    version: str
    licence: str
    needed_by: str  # the file that names it

    def component(self) -> dict[str, Any]:
        where = "pypi/" if self.kind == "pypi" else "deb/debian/"
        expression = bool(re.fullmatch(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*", self.licence))
        licence = {"expression": self.licence} if expression else {"license": {"name": self.licence}}
        url = f"pkg:{where}{quote(self.name.lower(), '')}@{quote(self.version, '')}"
        return {
            "type": "library",
            "bom-ref": url,
            "name": self.name,
            "version": self.version,
            "purl": url,
            "licenses": [licence],
            "properties": [{"name": "atoll:needed-by", "value": self.needed_by}],
        }


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """Returns the versions in a requirements file, by name. Raises ValueError for a line without a pinned version."""
    found = {}
    for line in text.splitlines():
        wanted = line.partition("#")[0].strip()
        if not wanted:
            continue
        name, equal, version = wanted.partition("==")
        if not equal or not version or re.search(r"[\s;,*\[]", name + version):
            raise ValueError(f'"{wanted}" pins no version: expected NAME==VERSION')
        found[canonical(name)] = version
    return found


def debian_names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]


def python_licence(distribution: Distribution) -> str:
    """Returns the licence expression if the package states one, else the name that it or its classifier gives."""
    about = distribution.metadata
    stated = next((about[name] for name in ("License-Expression", "License") if name in about), "")
    first = stated.strip().splitlines()[0].strip() if stated.strip() else ""
    if first and first.upper() != "UNKNOWN" and len(first) <= MAX_NAME and "\n" not in stated.strip():
        return first
    classes = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    return " OR ".join(dict.fromkeys(classes)) or first[:MAX_NAME]


def debian_licence(text: str) -> str:
    """Returns the licences that a Debian copyright file names: its fields, else the common texts that it refers to."""
    fields = re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE)
    common = re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.+-]*[A-Za-z0-9+])", text)
    return ", ".join(dict.fromkeys(fields or common))


def python_packages(folders: list[str]) -> Iterator[Package]:
    installed: dict[str, Distribution] = {}
    for each in distributions(path=folders):
        installed.setdefault(canonical(each.metadata["Name"]), each)
    for file in REQUIREMENTS:
        for name, version in pins((ROOT / file).read_text()).items():
            found = installed.get(name)
            if found is not None:
                yield Package("pypi", found.metadata["Name"], version, python_licence(found), file)
            elif file != "requirements-verify.txt":  # installed by `make verify` alone
                yield Package("pypi", name, version, "", file)


def debian_packages() -> Iterator[Package]:
    file = "scripts/debian-packages.txt"
    names = debian_names((ROOT / file).read_text())
    command = ["dpkg-query", "-W", "-f=${Package} ${Version} ${db:Status-Status}\n", *names]
    try:
        rows = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    except FileNotFoundError:
        return say("this system is not Debian: Debian packages are not in the list")
    for name, version, status in (row.split() for row in rows if len(row.split()) == 3):
        copyright_file = Path("/usr/share/doc", name, "copyright")
        text = copyright_file.read_text(errors="replace") if copyright_file.is_file() else ""
        if status == "installed":
            yield Package("deb", name, version, debian_licence(text), file)


def bill(packages: list[Package]) -> dict[str, Any]:
    """Returns the list as CycloneDX; it is the same for the same packages."""
    components = [each.component() for each in sorted(packages, key=lambda each: (each.kind, each.name.lower()))]
    components = list({each["bom-ref"]: each for each in components}.values())  # several files may name one package
    about = {"component": {"type": "library", "bom-ref": "atoll", "name": "atoll"}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": about, "components": components}


def verdict(report: Mapping[str, Any]) -> tuple[int, list[str], list[str]]:
    """Reads pip-audit's JSON; returns the number of packages that were looked up, the names of those that were not, and
    a line for each vulnerability."""
    audited, unknown, weak = 0, [], []
    for each in report["dependencies"]:
        if "skip_reason" in each:
            unknown.append(each["name"])
            continue
        audited += 1
        for found in each["vulns"]:
            if found["id"] in ACCEPTED or ACCEPTED.keys() & set(found.get("aliases", [])):
                continue
            cure = ", ".join(found.get("fix_versions", [])) or "none"
            weak.append(f"{each['name']} {each['version']}: {found['id']} (fixed in: {cure})")
    return audited, unknown, weak


def audit() -> list[str]:
    """Returns a line for each vulnerability; prints how many packages were looked up."""
    output = BUILD / "audit.json"
    output.unlink(missing_ok=True)
    command: list[str | Path] = [AUDIT / "bin/pip-audit", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
    command += ["--format", "json", "--output", output, "--vulnerability-service", "pypi", "--timeout", "15"]
    for file in REQUIREMENTS:
        command += ["--requirement", ROOT / file]
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=AUDIT_TIMEOUT_S,
            check=False,
        )
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if not output.is_file():
        say(f"supply chain: NOT AUDITED: the list of vulnerabilities could not be reached ({why[:200]})")
        return []
    audited, unknown, weak = verdict(json.loads(output.read_text()))
    if unknown:
        named = ", ".join(sorted(unknown)[:5]) + (", ..." if len(unknown) > 5 else "")
        say(f"supply chain: NOT AUDITED: {len(unknown)} packages are unknown to the service: {named}")
    say(f"supply chain: {audited} packages were looked up, {len(weak)} vulnerabilities")
    return weak


def ensure_tools() -> None:
    """Installs the packages of requirements-check.txt into build/audit, separate from .venv."""
    requirements = ROOT / "requirements-check.txt"
    stamp = AUDIT / "requirements.stamp"
    key = content_hash([requirements], str(VENV))
    if stamp.is_file() and stamp.read_text() == key:
        return
    run_logged([VENV_BIN / "python", "-m", "venv", "--clear", AUDIT], BUILD / "logs/audit-venv.log", "venv")
    install: list[str | Path] = [AUDIT / "bin/python", "-m", "pip", "install", "--disable-pip-version-check"]
    install += ["--no-input", "--no-deps", "--requirement", requirements]
    run_logged(install, BUILD / "logs/audit.log", "pip install")
    stamp.write_text(key)


def folders_of(python: Path) -> list[str]:
    done = subprocess.run(
        [str(python), "-c", "import sys; print('\\n'.join(sys.path[1:]))"], capture_output=True, text=True, check=True
    )
    return done.stdout.split("\n")[:-1]


def check() -> str:
    """Writes the list; returns what is wrong: packages without a version or a licence, and vulnerabilities."""
    ensure_tools()
    packages = [*python_packages([*folders_of(VENV_BIN / "python"), *folders_of(AUDIT / "bin/python")])]
    packages += debian_packages()
    LIST.write_text(json.dumps(bill(packages), indent=1) + "\n")
    say(f"supply chain: {len(packages)} packages in {LIST.relative_to(ROOT)}")
    bare = [f"{each.name} {each.version} ({each.needed_by}) has no licence" for each in packages if not each.licence]
    return "".join(f"{line}\n" for line in [*bare, *audit()])
