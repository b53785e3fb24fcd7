# SPDX-License-Identifier: Apache-2.0
"""Programs and settings that provoke the messages of docs/first-hour.md, by the message's title there."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Provoked:
    """`ranks` processes that run `source` with `environment` in addition. In values @TAKEN@ is a port in use, @KEY@
    a key file, @OPEN@ a key file that others may read."""

    source: str
    ranks: int = 1
    environment: dict[str, str] = field(default_factory=dict)


START = """
import os
from datetime import timedelta
import torch, torch.distributed as dist
rank = int(os.environ.get("RANK", 0))
"""
JOIN = START + 'dist.init_process_group("atoll", timeout=timedelta(seconds=50))\n'
HURRY = JOIN + 'dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(seconds=1))\n'
ADD = "dist.all_reduce(torch.ones(4))\n"
SUM = JOIN + ADD

# A rank's entry begins with the version of Atoll's messages, then the number of ranks.
ANOTHER_ATOLL = """
import os
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
NEVER_CALLED = (
    HURRY
    + """
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
if rank == 0:
    try:
        dist.all_reduce(torch.ones(4))
    finally:
        store.set("over", "")
store.wait(["over"], timedelta(seconds=50))
raise SystemExit(1)
"""
)
MISSING = (
    START
    + """
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dist.init_process_group("atoll", store=store, rank=0, world_size=2, timeout=timedelta(seconds=1))
"""
)
BEYOND = START + 'dist.init_process_group("atoll", store=dist.HashStore(), rank=3, world_size=2)\n'
NO_SERVER = (
    START
    + """
import atoll
where = "redis://127.0.0.1:1/?job=train"
dist.init_process_group("atoll", init_method=where, timeout=timedelta(seconds=1))
"""
)
BARE_MODEL = JOIN + "import atoll\natoll.DataLoader([0], global_batch=1, model=torch.nn.Linear(1, 1))\n"
SMALL_BATCH = (
    JOIN
    + """
import atoll
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
atoll.DataLoader([0, 1], global_batch=1, model=model)
"""
)
DOCTOR = """
import sys
from atoll.doctor.options import Options
from atoll.doctor import worker
worker._FAREWELL_SECONDS = 0.5
sys.exit(worker.run(Options(2, {options})))
"""
WITHOUT = "import sys\nsys.modules['{package}'] = None\n"
WATCHED = (
    WITHOUT.format(package="prometheus_client")
    + JOIN
    + """
import atoll
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
settings = atoll.training.Settings(measure=False, watch=atoll.training.Watch(prometheus=9400))
for _ in atoll.DataLoader([0, 1], global_batch=2, model=model, settings=settings): pass
"""
)
NO_KEY = """
import torch, atoll
atoll.infer.Session(torch.nn.Linear(1, 1).eval(), (torch.ones(1, 1),), server="127.0.0.1:1")
"""
ROBOT = """
import os, socket, sys, threading
from pathlib import Path
import torch, atoll
key = os.environ["ATOLL_KEY_FILE"]
net, x = torch.nn.Linear(64, 64).eval(), torch.ones(1, 64)
def session(server="127.0.0.1:1", key_file=key, **options):
    return atoll.infer.Session(net, (x,), server=server, key_file=key_file, profile_seconds=0.0, **options)
def served(**options):
    from atoll import _C
    worker = str(Path(atoll.__file__).parent / "atoll_infer_worker")
    return _C.InferServer({"key_file": key, "cache_folder": "models", "worker_program": worker, **options})
"""
WAIT = "\nsession(server.address).wait_until_ready(50)\n"
NO_TLS = """
listening = socket.create_server(("127.0.0.1", 0))
def answer():
    while True:
        connection = listening.accept()[0]
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\\r\\n\\r\\n")
threading.Thread(target=answer, daemon=True).start()
session(f"127.0.0.1:{listening.getsockname()[1]}").wait_until_ready(50)
"""


def on_rank(rank: int, variable: str, value: str, then: str = SUM) -> str:
    """Returns a program that runs `then` in a job where one rank has another value of a variable."""
    return f'import os\nif os.environ["RANK"] == "{rank}":\n    os.environ["{variable}"] = {value}\n{then}'


