# SPDX-License-Identifier: Apache-2.0
"""The `atoll profile` sub-commands."""

import signal
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from atoll.infer.planning import trace as traces
from atoll.infer.planning.rates import rate_text

if TYPE_CHECKING:
    from atoll.infer.planning.recording import Counts


class _BundleFirst(typer.core.TyperGroup):
    """Takes a first word that is not a sub-command as the bundle of `model`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["model", *args]
        return super().parse_args(ctx, args)


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


def _record(counts: "Counts", path: str, seconds: float, over: threading.Event) -> None:
    from atoll.infer.planning.recording import record

    class Interrupted(Exception):  # noqa: N818 - not an error
        pass

    def wait(length: float) -> None:
        if over.wait(length):
            raise Interrupted

    try:
        found = record(counts, seconds, wait=wait)
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
