# SPDX-License-Identifier: Apache-2.0
"""The place in a training that a loader saves: the same on all ranks, for any number of ranks."""

from collections.abc import Mapping
from typing import Any

STATE_VERSION = 1
COUNTS = ("epoch", "position", "steps")
OTHERS = ("dataset", "seed", "order")


def check_state(state: Any, dataset: int, seed: int) -> None:
    """Raises ValueError for a state that is damaged, or of another version or training."""
    if not isinstance(state, Mapping):
        raise ValueError(f"a state is a dictionary, as DataLoader.state_dict() gives it; this is a {_kind(state)}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"a state of version {state.get('version')!r}; this Atoll reads version {STATE_VERSION}: go on with the "
            "Atoll that saved it"
        )
    missing = [name for name in (*COUNTS, *OTHERS) if name not in state]
    if missing:
        raise ValueError(f"the state lacks {', '.join(missing)}: it is damaged, take another checkpoint")
    for name in COUNTS:
        value = state[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"the state's {name} is {value!r}, not a count: it is damaged, take another checkpoint")
    for name, own in (("dataset", dataset), ("seed", seed)):
        if state[name] != own:
            raise ValueError(
                f"the state is of a training with {name} {state[name]}, this one has {own}: give the loader what that "
                "training had, or begin anew without the state"
            )


def check_position(position: int, samples: int) -> None:
    """Raises ValueError for a position behind the epoch's end."""
    if position > samples:
        raise ValueError(
            f"the state's position is {position}, an epoch has {samples} samples: give the loader the dataset, sampler "
            "and samples of that training, or take another checkpoint"
        )


def check_order(of_state: int | None, own: int) -> None:
    """Raises ValueError where the samples that are done are not those before the position. None: none are."""
    if of_state is not None and of_state != own:
        raise ValueError(
            "the state is of a training whose epoch had its samples in another order: give the loader the same "
            "dataset, shuffle, sampler and weights, or begin another epoch with set_epoch. A sampler that draws anew "
            "each time, such as RandomSampler with a generator, cannot go on: give it a set_epoch that seeds it, or "
            "give shuffle and seed instead"
        )


def _kind(value: Any) -> str:
    return type(value).__name__
