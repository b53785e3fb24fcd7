# SPDX-License-Identifier: Apache-2.0
"""Saves and loads states by the whole model's names, in torch.distributed.checkpoint's format: each rank writes what it
holds and reads what it needs, so another plan, another number of ranks or one process can load them."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.storage import WriteResult

MODEL, OPTIMIZER, GROUP, EXTRA = "model.", "optimizer.", "group.", "extra"
OWN = ("params", "param_names")
"""The options of a parameter group that belong to this rank only."""


def save(
    folder: Path, model: Mapping[str, torch.Tensor], optimizer: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    """Saves the states. Collective over the default group. What several ranks hold is written once. `extra`: JSON
    values, equal on all ranks. An earlier checkpoint in the folder is valid until this one is complete."""
    tensors = {MODEL + name: tensor for name, tensor in model.items()}
    checkpoint.save({**tensors, **optimizer, EXTRA: json.dumps(extra)}, storage_writer=_Writer(folder))


class _Writer(checkpoint.FileSystemWriter):
    """Gives the files of each checkpoint names of their own, and removes those of earlier ones at the end."""

    def prepare_global_plan(self, plans: list[checkpoint.SavePlan]) -> list[checkpoint.SavePlan]:
        mark = uuid.uuid4().hex[:12]
        plans = super().prepare_global_plan(plans)
        named = [replace(plan.storage_data, prefix=f"__{mark}{plan.storage_data.prefix}") for plan in plans]
        return [replace(plan, storage_data=name) for plan, name in zip(plans, named, strict=True)]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        kept = {written.storage_data.relative_path for of_rank in results for written in of_rank}
        for path in Path(self.path).glob("*.distcp"):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def check_model(folder: Path, model: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError if the checkpoint belongs to another model."""
    known = _known(folder)
    if missing := [name for name in model if MODEL + name not in known]:
        raise ValueError(f"{folder} has no {missing[0]!r} ({len(missing)} are missing): it is of another model")
    for name, tensor in model.items():
        saved = known[MODEL + name]
        if not isinstance(saved, TensorStorageMetadata) or saved.size != tensor.shape:
            size = list(saved.size) if isinstance(saved, TensorStorageMetadata) else type(saved).__name__
            raise ValueError(
                f"{folder} has {name!r} as {size}, but the model as {list(tensor.shape)}: it is of another model"
            )


def load_model(folder: Path, model: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Loads the model into these tensors, which must have passed check_model on all ranks, and returns the extra values
    that were saved. Collective over the default group."""
    wanted: dict[str, Any] = {EXTRA: "", **{MODEL + name: tensor for name, tensor in model.items()}}
    checkpoint.load(wanted, checkpoint_id=folder)
    extra: dict[str, Any] = json.loads(wanted[EXTRA])
    return extra


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]) -> None:
    """Loads the optimizer's state for the parameters in `names`, and the options of their groups. Collective over the
    default group. Raises ValueError if the checkpoint was saved without an optimizer."""
    known = _known(folder)
    if not any(key.startswith((OPTIMIZER, GROUP)) for key in known):  # plain SGD has only groups
        raise ValueError(f"{folder} was saved without an optimizer: load it without one, and start the optimizer again")
    own = tuple(f"{kind}{name}/" for kind in (OPTIMIZER, GROUP) for name in names.values())
    wanted: dict[str, Any] = {
        key: torch.empty(saved.size, dtype=saved.properties.dtype) if isinstance(saved, TensorStorageMetadata) else None
        for key, saved in known.items() if key.startswith(own)
    }  # fmt: skip
    checkpoint.load(wanted, checkpoint_id=folder)
    state, groups, index = {}, [], 0
    for group in optimizer.param_groups:
        settings: dict[str, Any] = {key: value for key, value in group.items() if key != "params"}
        numbers = []
        for parameter in group["params"]:
            name = _name_of(parameter, names)
            saved_settings = _under(wanted, f"{GROUP}{name}/")
            settings |= {key: value for key, value in saved_settings.items() if key not in OWN}
            if found := _under(wanted, f"{OPTIMIZER}{name}/"):
                state[index] = found
            numbers.append(index)
            index += 1
        groups.append({**settings, "params": numbers})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def optimizer_state(optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]) -> dict[str, Any]:
    """Returns the state by the names of the parameters."""
    found: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = _name_of(parameter, names)
            found |= {f"{OPTIMIZER}{name}/{key}": value for key, value in optimizer.state.get(parameter, {}).items()}
            found |= {f"{GROUP}{name}/{key}": value for key, value in group.items() if key not in OWN}
    return found


def _known(folder: Path) -> dict[str, Any]:
    return dict(checkpoint.FileSystemReader(folder).read_metadata().state_dict_metadata)


def _under(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}


def _name_of(parameter: nn.Parameter, names: Mapping[nn.Parameter, str]) -> str:
    if parameter not in names:
        raise ValueError(
            f"the optimizer has a parameter of {list(parameter.shape)} that the pipeline does not have: make it of "
            "Pipeline.parameters()"
        )
    return names[parameter]
