# SPDX-License-Identifier: Apache-2.0
"""Runs a device and a CPU as two stages of a LLaMA configuration, and shows what was predicted, simulated and measured.
Also compares messages between the two through the ring of chunks with messages from registered memory. Prints rows for
docs/hardware.md.

ATOLL_TRANSPORT=ucx atoll run --island gpu:1,device=cuda --island cpu:1,device=cpu bench/device_pair.py
ATOLL_TRANSPORT=ucx atoll run --island gpu:1,device=sim --island cpu:1,device=cpu bench/device_pair.py --quick"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist

import atoll
from atoll import _C
from atoll.backend import backend_of
from atoll.bench.devices import synchronize
from atoll.bench.sizes import format_size
from pipelines_cases import Case, blocks_text
from pipelines_prediction import predict
from pipelines_training import PipelineTraining
from results import table

CASE = Case(blocks=8, vocabulary=1024, width=512, micro=8)
QUICK = Case(blocks=2, vocabulary=300, width=32, micro=4)
SIZES = (256 << 10, 1 << 20, 8 << 20, 64 << 20)
TIMEOUT = timedelta(seconds=120)
FIRST_NUMBER = 1 << 62  # the first number of direct messages, far from those that the group uses

# One round trip, with a tensor to send and one to receive.
Way = Callable[[torch.Tensor, torch.Tensor], None]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=CASE.blocks)
    parser.add_argument("--width", type=int, default=CASE.width)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20, help="of messages there and back, per size and way")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that everything runs, measures nothing")
    return parser.parse_args()


def slowest(value: float) -> float:
    """Returns the larger value of both ranks."""
    found = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def stages(case: Case, steps: int, device: torch.device) -> str:
    """Returns the row for the passes of a step."""
    training = PipelineTraining(device)
    made = training.make("pair", case)
    training.block("pair", 2)
    passes = training.block("pair", steps)["passes"]
    measured = slowest(statistics.median(passes))
    predicted = predict(made["request"], made["plan"])
    off = abs(predicted["simulated_s"] / measured - 1)
    cells = [f"{blocks_text(made['plan'], case.blocks)} of {case.blocks} blocks, width {case.width}"]
    cells += [f"{seconds * 1e3:.1f}" for seconds in (predicted["planned_s"], predicted["simulated_s"], measured)]
    return table(["stages", "predicted, ms", "simulated, ms", "measured, ms", "off"], [[*cells, f"{off:.1%}"]])


def by_ring(mine: torch.Tensor, theirs: torch.Tensor) -> None:
    """Sends and receives as any message of a group does."""
    if dist.get_rank() == 0:
        dist.send(mine, 1)
        dist.recv(theirs, 1)
    else:
        dist.recv(theirs, 0)
        dist.send(mine, 0)


class Registered:
    """Sends and receives in memory that is registered with the network."""

    def __init__(self, each_time: bool) -> None:
        self._backend, self._peer, self._number = backend_of(), 1 - dist.get_rank(), FIRST_NUMBER
        self.each_time = each_time

    def remember(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            _C.remember_direct(self._backend, self._peer, tensor)

    def forget(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            _C.forget_direct(self._backend, self._peer, tensor)

    def __call__(self, mine: torch.Tensor, theirs: torch.Tensor) -> None:
        """Sends one message and receives another; each has a number that is the same on both ends."""
        for sender in (0, 1):
            sends = sender == dist.get_rank()
            tensor = mine if sends else theirs
            if self.each_time:
                self.remember(tensor)
            self._number += 1
            _C.pass_direct(self._backend, self._peer, self._number, tensor, sends, TIMEOUT)
            if self.each_time:
                self.forget(tensor)


def seconds_of(way: Way, size: int, rounds: int, device: torch.device) -> float:
    """Returns the median seconds of a message in one direction; every byte is checked."""
    mine = torch.full((size,), 3 + dist.get_rank(), dtype=torch.uint8, device=device)
    theirs = torch.zeros_like(mine)
    once = isinstance(way, Registered) and not way.each_time
    synchronize(device)
    if once:
        way.remember(mine, theirs)
    times = []
    for turn in range(rounds + 1):
        dist.barrier()
        begin = time.perf_counter()
        way(mine, theirs)
        synchronize(device)
        if turn:  # the first one makes rings
            times.append((time.perf_counter() - begin) / 2)
    if once:
        way.forget(mine, theirs)
    if bool((theirs != 4 - dist.get_rank()).any()):
        raise RuntimeError(f"rank {dist.get_rank()}: a message of {size} bytes is not what was sent")
    return slowest(statistics.median(times))


def why_not_registered(device: torch.device) -> str:
    """Returns why memory cannot be registered; empty if both ranks can register theirs."""
    trial = torch.zeros(1 << 20, dtype=torch.uint8, device=device)
    why = ""
    try:
        registered = Registered(each_time=True)
        registered.remember(trial)
        registered.forget(trial)
    except (ValueError, RuntimeError) as error:
        why = str(error)
    is_anywhere = slowest(bool(why)) > 0
    return why or ("the other rank's memory cannot be" if is_anywhere else "")


def messages(sizes: tuple[int, ...], rounds: int, device: torch.device) -> str:
    by_ring(torch.zeros(1, device=device), torch.zeros(1, device=device))  # opens the link
    why = why_not_registered(device)
    ways: dict[str, Way] = {"ring": by_ring}
    if not why:
        ways |= {"registered each time": Registered(True), "registered once": Registered(False)}
    before = backend_of().direct_messages()
    rows = []
    for size in sizes:
        found = [seconds_of(way, size, rounds, device) for way in ways.values()]
        rows.append([format_size(size), *(f"{seconds * 1e6:.0f} ({size / seconds * 1e-9:.2f})" for seconds in found)])
    text = table(["message", *(f"{name}, us (GB/s)" for name in ways)], rows)
    through = "went through rings" if backend_of().direct_messages() > before else "passed the host: no ring was used"
    return text + f"\nMessages of the group {through}." + (f" Nothing was registered: {why}." if why else "") + "\n"


def main() -> None:
    chosen = options()
    device = atoll.device()
    if device.type != "cpu":
        torch.accelerator.set_device_index(device.index or 0)
    dist.init_process_group("atoll", timeout=TIMEOUT)
    if dist.get_world_size() != 2:
        raise SystemExit(f"device_pair.py: the job has {dist.get_world_size()} ranks: start 2, one of them on a device")
    case = QUICK if chosen.quick else replace(CASE, blocks=chosen.blocks, width=chosen.width)
    step = stages(case, 2 if chosen.quick else chosen.steps, device)
    passed = messages(SIZES[:2] if chosen.quick else SIZES, 2 if chosen.quick else chosen.rounds, device)
    if dist.get_rank() == 0:
        devices = " + ".join(backend_of().devices())
        print(f"{devices}, torch {torch.__version__}\n\n{step}\n{passed}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