DEVICES = {
    "A vendor's module is missing": Provoked(SUM, 1, {"ATOLL_DEVICE": "npu"}),
    "A missing device": Provoked(SUM, 1, {"ATOLL_DEVICE": "cuda:0"}),
    "An unknown device type": Provoked(SUM, 1, {"ATOLL_DEVICE": "gpu:0"}),
    "Unlike devices in one island": Provoked(
        "import atoll.sim\n" + on_rank(1, "ATOLL_DEVICE", "'sim'"), 2, {"ATOLL_DEVICE": "cpu", "ATOLL_ISLAND": "a"}
    ),
    "A missing library": Provoked(SUM, 1, {"ATOLL_INNER": "cpu:nosuch"}),
    "A tensor on another device": Provoked(
        JOIN + "import atoll.sim\ndist.all_reduce(torch.ones(4, device='sim'))\n", 1, {"ATOLL_DEVICE": "cpu"}
    ),
    "Out of memory": Provoked(TOO_MUCH, 1, {"ATOLL_SIM_MEMORY": "64M"}),
}
OWN_STORE = "import os\ndel os.environ['TORCHELASTIC_USE_AGENT_STORE']\n"
MEETING = {
    "No launcher": Provoked("import os\ndel os.environ['RANK']\n" + SUM),
    "The store's port is taken": Provoked(OWN_STORE + SUM, 1, {"MASTER_PORT": "@TAKEN@"}),
    "The store is out of reach": Provoked(SUM.replace("seconds=50", "seconds=1"), 1, {"MASTER_PORT": "1"}),
    "No Redis server": Provoked(NO_SERVER),
    "A Redis server without a job": Provoked(NO_SERVER.replace("1:1/?job=train", "1:6379/")),
    "A rank does not join": Provoked(MISSING),
    "Another number of ranks": Provoked(on_rank(1, "WORLD_SIZE", "'3'"), 2),
    "A rank beyond the last": Provoked(BEYOND),
    "A world of zero ranks": Provoked(SUM, 1, {"WORLD_SIZE": "0"}),
    "Another version of Atoll": Provoked(ANOTHER_ATOLL, 2),
}
TCP = {"ATOLL_TRANSPORT": "tcp"}
NETWORK = {
    "A missing interface": Provoked(SUM, 1, {"ATOLL_IFACE": "nosuch0"}),
    "An address that does not resolve": Provoked(SUM, 1, {"ATOLL_ADDRESS": "no.such.host.invalid"}),
    "A firewall and a short timeout": Provoked(HURRY + ADD, 2, {"ATOLL_ADDRESS": "100::1", **TCP}),
    "No port is free": Provoked(SUM, 1, {"ATOLL_PORTS": "@TAKEN@-@TAKEN@", **TCP}),
    "Transports that do not match": Provoked(on_rank(1, "ATOLL_TRANSPORT", "'shm'"), 2, TCP),
}
SLOW_NETWORK = {"A firewall": Provoked(SUM, 2, {"ATOLL_ADDRESS": "100::1", **TCP})}
SETTINGS = {
    "An invalid setting": Provoked(SUM, 1, {"ATOLL_TRANSPORT": "pigeons"}),
    "A setting that does not exist": Provoked(SUM + "raise SystemExit(1)", 1, {"ATOLL_TRANSPORTS": "tcp"}),
    "Settings that must be equal": Provoked(on_rank(0, "ATOLL_REDUCE", "'flat'"), 2),
    "A key that others may read": Provoked(SUM, 1, {"ATOLL_KEY_FILE": "@OPEN@"}),
    "TLS without a key": Provoked(SUM, 1, {"ATOLL_TLS": "1"}),
    "Another key": Provoked(
        on_rank(1, "ATOLL_KEY_FILE", "os.environ['ATOLL_KEY_FILE'] + '.other'"), 2, {"ATOLL_KEY_FILE": "@KEY@", **TCP}
    ),
}
TRAINING = {
    "Calls that do not match": Provoked(SUM.replace("ones(4)", "ones(4 + rank)"), 2),
    "A rank is late": Provoked(NEVER_CALLED, 2),
    "A model without a wrapper": Provoked(BARE_MODEL),
    "A batch that is too small": Provoked(SMALL_BATCH, 2),
    "A robot without a key": Provoked(NO_KEY),
    "A package for watching": Provoked(WATCHED),
    "A framework that is not installed": Provoked(
        WITHOUT.format(package="transformers") + "import atoll.adapters.huggingface\n"
    ),
}
ROBOTS = {
    title: Provoked(ROBOT + source, 1, {"ATOLL_KEY_FILE": "@KEY@"})
    for title, source in {
        "A missing key file": "session(key_file='/no/key')\n",
        "The address of a server is a URL": "session('http://10.0.0.2:4700')\n",
        "An unknown policy": "session(policy='fastest')\n",
        "A model in training mode": "net.train()\nsession()\n",
        "A server with another key": "server = served(key_file=key + '.other')" + WAIT,
        "A server that speaks another protocol": NO_TLS,
        "A model that the server refuses": "server = served(cache_bytes=4096)" + WAIT,
        "A call that requires a server which refuses": (
            "server = served(cache_bytes=4096)\nrobot = session(server.address, hedge='never')\n"
            "while not robot.report()['link']['refusal']: pass\nrobot(x)\n"
        ),
    }.items()
}
# What `atoll doctor` starts.
ONE_OF_TWO = {"WORLD_SIZE": "2"}
DOCTORS = {
    "Doctor: a device": Provoked(DOCTOR.format(options='device="cuda", timeout=20'), 2),
    "Doctor: a setting": Provoked(DOCTOR.format(options="timeout=20"), 2, {"ATOLL_IFACE": "nosuch0"}),
    "Doctor: a missing rank": Provoked(DOCTOR.format(options="timeout=1"), 1, ONE_OF_TWO),
    "Doctor: no store": Provoked(
        DOCTOR.format(options="timeout=1"), 1, {**ONE_OF_TWO, "RANK": "1", "MASTER_PORT": "1"}
    ),
    "Doctor: a slower transport than needed": Provoked(
        DOCTOR.format(options='layout="AB", device="cpu", timeout=50'), 2, TCP
    ),
}
PROGRAMS = DEVICES | MEETING | NETWORK | SETTINGS | TRAINING | ROBOTS
