# SPDX-License-Identifier: Apache-2.0
"""Makes build/gpu-pack: everything that `make gpu` needs on a machine with a card but without a network or Debian's
packages.

One folder of plain files, which is copied there beside the sources: `deps`, a prefix for ATOLL_DEPS_DIR with headers,
archives and FlatBuffers' compiler; `site`, Python packages; README.txt and manifest.json with the versions of both."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from common import BUILD, ROOT, fail, run_logged, say
from setup import listed, words_of

PACK = BUILD / "gpu-pack"
LOG = BUILD / "logs/gpu-pack.log"
NOT_PACKED = ("g++", "redis-server", "libgtest-dev", "libgmock-dev")  # for tests, or there anyway
NOT_NEEDED = ("libucx0",)  # the wheel's is used
# Wheels that programs of the trial import and that a machine with PyTorch may lack.
WHEELS = ("libucx-cu13==1.22.0", "expecttest==0.3.0")
# Files that no build reads, archives of libraries that are linked shared, and shared libraries of linked archives.
UNUSED = re.compile(
    r"/(doc|man|lintian|bug|pkgconfig|perl5)/|lib(ssl|crypto|flatbuffers)\.a$|lib(ucp|ucs|uct|ucm)[^/]*\.l?a$"
    r"|/lib(flatbuffers|hiredis|jpeg|seccomp|xxhash|zstd)\.so"
)
UNUSED_OF_WHEELS = re.compile(
    r"libucx/(bin|include|share|etc)/|\.a$|\.la$|perftest|libucx/lib/.*\.so\.\d+\.\d+|/cmake/|/pkgconfig/"
)
LIMIT_BYTES = 48 << 20


@dataclass
class Packed:
    """The versions of all packages, by name."""

    debian: dict[str, str] = field(default_factory=dict)
    python: dict[str, str] = field(default_factory=dict)


def pinned_to(package: Path) -> list[str]:
    """Returns the packages that this one requires in exactly its own version: the libraries to which its headers
    belong."""
    depends = subprocess.run(["dpkg-deb", "-f", package, "Depends"], capture_output=True, text=True, check=True).stdout
    return [part.split()[0] for part in depends.split(",") if "(=" in part]


def download(names: list[str], folder: Path) -> list[Path]:
    before = set(folder.glob("*.deb"))
    os.chdir(folder)  # where apt-get puts them
    try:
        run_in(["apt-get", "download", "-o", "APT::Sandbox::User=root", *names], folder)
    finally:
        os.chdir(ROOT)
    return sorted(set(folder.glob("*.deb")) - before)


def run_in(command: list[str], folder: Path) -> None:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a") as output:
        status = subprocess.call(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    if status != 0:
        raise fail(f"{' '.join(command)} ended with status {status}: see {LOG}")


def unpack_debian(work: Path, packed: Packed) -> Path:
    """Unpacks all packages, and the libraries to which their headers belong, into one tree."""
    names = [name for name in listed("build") if name not in NOT_PACKED]
    packages = download(names, work)
    libraries = sorted({name for package in packages for name in pinned_to(package)} - {*names, *NOT_NEEDED})
    tree = work / "tree"
    for package in [*packages, *download(libraries, work)]:
        subprocess.run(["dpkg-deb", "-x", package, tree], check=True)
        fields = words_of("dpkg-deb", "-W", "--showformat=${Package} ${Version}", str(package))
        packed.debian[fields[0]] = fields[1]
    return tree


def copy_tree(tree: Path, deps: Path) -> None:
    """Copies files only: links are replaced by their targets, and headers of one architecture join the others, so that
    one include folder is enough for every compiler."""
    triple = words_of("g++", "-print-multiarch") or [f"{os.uname().machine}-linux-gnu"]
    for path in sorted(tree.rglob("*")):
        name = path.relative_to(tree).as_posix()
        if not path.is_file() or UNUSED.search(f"/{name}"):
            continue
        name = name if name.startswith("usr/") else f"usr/{name}"
        target = deps / name.replace(f"usr/include/{triple[0]}/", "usr/include/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)  # follows links


def unpack_wheels(work: Path, site: Path, packed: Packed) -> None:
    say(f"downloading {', '.join(WHEELS)}")
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        work,
    ]
    run_logged([*command, *WHEELS], LOG.with_name("gpu-pack-pip.log"), "pip download")
    for wheel in sorted(work.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        packed.python[name] = version
        with zipfile.ZipFile(wheel) as archive:
            members = [each for each in archive.namelist() if not UNUSED_OF_WHEELS.search(each)]
            archive.extractall(site, members)


def strip(folder: Path) -> None:
    """Removes what only debuggers read."""
    if shutil.which("strip"):
        libraries = [str(path) for path in folder.rglob("*") if re.search(r"\.(so|a)(\.\d+)*$", path.name)]
        subprocess.run(["strip", "--strip-debug", *libraries], check=False, stderr=subprocess.DEVNULL)


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def describe(packed: Packed, pack: Path) -> None:
    (pack / "manifest.json").write_text(json.dumps({"debian": packed.debian, "python": packed.python}, indent=1) + "\n")
    lines = ["What `make gpu` takes from here where the machine lacks it; made by `make gpu-pack`.", ""]
    lines += ["deps: headers and libraries of these Debian packages, a prefix for ATOLL_DEPS_DIR:"]
    lines += [f"  {name} {version}" for name, version in sorted(packed.debian.items())]
    lines += ["", "site: these Python packages, a folder for PYTHONPATH:"]
    lines += [f"  {name} {version}" for name, version in sorted(packed.python.items())]
    lines += ["", "Their licences are in docs/dependencies.md of Atoll."]
    (pack / "README.txt").write_text("\n".join(lines) + "\n")


def make(pack: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise fail("apt-get and dpkg-deb are missing: the pack is made on a Debian machine, and used on any")
    shutil.rmtree(pack, ignore_errors=True)
    pack.mkdir(parents=True)
    packed = Packed()
    with tempfile.TemporaryDirectory(prefix="atoll-pack-") as name:
        work = Path(name)
        say("downloading Debian packages")
        copy_tree(unpack_debian(work, packed), pack / "deps")
        unpack_wheels(work, pack / "site", packed)
    strip(pack)
    describe(packed, pack)
    found = size_of(pack)
    if found > LIMIT_BYTES:
        raise fail(f"the pack has {found / 1e6:.0f} MB, more than {LIMIT_BYTES / 1e6:.0f}: see {pack}")
    say(f"{pack.relative_to(ROOT) if pack.is_relative_to(ROOT) else pack} is ready ({found / 1e6:.1f} MB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PACK)
    make(parser.parse_args().output.resolve())


if __name__ == "__main__":
    main()
