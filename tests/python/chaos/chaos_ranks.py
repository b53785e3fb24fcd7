# SPDX-License-Identifier: Apache-2.0
"""The program of a rank in a trial, and the saboteur that causes the fault."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
from datetime import timedelta

import torch.distributed as dist

from chaos_calls import Prepared, Side, Works
from chaos_faults import break_all, leave_descriptors
from chaos_trial import WHOLE, Trial
from fault_jobs import START_S, Me
from listeners import connections_with

MAX_PENDING = 4  # asynchronous operations
FORGET_S = 600  # longer than any trial


class Saboteur:
    """Causes the trial's fault, on the rank and at the point that the trial names."""

    def __init__(self, me: Me, trial: Trial, pids: list[int], store_pid: int) -> None:
        self.me, self.trial, self.pids, self.store_pid = me, trial, pids, store_pid
        self.started, self.struck, self.lock, self.over = threading.Event(), threading.Event(), threading.Lock(), False
        self.mine = trial.victim == me.rank
        if self.mine and self.lasts(trial.phase):
            threading.Thread(target=self.strike_later, daemon=True).start()
        if trial.variant == "both ways" and trial.peer == me.rank:
            threading.Thread(target=self.break_when_told, daemon=True).start()

    def lasts(self, phase: str) -> bool:
        """Returns whether faults of this phase come while it lasts. A shortage of descriptors must exist when the
        phase begins."""
        return phase in ("making", "inside", "destroying") and self.trial.fault != "descriptors"

    def reach(self, phase: str, step: int | None = None) -> None:
        if not self.mine or self.trial.phase != phase or (step is not None and step != self.trial.step):
            return
        if self.lasts(phase):
            self.started.set()
        else:
            self.strike()

    def strike_later(self) -> None:
        self.started.wait(FORGET_S)
        time.sleep(self.trial.delay_s)
        with self.lock:
            if not self.over:
                self.strike()
        self.struck.set()

    def wait_inside(self, step: int) -> None:
        """Waits until the fault inside this call has struck, so that the call is not over before it."""
        if self.mine and (self.trial.phase, self.trial.step) == ("inside", step):
            self.struck.wait(FORGET_S)

    def withdraw(self) -> None:
        """Notes that this rank has done its part, so that the fault no longer strikes."""
        with self.lock:
            self.over = True

    def strike(self) -> None:
        fault = self.trial.fault
        if fault in ("cut", "half_open"):
            return self.break_link(self.trial.peer)
        if fault == "descriptors":
            leave_descriptors(self.trial.spare)
        self.me.tell("fault")  # a slow rank is slowed down by the test that reads this
        if fault == "store":
            os.kill(self.store_pid, signal.SIGKILL)
        elif fault in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        return None

    def break_link(self, peer: int) -> None:
        numbers = connections_with(self.pids[peer])
        if not numbers and self.trial.phase == "destroying":
            return  # the connections are closed already
        self.me.tell("connections", len(numbers))
        self.me.tell("fault")
        break_all(numbers, self.trial.variant)

    def break_when_told(self) -> None:
        self.me.listen()
        self.break_link(self.trial.victim)


def join(me: Me, trial: Trial, store: dist.TCPStore) -> dict[int, Side]:
    """This rank's groups, by number."""
    import atoll

    limit = timedelta(seconds=trial.timeout_s)
    store.set_timeout(limit)  # as init_process_group does for a store that it makes itself
    dist.init_process_group("atoll", store=store, rank=me.rank, world_size=me.size, timeout=limit)
    sides = {}
    for number, ranks in enumerate(trial.groups):
        group = dist.group.WORLD if number == WHOLE else dist.new_group(list(ranks), timeout=limit)
        if me.rank in ranks:
            assert group is not None
            sides[number] = Side(group, ranks, me.rank, atoll.device())
    return sides


def wait_for(pending: list[tuple[Prepared, Works]]) -> None:
    """Waits for all operations and checks the results of those that succeed. Raises the first error of the others.
    After a call has reported that a group failed, results of its devices are not checked, because their failure
    interrupts the rank only once."""
    failure: Exception | None = None
    failed = set[int]()
    for prepared, works in pending:
        try:
            for work in works:
                work.wait()
        except Exception as error:
            failure = failure or error
            failed.add(prepared.call.group)
            continue
        if prepared.call.group not in failed or not prepared.on_device():
            prepared.check()
    pending.clear()
    if failure:
        raise failure


def call_everything(me: Me, trial: Trial, sides: dict[int, Side], saboteur: Saboteur) -> None:
    pending: list[tuple[Prepared, Works]] = []
    for index, call in enumerate(trial.calls):
        saboteur.reach("before", index)
        prepared = sides[call.group].prepare(call) if call.group in sides else None
        saboteur.reach("inside", index)
        if prepared:
            if (trial.phase, trial.step) == ("inside", index):
                me.tell("calling")  # making large buffers takes long, and not equally long on all ranks
            try:
                pending.append((prepared, prepared.begin(call.asynchronous)))
            except Exception as error:
                with contextlib.suppress(type(error)):
                    wait_for(pending)
                raise
            saboteur.wait_inside(index)
            if not call.asynchronous or len(pending) == MAX_PENDING:
                wait_for(pending)
        saboteur.wait_inside(index)
        saboteur.reach("after", index)
    wait_for(pending)


def open_link(me: Me, trial: Trial) -> None:
    """Sends a message each way, so that the link that will be cut is open."""
    import torch

    pair = {trial.victim: trial.peer, trial.peer: trial.victim}
    if trial.peer < 0 or me.rank not in pair:
        return
    found = torch.zeros(1)
    operations = [
        dist.P2POp(dist.isend, torch.full((1,), float(me.rank)), pair[me.rank]),
        dist.P2POp(dist.irecv, found, pair[me.rank]),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert found.item() == pair[me.rank], f"wrong result: {found.item()} from rank {pair[me.rank]}"


def take_part(me: Me, trial: Trial, store_port: int | None, store_pid: int) -> None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    if "sim" in os.environ["ATOLL_DEVICE"]:
        import atoll.sim
    import atoll  # noqa: F401

    wait = timedelta(seconds=START_S)
    store = dist.TCPStore("127.0.0.1", store_port or me.port, is_master=False, timeout=wait)
    me.tell("ready", os.getpid())
    saboteur = Saboteur(me, trial, me.listen(), store_pid)
    try:
        saboteur.reach("making")
        sides = join(me, trial, store)
        me.tell("made")
        if trial.fault in ("cut", "half_open"):
            open_link(me, trial)
        call_everything(me, trial, sides, saboteur)
        saboteur.reach("destroying")
        dist.destroy_process_group()
    finally:
        saboteur.withdraw()


def serve_store(me: Me) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    me.tell("store", (store.port, os.getpid()))
    me.listen()
