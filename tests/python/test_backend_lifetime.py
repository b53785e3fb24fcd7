# SPDX-License-Identifier: Apache-2.0
"""Start and end: registration, several groups and stores, exit without clean-up, forked and spawned children."""

import time

import torch
import torch.distributed as dist

from support import run_script

HEAD = """
import os, datetime, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
"""
# The interpreter's end is part of the test.
END_IN_FULL = """
import forking
forking.end_in_full()
"""


def check(source: str, size: int, environment: dict[str, str] | None = None, expected: str = "fine") -> float:
    """Checks that every process prints `expected` and exits normally; returns the seconds it took."""
    began = time.monotonic()
    for process in run_script(HEAD + source, size, environment):
        assert process.returncode == 0, process.stderr
        assert process.stdout.split() == [expected], process.stderr
        assert "terminate called" not in process.stderr
    return time.monotonic() - began


# Restarts in an interpreter that has imported nothing.
AFRESH = "import sys; os.execv(sys.executable, [sys.executable, '-c', {source!r}])"

REGISTERED = """
import atoll
assert "atoll" in dist.Backend.backend_list
assert "cpu" in dist.Backend.backend_capability["atoll"]
assert dist.Backend.backend_type_map["atoll"] == dist.ProcessGroup.BackendType.CUSTOM
atoll._autoload.register()  # again: nothing happens
dist.init_process_group("atoll")
assert isinstance(dist.group.WORLD._get_backend(torch.device("cpu")), atoll._C.Backend)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("fine")
"""


def test_backend_is_registered_by_import_alone() -> None:
    check(AFRESH.format(source=HEAD + REGISTERED), 2)


def test_exit_without_destroy() -> None:
    check(
        END_IN_FULL
        + """
import atoll
dist.init_process_group("atoll")
group = dist.new_group()
works = [dist.all_reduce(torch.ones(1000), group=g, async_op=True) for g in (None, group)]
works[0].get_future().then(lambda done: None)
print("fine")
""",
        3,
    )


def test_groups_close_in_one_order_at_exit() -> None:
    """An island's library waits for the other ranks when it closes."""
    check(
        """
import atoll, glob, json, tempfile
os.environ["ATOLL_TRACE_DIR"] = folder = tempfile.mkdtemp()
dist.init_process_group("atoll")
groups = [dist.group.WORLD, *(dist.new_group() for _ in range(6))]
atoll._C.shut_down_all()
records = [json.load(open(path)) for path in glob.glob(folder + "/*.json")]
closed = [each["group"] for each in sorted(records, key=lambda record: record["written_us"])]
assert closed == [group.group_name for group in reversed(groups)], closed
print("fine")
""",
        2,
    )


def test_exit_with_an_unanswered_receive() -> None:
    took = check(
        END_IN_FULL
        + """
import atoll, threading
dist.init_process_group("atoll", timeout=datetime.timedelta(seconds=20))
dist.barrier()
if rank == 0:
    work = dist.irecv(torch.ones(1), 1)
    waiter = threading.Thread(target=work.wait, daemon=True)
    waiter.start()
print("fine")
""",
        2,
    )
    assert took < 90


def test_destroy_and_begin_again_on_the_same_store() -> None:
    check(
        """
import atoll
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
for round in range(4):
    dist.init_process_group("atoll", store=store, rank=rank, world_size=size)
    tensor = torch.full((10,), float(round))
    dist.all_reduce(tensor)
    assert (tensor == size * round).all()
    dist.destroy_process_group()
print("fine")
""",
        3,
    )


def test_groups_beside_another_default_backend() -> None:
    """Groups that at first share no rank must still form one job."""
    check(
        """
import atoll
dist.init_process_group("gloo")
pairs = [dist.new_group(ranks, backend="atoll") for ranks in ([0, 1], [2, 3])]
both = dist.new_group(backend="atoll")
for group in (pairs[rank // 2], both):
    tensor = torch.ones(5)
    dist.all_reduce(tensor, group=group)
    assert (tensor == dist.get_world_size(group)).all()
try:
    atoll.links()
except ValueError as error:
    assert "gloo" in str(error)
dist.destroy_process_group()
print("fine")
""",
        4,
    )


