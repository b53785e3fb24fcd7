# SPDX-License-Identifier: Apache-2.0
"""The guides as steps: packages to install, files to save, commands to run, and commands for other machines."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ["get-started.md", "launchers.md", *sorted(f"guides/{path.name}" for path in (DOCS / "guides").glob("*.md"))]
BLOCK = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (file|run|install|elsewhere)(?:: (.*?))? -->")
PORTS = ("4700", "29500")  # the ports in the guides, for which a test substitutes free ones
SECONDS = 100  # for one command, on a busy machine
INSTALL_SECONDS = 1800  # PyTorch comes over the network


@dataclass(frozen=True)
class Step:
    kind: str  # "file", "run", "install" or "elsewhere"
    what: str  # a file's name, a text in a command's output, or the extra of the wheel
    text: str


def steps_of(guide: str) -> list[Step]:
    """Returns the steps in order. Every block of commands must state whether it can be run here."""
    found = []
    for marks, language, text in BLOCK.findall((DOCS / guide).read_text()):
        said = MARK.findall(marks)
        assert said or language != "bash", f"{guide}: say of this block whether it is run:\n{text}"
        for kind, what in said:
            name, _, other = what.partition(" from ")
            if other:
                (text_of_file,) = (step.text for step in steps_of(other) if (step.kind, step.what) == ("file", name))
                found.append(Step(kind, name, text_of_file))
            else:
                found.append(Step(kind, what.strip('"'), text))
    return found


def follow(
    guide: str, folder: Path, environment: dict[str, str], ports: dict[str, str], checkout: Path | None = None
) -> Iterator[Step]:
    """Follows the guide in `folder` with other ports; yields each command when it is done. Raises AssertionError for
    a command that fails or lacks the expected output. Packages are installed from `checkout`, which holds the wheel;
    without it they are already installed."""

    def here(text: str) -> str:
        return re.sub("|".join(rf"\b{port}\b" for port in PORTS), lambda match: ports[match[0]], text)

    for step in steps_of(guide):
        if step.kind == "file":
            (folder / step.what).write_text(here(step.text))
        elif step.kind == "install" and checkout:
            status, said = shell(step.text, checkout, environment, INSTALL_SECONDS)
            assert status == 0, f"{step.text}\n{said}"
            yield step
        elif step.kind == "run":
            status, said = shell(here(step.text), folder, environment)
            assert status == 0, f"{step.text}\n{said}"
            assert step.what in said, f"{step.text}\n{said}"
            yield step


def shell(script: str, folder: Path, environment: dict[str, str], seconds: float = SECONDS) -> tuple[int, str]:
    """Runs a command; returns its status and output. Nothing that it started is left."""
    command = ["bash", "-e", "-o", "pipefail", "-c", script]
    log = folder / "said.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(SECONDS)
    return status, log.read_text(errors="replace")
