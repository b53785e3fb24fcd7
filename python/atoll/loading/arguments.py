# SPDX-License-Identifier: Apache-2.0
"""What a user gave to atoll.DataLoader: whether one rank can work with it, and what all ranks must have alike."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from atoll.loading.settings import Settings

OF_ONE_RANK = {"optimizer_bytes", "watts", "watch"}
"""Settings that may differ."""


def check_counts(**counts: Any) -> None:
    """Each is a whole number above 0, or None."""
    for name, count in counts.items():
        if count is None:
            continue
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{name}={count!r} is a {type(count).__name__}: give a whole number of samples")
        if count < 1:
            raise ValueError(f"{name}={count}: give at least 1 sample")


def check_options(options: dict[str, Any], global_batch: int) -> None:
    """Those of torch.utils.data.DataLoader leave it to the plan how large batches are and in which order they come."""
    for name in ("batch_size", "batch_sampler"):
        if name in options:
            raise ValueError(f"{name} cannot be given: the plan sizes the batches of global_batch={global_batch}")
    if not options.get("in_order", True):
        raise ValueError(
            "in_order=False cannot be given: each batch belongs to a step that all ranks are in together; leave it out"
        )


def check_divided(policy: str, settings: Settings) -> None:
    """Where each rank has samples of its own none can take those of another."""
    if policy not in ("equal", "fixed") or settings.replay is not None:
        made_by = f'policy "{policy}"' if settings.replay is None else "Settings(replay=...)"
        raise ValueError(
            f"{made_by} gives fast ranks more of the samples, and with divided=True each rank has its own: give "
            'policy="equal", or policy="fixed" with shares as large as the ranks\' datasets; or every rank the whole '
            "dataset, without divided"
        )


def check_shares_of_own(shares: Sequence[int]) -> tuple[int, ...]:
    """Of a step, where each rank has samples of its own: these would never come without a share."""
    if 0 in shares:
        raise ValueError(
            f"with divided=True rank {list(shares).index(0)} has samples of its own and no share of a step: "
            f"{list(shares)}; give each rank one"
        )
    return tuple(shares)


def check_shares(shares: Sequence[float], ranks: int) -> None:
    """Finite numbers of at least 0, one for each rank, of which one is above."""
    if len(shares) != ranks:
        raise ValueError(f"{len(shares)} shares for {ranks} ranks: give one for each")
    for rank, share in enumerate(shares):
        if not (math.isfinite(share) and share >= 0):
            raise ValueError(f"the share of rank {rank} is {float(share)}: give a finite number of at least 0")
    if not any(share > 0 for share in shares):
        raise ValueError("all shares are 0: give at least one rank a share above 0")


def check_replay(replay: Sequence[dict[str, Any]], global_batch: int, ranks: int, form: str) -> None:
    """Plans for so many ranks, which add up to the global batch unless they are literal."""
    for change in replay:
        batches = change["batches"]
        if len(batches) != ranks:
            raise ValueError(
                f"the replayed plan of step {change['step']} is for {len(batches)} ranks, here are {ranks}: replay "
                "plans of as many ranks"
            )
        is_whole = sum(batches) == global_batch or (form == "literal" and sum(batches) > 0)
        if min(batches) < 0 or not is_whole:
            raise ValueError(
                f"the replayed plan of step {change['step']} is {list(batches)}: give batches of at least 0 that add "
                f"up to global_batch={global_batch}"
            )


def shared(settings: Settings) -> dict[str, Any]:
    """What the settings must have alike on all ranks, as JSON can say it."""
    told: dict[str, Any] = {}
    for name in [field.name for field in fields(settings) if field.name not in OF_ONE_RANK]:
        value = getattr(settings, name)
        if name == "replay" and value is not None:
            value = f"{len(value)} plans, {hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()}"
        told[f"settings.{name}"] = value is not None if name == "forward" else value
    return told
