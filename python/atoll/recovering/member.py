# SPDX-License-Identifier: Apache-2.0
"""A rank's connection to its supervisor: it reports its state, and receives its group."""

import os
import time
from datetime import timedelta
from urllib.parse import urlsplit

import torch.distributed as dist

from atoll.recovering import notices
from atoll.recovering.notices import MEMBER, READY, SUPERVISOR, Notice, Roster

_CONNECT_TIMEOUT = timedelta(seconds=60)
_MAX_ANSWER_DELAY = timedelta(minutes=10)  # longer than ranks may wait for each other
_LOOK_S = 0.1
_REDIS = ("redis", "rediss")


def post(store: dist.Store, notice: Notice) -> None:
    """Posts a notice to the supervisor. If the supervisor has given up its number by then, takes another number."""
    text = notice.text().encode()
    while store.compare_set(notices.notice_key(store.add(notices.count_key(), 1)), "", text.decode()) != text:
        pass


def open_store(address: str) -> dist.Store:
    """Opens the supervisor's store: tcp://HOST:PORT, a URL of redis:// or rediss:// with the job's name, or another URL
    of torch.distributed.rendezvous."""
    found = urlsplit(address)
    if found.scheme in _REDIS:
        from atoll.redis.store import RedisStore

        return RedisStore(address, _CONNECT_TIMEOUT)
    if found.scheme != "tcp":
        store: dist.Store = next(iter(dist.rendezvous(address, rank=0, world_size=1)))[0]
        return store
    if not found.hostname or not found.port:
        raise ValueError(f'{SUPERVISOR}="{address}": expected tcp://HOST:PORT')
    return dist.TCPStore(found.hostname, found.port, is_master=False, timeout=_CONNECT_TIMEOUT)


class Member:
    """This process as a member of a supervised job."""

    def __init__(self, store: dist.Store, name: str, timeout: timedelta, address: str = "") -> None:
        """`timeout`: of the operations of its groups. `address`: of the store, if it is in Redis."""
        self.store, self.name, self._timeout, self._address = store, name, timeout, address
        self._asked = 0
        self._looked = 0.0

    @classmethod
    def from_environment(cls, timeout: timedelta) -> "Member | None":
        """Returns this process's member; None without a supervisor."""
        address, name = os.environ.get(SUPERVISOR, ""), os.environ.get(MEMBER, "")
        if not address:
            return None
        if not name:
            raise ValueError(f"{SUPERVISOR} is set but {MEMBER} is not: atoll run sets both, for its own ranks only")
        return cls(open_store(address), name, timeout, address)

    def ready(self, number: int, step: int, suspects: tuple[str, ...] = (), reason: str = "") -> None:
        """Requests a group; the arguments are those of Notice. Must be followed by roster()."""
        self._asked += 1
        seconds = self._timeout.total_seconds()
        post(self.store, Notice(self.name, READY, number, step, suspects, reason[:2000], seconds))

    def roster(self) -> Roster:
        """Waits for the answer. Raises DistStoreError if none arrives or the store is gone."""
        limit = 2 * self._timeout + _MAX_ANSWER_DELAY
        key = notices.answer_key(self.name, self._asked)
        self.store.set_timeout(limit)
        try:
            return Roster.parse(self.store.get(key))
        except dist.DistStoreError as error:
            raise dist.DistStoreError(
                f"the supervisor of this job did not name a new group within {limit}, or its store is gone: {error}"
            ) from None

    def store_of(self, roster: Roster) -> dist.Store:
        """Returns the store of its group's keys. In Redis it is a separate job, whose list of members is the roster."""
        if urlsplit(self._address).scheme not in _REDIS:
            return dist.PrefixStore(notices.group_prefix(roster.number), self.store)
        from atoll.redis.store import RedisStore, beside

        rank = roster.seat(self.name).rank
        own = beside(self._address, str(roster.number), rank=rank, world_size=len(roster.seats))
        return RedisStore(own, self._timeout)

    def report(self, kind: str, number: int) -> None:
        """Posts that it is AWAY from the group of this number, or BACK."""
        post(self.store, Notice(self.name, kind, number))

    def others_wait(self, number: int) -> bool:
        """Returns whether other ranks wait to join this group. Queries the store at most ten times a second."""
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return False
        self._looked = now
        return bool(self.store.check([notices.growth_key(number)]))
