# SPDX-License-Identifier: Apache-2.0
"""The position in a training that a loader saves: the same on all ranks, for any number of ranks."""

from collections.abc import Mapping
from typing import Any

STATE_VERSION = 1
COUNTS = ("epoch", "position", "steps")
OTHERS = ("dataset", "seed", "order")


def check_state(state: Any, dataset: int, seed: int) -> None:
    """Raises ValueError for a state that is damaged or belongs to another version or training run."""
    if not isinstance(state, Mapping):
        raise ValueError(f"a state must be a dictionary from DataLoader.state_dict(), not a {_kind(state)}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"the state has version {state.get('version')!r}, but this Atoll reads version {STATE_VERSION}: resume "
            "with the Atoll that saved it"
        )
    missing = [name for name in (*COUNTS, *OTHERS) if name not in state]
    if missing:
        raise ValueError(f"the state lacks {', '.join(missing)}: it is damaged, use another checkpoint")
    for name in COUNTS:
        value = state[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"the state's {name} is {value!r}, not a count: it is damaged, use another checkpoint")
    for name, own in (("dataset", dataset), ("seed", seed)):
        if state[name] != own:
            raise ValueError(
                f"the state is of a training run with {name} {state[name]}, but this one has {own}: give the loader "
                "what that run had, or start over without the state"
            )


def check_position(position: int, samples: int) -> None:
    """Raises ValueError for a position after the epoch's end."""
    if position > samples:
        raise ValueError(
            f"the state's position is {position}, but an epoch has {samples} samples: give the loader the dataset, "
            "sampler and samples of that run, or use another checkpoint"
        )


def check_order(of_state: int | None, own: int) -> None:
    """Raises ValueError if the completed samples are not those before the position. None: no samples are complete."""
    if of_state is not None and of_state != own:
        raise ValueError(
            "the state is of a training run whose epoch had its samples in another order: give the loader the same "
            "dataset, shuffle, sampler and weights, or start another epoch with set_epoch. A sampler that draws again "
            "each time, such as RandomSampler with a generator, cannot resume: give it a set_epoch that seeds it, or "
            "use shuffle and seed instead"
        )


def _kind(value: Any) -> str:
    return type(value).__name__
