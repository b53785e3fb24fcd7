# SPDX-License-Identifier: Apache-2.0
"""The `atoll generate` command with its sub-commands."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from atoll.generate import docker as docker_file
from atoll.generate import kubernetes
from atoll.generate.islands import PORT, Job, parse_all
from atoll.generate.slurm import slurm as slurm_script
from atoll.launch import LaunchError

generate = typer.Typer(
    name="generate",
    help="Write files with which Slurm, Kubernetes, Kubeflow or Docker start a job (docs/launchers.md).",
    no_args_is_help=True,
)

_ISLAND_HELP = "NAME:HOSTSxRANKS and options, such as fast:2x8,device=cuda; repeat for each island."
Islands = Annotated[list[str], typer.Option("--island", metavar="ISLAND", help=_ISLAND_HELP)]
Script = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGUMENT]...", help="The script that every rank runs.")]
Name = Annotated[str, typer.Option(metavar="NAME", help="Name of the job.")]
Port = Annotated[
    int, typer.Option(metavar="PORT", min=1, max=65535, help="Port of the first host, where the launchers meet.")
]
Output = Annotated[str, typer.Option(metavar="FILE", help="File to write; - prints it.")]
_SETTINGS = {"ignore_unknown_options": True, "allow_interspersed_args": False}
_TIME = re.compile(r"[0-9]+(-[0-9]{1,2}(:[0-9]{2}){0,2}|(:[0-9]{2}){0,2})")
_WORD = re.compile(r"[A-Za-z0-9._-]+")


@generate.command(context_settings=_SETTINGS)
def slurm(
    script: Script,
    island: Islands,
    name: Name = "atoll",
    port: Port = PORT,
    time: Annotated[str, typer.Option(metavar="TIME", help="Slurm's time limit, such as 2:00:00.")] = "",
    output: Output = "-",
) -> None:
    """Write a batch script for sbatch: a heterogeneous job with one component for each island."""

    def make() -> str:
        if not _WORD.fullmatch(name):
            raise LaunchError(f"--name {name!r}: write letters, digits, dots, hyphens and underscores")
        if time and not _TIME.fullmatch(time):
            raise LaunchError(f"--time {time!r} is not a Slurm time: write minutes, H:MM:SS or D-HH:MM")
        return slurm_script(Job(parse_all(island), script, name, port), time)

    _give(make, output)


@generate.command(context_settings=_SETTINGS)
def jobset(script: Script, island: Islands, name: Name = "atoll", port: Port = PORT, output: Output = "-") -> None:
    """Write a Kubernetes JobSet with one replicated job for each island, for kubectl apply -f FILE."""
    _give(lambda: kubernetes.jobset(Job(parse_all(island), script, name, port)), output)


@generate.command(context_settings=_SETTINGS)
def kubeflow(script: Script, island: Islands, name: Name = "atoll", port: Port = PORT, output: Output = "-") -> None:
    """Write a TrainingRuntime and a TrainJob of Kubeflow Trainer 2, for kubectl apply -f FILE."""
    _give(lambda: kubernetes.kubeflow(Job(parse_all(island), script, name, port)), output)


@generate.command()
def docker(
    vendor: Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(docker_file.IMAGES)}.")],
    base: Annotated[
        str,
        typer.Option(
            metavar="IMAGE", help="Image to build on instead of the vendor's default; some vendors have none."
        ),
    ] = "",
    output: Output = "-",
) -> None:
    """Write a Dockerfile that builds Atoll from a checkout."""

    def make() -> str:
        if vendor not in docker_file.IMAGES:
            raise LaunchError(f"unknown --vendor {vendor!r}: choose from {', '.join(docker_file.IMAGES)}")
        if not base and not docker_file.IMAGES[vendor].base:
            raise LaunchError(
                f"--vendor {vendor}: no public image with its PyTorch is known: name one with --base, with Debian "
                "12, Ubuntu 24.04 or newer"
            )
        if re.search(r"\s", base):
            raise LaunchError(f"--base {base!r} is not a valid image name: remove the blanks")
        return docker_file.docker(vendor, base)

    _give(make, output)


def _give(make: Callable[[], str], output: str) -> None:
    try:
        text = make()
        if output == "-":
            typer.echo(text, nl=False)
        else:
            Path(output).write_text(text)
    except (LaunchError, OSError) as error:
        print(f"atoll generate: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
