# SPDX-License-Identifier: Apache-2.0
"""The simulated accelerator computes what the CPU does, protects its memory, and keeps the modelled times of its
streams."""

import io
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sim_host import Host


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Devices without modelled times."""
    with Host() as running:
        yield running


def losses(x: torch.Tensor) -> list[torch.Tensor]:
    kinds = (nn.functional.mse_loss, nn.functional.smooth_l1_loss, nn.functional.huber_loss)
    return [kind(x, x.flip(0), reduction=reduction) for kind in kinds for reduction in ("none", "mean", "sum")]


def factories(device: torch.device) -> list[torch.Tensor]:
    return [torch.arange(5, device=device), torch.eye(3, device=device), torch.linspace(0, 1, 7, device=device)]


OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "arithmetic": lambda x: (x * 2 + 1 - x / 3) ** 2,
    "comparison": lambda x: (x > 0) & (x < 1) | x.isnan(),
    "matmul": lambda x: x @ x.t(),
    "sums": lambda x: [x.sum(), x.mean(0), x.std(1), *torch.var_mean(x, 0), x.cumsum(1)],
    "extremes": lambda x: [*x.max(1), x.argmin(), *x.topk(2), *x.sort(0)],
    "softmax": lambda x: [x.softmax(1), nn.functional.log_softmax(x, 0)],
    "shapes": lambda x: [x.t().reshape(-1), x[:, ::2].flatten(), x.expand(3, -1, -1).sum(0), x.unfold(1, 2, 1)],
    "views": lambda x: [x.view(torch.int32), x.diagonal(), torch.view_as_real(torch.complex(x, x)), x.flip(0)],
    "indexing": lambda x: [x[x > 0], x[[0, 1]], x.index_select(1, x[0].argsort()), x.gather(1, x.argsort(1))],
    "in place": lambda x: x.clone().mul_(3).clamp_(-1, 1).t_().add_(1).fill_diagonal_(7),
    "parts": lambda x: [*x.split(2), *x.chunk(2, 1), torch.cat([x, x], 1), torch.stack([x, x])],
    "factories": lambda x: [*factories(x.device), torch.full_like(x, 3), x.new_zeros(2)],
    "types": lambda x: [x.to(torch.bfloat16), x.double() * 2, x.long(), x.half().float(), x.bool()],
    "out": lambda x: torch.add(x, 1, out=torch.empty(0, device=x.device)),
    "where": lambda x: [torch.where(x > 0, x, -x), x.nonzero(), x.masked_fill(x > 0, 0), x.tril()],
    "empty": lambda x: [x[:0].sum(), torch.cat([x[:0], x]), x[:0] @ x.t()],
    "scalar": lambda x: [x[0, 0] * 2, x.sum().item(), x.max().tolist()],
    "linear algebra": lambda x: [torch.linalg.svdvals(x), torch.linalg.norm(x), torch.einsum("ij,kj->ik", x, x)],
    "foreach": lambda x: torch._foreach_add([x, x], 1),
    "losses": losses,
    "lists": lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
}  # fmt: skip


def flat(result: Any) -> list[Any]:
    if isinstance(result, list | tuple):
        return [part for each in result for part in flat(each)]
    return [result]


def compare_operator(name: str) -> None:
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))
    expected, found = flat(OPERATORS[name](x)), flat(OPERATORS[name](x.to("sim")))
    assert len(expected) == len(found)
    for a, b in zip(expected, found, strict=True):
        if not isinstance(a, torch.Tensor):
            assert a == b
            continue
        assert b.device == torch.device("sim:0"), b.device
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b.cpu()), (a, b)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_compute_what_the_cpu_does(host: Host, name: str) -> None:
    host.run(compare_operator, name)


def network() -> nn.Module:
    """Returns a network without modules such as LayerNorm, which PyTorch composes of other operators on devices it
    does not know."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.ConvTranspose2d(6, 3, 2), nn.Flatten(),
        nn.Linear(48, 16), nn.GELU(), nn.Dropout(0.0), nn.Linear(16, 10),
    )  # fmt: skip


