# SPDX-License-Identifier: Apache-2.0
"""Arguments that share memory give the values of separate ones, or an error if outputs overlap."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from tensor_calls import pattern

import support
from support import Ranks, raises

PLACES = [(layout, device) for device in ("cpu", "sim") for layout in ("AAA", "ABA")]
SIZE = 3
FEW, MANY = 4, 50_000
"""Elements of a part: in one piece, and in several."""


@pytest.fixture(scope="module")
def members(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    layout, device = request.param
    ranks = Ranks(SIZE, list(layout), {"ATOLL_SIM_DEVICES": "3"}, [device] * SIZE)
    yield ranks
    ranks.stop()


def numbers(rank: int, count: int) -> torch.Tensor:
    return pattern(rank, -(-count // 3), torch.float32).flatten()[:count].clone()


def numbers_of_all(count: int) -> list[torch.Tensor]:
    return [numbers(rank, count) for rank in range(SIZE)]


class Shared:
    """Memory of this rank with its numbers in it, and the numbers of all ranks."""

    def __init__(self, rank: int, count: int, device: str) -> None:
        self.rank = rank
        self.all = numbers_of_all(count)
        self.memory = self.all[rank].clone().to(device)
        self.device = device

    def room(self, count: int) -> torch.Tensor:
        return torch.full((count,), 7.0, device=self.device)


def same(found: torch.Tensor, wanted: torch.Tensor, what: object = "") -> None:
    here = found.cpu()
    assert torch.equal(here, wanted), (
        f"{what} {here.flatten()[:12].tolist()} instead of {wanted.flatten()[:12].tolist()}"
    )


def slices(whole: torch.Tensor, part: int) -> list[torch.Tensor]:
    return list(whole[: SIZE * part].split(part))


def reduce_scatter_of_a_list(rank: int, part: int, device: str) -> None:
    """The output is each input in turn, and then overlaps two of them."""
    for begin in [0, part, 2 * part, 1, part + 1, 2 * part - 1, 2 * part + 3]:
        s = Shared(rank, SIZE * part + 4, device)
        output = s.memory[begin : begin + part]
        dist.reduce_scatter(output, slices(s.memory, part))
        same(output, sum(slices(each, part)[rank] for each in s.all), begin)


def reduce_scatter_tensor(rank: int, part: int, device: str) -> None:
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        for begin in [rank * part, (rank + 1) % SIZE * part, 1, part + 1, 2 * part + 3]:
            s = Shared(rank, SIZE * part + 4, device)
            output = s.memory[begin : begin + part]
            dist.reduce_scatter_tensor(output, s.memory[: SIZE * part], op)
            wanted = sum(slices(each, part)[rank] for each in s.all)
            torch.testing.assert_close(output.cpu(), wanted / SIZE if op == dist.ReduceOp.AVG else wanted)


def coalesced_reduce_scatter(rank: int, part: int, device: str) -> None:
    """Each output is inside the input of the other operation."""
    s = Shared(rank, 2 * SIZE * part, device)
    inputs = s.memory.split(SIZE * part)
    outputs = [inputs[1][1 : part + 1], inputs[0][part : 2 * part]]
    with dist._coalescing_manager():
        for output, given in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, given)
    for i, output in enumerate(outputs):
        same(output, sum(slices(each.split(SIZE * part)[i], part)[rank] for each in s.all), i)


def all_gather_of_a_list(rank: int, part: int, device: str) -> None:
    """The input is this rank's output, another one, or overlaps two."""
    for shift in (0, 1, part, 2 * part, 2 * part + 3):
        s = Shared(rank, SIZE * part + 4, device)
        outputs = slices(s.memory, part)
        begins = [(other * part + shift) % (2 * part + 4) if shift else other * part for other in range(SIZE)]
        dist.all_gather(outputs, s.memory[begins[rank] : begins[rank] + part])
        for other, output in enumerate(outputs):
            same(output, s.all[other][begins[other] : begins[other] + part], (shift, other))


def all_gather_into_tensor(rank: int, part: int, device: str) -> None:
    for shift in range(-1, 3):  # 0: in place
        s = Shared(rank, SIZE * part + 4, device)
        output = s.memory[: SIZE * part]
        begins = [max(0, other * part + shift) for other in range(SIZE)]
        dist.all_gather_into_tensor(output, s.memory[begins[rank] : begins[rank] + part])
        same(output, torch.cat([s.all[r][begins[r] : begins[r] + part] for r in range(SIZE)]), shift)


def gather(rank: int, part: int, device: str) -> None:
    for root in range(SIZE):
        for shift in (0, 1, part):
            s = Shared(rank, SIZE * part + part, device)
            outputs = slices(s.memory, part) if rank == root else None
            begins = [other * part + shift for other in range(SIZE)]
            dist.gather(s.memory[begins[rank] : begins[rank] + part], outputs, root)
            for other, output in enumerate(outputs or []):
                same(output, s.all[other][begins[other] : begins[other] + part], (root, shift, other))


def scatter(rank: int, part: int, device: str) -> None:
    for root in range(SIZE):
        for begin in (0, part, 2 * part, 1, part + 3):
            s = Shared(rank, SIZE * part + 4, device)
            output = s.memory[begin : begin + part]
            dist.scatter(output, slices(s.memory, part) if rank == root else None, root)
            same(output, slices(s.all[root], part)[rank], (root, begin))


