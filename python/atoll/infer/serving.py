# SPDX-License-Identifier: Apache-2.0
"""The `atoll serve` sub-command: runs parts of models for robots."""

import re
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_POWERS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def size(text: str, option: str) -> int:
    """Parses a size such as "512M" or "20G", the value of `option`, in bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"{option} {text!r} is not a valid size: write a number with K, M, G or T, such as 20G"
        )
    return int(float(match[1]) * (1 << _POWERS[match[2].upper()]))


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # an assertion if torch was not built for the device
        raise typer.BadParameter(f"--device {device}: {str(error).splitlines()[0]}") from None


def options_of(listen: str, key_file: Path, **others: Any) -> dict[str, Any]:
    """Returns the options of _C.InferServer."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(
            f"--listen {listen}: give HOST:PORT, such as 127.0.0.1:4700; port 0 chooses a free port"
        )
    worker = Path(__file__).parent.parent / "atoll_infer_worker"
    options = {"host": host.strip("[]"), "port": int(port), "key_file": str(key_file), "worker_program": str(worker)}
    return {**options, **{name: value for name, value in others.items() if value is not None}}


def serve(
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Address to listen on. 127.0.0.1 is reachable only from this machine."),
    ] = "127.0.0.1:4700",
    key_file: Annotated[
        Path, typer.Option(metavar="FILE", help="The key file, shared with the robots. Created if it does not exist.")
    ] = Path("atoll.key"),
    device: Annotated[str, typer.Option(help="Device that models run on: cpu, cuda:0.")] = "cpu",
    threads: Annotated[int, typer.Option(min=1, help="Threads of each model's process on the CPU.")] = 1,
    turns: Annotated[int, typer.Option(min=1, help="Number of inferences that compute at once; others wait.")] = 1,
    cache: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder that keeps models.")] = None,
    cache_size: Annotated[str, typer.Option(metavar="SIZE", help="Maximum size of all kept models.")] = "20G",
    memory: Annotated[
        str, typer.Option(metavar="SIZE", help="Memory of one model's process, beyond its weights.")
    ] = "8G",
    models: Annotated[int, typer.Option(min=1, help="Maximum number of model processes; more wait.")] = 64,
    clients: Annotated[int, typer.Option(min=1, help="Maximum number of clients; more are rejected.")] = 256,
    time_limit: Annotated[
        float, typer.Option(min=0.01, max=1e6, help="Maximum seconds of computing for one inference.")
    ] = 10.0,
    metrics: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Port of the counters for Prometheus; 0: any.")
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, max=1e6, help="Seconds for running inferences to finish at the end.")
    ] = 10.0,
) -> None:
    """Run parts of models for robots, until Ctrl+C.

    Robots hold a copy of the key file. Each robot's model runs in a process of its own, without files or network."""
    from atoll.profiling.stored_profiles import folder as cache_folder

    _check_device(device)
    options = options_of(
        listen,
        key_file,
        device=device,
        threads=threads,
        turns=turns,
        cache_folder=str(cache or cache_folder() / "models"),
        cache_bytes=size(cache_size, "--cache-size"),
        worker_memory_bytes=size(memory, "--memory"),
        most_workers=models,
        most_connections=clients,
        compute_limit=time_limit,
    )
    _run(options, metrics, drain)


def _run(options: dict[str, Any], metrics: int | None, drain: float) -> None:
    """Serves until a signal arrives."""
    from atoll import _C

    key_file = options["key_file"]
    try:
        if not Path(key_file).exists():
            _C.make_key_file(key_file)
            typer.echo(f"made a new key: {key_file}. Copy it to the robots (it must stay readable only by its owner)")
        server = _C.InferServer(options)
    except (ValueError, RuntimeError) as error:
        raise typer.BadParameter(str(error)) from None
    exporter = None if metrics is None else _exporter(server, metrics)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    typer.echo(f"listening on {server.address} (device {options['device']}, key {key_file})")
    if exporter is not None:
        typer.echo(f"metrics on http://127.0.0.1:{exporter.port}/metrics")
    while not stop.wait(0.5):
        pass
    typer.echo("Atoll: finishing running inferences; press Ctrl+C again to end them")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        is_done = server.drain(drain)
    except KeyboardInterrupt:
        is_done, drain = False, 0
    counts = server.counts()
    typer.echo(f"Atoll: served {counts['inferences']} inferences to {counts['accepted']} clients")
    if exporter is not None:
        exporter.close()
    if not is_done:
        why = f"inferences did not end within {drain:g} s" if drain else "running inferences were ended"
        typer.echo(f"Atoll: {why}", err=True)
        raise typer.Exit(1)


class _Counters:
    """The server's counters, for Prometheus."""

    def __init__(self, server: Any, core: Any) -> None:
        self._server, self._core = server, core

    def collect(self) -> Any:
        now = ("connections", "workers", "waiting_models", "waiting_inferences")
        for name, value in self._server.counts().items():
            kind = self._core.GaugeMetricFamily if name in now else self._core.CounterMetricFamily
            yield kind(f"atoll_serve_{name}", name.replace("_", " "), value=value)


def _exporter(server: Any, port: int) -> Any:
    """Returns the exporter, which is reachable only from this machine."""
    from atoll.watching.exporter import Exporter

    try:
        return Exporter(lambda core: _Counters(server, core), port, f"--metrics {port}", "127.0.0.1")
    except (ImportError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
