# SPDX-License-Identifier: Apache-2.0
"""A call that fails on one rank before anything is sent ends on all ranks at once, and the group goes on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from atoll import refusals
from fault_jobs import Job, Me

PROMPT_S = 2.0
REFUSING = 1


def lists(size: int, count: int = 4) -> list[torch.Tensor]:
    return [torch.zeros(count) for _ in range(size)]


class Unsendable:
    def __reduce__(self) -> Any:
        raise OSError("no pickle of this")


def calls(me: Me, wrong: bool) -> dict[str, Callable[[], Any]]:
    """Returns each operation, with an argument that its rank refuses if `wrong`."""
    size, ones = me.size, torch.ones(4)
    odd = torch.ones(3) if wrong else ones
    to_root = lists(size) if me.rank == 0 else None
    return {
        "all_reduce": lambda: dist.all_reduce(torch.ones(4, dtype=torch.uint16) if wrong else ones),
        "all_reduce_op": lambda: dist.all_reduce(ones, dist.ReduceOp.BAND if wrong else dist.ReduceOp.SUM),
        "large": lambda: dist.all_reduce(torch.ones(3_000_000, dtype=torch.uint16 if wrong else torch.float32)),
        "async": lambda: dist.all_reduce(torch.ones(2, 2).to_sparse_csr() if wrong else ones, async_op=True).wait(),
        "conjugated": lambda: dist.all_reduce(torch.ones(4, dtype=torch.complex64).conj() if wrong
                                              else torch.ones(4, dtype=torch.complex64)),
        "no tensor": lambda: dist.all_reduce("a text" if wrong else ones),  # type: ignore[arg-type]
        "broadcast": lambda: dist.broadcast(torch.ones(4).to_sparse() if wrong else ones, src=2),
        "reduce": lambda: dist.reduce(torch.ones(4, dtype=torch.uint16) if wrong else ones, dst=0),
        "all_gather": lambda: dist.all_gather(lists(size - 1 if wrong else size), ones),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(torch.empty(4 * size + int(wrong)), ones),
        "gather": lambda: dist.gather(odd if not wrong else "a text", to_root, dst=0),  # type: ignore[arg-type]
        "scatter": lambda: dist.scatter(torch.ones(4).to_sparse() if wrong else torch.empty(4), to_root, src=0),
        "reduce_scatter": lambda: dist.reduce_scatter(torch.empty(4), lists(size - 1 if wrong else size)),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(4), torch.ones(4 * size + int(wrong))),
        "all_to_all": lambda: dist.all_to_all(lists(size), lists(size - 1 if wrong else size)),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.empty(size + int(wrong)), torch.ones(size)),
        "all_gather_object": lambda: dist.all_gather_object([None] * size, Unsendable() if wrong else 1),
        "functional": lambda: torch.distributed._functional_collectives.all_reduce(
            torch.ones(4, dtype=torch.uint16) if wrong else ones, "sum", dist.group.WORLD).sum(),
    }  # fmt: skip


MAY_END_WELL = {"broadcast", "reduce", "gather", "scatter"}
NAMES = list(calls(Me(0, 3, 0, None), wrong=False))  # type: ignore[arg-type]


def refuse_each(me: Me) -> None:
    me.join(seconds=60)
    me.check_sum()
    for name in NAMES:
        for _ in range(2):
            begin = time.monotonic()
            try:
                calls(me, wrong=me.rank == REFUSING)[name]()
                text = ""
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            me.tell(name, (text, time.monotonic() - begin))
            me.check_sum()  # nothing of the call is left
    dist.destroy_process_group()


@pytest.mark.parametrize("layout", ["AAA", "ABA"])
def test_the_others_learn_of_it(tmp_path: Path, layout: str) -> None:
    with Job(tmp_path, refuse_each, layout) as job:
        for name in NAMES:
            for _ in range(2):
                told = job.wait_for(name)
                assert told[REFUSING].details[0], f"{name} was not refused"
                for rank, event in told.items():
                    text, seconds = event.details
                    assert seconds < PROMPT_S, f"{name} took rank {rank} {seconds:.1f} s: {text}"
                    # A rank that depends on no other, such as a sender, may have finished before it learns of it.
                    if rank != REFUSING and (text or name not in MAY_END_WELL):
                        assert f"rank {REFUSING} refused it: " in text, f"{name} on rank {rank}: {text}"
        job.wait_for("end")
        job.check_ends()


def refuse_message(me: Me, side: str, count: int) -> None:
    me.join(seconds=60)
    me.check_sum()
    wrong = {"send": 0, "receive": 1}[side] == me.rank
    begin, text = time.monotonic(), ""
    try:
        if me.rank == 0:
            dist.send(torch.ones(count).to_sparse() if wrong else torch.ones(count), dst=1, tag=3)
        elif me.rank == 1:
            dist.recv(torch.ones(count).to_sparse() if wrong else torch.ones(count), src=0, tag=3)
    except Exception as error:
        text = str(error)
    me.tell("over", (text, time.monotonic() - begin))
    if me.rank == 0:
        dist.send(torch.full((count,), 7.0), dst=1, tag=3)
    elif me.rank == 1:
        got = torch.zeros(count)
        dist.recv(got, src=0, tag=3)
        assert got.eq(7).all()
    me.check_sum()
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [4, 1_000_000])
@pytest.mark.parametrize("side", ["send", "receive"])
def test_the_other_end_of_a_message_learns_of_it(tmp_path: Path, side: str, count: int) -> None:
    with Job(tmp_path, refuse_message, "AB", (side, count)) as job:
        told = job.wait_for("over")
        assert all(event.details[1] < PROMPT_S for event in told.values()), told
        refusing = {"send": 0, "receive": 1}[side]
        assert told[refusing].details[0]
        other = told[1 - refusing].details[0]
        eager = side == "receive" and count == 4  # it is sent before the receiver reports anything
        assert eager or f"rank {refusing} refused to {side} it" in other, other
        job.wait_for("end")
        job.check_ends()


def refuse_on_devices(me: Me) -> None:
    me.join(seconds=60)
    import atoll

    me.check_sum()
    begin, text = time.monotonic(), ""
    try:
        dtype = torch.uint16 if me.rank == REFUSING else torch.float32
        tensor = torch.ones(3_000_000, dtype=dtype, device=atoll.device())
        dist.all_reduce(tensor)
        tensor[0].item()
    except Exception as error:
        text = str(error)
    me.tell("over", (text, time.monotonic() - begin))
    if "cannot continue" not in text:
        me.check_sum()


@pytest.mark.parametrize("layout", ["AAA", "ABC", "AAB"])
def test_devices_learn_of_it(tmp_path: Path, layout: str) -> None:
    """If an island's library has started the operation, the group ends with the reason; otherwise it goes on."""
    own = {rank: {"ATOLL_DEVICE": f"sim:{rank}"} for rank in range(3)}
    few_slots = {"ATOLL_STAGING": "1"}  # and the tensor has more chunks
    with Job(tmp_path, refuse_on_devices, layout, environment=few_slots, own=own) as job:
        for rank, event in job.wait_for("over").items():
            text, seconds = event.details
            assert seconds < PROMPT_S, f"rank {rank} took {seconds:.1f} s: {text}"
            assert text
            if rank != REFUSING:
                assert f"rank {REFUSING} refused it: " in text, f"rank {rank}: {text}"
        if layout == "ABC":
            job.wait_for("end")


