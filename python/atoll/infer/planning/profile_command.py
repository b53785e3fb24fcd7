# SPDX-License-Identifier: Apache-2.0
"""The `atoll profile` sub-commands: `link`, and `model`, which times a model's operators here and on a server."""

import contextlib
import json as json_module
import signal
import threading
from collections.abc import Iterator
from typing import Annotated, Any

import typer
import typer.core

from atoll.infer.planning import trace as traces
from atoll.infer.planning.measuring import Tell, Wanted, measure
from atoll.infer.planning.rates import rate_text
from atoll.planning.files import write


class _BundleFirst(typer.core.TyperGroup):
    """Takes a first word that is not a sub-command as the bundle of `model`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["model", *args]
        return super().parse_args(ctx, args)


_FILE = "A file that atoll profile wrote on"
_HELP = "Measure devices and links. `atoll profile BUNDLE` is short for `atoll profile model BUNDLE`."
profile = typer.Typer(name="profile", cls=_BundleFirst, help=_HELP, no_args_is_help=True)


@profile.callback()
def _group() -> None:
    """Measure devices and links."""


@profile.command()
def link(
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The service to forward connections to.")],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0: any.")
    ] = "127.0.0.1:0",
    replay: Annotated[str, typer.Option(metavar="FILE", help="A trace whose rates limit what is carried.")] = "",
    record: Annotated[
        str, typer.Option(metavar="FILE", help="Write the carried rates to FILE, in bins of 0.1 s.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds to record.")] = 60.0,
    latency: Annotated[float, typer.Option(min=0, help="Seconds to add in each direction.")] = 0.0,
    half_duplex: Annotated[bool, typer.Option("--half-duplex", help="Both directions share one medium.")] = False,
) -> None:
    """Forward TCP connections to a service as a recorded link would, or record a link.

    Clients connect to --listen instead of the service. A recording has the rates that were used: keep the link busy
    in the meantime."""
    from atoll.infer.planning.relay import Relay

    if not replay and not record:
        raise typer.BadParameter("nothing to do: give --replay FILE, --record FILE or both")
    try:
        recorded = traces.read(replay) if replay else None
        relay = Relay(
            host_and_port(to), recorded, listen=host_and_port(listen), latency=latency, half_duplex=half_duplex
        )  # fmt: skip
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if recorded:
        mean = sum(recorded.up) / len(recorded.up)
        typer.echo(f"a trace of {recorded.seconds:.1f} s with a mean of {rate_text(mean)}, repeated")
    host, port = relay.address()
    typer.echo(f"listening on {host}:{port}")
    over = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: over.set())
    with relay:
        if record:
            _record(relay.carried, record, seconds, over)
        else:
            over.wait()


def _record(counts: traces.Counts, path: str, seconds: float, over: threading.Event) -> None:
    class Interrupted(Exception):  # noqa: N818 - not an error
        pass

    def wait(length: float) -> None:
        if over.wait(length):
            raise Interrupted

    try:
        found = traces.record(counts, seconds, wait=wait)
        found.write(path)
    except Interrupted:
        typer.echo("interrupted: nothing was written", err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        raise typer.BadParameter(f"{path} cannot be written: {error.strerror}") from None
    typer.echo(f"{len(found.up)} bins written to {path}: {rate_text(sum(found.up) / len(found.up))} up on average")


def host_and_port(text: str) -> tuple[str, int]:
    """Parses "localhost:80" or "[::1]:80". Raises ValueError that shows the format."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"invalid address {text!r}: give HOST:PORT, such as 127.0.0.1:4711 or [::1]:4711")
    return host, int(port)


@profile.command()
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
            write(output, json_module.dumps(measured.model) + "\n")
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
