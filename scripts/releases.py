# SPDX-License-Identifier: Apache-2.0
"""The table of PyTorch's releases, releases.toml."""

import tomllib
from dataclasses import dataclass

from common import ROOT

MIN_PYTHON = (3, 11)  # the oldest one that Atoll runs on


@dataclass(frozen=True)
class Release:
    torch: str
    pythons: tuple[str, ...]  # "3.11", ...; those that Atoll runs on
    is_setup: bool = False  # what `make setup` installs
    tried: str = ""  # the Python that `make matrix` takes first; "": the one that runs it


def releases() -> list[Release]:
    """Returns the releases in the order of the table."""
    with (ROOT / "releases.toml").open("rb") as file:
        rows = tomllib.load(file)["release"]
    made = []
    for row in rows:
        pythons = [name for name in row["python"] if tuple(map(int, name.split("."))) >= MIN_PYTHON]
        made.append(Release(row["torch"], tuple(pythons), row.get("setup", False), row.get("tried", "")))
    return made