def train(device: str, kind: type[torch.optim.Optimizer]) -> list[torch.Tensor]:
    model = network().to(device)
    optimizer = kind(model.parameters(), lr=0.01, foreach=False)
    data = torch.randn(5, 7, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    for batch in data:
        optimizer.zero_grad()
        labels = torch.arange(7, device=device)
        nn.functional.cross_entropy(model(batch.to(device)), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


def compare_training() -> None:
    for kind in (torch.optim.SGD, torch.optim.Adam):
        for a, b in zip(train("cpu", kind), train("sim", kind), strict=True):
            assert torch.equal(a, b), (a - b).abs().max()


# Proves M-3.
def test_training_gives_the_cpus_bits(host: Host) -> None:
    host.run(compare_training)


def copy_every_way() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for source in (base, base.t(), base[:, ::2], base[1:1], base[0, 0], base.to(torch.int64), base.bool()):
        there = source.to("sim")
        assert torch.equal(there.cpu(), source)
        assert torch.equal(there.to("sim:1").cpu(), source)
        for target in (torch.empty_like(source), torch.zeros(source.shape, dtype=torch.float64)):
            assert torch.equal(target.copy_(there), source.to(target.dtype))
            back = target.to("sim").zero_().copy_(source)
            assert torch.equal(back.cpu(), source.to(target.dtype))
    wide = torch.zeros(4, 6, device="sim")
    wide[:, 1::2].copy_(base[:, ::2])
    assert torch.equal(wide.cpu()[:, 1::2], base[:, ::2])
    assert torch.equal(torch.zeros(2, 3, device="sim").copy_(torch.ones(3)).cpu(), torch.ones(2, 3))


def test_copies_of_every_layout(host: Host) -> None:
    host.run(copy_every_way)


# Proves M-2.
def test_host_code_cannot_touch_device_memory() -> None:
    program = "import ctypes, torch, atoll.sim; ctypes.string_at(torch.ones(4, device='sim').data_ptr(), 16)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGSEGV


def read_without_and_with_waiting() -> None:
    side = torch.sim.Stream()
    pinned = torch.ones(1_000_000).pin_memory()
    assert pinned.is_pinned()
    target = torch.zeros(1_000_000, device="sim")
    ready = torch.sim.Event()
    with torch.sim.stream(side):
        target.copy_(pinned, non_blocking=True)
        ready.record()
    assert not ready.query()
    assert target[-1].item() == 0, "the copy cannot have arrived"
    torch.sim.current_stream().wait_event(ready)
    assert target.sum().item() == 1_000_000
    assert ready.query()
    target.zero_()
    target.copy_(torch.ones(1_000_000), non_blocking=True)  # from pageable memory: complete at once
    assert torch.sim.current_stream().query()


def test_streams_wait_for_events_only() -> None:
    with Host(ATOLL_SIM_BANDWIDTH="4M") as slow:
        slow.run(read_without_and_with_waiting)


def copy_after_a_slow_copy() -> None:
    pinned = torch.ones(1_000_000).pin_memory()
    target = torch.empty(1_000_000, device="sim")
    target.copy_(pinned, non_blocking=True)
    copied, half = target.clone(), target.to(torch.float16)
    target.zero_()
    assert not torch.sim.current_stream().query(), "the host has waited"
    assert copied.sum().item() == half.sum(dtype=torch.float32).item() == 1_000_000
    assert target.sum().item() == 0


def test_copies_on_a_device_do_not_wait_for_its_stream() -> None:
    with Host(ATOLL_SIM_BANDWIDTH="4M") as slow:
        slow.run(copy_after_a_slow_copy)


def free_while_in_use(tell: bool) -> float:
    side = torch.sim.Stream()
    source = torch.ones(1_000_000, device="sim")
    back = torch.zeros(1_000_000).pin_memory()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        back.copy_(source.expand(1_000_000), non_blocking=True)
    if tell:
        source.record_stream(side)
    address = source.data_ptr()
    del source
    reused = torch.full((1_000_000,), 5.0, device="sim")
    assert (reused.data_ptr() == address) != tell
    side.synchronize()
    return float(back.max())


def test_memory_in_use_on_a_recorded_stream_is_not_reused() -> None:
    with Host(ATOLL_SIM_BANDWIDTH="4M", ATOLL_SIM_MEMORY="16M") as slow:
        assert slow.run(free_while_in_use, True) == 1.0
        assert slow.run(free_while_in_use, False) == 5.0, "memory without record_stream is reused while it is read"


def time_products(count: int) -> tuple[float, float]:
    a = torch.ones(256, 256, device="sim")
    begin, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
    a @ a
    begin.record()
    for _ in range(count):
        a @ a
    end.record()
    early = end.query()
    end.synchronize()
    import atoll.sim

    assert not early, "the host runs ahead of the device"
    return begin.elapsed_time(end), atoll.sim.punctuality()["late"]


def test_operators_take_the_modelled_time() -> None:
    with Host(ATOLL_SIM_SPEED="0.05", ATOLL_SIM_MODEL="even") as slow:
        milliseconds, late = slow.run(time_products, 10)
    modelled = 10 * (2 * 256**3 / 10e9 + 5e-6) / 0.05 * 1e3
    assert 0.999 * modelled <= milliseconds <= 3 * modelled
    assert late <= 5


def run_too_much() -> tuple[bool, bool]:
    import atoll.sim

    quiet = atoll.sim.oversubscribed()
    a = torch.ones(512, 512, device="sim")
    for _ in range(5):
        a @ a
    return quiet, atoll.sim.oversubscribed()


# Proves M-4.
def test_a_device_faster_than_this_machine_says_so() -> None:
    with Host(ATOLL_SIM_SPEED="1e6") as fast:
        assert fast.run(run_too_much) == (False, True)


def draw_numbers() -> None:
    torch.manual_seed(7)
    first = [torch.rand(3, device="sim").cpu(), torch.randperm(9, device="sim").cpu()]
    torch.sim.manual_seed(7)
    state = torch.sim.get_rng_state()
    again = [torch.rand(3, device="sim").cpu(), torch.randperm(9, device="sim").cpu()]
    torch.sim.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="sim").cpu(), first[0])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    own = torch.Generator("sim").manual_seed(7)
    assert torch.equal(torch.rand(3, generator=own, device="sim").cpu(), first[0])
    assert not torch.equal(torch.rand(3, device="sim").cpu(), first[0])
    mask = nn.functional.dropout(torch.ones(1000, device="sim"), 0.5)
    assert 300 < (mask == 0).sum().item() < 700


