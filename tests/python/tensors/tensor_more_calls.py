# SPDX-License-Identifier: Apache-2.0
"""More forms of the same operations: of the group itself, functional operators, and operations on objects."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from tensor_calls import IN_OUT, Operation, Pairs, Setting, all_ranks, but_first, but_last, first, last, rooted
from tensor_kinds import read_back


def group_all_reduce(s: Setting) -> Pairs:
    tensor = s.given(s.values(s.rank))
    s.group.allreduce([tensor]).wait()
    return [(tensor, s.sum())]


def group_broadcast(s: Setting, root: int) -> Pairs:
    options = dist.BroadcastOptions()
    options.rootRank = root
    tensor = s.given(s.values(s.rank))
    s.group.broadcast([tensor], options).wait()
    return [(tensor, s.values(root))]


def group_all_gather(s: Setting) -> Pairs:
    parts = [s.room() for _ in s.ranks]
    s.group.allgather([parts], [s.given(s.values(s.rank))]).wait()
    return [(part, s.values(rank)) for rank, part in enumerate(parts)]


def group_all_gather_base(s: Setting) -> Pairs:
    output = s.room(2 * s.size)
    s.group._allgather_base(output, s.given(s.values(s.rank))).wait()
    return [(output, torch.cat([s.values(rank) for rank in s.ranks]))]


def group_scatter(s: Setting, root: int) -> Pairs:
    options = dist.ScatterOptions()
    options.rootRank = root
    output = s.room()
    parts = [[s.given(s.part(root, rank)) for rank in s.ranks]] if s.rank == root else []
    s.group.scatter([output], parts, options).wait()
    return [(output, s.part(root, s.rank))]


def group_all_to_all(s: Setting) -> Pairs:
    outputs = [s.room() for _ in s.ranks]
    s.group.alltoall(outputs, [s.given(s.part(s.rank, rank)) for rank in s.ranks]).wait()
    return [(output, s.part(rank, s.rank)) for rank, output in enumerate(outputs)]


def group_all_to_all_base(s: Setting) -> Pairs:
    output = s.room(2 * s.size)
    s.group.alltoall_base(output, s.given(s.whole(s.rank)), [], []).wait()
    return [(output, torch.cat([s.part(rank, s.rank) for rank in s.ranks]))]


def group_ring(s: Setting) -> Pairs:
    """Sends both messages even if one is refused, because the other ranks wait for the second one."""
    output, before, after = s.room(), (s.rank - 1) % s.size, (s.rank + 1) % s.size
    given = s.given(s.values(s.rank))
    works, errors = [], []
    for issue in (lambda: s.group.send([given], after, 0), lambda: s.group.recv([output], before, 0)):
        try:
            works.append(issue())
        except Exception as error:
            errors.append(error)
    for work in works:
        try:
            work.wait()
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return [(output, s.values(before))]


def functional_all_reduce(s: Setting) -> Pairs:
    result = functional.all_reduce(s.given(s.values(s.rank)), "sum", s.group)
    return [(functional.wait_tensor(result), s.sum())]


def functional_all_reduce_in_place(s: Setting) -> Pairs:
    tensor = s.given(s.values(s.rank))
    torch.ops._c10d_functional.all_reduce_(tensor, "sum", s.group.group_name)
    torch.ops._c10d_functional.wait_tensor(tensor)
    return [(tensor, s.sum())]


def functional_broadcast_in_place(s: Setting) -> Pairs:
    tensor = s.given(s.values(s.rank))
    torch.ops._c10d_functional.broadcast_(tensor, 0, s.group.group_name)
    torch.ops._c10d_functional.wait_tensor(tensor)
    return [(tensor, s.values(0))]


def functional_all_gather(s: Setting) -> Pairs:
    result = functional.all_gather_tensor(s.given(s.values(s.rank)), 0, s.group)
    return [(functional.wait_tensor(result), torch.cat([s.values(rank) for rank in s.ranks]))]


def functional_all_gather_out(s: Setting) -> Pairs:
    output = s.room(2 * s.size)
    given = s.given(s.values(s.rank))
    torch.ops._c10d_functional.all_gather_into_tensor_out(given, s.size, s.group.group_name, out=output)
    torch.ops._c10d_functional.wait_tensor(output)
    return [(output, torch.cat([s.values(rank) for rank in s.ranks]))]


def functional_reduce_scatter(s: Setting) -> Pairs:
    result = functional.reduce_scatter_tensor(s.given(s.whole(s.rank)), "sum", 0, s.group)
    return [(functional.wait_tensor(result), s.sum_of_parts())]


def functional_all_to_all(s: Setting) -> Pairs:
    result = functional.all_to_all_single(s.given(s.whole(s.rank)), None, None, s.group)
    return [(functional.wait_tensor(result), torch.cat([s.part(rank, s.rank) for rank in s.ranks]))]


def all_gather_object(s: Setting) -> Pairs:
    found: list[list[torch.Tensor]] = [[] for _ in s.ranks]
    dist.all_gather_object(found, [s.given(s.values(s.rank))], group=s.group)
    return [(s.kind.read(each) if s.is_odd(rank) else read_back(each), s.values(rank))
            for rank, (each,) in enumerate(found)]  # fmt: skip


def broadcast_object(s: Setting) -> Pairs:
    found = [s.given(s.values(s.rank))]
    dist.broadcast_object_list(found, s.last, group=s.group)
    return [(s.kind.read(found[0]), s.values(s.last))]


OPERATIONS = [
    Operation("group.allreduce", group_all_reduce),
    *rooted("group.broadcast", group_broadcast, ("from first", first, but_first), ("from last", last, but_last)),
    Operation("group.allgather", group_all_gather, IN_OUT, lists_of_lists="output"),
    Operation("group._allgather_base", group_all_gather_base, IN_OUT),
    *rooted("group.scatter", group_scatter, ("from last", last, all_ranks), roles=IN_OUT, lists_of_lists="input"),
    Operation("group.alltoall", group_all_to_all, IN_OUT),
    Operation("group.alltoall_base", group_all_to_all_base, IN_OUT),
    Operation("group.send and recv", group_ring, IN_OUT, smallest=2, leaves_messages=True),
    Operation("functional all_reduce", functional_all_reduce, ("input",)),
    Operation("functional all_reduce in place", functional_all_reduce_in_place),
    Operation(
        "functional broadcast in place",
        functional_broadcast_in_place,
        reads=first,
        writes=but_first,
        looks_at_pairs=True,
    ),
    Operation("functional all_gather", functional_all_gather, ("input",)),
    Operation("functional all_gather out", functional_all_gather_out, IN_OUT),
    Operation("functional reduce_scatter", functional_reduce_scatter, ("input",)),
    Operation("functional all_to_all", functional_all_to_all, ("input",)),
    Operation("all_gather_object", all_gather_object, ("input",)),
    Operation("broadcast_object_list", broadcast_object, ("input",), reads=last),
]
