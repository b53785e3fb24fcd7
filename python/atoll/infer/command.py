# SPDX-License-Identifier: Apache-2.0
"""The `atoll export` sub-command."""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from atoll.infer.bundle import Bundle

_MAX_OPERATORS = 12  # shown by name


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="A function that returns a model and its example inputs.")
    ],
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="The folder to write the bundle's folder into.")],
) -> None:
    """Capture a model for split inference: its operators as a graph, and its weights.

    FUNCTION takes no arguments and returns (model, inputs). The inputs are a tensor, a tuple of arguments or a
    dictionary of named arguments; the bundle is made for their shapes."""
    from atoll.infer import ExportError, InputError, capture

    module, args, kwargs = _called(model)
    try:
        bundle = capture(module, args, kwargs)
        path = bundle.save(output)
    except (ExportError, InputError) as error:
        raise typer.BadParameter(f"{model}: {error}") from None
    except OSError as error:
        raise typer.BadParameter(f"{output} cannot be written: {error.strerror}") from None
    _show(bundle, path)
    if refusal := _refusal(bundle):
        typer.echo(f"Atoll: servers refuse this model, so robots compute it alone: {refusal}", err=True)


def _called(model: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Calls the function and returns its model and inputs."""
    name, _, function = model.partition(":")
    if not name or not function:
        raise typer.BadParameter(f"{model!r}: give MODULE:FUNCTION, such as my_models:vgg")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = getattr(importlib.import_module(name), function)
    except (ModuleNotFoundError, AttributeError) as error:
        raise typer.BadParameter(f"{model} was not found from {os.getcwd()}: {error}") from None
    returned = found()
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise typer.BadParameter(f"{model} returns a {type(returned).__name__}: return (model, inputs)")
    module, inputs = returned
    if isinstance(inputs, Mapping):
        return module, (), dict(inputs)
    return module, inputs if isinstance(inputs, tuple) else (inputs,), {}


def _refusal(bundle: "Bundle") -> str:
    """Returns why a server refuses the model; "" if it accepts it."""
    from torch.distributed import DistNetworkError

    from atoll import _C
    from atoll.infer.graph import to_text

    try:
        _C.infer_admit(to_text(bundle.graph).decode())
    except DistNetworkError as error:
        return str(error)
    return ""


def _show(bundle: "Bundle", path: Path) -> None:
    facts = bundle.facts()
    counts = [f"{name.removeprefix('aten::')} {count}" for name, count in facts["operators"].items()]
    shown = ", ".join(counts[:_MAX_OPERATORS])
    if len(counts) > _MAX_OPERATORS:
        shown += f" and {len(counts) - _MAX_OPERATORS} more"
    graph_bytes = (path / "graph.json").stat().st_size
    rows = {
        "inputs": "\n".join(_tensor(each) for each in facts["inputs"]),
        "outputs": "\n".join(_tensor(each) for each in facts["outputs"]),
        "operators": f"{sum(facts['operators'].values())}: {shown}",
        "weights": f"{facts['weights']} tensors, {_mebibytes(facts['weight_bytes'])}",
        "graph": _mebibytes(graph_bytes),
        "hash": path.name,
    }
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    Console(soft_wrap=True).print(table, markup=False)
    typer.echo(f"Atoll: written to {path}")


def _tensor(like: Mapping[str, Any]) -> str:
    return f"{like['name']}: {like['dtype']} {like['shape']}"


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.3f} MiB"
