# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job publish about themselves in Redis: island, device, host and speed; and a table of it."""

import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from atoll import _C

log = logging.getLogger("atoll.redis")
_TIMEOUT = timedelta(seconds=5)
_MAX_SCORE = 1e100
_SHOWN = ("rank", "island", "device", "score", "host", "pid")


def publish(store: dist.Store, backend: _C.Backend, score: float | None = None) -> None:
    """Publishes this rank of the job if `store` is in Redis; otherwise does nothing. `score`: samples per second.
    Errors are only logged, because nothing depends on it."""
    root = _root(store)
    if not isinstance(root, _C.RedisStore):
        return
    rank = backend.rank()
    place = next(index for index, (_, ranks) in enumerate(backend.islands()) if rank in ranks)
    member = {
        "rank": rank, "island": backend.islands()[place][0], "device": _device(backend.devices()[place]),
        "score": score, "host": socket.gethostname(), "pid": os.getpid(),
    }  # fmt: skip
    try:
        root.publish(rank, json.dumps(member))
    except RuntimeError as error:
        log.warning("rank %d is not in the list of members: %s", rank, error)


def publish_score(group: dist.ProcessGroup, profile: dict[str, Any]) -> None:
    """The same with the measured speed, for a group of the whole job."""
    store = distributed_c10d._world.pg_map.get(group, (None, None))[1]
    measured = profile["sizes"][-1:]
    if store is None or not measured or not isinstance(_root(store), _C.RedisStore):
        return
    from atoll.backend import backend_of

    if group is distributed_c10d._get_default_group():
        publish(store, backend_of(group), measured[0]["batch"] / measured[0]["seconds"])


def _root(store: dist.Store) -> dist.Store:
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store


def _device(kind: str) -> str:
    named = os.environ.get("ATOLL_DEVICE", "")
    if named.partition(":")[0] == kind and ":" in named:
        return named
    return kind if kind == "cpu" else f"{kind}:{os.environ.get('LOCAL_RANK', '0')}"


def rows(url: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yields for each member of each job: the job's name, when it was created (seconds since 1970), and rank, island,
    device, score, host, process and the number of live processes. Scores are relative to the job's fastest rank. Raises
    the errors of RedisStore."""
    for job in _C.redis_jobs(url, _TIMEOUT):
        members = [_member(text) for _, text in sorted(job.members.items())]
        scores = [score for member in members if (score := _score(member)) is not None]
        alive = f"{job.alive}/{job.world_size}" if job.world_size else str(job.alive)
        for member in members or [{}]:
            if (score := _score(member)) is not None:
                member["score"] = f"{score / max(scores):.2f}"
            yield job.name, job.created, [*(_text(member.get(name)) for name in _SHOWN), alive]


def _member(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _score(member: dict[str, Any]) -> float | None:
    """Returns the score; None if it is missing or invalid, because any program may write there."""
    score = member.get("score")
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    return float(score) if 0 < score < _MAX_SCORE else None


def _text(value: Any) -> str:
    """Returns the value on one line, whatever was written into the server."""
    shown = "-" if value is None else str(value) if isinstance(value, str | int | float) else "?"
    return "".join(character if character.isprintable() else "?" for character in shown)[:60]
