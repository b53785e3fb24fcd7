# SPDX-License-Identifier: Apache-2.0
"""Shared by the steps of `make gpu`: their options, the record, and ranks on a device and on CPUs."""

import argparse
import atexit
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests/python"
# The functions that tests run on their ranks, and the programs of other measurements.
FOLDERS = [TESTS, TESTS / "contract", TESTS / "clients", TESTS / "uneven", TESTS / "infer", ROOT / "bench"]
sys.path += [str(folder) for folder in FOLDERS if str(folder) not in sys.path]
# Ranks are forked from a server that finds modules there.
paths = [*map(str, FOLDERS), str(ROOT / "bench/gpu"), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))

SHOWN = 400  # characters of an error


@dataclass
class Trial:
    """One step: its options, and where its figures go."""

    step: str
    device: str
    quick: bool
    results: Path
    failures: int = 0

    def add(self, text: str = "", **figures: Any) -> None:
        """Adds a row to the record, which is on disk when this returns. `text` is for people; rows without one are for
        programs."""
        row = {"kind": "figure", "step": self.step, "text": text, **figures}
        with self.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if text:
            print(text, flush=True)

    def check(self, what: str, body: Callable[[], Any]) -> Any:
        """Returns the result of `body`. An error becomes a row of the record; the step goes on, and fails at its
        end."""
        begin = time.monotonic()
        try:
            found = body()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failures += 1
            traceback.print_exc()
            self.add(f"FAILED {what}: {reason(error)}", what=what, good=False)
            return None
        self.add(what=what, good=True, seconds=round(time.monotonic() - begin, 2))
        return found

    def end(self) -> None:
        """Exits the program, with 1 if a check failed."""
        sys.stdout.flush()
        sys.exit(1 if self.failures else 0)

    @property
    def stands_in(self) -> bool:
        """Whether a simulated device stands in for the card."""
        return self.device == "sim"


def reason(error: BaseException) -> str:
    """Returns the last line that is not blank, for a table."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{type(error).__name__}: {lines[-1].strip()}"[:SHOWN]


def begin(description: str | None, *positional: str) -> tuple[Trial, argparse.Namespace]:
    """Reads the options that all steps have, and `positional` arguments of this one."""
    parser = argparse.ArgumentParser(description=description)
    for name in positional:
        parser.add_argument(name)
    parser.add_argument("--device", default="sim")
    parser.add_argument("--step", default=Path(sys.argv[0]).stem)
    parser.add_argument("--results", type=Path, default=Path(os.devnull))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    os.environ["ATOLL_CACHE"] = tempfile.mkdtemp(prefix="atoll-gpu-")
    atexit.register(shutil.rmtree, os.environ["ATOLL_CACHE"], ignore_errors=True)
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    return Trial(given.step, given.device, given.quick, given.results), given


def kinds_of(layout: str, device: str) -> list[str]:
    """Returns the kind of each rank's device: "D C C" is a device and two CPUs."""
    return [{"D": device, "C": "cpu"}[letter] for letter in layout.split()]


def islands_of(layout: str) -> list[str]:
    """Returns each rank's island: each device is an island of its own, also where two ranks share a card; CPUs form
    one."""
    letters = layout.split()
    return [f"device{rank}" if letter == "D" else "cpus" for rank, letter in enumerate(letters)]


def environments_of(kinds: Sequence[str]) -> list[dict[str, str]]:
    """Returns each rank's environment: all ranks on devices use the machine's first device."""
    return [{"ATOLL_DEVICE": "cpu" if kind == "cpu" else f"{kind}:0"} for kind in kinds]


def ranks_of(layout: str, device: str, **environment: str) -> Any:
    """Returns processes that call functions by name, like those of the tests."""
    from support import Ranks

    kinds = kinds_of(layout, device)
    return Ranks(len(kinds), islands_of(layout), environment, kinds, environments_of(kinds))
