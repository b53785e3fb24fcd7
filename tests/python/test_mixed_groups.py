# SPDX-License-Identifier: Apache-2.0
"""Groups whose ranks compute on different kinds of devices give the same results as on CPUs alone, also on side
streams and with tensors that are freed early."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support import Ranks, crossed, device, raises

SLOW_COPIES = {"ATOLL_SIM_BANDWIDTH": "50M"}
UNRELIABLE_LIBRARY = {"ATOLL_SIM_DELAY": "0.003", "ATOLL_SIM_REORDER": "1"}
# Islands by letter, each rank's device, and further variables.
Mixture = tuple[str, list[str], dict[str, str]]
MIXTURES: list[Mixture] = [
    ("AB", ["cpu", "sim"], SLOW_COPIES),
    ("AB", ["sim", "sim"], SLOW_COPIES),
    ("ABB", ["cpu", "sim", "sim"], SLOW_COPIES | {"ATOLL_INNER": "sim:none"}),
    ("ABA", ["sim", "cpu", "sim"], SLOW_COPIES),
    ("ABAB", ["sim", "sim", "sim", "sim"], UNRELIABLE_LIBRARY),
    ("ABCAA", ["sim", "sim", "cpu", "sim", "sim"], UNRELIABLE_LIBRARY | {"ATOLL_STAGING": "1"}),
    ("AAA", ["sim", "sim", "sim"], UNRELIABLE_LIBRARY),
    ("AABB", ["cpu"] * 4, {"ATOLL_INNER": "cpu:gloo"}),
    ("ABA", ["cpu"] * 3, {"ATOLL_INNER": "cpu:gloo"}),
    ("AA", ["cpu"] * 2, {"ATOLL_INNER": "cpu:gloo"}),
]


def name_of(mixture: Mixture) -> str:
    islands, devices, environment = mixture
    return "-".join([islands, *dict.fromkeys(devices), environment.get("ATOLL_INNER", "").replace(":", "-")]).rstrip(
        "-"
    )


MIXTURES_BY_NAME = {name_of(mixture): mixture for mixture in MIXTURES}


@pytest.fixture(params=MIXTURES_BY_NAME, scope="module")
def mixed(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    islands, devices, environment = MIXTURES_BY_NAME[request.param]
    ranks = Ranks(len(devices), list(islands), environment, devices)
    yield ranks
    ranks.stop()


def own(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.arange(count) % 13 + 3 * rank + 1
    return values.to(dtype)


def values_of_all(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [own(rank, count, dtype) for rank in range(dist.get_world_size())]


def check(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert found.device.type == device(), (what, found.device)
    assert torch.equal(found.cpu(), expected.to(found.dtype)), (what, found.cpu(), expected)


def reduce_everything(rank: int) -> None:
    size = dist.get_world_size()
    for count in (0, 1, 61, 100_003):
        for dtype in (torch.float32, torch.int64, torch.float64):
            total = sum(values_of_all(count, dtype))
            assert isinstance(total, torch.Tensor)
            tensor = own(rank, count, dtype).to(device())
            dist.all_reduce(tensor)
            check(tensor, total, "all_reduce")
            tensor = own(rank, count, dtype).to(device())
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
            check(tensor, own(size - 1, count, dtype) if size > 1 else own(0, count, dtype), "max")
            tensor = own(rank, count, dtype).to(device())
            dist.reduce(tensor, dst=size - 1)
            check(tensor, total if rank == size - 1 else own(rank, count, dtype), "reduce")


def move_everything(rank: int) -> None:
    size, count = dist.get_world_size(), 1009
    tensor = own(rank, count).to(device())
    dist.broadcast(tensor, src=size - 1)
    check(tensor, own(size - 1, count), "broadcast")
    parts = [torch.empty(count, device=device()) for _ in range(size)]
    dist.all_gather(parts, own(rank, count).to(device()))
    whole = torch.empty(size * count, device=device())
    dist.all_gather_into_tensor(whole, own(rank, count).to(device()))
    for part, expected in zip([*parts, *whole.chunk(size)], 2 * values_of_all(count), strict=True):
        check(part, expected, "all_gather")
    mine = torch.empty(count, device=device())
    dist.reduce_scatter_tensor(mine, torch.cat(values_of_all(count)).to(device()))
    check(mine, size * own(rank, count), "reduce_scatter")
    received = torch.empty(size * count, device=device())
    dist.all_to_all_single(received, torch.cat([own(rank, count)] * size).to(device()))
    check(received, torch.cat(values_of_all(count)), "all_to_all")
    gathered = [torch.empty(count, device=device()) for _ in range(size)] if rank == 0 else None
    dist.gather(own(rank, count).to(device()), gathered, dst=0)
    for part, expected in zip(gathered or [], values_of_all(count), strict=False):
        check(part, expected, "gather")
    dist.scatter(mine, [part.to(device()) for part in values_of_all(count)] if rank == 0 else None, src=0)
    check(mine, own(rank, count), "scatter")
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [each["rank"] for each in objects] == list(range(size))
    dist.barrier()


def send_round(rank: int) -> None:
    size = dist.get_world_size()
    to, source = (rank + 1) % size, (rank - 1) % size
    for count in (1, 5000):
        # The second message is on the CPU and must not overtake the first. Both ends of a message inside an island are
        # on one kind of device.
        places = (device(), "cpu", device())
        incoming = [torch.empty(count, device=place) for place in places]
        works = [dist.irecv(tensor, source, tag=1) for tensor in incoming]
        for i, place in enumerate(places):
            works.append(dist.isend((own(rank, count) + i).to(place), to, tag=1))
        for work in works:
            work.wait()
        for i, tensor in enumerate(incoming):
            assert torch.equal(tensor.cpu(), own(source, count) + i), f"message {i}"
    # Long messages leave the device in parts, and all start together, as vendors' libraries require.
    mine = own(rank, 1_430_000).reshape(1300, 1100).to(device())
    views: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda whole: whole, torch.Tensor.t, lambda whole: whole[:, ::2], lambda whole: whole[0, :77],
    )  # fmt: skip
    incoming = [view(torch.empty_like(mine)) for view in views]
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.irecv, tensor, source) for tensor in incoming]
        + [dist.P2POp(dist.isend, view(mine), to) for view in views]
    ):
        work.wait()
    for view, tensor in zip(views, incoming, strict=True):
        check(tensor, view(own(source, mine.numel()).reshape(mine.shape)), "batch")


def exchange_much(rank: int) -> None:
    """Long messages, which leave a device and come to it in parts; all are in flight at once."""
    size = dist.get_world_size()

    def message(source: int, target: int, turn: int) -> torch.Tensor:
        count = 450_003 if turn == 0 else (3 * source + target + turn) % 4 * 150_001  # Gloo requires lists of one size
        return own(source, count) * (target + 1) + turn

    sent = [[message(rank, target, turn).to(device()) for target in range(size)] for turn in range(3)]
    received = [[torch.zeros_like(message(source, rank, turn)).to(device()) for source in range(size)]
                for turn in range(3)]  # fmt: skip
    works = [dist.all_to_all(received[0], sent[0], async_op=True)]
    flat = [torch.cat(parts) for parts in received]
    lengths = [([len(part) for part in received[turn]], [len(part) for part in sent[turn]]) for turn in range(3)]
    for turn in (1, 2):  # the second one's input is still being made
        given = torch.cat(sent[turn]) * turn
        works.append(dist.all_to_all_single(flat[turn], given, *lengths[turn], async_op=True))
    for work in works:
        work.wait()
    for turn, parts in enumerate((received[0], flat[1].split(lengths[1][0]), flat[2].split(lengths[2][0]))):
        for source, part in enumerate(parts):
            check(part, message(source, rank, turn) * max(1, turn), f"exchange {turn} from {source}")
    in_place = torch.cat([message(rank, target, 0) for target in range(size)]).to(device())
    dist.all_to_all_single(in_place, in_place)
    check(in_place, torch.cat([message(source, rank, 0) for source in range(size)]), "in place")
    table = own(rank, 800_000).reshape(1000, 800).to(device())
    tables = [torch.empty_like(table).t() for _ in range(size)]
    dist.gather(table.t(), tables if rank == size - 1 else None, dst=size - 1)
    mine = torch.empty(1000, 800, device=device())
    dist.scatter(mine, [part.t() for part in tables] if rank == size - 1 else None, src=size - 1)
    check(mine, own(rank, 800_000).reshape(1000, 800), "gathered and scattered")


def mix_layouts(rank: int) -> None:
    base = own(rank, 60).reshape(6, 10).to(device())
    total = sum(values_of_all(60)).reshape(6, 10)  # type: ignore[union-attr]
    for view in (torch.Tensor.t, lambda whole: whole[:, ::2], lambda whole: whole[2:3]):
        strided, expected = view(base.clone()), view(total)
        dist.all_reduce(strided)
        check(strided, expected, "strided")
    scalar = torch.tensor(float(rank), device=device())
    dist.all_reduce(scalar)
    check(scalar, torch.tensor(float(sum(range(dist.get_world_size())))), "0-dim")


def double_on_a_side_stream(tensor: torch.Tensor) -> torch.Tensor:
    if device() == "cpu":
        return tensor * 2
    module = getattr(torch, device())
    side = module.Stream()
    side.wait_stream(module.current_stream())
    with module.stream(side):
        doubled = tensor * 2
    module.current_stream().wait_stream(side)
    return doubled


def compute_between(rank: int) -> None:
    """Results are used on side streams immediately, inputs are changed and freed immediately."""
    count, size = 300_000, dist.get_world_size()
    for step in range(3):
        tensor = torch.zeros(count, device=device())
        tensor.add_(rank + step)
        work = dist.all_reduce(tensor, async_op=True)
        other = torch.full((count,), 7.0, device=device())
        other.mul_(2)
        work.wait()
        doubled = double_on_a_side_stream(tensor)
        expected = float(sum(range(size)) + size * step)
        assert doubled.eq(2 * expected).all().item(), (doubled.min(), doubled.max(), expected)
        future = dist.all_reduce(torch.full((count,), float(rank), device=device()), async_op=True).get_future()
        del tensor, other
        chained = future.then(lambda done: done.value()[0] + 1)
        result = chained.wait()
        assert result.eq(sum(range(size)) + 1).all().item()


JOBS = [reduce_everything, move_everything, send_round, exchange_much, mix_layouts, compute_between]


# Proves D-2.
@pytest.mark.parametrize(("mixed", "job"), crossed(MIXTURES_BY_NAME, JOBS), indirect=["mixed"])
def test_every_operation(mixed: Ranks, job: Any, request: pytest.FixtureRequest) -> None:
    if job is exchange_much and "gloo" in request.node.name and torch.__version__ < "2.12":
        pytest.skip("Gloo of torch 2.11 has no alltoall")
    mixed.run(job)


def train(rank: int, place: str) -> list[torch.Tensor]:
    torch.manual_seed(5)
    plain = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 5)).double()
    model = DistributedDataParallel(plain.to(place), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    numbers = torch.Generator().manual_seed(rank)
    for _ in range(4):
        batch, labels = torch.randn(6, 20, dtype=torch.float64, generator=numbers), torch.arange(6) % 5
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch.to(place)), labels.to(place)).backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def compare_training(rank: int) -> list[torch.Tensor]:
    expected, found = train(rank, "cpu"), train(rank, device())
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a, b), (a - b).abs().max()
    return found


# Proves D-1.
def test_training_gives_the_bits_of_cpus(mixed: Ranks) -> None:
    first, *others = mixed.run(compare_training)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def mix_in_one_call(rank: int) -> None:
    """On ranks where the tensors are not mixed, the call is right and reports the refusal of others, if any."""
    devices = dist.get_world_size() * [None]
    dist.all_gather_object(devices, device())
    if set(devices) == {"cpu"}:
        return
    parts = [torch.empty(3) for _ in devices]
    with raises(ValueError if device() == "sim" else RuntimeError, "one device", "cpu", "sim"):
        dist.all_gather(parts, torch.ones(3, device=device()))


def test_devices_mixed_in_one_call_are_refused(mixed: Ranks) -> None:
    mixed.run(mix_in_one_call)
    mixed.run(mix_layouts)  # the group goes on


def issue_while_capturing(rank: int) -> None:
    """Ranks that capture nothing learn of it. What one library would do alone could be captured, but not watched."""
    from atoll import _sim

    _sim.pretend_capturing(device() == "sim")
    try:
        with raises(RuntimeError, "cannot be captured into a graph", "Issue it outside the capture"):
            dist.all_reduce(torch.ones(1000, device=device()))
    finally:
        _sim.pretend_capturing(False)


# Proves D-9.
@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 cannot be asked whether a stream is captured")
@pytest.mark.parametrize(("islands", "devices"), [("AB", ["cpu", "sim"]), ("AA", ["sim", "sim"])])
def test_graph_capture_is_refused(islands: str, devices: list[str]) -> None:
    ranks = Ranks(2, list(islands), None, devices)
    try:
        ranks.run(issue_while_capturing)
        ranks.run(mix_layouts)  # the group goes on
    finally:
        ranks.stop()


def issue_to_a_slow_device(rank: int, count: int) -> float:
    tensor = torch.ones(count, device=device())
    begin = time.monotonic()
    work = dist.all_reduce(tensor, async_op=True)
    issued = time.monotonic() - begin
    work.wait()
    assert tensor[0].item() == dist.get_world_size()
    return issued


# Proves D-3.
def test_issuing_does_not_wait_for_the_device(mixed: Ranks) -> None:
    mixed.run(issue_to_a_slow_device, 1000)
    # The copy to the host alone takes 0.4 s; a busy machine may hold up one of several.
    assert any(max(mixed.run(issue_to_a_slow_device, 5_000_000)) < 0.2 for _ in range(5))


def compute_while_receiving(rank: int, turn: int) -> None:
    """A rank computes what it sends while its receive is pending, and sends when all have computed: a receive that
    blocked the device, or a later send, would wait forever."""
    size = dist.get_world_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    store = dist.distributed_c10d._get_default_store()
    incoming = torch.empty(3000, device=device())
    receiving = dist.irecv(incoming, left)
    found = own(rank, 3000).to(device()) * 2 + turn
    assert torch.equal(found.cpu(), own(rank, 3000) * 2 + turn)  # the copy waits for all work of this stream
    store.set(f"computed/{turn}/{rank}", "")
    store.wait([f"computed/{turn}/{other}" for other in range(size)])
    sending = dist.isend(found, right)
    receiving.wait()
    sending.wait()
    check(incoming, own(left, 3000) * 2 + turn, "what the left neighbour computed")


def test_receives_never_block_compute(mixed: Ranks) -> None:
    for turn in range(3):
        mixed.run(compute_while_receiving, turn)
