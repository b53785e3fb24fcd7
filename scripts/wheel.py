# SPDX-License-Identifier: Apache-2.0
"""Makes the files to publish in dist/: the source archive, and a wheel for each release of PyTorch in releases.toml,
which names the release: atoll-0.1.0-1torch2.14.1-cp311-...whl.

The wheel for the release of `make setup` is built from the archive and not from this folder; for the others only the
glue to PyTorch is built, with the existing libatoll, in the environments of `make matrix`. auditwheel adds the
libraries that a machine with PyTorch may lack, and tags the wheel with the oldest glibc that its symbols need.
PyTorch's own libraries are not included: they come with the exact torch that the wheel requires."""

import argparse
import sys
import tarfile
import tempfile
from pathlib import Path

import environments
from common import BUILD, ROOT, VENV_BIN, fail, run_logged, say
from releases import Release, releases
from setup import package_targets

# PyTorch's libraries, which `import torch` loads before Atoll's.
OUTSIDE = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
LOG = BUILD / "logs" / "wheel.log"


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise fail(f"{folder} holds {len(found)} files {pattern}, not one: see {LOG}")
    return found[0]


def archive_in(work: Path) -> tuple[Path, Path]:
    """Makes the source archive; returns it and the folder with its contents."""
    command: list[str | Path] = [VENV_BIN / "python", "-m", "build", "--no-isolation", "--sdist", "--outdir", work]
    run_logged([*command, ROOT], LOG, "the source archive")
    archive = only(work, "atoll-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(work / "source", filter="data")
    return archive, only(work / "source", "atoll-*")


def build_folder(python: Path) -> Path:
    """Returns the build folder of the glue for the torch of this environment."""
    return BUILD / "wheels" / python.parents[1].name


def wheel_in(work: Path, source: Path, release: Release, python: Path, *, log: Path = LOG) -> Path:
    """Builds a wheel that needs no other libraries than those of `OUTSIDE`. From this folder only the glue is built, in
    build/wheels."""
    settings = [f"wheel.build-tag=1torch{release.torch}"]
    if source == ROOT:
        targets = [name for name in package_targets() if name != "atoll"]
        settings += [f"cmake.define.ATOLL_LIBRARY={environments.LIBRARY}", f"build.targets={';'.join(targets)}"]
        settings += [f"build-dir={build_folder(python)}"]
    built, repaired = work / release.torch, work / f"{release.torch}-repaired"
    command: list[str | Path] = [python, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-build-isolation"]
    command += ["--no-deps", "--wheel-dir", built, *(part for each in settings for part in ("-C", each)), source]
    run_logged(command, log, f"the wheel for torch {release.torch}")
    excluded = [part for library in OUTSIDE for part in ("--exclude", library)]
    command = [VENV_BIN / "python", "-m", "auditwheel", "repair", *excluded, "--wheel-dir", repaired]
    run_logged([*command, only(built, "atoll-*.whl")], log, "the libraries that the wheel needs")
    return only(repaired, "atoll-*.whl")


def python_for(release: Release) -> Path | str:
    """Returns the Python of an environment with this torch, or why there is none."""
    if release.is_setup:
        return VENV_BIN / "python"
    found = environments.interpreter(release)
    if found is None:
        return f"Python {' or '.join(release.pythons)} is not installed here"
    environments.FOLDER.mkdir(parents=True, exist_ok=True)
    return environments.installed(release, found, LOG) or f"pip could not install torch {release.torch}: {LOG}"


def make(output: Path, wanted: list[Release]) -> list[str]:
    """Makes the files in the folder; returns what is missing."""
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob("atoll-*.whl"), *output.glob("atoll-*.tar.gz")):
        old.unlink()
    missing = []
    with tempfile.TemporaryDirectory(prefix="atoll-wheel-") as name:
        work = Path(name)
        archive, source = archive_in(work)
        made = [archive]
        for release in wanted:
            python = python_for(release)
            if isinstance(python, str):
                missing.append(f"torch {release.torch}: {python}")
                continue
            made.append(wheel_in(work, source if release.is_setup else ROOT, release, python))
            (output / made[-1].name).write_bytes(made[-1].read_bytes())
            say(f"{output / made[-1].name} ({made[-1].stat().st_size / 1e6:.1f} MB)")
        (output / archive.name).write_bytes(archive.read_bytes())
        say(f"{output / archive.name} ({archive.stat().st_size / 1e6:.1f} MB)")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("--only", nargs="+", metavar="TORCH", help="for these releases")
    options = parser.parse_args()
    known = {release.torch: release for release in releases()}
    unknown = set(options.only or ()) - set(known)
    if unknown:
        raise fail(f"releases.toml has no torch {', '.join(sorted(unknown))}: it has {', '.join(known)}")
    missing = make(options.output, [release for name, release in known.items() if name in (options.only or known)])
    for text in missing:
        say(f"no wheel for {text}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