def refuse_in_a_hook(me: Me, has_loader: bool) -> None:
    me.join(seconds=60)
    from torch.nn.parallel import DistributedDataParallel

    import atoll

    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    data = torch.utils.data.TensorDataset(torch.ones(12, 4))
    batches = torch.utils.data.DataLoader(data, batch_size=2)
    loader = atoll.DataLoader(data, global_batch=6, model=model, policy="equal") if has_loader else batches

    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if me.rank == REFUSING:
            raise OSError("the hook's own trouble")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    begin, text = time.monotonic(), ""
    try:
        for (batch,) in loader:
            model(batch).sum().backward()
    except Exception as error:
        text = str(error)
    me.tell("over", (text, time.monotonic() - begin))


@pytest.mark.parametrize("has_loader", [True, False], ids=["atoll.DataLoader", "a loader"])
def test_an_exception_in_a_communication_hook(tmp_path: Path, has_loader: bool) -> None:
    with Job(tmp_path, refuse_in_a_hook, "ABA", (has_loader,)) as job:
        for rank, event in job.wait_for("over").items():
            text, seconds = event.details
            assert "the hook's own trouble" in text, f"rank {rank}: {text}"
            assert seconds < PROMPT_S + 2, f"rank {rank} took {seconds:.1f} s"


def test_all_wrapped_functions_are_known() -> None:
    """Atoll replaces functions inside PyTorch's wrapper of all calls; a release that wraps others must be noticed."""
    names = {function.__name__ for function in refusals.wrapped_functions()}
    expected = {"all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather", "scatter",
                "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "send", "recv",
                "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
                "send_object_list", "recv_object_list"}  # fmt: skip
    assert expected <= names
