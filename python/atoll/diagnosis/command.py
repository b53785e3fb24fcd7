# SPDX-License-Identifier: Apache-2.0
"""The `atoll trace` sub-command."""

import json
from pathlib import Path
from typing import Annotated

import typer


def trace(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of ATOLL_TRACE_DIR, or of dumps.")],
    out: Annotated[str, typer.Option("-o", "--out", metavar="FILE", help="Write a timeline for Perfetto.")] = "",
    flight_recorder: Annotated[
        str, typer.Option(metavar="FOLDER", help="Write files for torchfrtrace, PyTorch's analyser.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="Lines of each table.")] = 10,
) -> None:
    """Combine what a job's ranks recorded about their collectives: which ranks came last or never, and which ranks the
    others waited for."""
    from atoll.diagnosis import flight_recorder as recorder
    from atoll.diagnosis import table, timeline
    from atoll.diagnosis.clocks import Clocks
    from atoll.diagnosis.records import read_folder
    from atoll.diagnosis.waiting import collectives

    try:
        records = read_folder(folder)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    clocks = Clocks(records.records)
    found = collectives(records, clocks)
    try:
        if out:
            Path(out).write_text(json.dumps(timeline.timeline(records, found, clocks)), encoding="utf-8")
        if flight_recorder:
            recorder.write(records, Path(flight_recorder))
    except OSError as error:
        raise typer.BadParameter(f"{error.filename} cannot be written: {error.strerror}") from None
    table.show(records, found, clocks, top)
