# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts. Standard library only: setup.py runs before .venv exists."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
VENV = ROOT / ".venv"
VENV_BIN = VENV / "bin"
CPUS = len(os.sched_getaffinity(0))


def say(text: str) -> None:
    print(f"Atoll: {text}", flush=True)


def fail(text: str) -> "SystemExit":
    """The exception to raise: prints `text` and exits with 1."""
    return SystemExit(f"Atoll: {text}")


def with_part(page: str, begin: str, end: str, content: str) -> str:
    """Returns the page with `content` between two marks. Raises ValueError if it lacks them."""
    before, mark, rest = page.partition(begin)
    _, other, after = rest.partition(end)
    if not mark or not other:
        raise ValueError(f"the page lacks the marks {begin} and {end}")
    return f"{before}{mark}\n{content}\n{other}{after}"


def commit() -> str:
    """Returns the commit, with "-dirty" if the sources differ from it; "unknown" without git."""

    def git(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    try:
        name = git("describe", "--always").stdout.strip()
        changed = git("diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs", ":(exclude)*.md").returncode
    except OSError:
        return "unknown"
    return f"{name}{'-dirty' if changed else ''}" if name else "unknown"


def tool_environment() -> dict[str, str]:
    """Returns the environment for child processes, in which .venv's programs (cmake, ninja) come first."""
    path = os.pathsep.join([str(VENV_BIN), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path}


def run(command: Sequence[str | Path], output: IO[str] | None = None) -> int:
    """Runs `command` in the repository with its output shown, or written to `output`; returns the exit status."""
    sys.stdout.flush()
    errors = None if output is None else subprocess.STDOUT
    return subprocess.call(
        [str(part) for part in command], cwd=ROOT, env=tool_environment(), stdout=output, stderr=errors
    )


def run_logged(command: Sequence[str | Path], log: Path, what: str) -> None:
    """Runs `command` quietly, its output in `log`; on failure shows the end of it and exits."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as output:
        status = run(command, output)
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-40:])
        raise fail(f"{what} failed (exit status {status}). The end of {log.relative_to(ROOT)}:\n{tail}")


def files_under(paths: Iterable[str], suffixes: Sequence[str] = ()) -> list[Path]:
    """Returns the sorted files at or below `paths` (relative to the repository), without caches; no suffixes means
    all."""
    found: set[Path] = set()
    for name in paths:
        top = ROOT / name
        candidates = [top] if top.is_file() else top.rglob("*")
        found.update(
            path
            for path in candidates
            if path.is_file() and "__pycache__" not in path.parts and (not suffixes or path.suffix in suffixes)
        )
    return sorted(found)


def content_hash(files: Iterable[Path], *extra: str) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    for text in extra:
        digest.update(f"{text}\0".encode())
    return digest.hexdigest()
