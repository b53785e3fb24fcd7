# SPDX-License-Identifier: Apache-2.0
"""all_reduce and messages of 4 KiB to 256 MiB between a device and a CPU, compared with their slowest part: pinned
copies of the same bytes from and to the device, and the same call between two CPUs."""

import time
from collections.abc import Callable
from typing import Any

import trying

SIZES = tuple(4096 << (2 * power) for power in range(9))  # 4 KiB to 256 MiB
QUICK = SIZES[:2]
SECONDS = 0.25  # of each measurement


def median_of(call: Callable[[], Any], calls: int) -> float:
    """Returns the median seconds of a call, after one call that warms up."""
    import statistics

    times = []
    for turn in range(calls + 1):
        begin = time.perf_counter()
        call()
        if turn:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def copies(rank: int, size: int, calls: int) -> dict[str, float] | None:
    """Returns the seconds of a pinned copy in each direction, measured on the device's rank while the other rank does
    nothing."""
    import torch

    from support import device

    if device() == "cpu":
        return None
    there = torch.zeros(size, dtype=torch.uint8, device=device())
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    module = getattr(torch, device())

    def out() -> None:
        host.copy_(there, non_blocking=True)
        module.synchronize()

    def back() -> None:
        there.copy_(host, non_blocking=True)
        module.synchronize()

    return {"out": median_of(out, calls), "back": median_of(back, calls)}


def call(rank: int, operation: str, size: int, calls: int, on_cpus: bool) -> float:
    """Returns this rank's seconds; the values are checked."""
    import torch
    import torch.distributed as dist

    from support import device

    place = "cpu" if on_cpus else device()
    tensor = torch.ones(size // 4, device=place)
    module = getattr(torch, device()) if place != "cpu" else None

    def run() -> None:
        if operation == "all_reduce":
            dist.all_reduce(tensor)
        elif rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)
        if module is not None:
            module.synchronize()

    for _ in range(2):
        run()
    expected = 4.0 if operation == "all_reduce" else 1.0
    assert bool(tensor.eq(expected).all()), f"{operation} of {size} bytes: {tensor[:4]}"
    if operation == "all_reduce":
        tensor.zero_()  # zeros, because sums of zeros do not grow
    dist.barrier()
    return median_of(run, calls)


def measure(trial: trying.Trial, ranks: Any, size: int) -> None:
    from atoll.bench.sizes import format_size

    calls = 2 if trial.quick else int(max(3, min(200, SECONDS / (size / 4e9 + 2e-4))))
    alone = ranks.run(copies, size, calls)[0]
    limits = {"all_reduce": max(alone.values()), "message there and back": sum(alone.values())}
    texts = []
    for operation, copy_s in limits.items():
        took = max(ranks.run(call, operation, size, calls, False))
        bridge = max(ranks.run(call, operation, size, calls, True))
        share = max(copy_s, bridge) / took
        trial.add(operation=operation, bytes=size, seconds=took, copy_s=copy_s, on_cpus_s=bridge, share=share)
        slowest = "the copy" if copy_s > bridge else "the link of CPUs"
        texts.append(f"{operation} {took * 1e6:.0f} us, {share:.0%} of {slowest}")
    rates = [f"{size / seconds * 1e-9:.1f}" for seconds in alone.values()]
    trial.add(f"{format_size(size)}: {'; '.join(texts)}; pinned copies {rates[0]} GB/s out, {rates[1]} GB/s back")


def main() -> None:
    trial, _ = trying.begin(__doc__)
    ranks = trying.ranks_of("D C", trial.device)
    try:
        for size in QUICK if trial.quick else SIZES:
            trial.check(f"{size} bytes", lambda size=size: measure(trial, ranks, size))
    finally:
        ranks.stop()
    trial.end()


if __name__ == "__main__":
    main()
