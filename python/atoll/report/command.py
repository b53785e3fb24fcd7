# SPDX-License-Identifier: Apache-2.0
"""The `atoll report` sub-command."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of records, or one record.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    doctor: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file of atoll doctor --json, to compare links with.")
    ] = None,
) -> None:
    """Make a page of a run: where its time went, its distance from the bound, and what to improve.

    Runs are recorded with ATOLL_RUN_DIR=FOLDER, atoll.training.Watch(record=FOLDER) or Session(record=FOLDER). The page
    is one self-contained file."""
    from atoll.report.links import read_doctor
    from atoll.report.page import report as made
    from atoll.report.records import RecordError, read

    try:
        measured = read_doctor(doctor) if doctor is not None else None
        text, said = made(read(folder), measured)
    except RecordError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"--output {output} cannot be written: {error.strerror}") from None
    for sentence in said:
        typer.echo(sentence.text)
    typer.echo(f"Atoll: written to {output} ({len(text) / 1024:.0f} KiB)")
