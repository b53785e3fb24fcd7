# SPDX-License-Identifier: Apache-2.0
"""Errors: wrong arguments before anything is sent, mismatches, abort, time limits, wrong settings."""

from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from support import Ranks, raises, run_script


def tensors_without_plain_memory() -> dict[torch.Tensor, str]:
    """Returns tensors without plain memory, by their names in errors. torch.distributed itself refuses most of them
    with its own errors."""
    one = torch.ones(2, 2)
    away = one.clone()
    away.untyped_storage().resize_(0)
    with FakeTensorMode():
        fake = torch.empty(4)
    return {
        one.to_sparse_csr(): "SparseCsr",
        one.to_mkldnn(): "Mkldnn",
        torch.quantize_per_tensor(one, 0.1, 0, torch.quint8): "quantized tensor of dtype quint8",
        torch.nested.nested_tensor([one, one]): "nested",
        away: "shape [2, 2] without memory",
        fake: "shape [4] without memory",
    }


def check_wrong_arguments(rank: int) -> None:
    """Each call is refused on this rank alone; the group is unharmed."""
    size = dist.get_world_size()
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    one = torch.ones(4)

    with raises(TypeError, "uint16", "all_reduce"):
        dist.all_reduce(torch.ones(4).to(torch.uint16))
    with raises(ValueError, "band", "float32"):
        dist.all_reduce(one, dist.ReduceOp.BAND)
    with raises(ValueError, "one tensor", "2"):
        backend.allreduce([one, one])
    with raises(ValueError, "meta", "holds no values"):
        backend.allreduce([torch.ones(4, device="meta")])
    for odd, words in tensors_without_plain_memory().items():
        with raises(ValueError, words):
            backend.allreduce([odd])
        with raises(ValueError, words):
            backend.allgather([[one.clone() for _ in range(size)]], [odd])
    with raises(ValueError, "strides [0]", "share memory"):
        backend.allreduce([one[:1].expand(4)])
    with raises(ValueError, "dense"):
        backend.broadcast([one.to_sparse()], dist.BroadcastOptions())
    with raises(ValueError, "equal dtypes", "float32", "float64"):
        backend.allgather([[one.double() for _ in range(size)]], [one])
    with raises(ValueError, f"each of the {size} ranks", f"holds {size + 1}"):
        backend.allgather([[one for _ in range(size + 1)]], [one])
    with raises(ValueError, "4 elements", "has 5"):
        backend.allgather([[torch.ones(5) for _ in range(size)]], [one])
    with raises(ValueError, "all_gather_into_tensor", f"{4 * size} elements"):
        dist.all_gather_into_tensor(torch.ones(4 * size + 1), one)
    with raises(ValueError, "reduce_scatter_tensor", f"{4 * size} elements"):
        dist.reduce_scatter_tensor(one, torch.ones(4))
    options = dist.BroadcastOptions()
    options.rootRank = size
    with raises(ValueError, f"root {size}", f"group of {size}"):
        backend.broadcast([one], options)
    with raises(ValueError, "split sizes add up to"):
        dist.all_to_all_single(torch.ones(size), torch.ones(size), [2] * size, [1] * size)
    with raises(ValueError, "cannot be divided equally"):
        dist.all_to_all_single(torch.ones(size + 1), torch.ones(size + 1))
    with raises(ValueError, "negative"):
        dist.isend(one, (rank + 1) % size, tag=-1)
    with raises(ValueError, "sparse", "summed only"):
        dist.all_reduce(one.to_sparse(), dist.ReduceOp.MAX)
    scatter = dist.ScatterOptions()
    scatter.rootRank = 0
    with raises(ValueError, "scatter"):
        backend.scatter([one], [] if rank == 0 else [[one]], scatter)

    dist.all_reduce(one)
    assert (one == size).all()


def check_mismatch(rank: int) -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()  # no rank is in the group's first operation any more, which the error would end
    with raises(dist.DistBackendError, "all_reduce"):
        dist.all_reduce(torch.ones(4 if rank else 5), group=group)
    with raises(dist.DistBackendError, "all_reduce"):  # the first error stays
        dist.barrier(group)
    dist.barrier()  # other groups are not touched


def check_mismatch_in_the_first_operation(rank: int) -> None:
    """The ranks notice the mismatch while some links are still being opened."""
    for _ in range(5):
        group = dist.new_group()
        with raises(dist.DistBackendError, "all_reduce"):
            dist.all_reduce(torch.ones(4 if rank else 5), group=group)
        dist.barrier()


