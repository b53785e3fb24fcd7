# SPDX-License-Identifier: Apache-2.0
"""The files that the commands of planners read and write."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import typer


def read_json(path: str) -> Any:
    """Reads a JSON file. Raises ValueError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None


def page_of_charts(module: str, *arguments: Any, **named: Any) -> str:
    """Returns the page that the `page` of a module makes of these arguments with plotly."""
    try:
        page: str = import_module(module).page(*arguments, **named)
    except ImportError as error:
        raise typer.BadParameter(f"--html needs the package plotly ({error}): pip install plotly") from None
    return page


def gives_tables(document: Any, path: str) -> bool:
    """Does --json: writes the document to `path` if there is one, or prints it for "-"; returns whether tables follow,
    which they do except for "-"."""
    text = json.dumps(document, indent=1)
    if path == "-":
        typer.echo(text)
    elif path:
        write(path, text + "\n")
    return path != "-"
