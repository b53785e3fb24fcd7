# SPDX-License-Identifier: Apache-2.0
"""Tables that commands print."""

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table


def wide(console: Console | None, width: int = 120) -> Console:
    """Returns the console, by default stdout's, at least `width` columns wide if it is not a terminal."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, width)
    return console


def new_table(*columns: str, left: Collection[str] = (), rows: Iterable[Sequence[str]] = ()) -> Table:
    """Returns a table without lines; columns that are not in `left` are right-aligned."""
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