def test_random_numbers_follow_their_seed(host: Host) -> None:
    host.run(draw_numbers)


def use_what_libraries_use() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    with torch.autocast("sim", torch.bfloat16):
        assert (torch.ones(2, 2, device="sim") @ torch.ones(2, 2, device="sim")).dtype == torch.bfloat16
    saved = io.BytesIO()
    model = network().to("sim")
    torch.save(model.state_dict(), saved)
    saved.seek(0)
    loaded = torch.load(saved, map_location="cpu")
    assert all(torch.equal(value.cpu(), loaded[name]) for name, value in model.state_dict().items())
    with torch.sim.device(2):
        assert torch.ones(1, device="sim").device.index == torch.sim.current_device() == 2
    assert "sim:0" in repr(torch.ones(2, device="sim"))
    before = torch.sim.memory_allocated()
    kept = torch.empty(1 << 20, device="sim")
    assert torch.sim.memory_allocated() == before + kept.nbytes
    free, size = torch.sim.mem_get_info()
    assert 0 < free < size
    loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    assert all(batch.is_pinned() for batch in loader)


def test_what_libraries_look_up_is_there(host: Host) -> None:
    host.run(use_what_libraries_use)


def peaks() -> None:
    large = torch.empty(1 << 20, device="sim")
    high = torch.sim.max_memory_allocated()
    del large
    torch.sim.synchronize()
    torch.sim.empty_cache()
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_allocated() == torch.sim.memory_allocated() < high


def test_a_peak_of_memory_can_be_reset() -> None:
    with Host() as host:
        host.run(peaks)


def memory_that_is_still_worked_on() -> None:
    """A released tensor no longer counts, and its memory is free once the device has finished with it."""
    kept = torch.ones(1 << 16, device="sim")
    torch.sim.synchronize()
    free, _ = torch.sim.mem_get_info()
    for _ in range(3):
        kept = kept + 1
        assert torch.sim.memory_allocated() == kept.nbytes
    assert torch.sim.max_memory_allocated() == 2 * kept.nbytes, "as if each sum were done at once"
    assert torch.sim.mem_get_info()[0] == free - 3 * kept.nbytes
    assert torch.sim.memory_reserved() == 4 * kept.nbytes
    assert torch.accelerator.memory_stats("sim")["allocated_bytes.all.current"] == kept.nbytes
    torch.sim.synchronize()
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() == kept.nbytes
    assert torch.sim.mem_get_info()[0] == free


def test_memory_that_is_still_worked_on() -> None:
    with Host(ATOLL_SIM_SPEED="0.0001") as slow:
        slow.run(memory_that_is_still_worked_on)


def allocate_too_much() -> None:
    free, size = torch.sim.mem_get_info()
    assert size == 2_000_000 // 4096 * 4096 + 4096
    kept = torch.empty(free // 2, dtype=torch.uint8, device="sim")
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError, match="ATOLL_SIM_MEMORY"):
            torch.empty(free // 2 + 4096, dtype=torch.uint8, device="sim")
    assert torch.sim.max_memory_allocated() <= size, "what was refused does not count"
    del kept
    torch.empty(free // 2 + 4096, dtype=torch.uint8, device="sim")


def test_more_than_its_memory_is_an_out_of_memory_error() -> None:
    with Host(ATOLL_SIM_MEMORY="2M") as small:
        small.run(allocate_too_much)
