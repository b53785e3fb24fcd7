# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of atoll.DataLoader: what is valid on one rank, and what must be equal on all ranks."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from atoll.loading.settings import Settings

OF_ONE_RANK = {"optimizer_bytes", "watts", "watch"}
"""Settings that may differ between ranks."""


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
    """Raises ValueError for options of torch.utils.data.DataLoader that set batch sizes or order, which the plan
    sets."""
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


def check_shares_of_own(shares: Sequence[int]) -> tuple[int, ...]:
    """Checks the shares of a step with divided=True: without a share, a rank's own samples would never be used."""
    if 0 in shares:
        raise ValueError(
            f"with divided=True rank {list(shares).index(0)} has its own samples but no share of a step: "
            f"{list(shares)}; give each rank a share"
        )
    return tuple(shares)


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
            value = f"{len(value)} plans, {hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()}"
        told[f"settings.{name}"] = value is not None if name == "forward" else value
    return told
