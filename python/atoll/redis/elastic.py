# SPDX-License-Identifier: Apache-2.0
"""Torch elastic's rendezvous over a Redis server: `atoll run --rdzv-backend redis`, and torchrun's."""

import os
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousBackend, Token, create_handler

from atoll import _C
from atoll.redis.store import RedisStore, with_options

NAME = "redis"
_STATE = "rendezvous"
_NOTHING = "-"  # not valid base64, so distinct from any state
_NO_RUN_ID = "none"
_TIMEOUT_S = 60
_SHORT = timedelta(seconds=2)


class RedisBackend(RendezvousBackend):
    """Keeps the state of the rendezvous in one key of the job's store, changed by compare-and-set. `store` has this
    timeout and must not be shared: once a call has failed after the timeout, the next calls do not wait that long
    again. Torch elastic makes several calls before it gives up."""

    def __init__(self, store: dist.Store, timeout: timedelta) -> None:
        self._store, self._timeout, self._is_in_touch = store, timeout, True

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Token] | None:
        return _decoded(self._compare_set(_NOTHING, _NOTHING))

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        if token and not isinstance(token, bytes):
            found = self.get_state()
            return None if found is None else (*found, False)
        wanted = b64encode(state)
        now = self._compare_set(token.decode() if token else "", wanted.decode())
        found = _decoded(now)
        return None if found is None else (*found, now == wanted)

    def _compare_set(self, expected: str, wanted: str) -> bytes:
        try:
            value: bytes = self._store.compare_set(_STATE, expected, wanted)
        except (ValueError, RuntimeError) as error:
            self._note(False)
            raise RendezvousConnectionError(str(error)) from error
        self._note(True)
        return value

    def _note(self, is_in_touch: bool) -> None:
        if is_in_touch != self._is_in_touch:
            self._is_in_touch = is_in_touch
            self._store.set_timeout(self._timeout if is_in_touch else min(self._timeout, _SHORT))


def _decoded(value: bytes) -> tuple[bytes, Token] | None:
    if value in (b"", _NOTHING.encode()):
        return None
    try:
        return b64decode(value, validate=True), value
    except Base64Error as error:
        raise RendezvousStateError(
            f"the key {_STATE!r} of the job's store in Redis was not written by an agent: remove the job's keys"
        ) from error


class RedisRendezvous(RendezvousHandler):
    """Wraps `inner`, and gives the ranks of each round a separate store in the same server, through ATOLL_STORE."""

    def __init__(self, inner: RendezvousHandler, store: dist.Store, url: str, job: str) -> None:
        self.inner, self._store, self._url, self._job = inner, store, url, job

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        info = self.inner.next_rendezvous()
        agreed = info.store.compare_set("atoll/round", "", secrets.token_hex(3)).decode()
        os.environ["ATOLL_STORE"] = with_options(self._url, job=f"{self._job}/{agreed}")
        return info

    def is_closed(self) -> bool:
        return self.inner.is_closed()

    def set_closed(self) -> None:
        self.inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        return self.inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self.inner.get_run_id()

    def shutdown(self) -> bool:
        return self.inner.shutdown()


def job_at(endpoint: str, run_id: str, hosts: int) -> tuple[str, str]:
    """Returns the URL of the server in `--rdzv-endpoint`, HOST:PORT or a URL of redis:// or rediss://, and the job's
    name. Raises ValueError for other endpoints."""
    if not endpoint:
        raise ValueError("the server is missing: give --rdzv-endpoint=HOST:PORT, or redis://HOST:PORT/DATABASE")
    url = with_options(endpoint)
    if _C.redis_place(url)[1]:
        raise ValueError("--rdzv-endpoint has an option job: remove it, --rdzv-id is the job's name")
    if run_id != _NO_RUN_ID:
        return url, run_id
    if hosts > 1:
        raise ValueError("the server may hold many jobs: name this one with --rdzv-id, the same on all hosts")
    return url, f"alone-{secrets.token_hex(4)}"


def read_timeout(settings: Mapping[str, Any]) -> timedelta:
    """Returns how long launchers wait for an unavailable server: `--rdzv-conf=read_timeout=SECONDS`."""
    return timedelta(seconds=int(settings.get("read_timeout") or _TIMEOUT_S))


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Returns the handler of `--rdzv-backend=redis`."""
    url, job = job_at(parameters.endpoint, parameters.run_id, parameters.max_nodes)
    # In each round the ranks get a new address, for code that needs one, but no server of torch.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    timeout = read_timeout(parameters.config)
    store = RedisStore(with_options(url, job=job), timeout)
    inner = create_handler(store, RedisBackend(RedisStore(with_options(url, job=job), timeout), timeout), parameters)
    return RedisRendezvous(inner, store, url, job)
