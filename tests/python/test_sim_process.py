# SPDX-License-Identifier: Apache-2.0
"""Processes with simulated devices: wrong settings and wrong use are clear errors, and programs end normally."""

import os
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest
import torch

from forking import PROCESSES
from sim_host import Host


def use_wrongly(case: str) -> str:
    try:
        if case == "missing":
            torch.ones(1, device="sim:9")
        elif case == "memory":
            torch.empty(1 << 30, device="sim")
        else:
            torch.ones(1, device="sim")
    except (RuntimeError, ValueError) as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize(
    ("case", "environment", "parts"),
    [
        ("missing", {"ATOLL_SIM_DEVICES": "3"}, ["sim:9", "3 simulated devices", "ATOLL_SIM_DEVICES"]),
        ("memory", {"ATOLL_SIM_MEMORY": "1M"}, ["out of memory", "ATOLL_SIM_MEMORY"]),
        ("value", {"ATOLL_SIM_SPEED": "fast"}, ["ATOLL_SIM_SPEED", "fast", "number"]),
        ("value", {"ATOLL_SIM_BANDWIDTH": "-1"}, ["ATOLL_SIM_BANDWIDTH", "-1"]),
    ],
)
def test_wrong_use_is_named(case: str, environment: dict[str, str], parts: list[str]) -> None:
    with Host(**environment) as strange:
        text = strange.run(use_wrongly, case)
    assert all(part in text for part in parts), text


def import_with(counts: list[str], connection: Connection) -> None:
    texts = []
    for count in counts:
        os.environ["ATOLL_SIM_DEVICES"] = count
        try:
            import atoll.sim  # noqa: F401

            texts.append("no error")
        except ValueError as error:
            texts.append(str(error))
    connection.send(texts)


def test_a_wrong_number_of_devices_is_named_at_once() -> None:
    counts = ["many", "3x", "2.5", "0", "-1", "65", "99999999999999999999"]
    connection, there = PROCESSES.Pipe()
    process = PROCESSES.Process(target=import_with, args=([*counts, "64"], there), daemon=True)
    process.start()
    there.close()
    *texts, largest = connection.recv()
    process.join()
    for count, text in zip(counts, texts, strict=True):
        assert f'ATOLL_SIM_DEVICES is "{count}"; it must be a whole number from 1 to 64' in text
    assert largest == "no error"


LAST_HOLDER = """
import sys, time
import torch
import atoll.sim

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)  # releases the interpreter while it is being shut down

last = Slow()
source = torch.ones(250_000, device="sim")
target = torch.empty(250_000).pin_memory()
sys.setswitchinterval(1000)
target.copy_(source, non_blocking=True)
del target  # the copy is under way, for 0.1 s
end = time.monotonic() + 0.3
while time.monotonic() < end:
    pass
print("end")
"""


def test_a_program_may_end_while_only_a_copy_holds_a_tensor() -> None:
    """A stream's thread that had to free a Python object at that time would crash the process."""
    environment = os.environ | {"ATOLL_SIM_BANDWIDTH": "10M"}
    ended = subprocess.run([sys.executable, "-c", LAST_HOLDER], env=environment, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "end\n"), ended.stderr


LAST_HANDLER = """
import atexit, pathlib

def tell():
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    print(started, [name for name in names if name.startswith("pt_autograd")])

atexit.register(tell)  # registered first, so that it runs last
import torch
import atoll.sim

torch.ones(3, device="sim", requires_grad=True).sum().backward()
started = any(path.read_text().startswith("pt_autograd") for path in pathlib.Path("/proc/self/task").glob("*/comm"))
"""


def test_threads_of_autograd_end_before_the_interpreter() -> None:
    """A thread that released a Python object later than that would crash the process."""
    ended = subprocess.run([sys.executable, "-c", LAST_HANDLER], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "True []\n"), ended.stderr


def use_in_a_forked_child() -> str:
    torch.ones(1, device="sim")
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, use_wrongly("value").encode())
        os._exit(0)
    os.wait()
    return os.read(read, 10_000).decode()


def test_a_forked_child_gets_a_helpful_error() -> None:
    with Host() as own:
        assert "forkserver" in own.run(use_in_a_forked_child)
