# SPDX-License-Identifier: Apache-2.0
"""Tries Atoll as a new user would, and writes the time of each step to docs/results/new_user.md.

In a fresh clone of the last commit it runs README's commands, then makes the guides' environment, installs the wheel
into it and runs every command of the guides. Stops at the first step that fails. Takes about an hour.

With --torch 2.14.1 it only runs the commands for an environment that already has that torch: the page's second part."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from common import ROOT, commit, fail, say, with_part

PAGE = ROOT / "docs/results/new_user.md"
LOG = ROOT / "build/logs/trial.log"
OWN = ("<!-- own torch: begin -->", "<!-- own torch: end -->")
sys.path += [str(ROOT / "tests/python"), str(ROOT / "bench")]


@dataclass
class Trial:
    """`rows`: where, the command, seconds, and the last line of its output."""

    folder: Path
    rows: list[tuple[str, str, float, str]] = field(default_factory=list)

    @property
    def clone(self) -> Path:
        return self.folder / "atoll"

    @property
    def empty(self) -> Path:
        """The environment that the commands of get-started create."""
        return self.clone / "atoll-venv"

    def environment(self, programs: Path | None = None) -> dict[str, str]:
        """Returns an environment without the running one's programs, and with `programs` first."""
        own = str(Path(sys.executable).parent)
        path = [part for part in os.environ["PATH"].split(os.pathsep) if part != own]
        kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
        paths = [str(programs), *path] if programs else path
        return kept | {"PATH": os.pathsep.join(paths), "ATOLL_CACHE": str(self.folder / "cache")}

    def type(self, where: str, command: str, folder: Path, programs: Path | None = None) -> None:
        begin = time.monotonic()
        with LOG.open("a") as output:
            place = output.tell()
            print(f"$ {command}", file=output, flush=True)
            status = subprocess.call(
                command, shell=True, cwd=folder, env=self.environment(programs), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        with LOG.open(errors="replace") as output:
            output.seek(place)
            lines = [line for line in output.read().splitlines() if line.strip()]
        if status != 0:
            raise fail(f"{where}: {command} ended with {status}:\n" + "\n".join(lines[-40:]))
        said = lines[-1].replace(f"{self.clone}/", "") if len(lines) > 1 else ""
        self.note(where, command, time.monotonic() - begin, said)

    def note(self, where: str, command: str, seconds: float, said: str) -> None:
        self.rows.append((where, command, seconds, said))
        say(f"{where}: {command.splitlines()[0]}: {seconds:.1f} s")

    def follow_guides(self) -> None:
        from guides import GUIDES, PORTS, follow
        from launching import free_port

        for guide in GUIDES:
            folder = self.folder / guide.replace("/", "-")
            folder.mkdir()
            ports = {port: str(free_port()) for port in PORTS}
            begin = time.monotonic()
            try:
                for step in follow(guide, folder, self.environment(self.empty / "bin"), ports, self.clone):
                    self.note(guide, step.text.strip(), time.monotonic() - begin, step.what)
                    begin = time.monotonic()
            except AssertionError as error:
                raise fail(f"{guide}: {error}") from None

    def follow_own_torch(self, torch: str) -> None:
        """Installs into an environment that holds this torch and nothing else: from the source, then from a wheel."""
        own, programs = self.folder / "own", self.folder / "own/bin"
        self.type("before", f"python3 -m venv own && own/bin/pip install torch=={torch}", self.folder)
        self.type("before", f"git clone --quiet file://{ROOT} atoll", self.folder)
        self.rows[-1] = ("before", "git clone", *self.rows[-1][2:])
        self.type("from the source", "pip install .", self.clone, programs)
        self.type("from the source", "atoll doctor", self.folder, programs)
        wheels = sorted((ROOT / "dist").glob(f"atoll-*torch{torch}-*.whl"))
        if not wheels:
            say(f"dist/ holds no wheel for torch {torch}: make wheel TORCH={torch}")
            return
        subprocess.run([own / "bin/pip", "uninstall", "--quiet", "--yes", "atoll"], check=True)
        (self.folder / wheels[0].name).write_bytes(wheels[0].read_bytes())
        self.type("from a wheel", f"pip install {wheels[0].name}", self.folder, programs)
        self.type("from a wheel", "atoll doctor", self.folder, programs)


def rows_of(rows: list[tuple[str, str, float, str]]) -> str:
    from results import table

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")[:100]

    lines = [[where, f"`{cell(command)}`", f"{seconds:.1f} s", cell(said)] for where, command, seconds, said in rows]
    return table(["where", "typed", "took", "and said"], lines)


def run_on(tried: str, others: float, more: str = "") -> str:
    from atoll.bench import machine

    computer = machine.describe()
    return (
        f"Run {datetime.now(UTC):%Y-%m-%d %H:%M} UTC on {computer['processor']}, {computer['cores']} cores, Linux "
        f"{computer['kernel']}, at commit {tried}. Others used {others:.2f} cores meanwhile. "
        f"Again with `.venv/bin/python scripts/trial.py{more}`.\n\n"
    )


def own_part(rows: list[tuple[str, str, float, str]], torch: str, tried: str, others: float) -> str:
    return (
        f"## Where torch {torch} is there already\n\n{run_on(tried, others, f' --torch {torch}')}"
        "An environment that holds this torch and nothing else; two commands, from the source and from a wheel of "
        "`make wheel`. Packages of Debian were installed before.\n\n" + rows_of(rows)
    )


def page(rows: list[tuple[str, str, float, str]], tried: str, others: float, own: str) -> str:
    total = sum(seconds for *_, seconds, _ in rows)
    return (
        f"# As a new user\n\n{run_on(tried, others)}"
        "A fresh clone, README's commands in it, the environment that the guides make, what they install there, and "
        "each command that they have for one machine without accelerators; the others' options are checked by "
        "`make test`. Packages of Debian were installed before; PyPI's come over the network.\n\n"
        f"{rows_of(rows)}\nAll together: {total / 60:.0f} minutes.\n\n{OWN[0]}{own}{OWN[1]}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="RELEASE")
    torch: str | None = parser.parse_args().torch
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.write_text("")
    tried = commit()
    from atoll.bench.machine import OthersLoad, own_seconds

    others = OthersLoad()
    with tempfile.TemporaryDirectory(prefix="atoll-trial-") as name:
        trial = Trial(Path(name))
        if torch is not None:
            trial.follow_own_torch(torch)
            part = own_part(trial.rows, torch, tried, others.cores(own_seconds()))
            PAGE.write_text(with_part(PAGE.read_text(), *OWN, part))
            say(f"{PAGE.relative_to(ROOT)} says how long it took")
            return
        trial.type("README", f"git clone --quiet file://{ROOT} atoll", trial.folder)
        for command in ("make demo", "make test", "make demo", "make wheel TORCH=2.13.0"):
            trial.type("README", command, trial.clone)
        trial.follow_guides()
        rows = trial.rows
    rows[0] = (rows[0][0], "git clone", *rows[0][2:])
    own = PAGE.read_text().partition(OWN[0])[2].partition(OWN[1])[0]
    PAGE.write_text(page(rows, tried, others.cores(own_seconds()), own))
    minutes = sum(row[2] for row in rows) / 60
    say(f"a new user was through after {minutes:.0f} minutes; {PAGE.relative_to(ROOT)} says more")


if __name__ == "__main__":
    main()
