# SPDX-License-Identifier: Apache-2.0
"""The contract: asynchronous calls, their order, barriers, several groups."""

import random
from typing import Any

import torch
import torch.distributed as dist

from contract_member import LIMIT, Member, Op, folded, pattern, store_of_job
from support import any_order_of_groups


def works(me: Member) -> None:
    total = sum(range(me.size))

    def started() -> tuple[torch.Tensor, Any]:
        tensor = torch.full((1000,), float(me.rank), device=me.device)
        return tensor, dist.all_reduce(tensor, async_op=True)

    def waited_for() -> None:
        tensor, work = started()
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        me.check(bool((tensor.cpu() == total).all()), tensor[:4])
        assert work.wait(LIMIT), "waiting again, with a limit"

    def result() -> None:
        tensor, work = started()
        work.wait()
        assert torch.equal(work.result()[0].cpu(), tensor.cpu())

    def futures() -> None:
        tensor, work = started()
        doubled = work.get_future().then(lambda done: [2 * done.value()[0]])
        me.check(bool((doubled.wait()[0].cpu() == 2 * total).all()), "the chained future")
        me.check(bool((tensor.cpu() == total).all()), "the tensor")

    def future_of_gather() -> None:
        outputs = [torch.empty(1, device=me.device) for _ in range(me.size)]
        work = dist.all_gather(outputs, torch.tensor([float(me.rank)], device=me.device), async_op=True)
        work.get_future().wait()
        assert [output.item() for output in outputs] == list(range(me.size))

    def callback_that_waits() -> None:
        """A callback may issue the next operation and wait for it, as communication hooks do."""

        def again(done: torch.futures.Future[Any]) -> torch.Tensor:
            tensor: torch.Tensor = done.value()[0].clone()
            dist.all_reduce(tensor)
            return tensor

        _, work = started()
        found = work.get_future().then(again).wait()
        me.check(bool((found.cpu() == total * me.size).all()), found[:4])

    def dropped() -> None:
        """Issues an operation without keeping the work or the tensor."""
        for _ in range(50):
            dist.all_reduce(torch.ones(5000, device=me.device), async_op=True)
        dist.barrier()

    for body in (waited_for, result, futures, future_of_gather, callback_that_waits, dropped):
        me.case(body.__name__.replace("_", " "), body)


def order_of_issue(me: Member) -> None:
    """Operations that all ranks issue in one order run in that order, whenever they are waited for."""

    def many() -> None:
        tensors = [torch.full((1 + 97 * i,), float(me.rank + i), device=me.device) for i in range(100)]
        pending = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in reversed(pending):
            work.wait()
        for i, tensor in enumerate(tensors):
            me.check(bool((tensor.cpu() == sum(range(me.size)) + me.size * i).all()), f"all_reduce {i}")

    def unlike() -> None:
        values = [pattern(r, (me.size * 64,), torch.float32) for r in range(me.size)]
        summed, spread = (values[me.rank].clone().to(me.device) for _ in range(2))
        gathered = torch.empty(me.size * me.size * 64, device=me.device)
        part = torch.empty(64, device=me.device)
        pending = [
            dist.all_reduce(summed, async_op=True),
            dist.broadcast(spread, 0, async_op=True),
            dist.all_gather_into_tensor(gathered, values[me.rank].to(me.device), async_op=True),
            dist.reduce_scatter_tensor(part, values[me.rank].to(me.device), async_op=True),
            dist.barrier(async_op=True),
        ]
        for work in reversed(pending):
            work.wait()
        whole = folded(Op.SUM, values)
        me.expect(summed, whole)
        me.expect(spread, values[0])
        me.expect(gathered, torch.cat(values))
        me.expect(part, whole[me.rank * 64 : me.rank * 64 + 64])

    def one_tensor() -> None:
        tensor = torch.ones(50_000, device=me.device)
        for work in [dist.all_reduce(tensor, async_op=True) for _ in range(6)]:
            work.wait()
        me.check(bool((tensor.cpu() == me.size**6).all()), tensor[:4])

    me.case("many", many)
    me.case("unlike", unlike)
    me.case("one tensor", one_tensor)


def barriers(me: Member) -> None:
    def nobody_leaves_early(turn: int) -> None:
        store = store_of_job()
        if turn % me.size == me.rank:
            store.wait([f"barrier/{turn}/{other}" for other in range(me.size) if other != me.rank], LIMIT)
        store.set(f"barrier/{turn}/{me.rank}", "")
        store.get(f"barrier/{turn}/{me.rank}")  # TCPStore does not answer set; now the entry is there
        dist.barrier()
        missing = [r for r in range(me.size) if not store.check([f"barrier/{turn}/{r}"])]
        me.check(not missing, f"left before {missing} came")

    for turn in range(5):
        me.case(f"nobody leaves early {turn}", lambda turn=turn: nobody_leaves_early(turn))


def groups(me: Member) -> None:
    def overlapping() -> None:
        """Within a group the order is common; between groups each rank has its own order."""
        members = {"all": list(range(me.size)), "low": list(range(me.size - 1)), "ends": sorted({0, me.size - 1})}
        with any_order_of_groups():
            made = {name: dist.new_group(ranks) for name, ranks in members.items() if ranks}
        calls = [(name, part) for name in made for part in range(4) if me.rank in members[name]]
        shuffled = random.Random(me.rank)
        shuffled.shuffle(calls)
        calls.sort(key=lambda call: call[1])
        pending = []
        for name, part in calls:
            tensor = torch.full((1 + 4001 * part,), float(me.rank), device=me.device)
            pending.append((name, tensor, dist.all_reduce(tensor, group=made[name], async_op=True)))
        shuffled.shuffle(pending)
        for name, tensor, work in pending:
            work.wait()
            me.check(bool((tensor.cpu() == sum(members[name])).all()), name)
        for name in made:
            if me.rank in members[name]:
                dist.destroy_process_group(made[name])

    def alone() -> None:
        made = [dist.new_group([r]) for r in range(me.size)]
        tensor = torch.full((3,), float(me.rank), device=me.device)
        dist.all_reduce(tensor, group=made[me.rank])
        dist.broadcast(tensor, me.rank, group=made[me.rank])
        dist.barrier(made[me.rank])
        me.check(bool((tensor.cpu() == me.rank).all()), tensor)
        dist.destroy_process_group(made[me.rank])

    def made_again() -> None:
        for turn in range(5):
            group = me.group()
            tensor = torch.full((10,), float(turn), device=me.device)
            dist.all_reduce(tensor, group=group)
            me.check(bool((tensor.cpu() == turn * me.size).all()), tensor)
            dist.destroy_process_group(group)

    def ranks_of_a_group() -> None:
        """Roots and peers are given by the job's ranks, whatever their place in the group."""
        last = me.size - 1
        group = dist.new_group([last])
        if me.rank == last:
            tensor = torch.full((2,), 5.0, device=me.device)
            dist.broadcast(tensor, src=last, group=group)
            assert dist.get_group_rank(group, last) == 0
            dist.destroy_process_group(group)

    def sequence_numbers() -> None:
        group = me.group()
        backend = group._get_backend(torch.device(me.device))  # a group itself queries only backends that PyTorch knows
        before = backend._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(1, device=me.device), group=group)
        dist.barrier(group)
        assert backend._get_sequence_number_for_group() == before + 2
        dist.destroy_process_group(group)

    for body in (overlapping, alone, made_again, ranks_of_a_group, sequence_numbers):
        me.case(body.__name__.replace("_", " "), body)


PROPERTIES = [works, order_of_issue, barriers, groups]