def test_ranks_made_for_different_devices_meet() -> None:
    """Torch puts the device that a backend is made for in front of the store's keys."""
    check(
        """
import atoll.backend
settings = dist.distributed_c10d._DistributedBackendOptions()
root = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
settings.store = dist.PrefixStore("cpu/" if rank else "cuda/", dist.PrefixStore("group/", root))
settings.group_rank, settings.group_size = rank, size
settings.timeout = datetime.timedelta(seconds=20)
settings.group_id = "group"
settings.global_ranks_in_group = []
backend = atoll.backend.create(settings, None)
tensor = torch.ones(3)
backend.allreduce([tensor]).wait()
assert (tensor == size).all()
backend.shutdown()
print("fine")
""",
        2,
    )


def test_file_store_and_options() -> None:
    check(
        """
import atoll.backend, tempfile
path = os.path.join(tempfile.gettempdir(), f"atoll-test-{os.environ['MASTER_PORT']}")
options = atoll.Options(datetime.timedelta(seconds=40))
dist.init_process_group("atoll", init_method=f"file://{path}", rank=rank, world_size=size, pg_options=options)
assert options.group_name == ""  # the caller's object stays as it was
assert atoll.backend.backend_of().options.group_name
try:
    dist.new_group(pg_options=torch._C._distributed_c10d.Backend.Options)
except TypeError as error:
    assert "atoll.Options" in str(error)
dist.destroy_process_group()
print("fine")
""",
        2,
    )


def test_forked_children() -> None:
    """Data loaders fork workers while a group is open; the children must neither use nor disturb it."""
    check(
        END_IN_FULL
        + """
import atoll
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.tensor(float(i))
dist.init_process_group("atoll")
for _ in range(2):
    for batch in DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
        dist.all_reduce(batch)
pid = os.fork()
if pid == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        assert "forked" in str(error)
        raise SystemExit(0)  # runs the interpreter's whole exit
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("fine")
""",
        2,
    )


def test_debug_detail_wraps_the_backend() -> None:
    check(
        """
import atoll
dist.init_process_group("atoll")
tensor = torch.ones(4)
dist.all_reduce(tensor)
assert (tensor == size).all()
assert atoll.links()
dist.destroy_process_group()
print("fine")
""",
        2,
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
    )


def test_abort_process_group() -> None:
    check(
        END_IN_FULL
        + """
import atoll
from torch.distributed.distributed_c10d import _abort_process_group
dist.init_process_group("atoll")
dist.barrier()
# An abort would also reach ranks that are still in the barrier, so it waits until all have left.
store = dist.distributed_c10d._get_default_store()
store.set(f"out{rank}", "")
store.wait([f"out{peer}" for peer in range(size)])
pending = dist.irecv(torch.ones(1), (rank + 1) % size)
_abort_process_group()
try:
    pending.wait()
except dist.DistBackendError:
    print("fine")
""",
        2,
    )


def test_threads_share_a_group() -> None:
    """Messages from many threads at once; the GIL is never held while waiting."""
    check(
        """
import atoll, threading
dist.init_process_group("atoll")
problems = []
def talk(tag):
    try:
        for i in range(20):
            tensor = torch.full((2000,), float(i))
            if rank == 0:
                dist.send(tensor + tag, 1, tag=tag)
            else:
                dist.recv(tensor, 0, tag=tag)
                assert (tensor == i + tag).all()
    except BaseException as error:
        problems.append(error)
threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not problems, problems
dist.destroy_process_group()
print("fine")
""",
        2,
    )


def test_python_store() -> None:
    """A store written in Python can be used: calls into it take the GIL."""
    assert issubclass(dist.PrefixStore, dist.Store)
    check(
        """
import atoll
class Wrapped(dist.Store):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
    def set(self, key, value): return self.inner.set(key, value)
    def get(self, key): return self.inner.get(key)
    def add(self, key, value): return self.inner.add(key, value)
    def wait(self, keys, timeout=datetime.timedelta(seconds=30)): return self.inner.wait(keys, timeout)
    def compare_set(self, key, expected, desired): return self.inner.compare_set(key, expected, desired)
store = Wrapped(dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"])))
dist.init_process_group("atoll", store=store, rank=rank, world_size=size)
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("fine")
""",
        2,
    )


def test_a_gpu_and_a_cpu_form_a_group() -> None:
    if not torch.cuda.is_available():
        import pytest

        pytest.skip("needs a CUDA device")
    check(
        """
import atoll
dist.init_process_group("atoll")
tensor = torch.full((100_003,), dist.get_rank() + 1.0, device=["cpu", "cuda"][dist.get_rank()])
dist.all_reduce(tensor)
assert tensor.eq(3).all().item()
dist.destroy_process_group()
print("fine")
""",
        2,
    )
