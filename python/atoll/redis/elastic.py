# SPDX-License-Identifier: Apache-2.0
"""Torch elastic's rendezvous over a Redis server: `atoll run --rdzv-backend redis`, and torchrun's."""

import os
import secrets
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from datetime import timedelta

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
_NOTHING = "-"  # no state in base64 looks like it
_NO_RUN_ID = "none"
_TIMEOUT_S = 60


class RedisBackend(RendezvousBackend):
    """The rendezvous' state, as one key of the job's store that is compared and set."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

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
            return value
        except (ValueError, RuntimeError) as error:
            raise RendezvousConnectionError(str(error)) from error


def _decoded(value: bytes) -> tuple[bytes, Token] | None:
    if value in (b"", _NOTHING.encode()):
        return None
    try:
        return b64decode(value, validate=True), value
    except Base64Error as error:
        raise RendezvousStateError(
            f"the key {_STATE!r} of the job's store in Redis holds what no agent has written: remove the job's keys"
        ) from error


class RedisRendezvous(RendezvousHandler):
    """`inner`, and the ranks of each round get a store of their own in the same server, through ATOLL_STORE."""

    def __init__(self, inner: RendezvousHandler, store: dist.Store, url: str, job: str) -> None:
        self._inner, self._store, self._url, self._job = inner, store, url, job

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        info = self._inner.next_rendezvous()
        agreed = info.store.compare_set("atoll/round", "", secrets.token_hex(3)).decode()
        os.environ["ATOLL_STORE"] = with_options(self._url, job=f"{self._job}/{agreed}")
        return info

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()  # type: ignore[no-untyped-call]

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        return self._inner.shutdown()


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """For `--rdzv-endpoint=HOST:PORT`, or a URL of redis:// or rediss://."""
    if not parameters.endpoint:
        raise ValueError("where is the server? --rdzv-endpoint=HOST:PORT, or redis://HOST:PORT/DATABASE, says it")
    url = with_options(parameters.endpoint)
    if _C.redis_place(url)[1]:
        raise ValueError("--rdzv-endpoint has an option job: leave it out, --rdzv-id is the job's name")
    job = parameters.run_id
    if job == _NO_RUN_ID:
        if parameters.max_nodes > 1:
            raise ValueError("the server may serve many jobs: name this one with --rdzv-id, the same on all hosts")
        job = f"alone-{secrets.token_hex(4)}"
    # Each round the ranks get an address of their own for code that wants one, and no server of torch's.
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    seconds = parameters.get_as_int("read_timeout", _TIMEOUT_S) or _TIMEOUT_S
    store = RedisStore(with_options(url, job=job), timedelta(seconds=seconds))
    inner = create_handler(store, RedisBackend(store), parameters)
    return RedisRendezvous(inner, store, url, job)
