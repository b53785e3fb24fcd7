# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of atoll.DataLoader and its states: what is valid on one rank, and what must be equal on all."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from atoll.loading.exchange import hash_of
from atoll.loading.settings import Settings

OF_ONE_RANK = {"optimizer_bytes", "watts", "watch"}
"""Settings that may differ between ranks."""
STATE_VERSION = 1
COUNTS = ("epoch", "position", "steps")
OTHERS = ("dataset", "seed", "order")


def check_counts(**counts: Any) -> None:
    """Raises an error unless each count is an integer above 0, or None."""
    for name, count in counts.items():
        if count is None:
            continue
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name}={count!r} is a {type(count).__name__}: give an integer number of samples")
        if count < 1:
            raise ValueError(f"{name}={count}: give at least 1 sample")


def check_options(options: dict[str, Any], global_batch: int) -> None:
    """Raises ValueError for options of torch.utils.data.DataLoader that set batch sizes or order, as the plan does."""
    for name in ("batch_size", "batch_sampler"):
        if name in options:
            raise ValueError(f"{name} cannot be given: the plan sizes the batches of global_batch={global_batch}")
    if not options.get("in_order", True):
        raise ValueError(
            "in_order=False cannot be given: each batch belongs to a step that all ranks are in together; remove it"
        )


def check_divided(policy: str, settings: Settings) -> None:
    """Raises ValueError for policies that move samples between ranks, which divided=True rules out."""
    if policy not in ("equal", "fixed") or settings.replay is not None:
        made_by = f'policy "{policy}"' if settings.replay is None else "Settings(replay=...)"
        raise ValueError(
            f"{made_by} gives fast ranks more of the samples, but with divided=True each rank has its own: pass "
            'policy="equal", or policy="fixed" with shares in proportion to the ranks\' datasets; or give every rank '
            "the whole dataset, without divided"
        )


def check_shares(shares: Sequence[float], ranks: int) -> None:
    """Raises ValueError unless there is one finite number of at least 0 for each rank, and one of them is above 0."""
    if len(shares) != ranks:
        raise ValueError(f"{len(shares)} shares for {ranks} ranks: give one for each")
    for rank, share in enumerate(shares):
        if not (math.isfinite(share) and share >= 0):
            raise ValueError(f"the share of rank {rank} is {float(share)}: give a finite number of at least 0")
    if not any(share > 0 for share in shares):
        raise ValueError("all shares are 0: give at least one rank a share above 0")


def check_replay(replay: Sequence[dict[str, Any]], global_batch: int, ranks: int, form: str) -> None:
    """Raises ValueError unless the plans are for `ranks` ranks and add up to the global batch, or are literal."""
    for change in replay:
        batches = change["batches"]
        if len(batches) != ranks:
            raise ValueError(
                f"the replayed plan of step {change['step']} is for {len(batches)} ranks, but this job has {ranks}: "
                "replay plans for the same number of ranks"
            )
        is_whole = sum(batches) == global_batch or (form == "literal" and sum(batches) > 0)
        if min(batches) < 0 or not is_whole:
            raise ValueError(
                f"the replayed plan of step {change['step']} is {list(batches)}: give batches of at least 0 that add "
                f"up to global_batch={global_batch}"
            )


def shared(settings: Settings) -> dict[str, Any]:
    """Returns the settings that must be equal on all ranks, as JSON values."""
    told: dict[str, Any] = {}
    for name in [field.name for field in fields(settings) if field.name not in OF_ONE_RANK]:
        value = getattr(settings, name)
        if name == "replay" and value is not None:
            value = f"{len(value)} plans, {hash_of(json.dumps(value)):x}"
        told[f"settings.{name}"] = value is not None if name == "forward" else value
    return told


def check_state(state: Any, dataset: int, seed: int) -> None:
    """Raises ValueError for a state that is damaged or belongs to another version or training run."""
    if not isinstance(state, Mapping):
        raise ValueError(f"a state must be a dictionary from DataLoader.state_dict(), not a {type(state).__name__}")
    if state.get("version") != STATE_VERSION:
        raise ValueError(
            f"the state has version {state.get('version')!r}, but this Atoll reads version {STATE_VERSION}: resume "
            "with the Atoll that saved it"
        )
    if missing := [name for name in (*COUNTS, *OTHERS) if name not in state]:
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
