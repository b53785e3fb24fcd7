# SPDX-License-Identifier: Apache-2.0
"""Makes what is published: dist/ holds the source archive, and the wheel built from it and not from this folder.

auditwheel puts the libraries into the wheel that a machine with PyTorch may lack, and tags it with the oldest glibc
that its symbols need. PyTorch's own libraries stay outside: they come with the exact torch that the wheel asks for."""

import argparse
import sys
import tarfile
import tempfile
from pathlib import Path

from common import BUILD, ROOT, VENV_BIN, fail, run_logged, say

# Of PyTorch, loaded before Atoll's by `import torch`.
OUTSIDE = ("libc10.so", "libtorch.so", "libtorch_cpu.so", "libtorch_python.so")
LOG = BUILD / "logs" / "wheel.log"


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise fail(f"{folder} holds {len(found)} files {pattern}, not one: see {LOG}")
    return found[0]


def make(output: Path) -> tuple[Path, Path]:
    """The source archive and the wheel."""
    python = VENV_BIN / "python"
    with tempfile.TemporaryDirectory(prefix="atoll-wheel-") as name:
        work = Path(name)
        command: list[str | Path] = [python, "-m", "build", "--no-isolation", "--sdist", "--outdir", work, ROOT]
        run_logged(command, LOG, "the source archive")
        archive = only(work, "atoll-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(work / "source", filter="data")
        source = only(work / "source", "atoll-*")
        command = [python, "-m", "build", "--no-isolation", "--wheel", "--outdir", work, source]
        run_logged(command, LOG, "the wheel")
        excluded = [part for library in OUTSIDE for part in ("--exclude", library)]
        output.mkdir(parents=True, exist_ok=True)
        repaired = work / "repaired"
        command = [python, "-m", "auditwheel", "repair", *excluded, "--wheel-dir", repaired, only(work, "atoll-*.whl")]
        run_logged(command, LOG, "the libraries that the wheel needs")
        for old in (*output.glob("atoll-*.whl"), *output.glob("atoll-*.tar.gz")):
            old.unlink()
        made = [archive, only(repaired, "atoll-*.whl")]
        for each in made:
            (output / each.name).write_bytes(each.read_bytes())
    return output / made[0].name, output / made[1].name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    for path in make(parser.parse_args().output):
        say(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