def all_to_all_in_place(rank: int, part: int, device: str) -> None:
    for shift in (0, 1):
        s = Shared(rank, SIZE * part + 4, device)
        given, output = s.memory[: SIZE * part], s.memory[shift : SIZE * part + shift]
        dist.all_to_all_single(output, given)
        same(output, torch.cat([slices(each, part)[rank] for each in s.all]), shift)
        s = Shared(rank, SIZE * part + 4, device)
        outputs = list(s.memory[shift : SIZE * part + shift].split(part))
        dist.all_to_all(outputs, slices(s.memory, part))
        same(torch.cat(outputs), torch.cat([slices(each, part)[rank] for each in s.all]), shift)


def columns_of_one_matrix(rank: int, part: int, device: str) -> None:
    """The columns are interleaved but do not overlap."""
    s = Shared(rank, part, device)
    matrix = torch.full((part, SIZE + 1), 7.0, device=device)
    dist.all_gather(list(matrix.t()[:SIZE]), s.memory)
    same(matrix, torch.stack([*s.all, torch.full((part,), 7.0)], 1))
    dist.all_to_all(list(matrix.t()[:SIZE]), [s.memory] * SIZE)
    same(matrix, torch.stack([*s.all, torch.full((part,), 7.0)], 1))
    with dist._coalescing_manager():
        for column in matrix.t():
            dist.all_reduce(column)
    same(matrix, torch.stack([*(SIZE * each for each in s.all), torch.full((part,), 7.0 * SIZE)], 1))


def inputs_given_twice(rank: int, part: int, device: str) -> None:
    s = Shared(rank, part, device)
    output = s.room(part)
    dist.reduce_scatter(output, [s.memory] * SIZE)
    same(output, sum(s.all))
    dist.scatter(output, [s.memory] * SIZE if rank == 1 else None, 1)
    same(output, s.all[1])


def outputs_in_one_place(rank: int, part: int, device: str) -> None:
    s = Shared(rank, part, device)
    memory = s.room(2 * part)
    a, b, across = memory[:part], memory[part:], memory[part - 1 : 2 * part - 1]

    def coalescing(call: Callable[..., object], *calls: tuple[torch.Tensor, ...]) -> None:
        with dist._coalescing_manager():
            for arguments in calls:
                call(*arguments)

    whole = s.room(SIZE * part)
    for pair in ((a, a), (b, across)):
        calls: list[Callable[[], object]] = [
            lambda pair=pair: dist.all_gather([*pair, a], s.memory),
            lambda pair=pair: dist.all_to_all([*pair, s.room(part)], [s.memory] * SIZE),
            lambda pair=pair: coalescing(dist.all_reduce, *((each,) for each in pair)),
            lambda pair=pair: coalescing(dist.reduce_scatter_tensor, *((each, whole) for each in pair)),
            lambda: coalescing(dist.all_gather_into_tensor, (whole, a), (whole, b)),
        ]
        for call in calls:
            with raises(ValueError, "share memory"):
                call()
            ones = torch.ones(3, device=device)
            dist.all_reduce(ones)
            same(ones, torch.full((3,), float(SIZE)))


def random_view(base: torch.Tensor, draw: random.Random) -> torch.Tensor:
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(0, 3))]
    strides = [draw.choice([0, 1, 1, 2, 3, 4, 6, 8, 12]) for _ in sizes]
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return base.as_strided(sizes, strides, draw.randint(0, base.numel() - 1 - reach))


def random_views(rank: int, part: int, device: str) -> None:
    """Two outputs are refused exactly if two of their elements are in one place. Each rank checks this by itself."""
    groups = [dist.new_group([other]) for other in range(SIZE)]
    draw, found = random.Random(part + rank), [0, 0]
    places, base = torch.arange(160), torch.zeros(160, device=device)
    for _ in range(200):
        state = draw.getstate()
        elements = [random_view(places, draw).flatten().tolist() for _ in range(2)]
        draw.setstate(state)
        views = [random_view(base, draw) for _ in range(2)]
        is_shared = len(set(elements[0] + elements[1])) < len(elements[0]) + len(elements[1])
        found[is_shared] += 1
        if is_shared:
            with raises(ValueError, "share memory"):
                groups[rank].allreduce_coalesced(views).wait()
        else:
            groups[rank].allreduce_coalesced(views).wait()
    assert min(found) > 40, found
    for group in groups[rank : rank + 1]:
        dist.destroy_process_group(group)


CASES: list[Callable[[int, int, str], None]] = [
    reduce_scatter_of_a_list,
    reduce_scatter_tensor,
    coalesced_reduce_scatter,
    all_gather_of_a_list,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all_in_place,
    columns_of_one_matrix,
    inputs_given_twice,
    outputs_in_one_place,
    random_views,
]


def run_case(rank: int, number: int, part: int) -> None:
    if support.device() == "sim":
        torch.accelerator.set_device_index(rank)
    CASES[number](rank, part, support.device())


@pytest.mark.parametrize("part", [FEW, support.later(MANY)])
@pytest.mark.parametrize("members", PLACES, ids=lambda place: f"{place[0]}-{place[1]}", indirect=True)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_shared_memory(members: Ranks, case: Callable[[int, int, str], None], part: int) -> None:
    members.run(run_case, CASES.index(case), part)
