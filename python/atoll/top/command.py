# SPDX-License-Identifier: Apache-2.0
"""The `atoll top` sub-command."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated

import typer

from atoll.top.endpoint import DEFAULT, Endpoint, endpoints

MAX_AT_ONCE = 16


def top(
    urls: Annotated[
        list[str] | None, typer.Argument(metavar="[URL]...", help=f"Endpoints. Default: ATOLL_METRICS, or {DEFAULT}.")
    ] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between updates.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show once and exit; with 1 if no endpoint answers.")] = False,
) -> None:
    """Watch trainings, inferences and servers live: the activity of each rank in a step, and the distance of the step
    from its bound.

    Reads the endpoints of Watch(prometheus=9400), Session(prometheus=9500) and atoll serve --metrics.
    Ends with Ctrl+C."""
    try:
        asked = endpoints(urls or os.environ.get("ATOLL_METRICS", "").replace(",", " ").split() or [DEFAULT])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        import prometheus_client.parser  # noqa: F401 - only checks that it is installed
    except ImportError as error:
        raise typer.BadParameter(
            f"atoll top needs the package prometheus_client ({error}): pip install prometheus_client"
        ) from None
    raise typer.Exit(_once(asked) if once else _live(asked, interval))


def _ask(asked: Sequence[Endpoint]) -> None:
    with ThreadPoolExecutor(min(MAX_AT_ONCE, len(asked)), "atoll-top") as pool:
        list(pool.map(lambda endpoint: endpoint.ask(), asked))


def _once(asked: Sequence[Endpoint]) -> int:
    from rich.console import Console

    from atoll.top.table import shown

    _ask(asked)
    Console(highlight=False).print(shown(asked))
    return 0 if any(endpoint.sample is not None for endpoint in asked) else 1


def _live(asked: Sequence[Endpoint], interval: float) -> int:
    from rich.console import Console
    from rich.live import Live

    from atoll.top.table import shown

    pause = threading.Event()  # never set; only Ctrl+C ends the wait
    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
            while True:
                _ask(asked)
                live.update(shown(asked), refresh=True)
                pause.wait(interval)
    except KeyboardInterrupt:
        return 0
