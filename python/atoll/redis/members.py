# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job publish about themselves in Redis: island, device, host and speed."""

import json
import logging
import os
import socket
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from atoll import _C

log = logging.getLogger("atoll.redis")


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
