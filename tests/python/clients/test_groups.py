# SPDX-License-Identifier: Apache-2.0
"""Several groups at once, messages in rings, object collectives, functional collectives."""

import contextlib
import random
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from client_ranks import EVERYWHERE, on_layouts
from support import any_order_of_groups, device

ROUNDS = 25


@on_layouts(*EVERYWHERE)
def test_overlapping_groups_in_different_orders(rank: int, size: int) -> None:
    """Within a group the order is common; between groups each rank has its own order, and waits in yet another."""
    members = {"world": list(range(size)), "low": list(range(size - 1)), "high": list(range(1, size))}
    with any_order_of_groups():
        groups = {name: dist.new_group(ranks) for name, ranks in members.items()}
    mine = [name for name, ranks in members.items() if rank in ranks]
    order = random.Random(rank)
    for turn in range(ROUNDS):
        pending = []
        calls = [(name, part) for name in mine for part in range(3)]
        order.shuffle(calls)
        calls.sort(key=lambda call: call[1])
        for name, part in calls:
            tensor = torch.full((1 + 4001 * part,), float(turn + rank), device=device())
            work = dist.all_reduce(tensor, group=groups[name], async_op=True)
            pending.append((name, tensor, work))
        order.shuffle(pending)
        for name, tensor, work in pending:
            work.wait()
            assert tensor.eq(sum(turn + member for member in members[name])).all(), name
    for name in mine:
        dist.destroy_process_group(groups[name])


@on_layouts(*EVERYWHERE)
def test_groups_on_threads_of_their_own(rank: int, size: int) -> None:
    with any_order_of_groups():
        groups = [dist.new_group() for _ in range(3)]
    wrong: list[str] = []

    def use(number: int) -> None:
        # On one stream the groups' operations would wait for each other, in an order that the ranks do not share.
        on_own_stream = torch.sim.stream(torch.sim.Stream()) if device() == "sim" else contextlib.nullcontext()
        try:
            with on_own_stream:
                take_turns(number)
        except Exception as error:
            wrong.append(f"group {number}: {error}")

    def take_turns(number: int) -> None:
        for turn in range(ROUNDS):
            tensor = torch.full((1 + 997 * number,), float(rank + turn), dtype=torch.float64, device=device())
            dist.all_reduce(tensor, group=groups[number])
            if not tensor.eq(sum(range(size)) + size * turn).all():
                wrong.append(f"group {number}, turn {turn}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for group in groups:
        dist.destroy_process_group(group)


@on_layouts(*EVERYWHERE)
def test_groups_come_and_go(rank: int, size: int) -> None:
    for turn in range(5):
        members = [(turn + 1) % size, turn % size]
        group = dist.new_group(members)
        if rank in members:
            tensor = torch.full((10,), float(rank), device=device())
            dist.all_reduce(tensor, group=group)
            assert tensor.eq(sum(members)).all()
            dist.destroy_process_group(group)


@on_layouts(*EVERYWHERE, "AABB")
def test_rings_of_messages(rank: int, size: int) -> None:
    following, preceding = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 300_007):
        right = torch.full((count,), float(rank), device=device())
        left = 100.0 + right
        from_left, from_right = torch.empty_like(right), torch.empty_like(left)
        sends = [dist.P2POp(dist.isend, right, following), dist.P2POp(dist.isend, left, preceding)]
        receives = [dist.P2POp(dist.irecv, from_left, preceding), dist.P2POp(dist.irecv, from_right, following)]
        operations = sends + receives if rank % 2 else receives + sends
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert from_left.eq(preceding).all()
        assert from_right.eq(100.0 + following).all()


@on_layouts(*EVERYWHERE)
def test_objects(rank: int, size: int) -> None:
    mine = {"rank": rank, "text": "x" * (1000 * rank), "list": list(range(rank))}
    everything = [{"rank": other, "text": "x" * (1000 * other), "list": list(range(other))} for other in range(size)]
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, mine)
    assert gathered == everything
    for root in range(size):
        tensor = torch.full((10_000,), float(rank), device=device())
        work = dist.all_reduce(tensor, async_op=True)
        collected: list[object] | None = [None] * size if rank == root else None
        dist.gather_object(mine, collected, dst=root)
        assert collected == (everything if rank == root else None)
        told: list[object] = everything[:2] if rank == root else [None, None]
        dist.broadcast_object_list(told, src=root)
        assert told == everything[:2]
        part: list[object] = [None]
        dist.scatter_object_list(part, everything if rank == root else None, src=root)
        assert part == [mine]
        work.wait()
        assert tensor.eq(sum(range(size))).all()
    if rank == 0:
        dist.send_object_list([mine, "more"], dst=size - 1)
    elif rank == size - 1:
        received: list[object] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == [everything[0], "more"]


@on_layouts(*EVERYWHERE)
def test_functional_collectives(rank: int, size: int) -> None:
    group = dist.group.WORLD
    ranks = torch.arange(float(size), device=device())
    value = torch.full((2 * size, 3), float(rank), device=device())
    assert functional.all_reduce(value, "sum", group).eq(ranks.sum()).all()
    assert functional.all_reduce(value, "avg", group).eq(ranks.mean()).all()
    assert functional.broadcast(value, size - 1, group).eq(size - 1).all()
    # torch 2.11 has only the older names.
    gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    scatter = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor
    gathered = gather(value, 0, group)
    assert torch.equal(gathered, ranks.repeat_interleave(2 * size)[:, None].expand(-1, 3))
    assert scatter(value, "sum", 0, group).eq(ranks.sum()).all()
    assert scatter(value, "sum", 0, group).shape == (2, 3)
    pieces = functional.all_to_all_single(value, None, None, group)
    assert torch.equal(pieces, ranks.repeat_interleave(2)[:, None].expand(-1, 3))
    both = functional.all_reduce_coalesced([value, 2 * value[0]], "max", group)
    assert both[0].eq(size - 1).all()
    assert both[1].eq(2 * (size - 1)).all()
    many = functional.all_gather_into_tensor_coalesced([value[:1], value[:2]], group)
    assert [tuple(part.shape) for part in many] == [(size, 3), (2 * size, 3)]


@on_layouts(*EVERYWHERE)
def test_functional_collectives_have_gradients(rank: int, size: int) -> None:
    value = torch.full((size, 2), float(rank + 1), dtype=torch.float64, device=device(), requires_grad=True)
    gathered = functional.all_gather_tensor_autograd(value, 0, dist.group.WORLD)
    weights = torch.arange(gathered.numel(), dtype=torch.float64, device=device()).reshape(gathered.shape)
    (gathered * weights).sum().backward()
    assert value.grad is not None
    assert torch.equal(value.grad, size * weights.chunk(size)[rank])


@on_layouts(*EVERYWHERE, "AABB")
def test_uneven_exchange(rank: int, size: int) -> None:
    """Rank r sends r + p + 1 elements to rank p."""
    sending = [rank + other + 1 for other in range(size)]
    inputs = torch.cat([torch.full((count,), float(10 * rank + other)) for other, count in enumerate(sending)])
    outputs = torch.empty(sum(sending), device=device())
    dist.all_to_all_single(outputs, inputs.to(device()), sending, sending)
    parts = [torch.full((count,), float(10 * other + rank)) for other, count in enumerate(sending)]
    assert torch.equal(outputs.cpu(), torch.cat(parts))
