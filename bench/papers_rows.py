# SPDX-License-Identifier: Apache-2.0
"""Reads papers.toml: the figures and tables of the five papers."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).with_name("papers.toml")


@dataclass(frozen=True)
class Row:
    what: str  # "figure 2"
    shows: str
    why: str  # what differs here
    paper: str = ""  # its numbers
    command: str = ""  # the command that measures the same
    ours: str = ""  # a function of papers_found and its arguments


@dataclass(frozen=True)
class Paper:
    title: str
    rows: tuple[Row, ...]


def read() -> tuple[Paper, ...]:
    with PATH.open("rb") as file:
        data = tomllib.load(file)
    papers = []
    for paper in data["papers"]:
        rows = [Row(**{**row, "why": row["why"].format(**data["reasons"])}) for row in paper["rows"]]
        papers.append(Paper(paper["title"], tuple(rows)))
    return tuple(papers)
