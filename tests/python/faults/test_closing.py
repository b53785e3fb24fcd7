# SPDX-License-Identifier: Apache-2.0
"""Groups that close while they are in use: every operation ends, and none delivers bytes that were never sent."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from fault_jobs import TORCH_ERRORS, Job, Me, expected

SIM = {"ATOLL_DEVICE": "sim"}
SLOW = SIM | {"ATOLL_SIM_BANDWIDTH": "1M"}
LONG_S = 60


def reduce_until_closed(backend: Any, device: str, begun: threading.Event, ends: list[str]) -> None:
    on_caller = dist.AllreduceOptions()
    on_caller.asyncOp = False
    strided = torch.zeros(40, 60, device=device).t()
    try:
        while True:
            backend.allreduce([strided], on_caller).wait()
            backend.allreduce([strided]).wait()
            begun.set()
    except Exception as error:
        ends.append(type(error).__name__)
    begun.set()


def close_beside_calls(me: Me, device: str) -> None:
    me.join()
    for _ in range(20):
        group = dist.new_group()
        begun, ends = threading.Event(), list[str]()
        backend = group._get_backend(torch.device(device))
        caller = threading.Thread(target=reduce_until_closed, args=(backend, device, begun, ends), daemon=True)
        caller.start()
        assert begun.wait(LONG_S)
        dist.destroy_process_group(group)
        caller.join(LONG_S)
        assert len(ends) == 1, "an operation has not ended"
        assert ends[0] in TORCH_ERRORS, ends


@pytest.mark.parametrize(("device", "environment"), [("cpu", {}), ("sim", SIM)], ids=["cpu", "sim"])
def test_operations_end_while_another_thread_closes(tmp_path: Path, device: str, environment: dict[str, str]) -> None:
    with Job(tmp_path, close_beside_calls, "AB", (device,), environment) as job:
        job.wait_for("end")
        job.check_ends()


def own_backend(me: Me) -> Any:
    """Creates a backend that nothing else holds."""
    import atoll.backend
    import atoll.sim

    settings = dist.distributed_c10d._DistributedBackendOptions()
    settings.store = dist.PrefixStore("own/", dist.TCPStore("127.0.0.1", me.port))
    settings.group_rank, settings.group_size = me.rank, me.size
    settings.timeout = timedelta(seconds=LONG_S)
    settings.group_id = "own"
    settings.global_ranks_in_group = []
    return atoll.backend.create(settings, None)


def drop_amid_sends(me: Me) -> None:
    backend = own_backend(me)
    backend.barrier().wait()
    if me.rank == 1:
        with expected() as texts:  # these bytes were never on the host of rank 0
            backend.recv([torch.zeros(3)], 0, 1).wait()
        assert "destroyed without shutdown" in texts[0], texts
        return
    tensors = [torch.ones(count, device="sim") for count in (2_000_000, 3)]
    works = [backend.send([tensor], 1, tag) for tag, tensor in enumerate(tensors)]
    del backend
    for work in works:
        with expected() as texts:
            work.wait()
        assert "destroyed without shutdown" in texts[0], texts


def test_a_group_is_dropped_amid_sends_from_a_slow_device(tmp_path: Path) -> None:
    with Job(tmp_path, drop_amid_sends, "AB", environment=SLOW) as job:
        job.wait_for("end")
