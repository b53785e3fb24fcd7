# SPDX-License-Identifier: Apache-2.0
#
# The promises of stores, each proven by the tests that docs/promises.md names:
# S-6: A change of a Redis store is made exactly once, wherever the connection breaks.
# S-7: A Redis server that has lost a job's keys, or has older ones, is an error at the next call.
# S-8: A store whose server has ended or does not answer is an error soon after the call's time limit, never a hang.
# S-9: Jobs of different names in one Redis server never see each other's keys.
# S-10: A rank meets the others of a group in at most log2(n) + 2 calls that wait for the store, with log2 rounded up.
"""A job's store in a Redis server, and its rendezvous for torch.distributed."""

import atexit
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from atoll._version_check import require_matching_torch

require_matching_torch()

from atoll import _C  # noqa: E402 - only after the check

RedisStore = _C.RedisStore
_NO_RUN_ID = "none"  # torchrun's default of --rdzv-id

# A job ends at once when all of its processes leave, instead of only after they have been silent for long.
atexit.register(_C.leave_redis_jobs)


def with_options(url: str, **options: object) -> str:
    """Returns `url` with these options added, unless it already has them."""
    text = url if "://" in url else f"redis://{url}"
    given = dict(parse_qsl(text.partition("?")[2], keep_blank_values=True))
    added = [f"{name}={quote(str(value), safe='/')}" for name, value in options.items() if name not in given]
    return text + ("&" if "?" in text else "?") + "&".join(added) if added else text


def beside(url: str, name: str, **options: object) -> str:
    """Returns the URL of a sub-job, JOB.NAME, for some ranks of the job in `url`."""
    head, _, query = url.partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    return with_options(head, **given | {"job": f"{given['job']}.{name}"} | options)


def meet(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """Serves init_process_group(init_method="redis://HOST:PORT/?job=NAME"). The job's name may be omitted under
    torchrun, whose run id is then used."""
    place, job, rank, world_size = _C.redis_place(url)
    rank = _number("RANK", "rank") if rank is None else rank
    world_size = _number("WORLD_SIZE", "world_size") if world_size is None else world_size
    if not job:
        job = _run_name(place)
    store = RedisStore(with_options(url, job=job, rank=rank, world_size=world_size), timeout)
    yield store, rank, world_size
    raise RuntimeError(f"{place}: ranks cannot meet a second time through one call")


def meet_by_environment(url: str, timeout: timedelta = default_pg_timeout, **_: Any) -> Iterator[Any]:
    """Serves env:// in a process whose launcher has set ATOLL_STORE. `url` may hold rank and world_size."""
    given = {name: value for name, value in parse_qsl(urlsplit(url).query) if name in ("rank", "world_size")}
    return meet(with_options(os.environ["ATOLL_STORE"], **given), timeout)


def _number(variable: str, argument: str) -> int:
    text = os.environ.get(variable, "")
    if not text.isdecimal():
        raise ValueError(
            f'redis://: {variable}="{text}" is not a number: set it, or pass {argument}= to init_process_group'
        )
    return int(text)


def _run_name(place: str) -> str:
    run = os.environ.get("TORCHELASTIC_RUN_ID", _NO_RUN_ID)
    if run == _NO_RUN_ID:
        raise ValueError(
            f"{place} may hold many jobs: name this one, the same on all of its ranks, as in redis://HOST:PORT/?job=NAME"
        )
    return f"{run}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
