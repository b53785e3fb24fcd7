# SPDX-License-Identifier: Apache-2.0
"""The table of PyTorch's releases, releases.toml."""

import tomllib
from dataclasses import dataclass

from common import ROOT

LEAST_PYTHON = (3, 11)  # Atoll's own


@dataclass(frozen=True)
class Release:
    torch: str
    pythons: tuple[str, ...]  # "3.11", ...; those that Atoll runs on
    is_setup: bool = False  # what `make setup` installs
    tried: str = ""  # the Python that `make matrix` takes first; "": the one that runs it


def releases() -> list[Release]:
    """In their order."""
    with (ROOT / "releases.toml").open("rb") as file:
        rows = tomllib.load(file)["release"]
    made = []
    for row in rows:
        pythons = [name for name in row["python"] if tuple(map(int, name.split("."))) >= LEAST_PYTHON]
        made.append(Release(row["torch"], tuple(pythons), row.get("setup", False), row.get("tried", "")))
    return made
