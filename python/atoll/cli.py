# SPDX-License-Identifier: Apache-2.0
"""The `atoll` command."""

import platform
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer

import atoll
from atoll._build_info import TORCH_VERSION
from atoll.bench.command import bench
from atoll.diagnosis.command import trace
from atoll.doctor.command import doctor
from atoll.generate.command import generate
from atoll.infer.command import export
from atoll.infer.planning.command import infer
from atoll.infer.planning.profile_command import profile
from atoll.infer.serving import serve
from atoll.launch import command as launch
from atoll.planning.command import plan
from atoll.planning.layers_command import layers
from atoll.planning.simulate_command import simulate
from atoll.report.command import report
from atoll.top.command import top

app = typer.Typer(
    name="atoll",
    help="Make unlike accelerators work as one: collectives for PyTorch over islands of devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"atoll {atoll.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def info() -> None:
    """Show the installed versions and the path of the library. Useful in bug reports."""
    rows = {
        "atoll": atoll.__version__,
        "torch": f"{installed_version('torch')} (built for {TORCH_VERSION})",
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "library": str(Path(atoll.__file__).parent / "libatoll.so"),
    }
    for name, value in rows.items():
        typer.echo(f"{name:<8}{value}")  # never wrapped, so that it can be copied


app.command()(bench)
app.command()(doctor)
app.command()(export)
app.add_typer(generate)
app.command(context_settings=launch.RUN_SETTINGS, add_help_option=False)(launch.run)
app.command()(launch.ps)
app.command()(launch.stop)
app.command()(report)
app.command()(serve)
plan.command()(infer)
plan.command()(layers)
app.add_typer(plan)
app.command()(simulate)
app.command()(trace)
app.command()(top)
app.add_typer(profile)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