def check_abort(rank: int) -> None:
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.barrier(group)
    dist.barrier()  # no rank is in the group's barrier any more
    if rank == 0:
        work = dist.irecv(torch.ones(1), 1, group=group)
        pending = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        future = pending.get_future()
        backend.abort()
        for waiting in (work.wait, pending.wait, future.wait):
            with raises(dist.DistBackendError, "abort"):
                waiting()
        assert not pending.is_success()
    else:
        with raises(dist.DistBackendError, "abort"):
            dist.recv(torch.ones(1), 0, group=group)
    dist.barrier()


def check_operation_timeout(rank: int) -> None:
    group = dist.new_group()
    if rank == 0:
        with raises(dist.DistBackendError, "barrier", "rank 0"):
            dist.barrier(group, timeout=timedelta(milliseconds=300))
    dist.barrier()
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    backend.set_timeout(timedelta(milliseconds=300))
    assert backend.options._timeout == timedelta(milliseconds=300)
    if rank == 0:
        with raises(dist.DistBackendError, "all_reduce"):
            dist.all_reduce(torch.ones(1), group=group)
    dist.barrier()


def check_use_after_destroy(rank: int) -> None:
    group = dist.new_group()
    backend = group._get_backend(torch.device("cpu"))
    work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
    work.wait()
    dist.destroy_process_group(group)
    with raises(dist.DistBackendError, "shut down"):
        backend.allreduce([torch.ones(1)])
    backend.shutdown()  # a second time, which does nothing
    backend.abort()
    assert work.result()[0].item() == dist.get_world_size()


CHECKS: list[Callable[..., None]] = [
    check_wrong_arguments,
    check_mismatch,
    check_mismatch_in_the_first_operation,
    check_abort,
    check_operation_timeout,
    check_use_after_destroy,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_errors(any_ranks: Ranks, check: Callable[..., None]) -> None:
    any_ranks.run(check)


START = "import torch, torch.distributed as dist, atoll; dist.init_process_group('atoll');"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ATOLL_ISLAND", "two words"),
        ("ATOLL_ISLAND", "x" * 65),
        ("ATOLL_UPLINK", "-1"),
        ("ATOLL_REDUCE", "fast"),
        ("ATOLL_TRANSPORT", "pigeon"),
        ("TORCHELASTIC_RESTART_COUNT", "many"),
    ],
)
def test_wrong_setting_is_named(variable: str, value: str) -> None:
    (process,) = run_script(START, 1, {variable: value})
    assert process.returncode == 1
    assert "ValueError" in process.stderr
    assert f'{variable}="{value}"' in process.stderr


@pytest.mark.parametrize(
    ("change", "environment", "words"),
    [
        ("', pg_options=dist.ProcessGroupGloo._Options()", {}, "TypeError: the atoll backend takes atoll.Options, got "
         "_Options"),
        ("'", {"ATOLL_BRIDGE": "relay", "ATOLL_TLS": "1"}, "ValueError: ATOLL_BRIDGE=relay with ATOLL_TLS=1: the relay "
         "sends through Gloo, unencrypted; unset one of them"),
    ],
)  # fmt: skip
def test_what_the_backend_does_not_take(change: str, environment: dict[str, str], words: str) -> None:
    (process,) = run_script(START.replace("'atoll'", f"'atoll{change}"), 1, environment)
    assert process.returncode == 1
    assert words in process.stderr


def test_missing_rank_is_named() -> None:
    source = """
import os, datetime, torch.distributed as dist, atoll
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]))
rank, limit = int(os.environ["RANK"]), datetime.timedelta(seconds=5)
dist.init_process_group("atoll", store=store, rank=rank, world_size=3, timeout=limit)
"""
    for process in run_script(source, 2):
        assert process.returncode == 1
        assert "DistBackendError" in process.stderr
        assert "rank 2 did not join the group of 3 ranks" in process.stderr


def test_key_file_on_one_rank_only(tmp_path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    key.write_bytes(b"0123456789abcdef")
    source = f"import os\nif os.environ['RANK'] == '1': os.environ['ATOLL_KEY_FILE'] = {str(key)!r}\n" + START.replace(
        "'atoll')", "'atoll', timeout=__import__('datetime').timedelta(seconds=5))"
    )
    processes = run_script(source, 2)
    assert any("disagree about ATOLL_KEY_FILE" in process.stderr for process in processes)
    assert all(process.returncode == 1 for process in processes)
