# SPDX-License-Identifier: Apache-2.0
"""The `atoll profile model` sub-command: times a model's operators on this machine and on a server."""

import contextlib
import json as json_module
from collections.abc import Iterator
from typing import Annotated

import typer

from atoll.infer.planning.measuring import Tell, Wanted, measure, write

_FILE = "A file that atoll profile wrote on"


def model(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A folder that atoll export wrote.")],
    device: Annotated[str, typer.Option(help="Device to measure here: cpu, cuda:0.")] = "cpu",
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="An atoll serve to measure on too.")] = "",
    key_file: Annotated[str, typer.Option(metavar="FILE", help="Key file of the server.")] = "",
    output: Annotated[str, typer.Option(metavar="FILE", help="Write the times, for atoll plan infer.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="How often each operator is timed here.")] = 5,
    local_profile: Annotated[
        str, typer.Option(metavar="FILE", help=f"{_FILE} the robot, instead of measuring here.")
    ] = "",
    server_profile: Annotated[str, typer.Option(metavar="FILE", help=f"{_FILE} the server, instead of --server.")] = "",
    top: Annotated[
        int, typer.Option(min=0, help="Show only this many operators, longest first; 0: all, in order.")
    ] = 0,
    watts: Annotated[str, typer.Option(metavar="WATTS", help="COMPUTE/IDLE/RADIO, or a file of records.")] = "",
    name: Annotated[str, typer.Option(help="Name of the model in files of records.")] = "",
    wait: Annotated[float, typer.Option(min=1, max=1e6, help="Seconds to wait for the server's measurement.")] = 600.0,
) -> None:
    """Time the operators of a model on this machine, and on a server that runs it.

    Each operator is timed whole and at half its rows, with inputs of zeros; the result is the lower quartile of
    --repeat times. The server times the model once; a model that it already has is not uploaded again."""
    wanted = Wanted(
        bundle, device=device, server=server, key_file=key_file, local_profile=local_profile,
        server_profile=server_profile, repeat=repeat, wait=wait, watts=watts, name=name,
    )  # fmt: skip
    try:
        with _progress() as tell:
            measured = measure(wanted, tell)
        if output:
            write(output, measured.model)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if json:
        typer.echo(json_module.dumps(measured.document, indent=1))
        return
    from atoll.infer.planning.table import show_profile

    show_profile(measured.document, top)
    if output:
        typer.echo(f"Atoll: written to {output}" + ("" if "server" in measured.model["profiles"] else _alone(output)))


def _alone(output: str) -> str:
    return (
        f"; atoll plan infer needs a server's times too: give --server, or the server's file as --server-profile and "
        f"--local-profile {output}"
    )


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """Shows a progress line on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def tell(text: str, share: float | None) -> None:
            progress.update(task, description=text, total=None if share is None else 1.0, completed=share or 0.0)

        yield tell
