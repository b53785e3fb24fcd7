# SPDX-License-Identifier: Apache-2.0
"""The messages of the first hour are as docs/first-hour.md shows them: each is provoked and compared with the page."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launching import atoll
from support import run_script

PAGE = Path(__file__).resolve().parents[2] / "docs" / "first-hour.md"
SHOWN = dict(re.findall(r"^### (.+)\n\n```text\n(.+)\n```$", PAGE.read_text(), re.MULTILINE))

SUM = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("atoll", timeout=timedelta(seconds=2))
dist.all_reduce(torch.ones(4))
"""
DEVICE = "import atoll\natoll.device()\n"
ANOTHER_TORCH = """
import importlib.metadata
real = importlib.metadata.version
importlib.metadata.version = lambda name: "2.9.1" if name == "torch" else real(name)
import atoll
"""
# What rank 1 says of itself begins with a version of Atoll's messages, then the number of ranks.
ANOTHER_ATOLL = """
import os
from datetime import timedelta
import torch.distributed as dist

class Older(dist.Store):
    def __init__(self, store):
        super().__init__()
        self.store = store
    def set(self, key, value):
        for version in range(1, 64):
            if (version + (2 << 32)).to_bytes(8, "little") in value:
                older = version - 1 + (2 << 32)
                value = value.replace((version + (2 << 32)).to_bytes(8, "little"), older.to_bytes(8, "little"), 1)
                break
        self.store.set(key, value)
    def get(self, key): return self.store.get(key)
    def add(self, key, value): return self.store.add(key, value)
    def wait(self, keys, timeout=None): return self.store.wait(keys, timeout) if timeout else self.store.wait(keys)
    def check(self, keys): return self.store.check(keys)
    def compare_set(self, key, expected, value): return self.store.compare_set(key, expected, value)
    def multi_get(self, keys): return self.store.multi_get(keys)
    def delete_key(self, key): return self.store.delete_key(key)

rank = int(os.environ["RANK"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group("atoll", store=Older(store) if rank else store, rank=rank, world_size=2)
"""
TOO_MUCH = "import torch, atoll.sim\ntorch.empty(1 << 30, device='sim')\n"
NEVER_CALLED = """
import os
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("atoll", timeout=timedelta(seconds=2))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))
else:
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store.wait(["what never comes"], timedelta(seconds=3))
"""
FLAT_ON_ONE = 'import os\nif os.environ["RANK"] == "0": os.environ["ATOLL_REDUCE"] = "flat"\n' + SUM
UNLIKE = SUM.replace("torch.ones(4)", "torch.ones(4 + dist.get_rank())")
MISSING = """
from datetime import timedelta
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.init_process_group("atoll", store=store, rank=0, world_size=2, timeout=timedelta(seconds=2))
"""


COMMANDS = {
    "An island without ranks": ["--island=gpu", "train.py"],
    "An island whose ranks are no number": ["--island=gpu:two", "train.py"],
    "A rank in two islands": ["--island=a:0-1", "--island=b:1-2", "train.py"],
    "An option that islands do not have": ["--island=a:1,devise=cpu", "train.py"],
    "A program that is not there": ["--island=a:1", "train.py"],
}
# So many ranks that find PyTorch imported, or a program without any, what it is, and its environment.
PROGRAMS: dict[str, tuple[int, str, dict[str, str]]] = {
    "A vendor's module is missing": (1, DEVICE, {"ATOLL_DEVICE": "npu"}),
    "A device that is not there": (1, DEVICE, {"ATOLL_DEVICE": "cuda:0"}),
    "Another version of PyTorch": (0, ANOTHER_TORCH, {}),
    "Another version of Atoll": (2, ANOTHER_ATOLL, {}),
    "Out of memory": (1, TOO_MUCH, {"ATOLL_SIM_MEMORY": "64M"}),
    "An interface that is not there": (1, SUM, {"ATOLL_IFACE": "nosuch0"}),
    "A firewall, or an address that nobody reaches": (2, SUM, {"ATOLL_ADDRESS": "100::1", "ATOLL_TRANSPORT": "tcp"}),
    "No port is free": (1, SUM, {"ATOLL_PORTS": "@PORT@-@PORT@", "ATOLL_TRANSPORT": "tcp"}),
    "A rank does not come": (1, MISSING, {}),
    "A setting that means nothing": (1, SUM, {"ATOLL_TRANSPORT": "pigeons"}),
    "Settings that must be equal": (2, FLAT_ON_ONE, {}),
    "Calls that do not fit": (2, UNLIKE, {}),
    "A rank is late": (2, NEVER_CALLED, {}),
}


def check(title: str, said: str) -> None:
    """An ellipsis of the page stands for whatever varies."""
    wanted = ".*".join(re.escape(part) for part in SHOWN[title].split("…"))
    assert re.search(wanted, said), f"{SHOWN[title]}\n\nis not in\n\n{said}"


def test_the_page_and_the_tests_have_the_same_messages() -> None:
    assert list(SHOWN) == [*COMMANDS, *PROGRAMS]


@pytest.mark.parametrize("title", COMMANDS)
def test_command_line(title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = atoll("run", *COMMANDS[title])
    assert done.returncode == 2
    check(title, done.stderr)


@pytest.mark.parametrize("title", PROGRAMS)
def test_program(title: str) -> None:
    ranks, source, environment = PROGRAMS[title]
    if not ranks:
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        return check(title, done.stderr)
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run_script(source, ranks, {name: value.replace("@PORT@", port) for name, value in environment.items()})
    assert [done.returncode for done in ended] == [1] * ranks
    return check(title, ended[0].stderr)
