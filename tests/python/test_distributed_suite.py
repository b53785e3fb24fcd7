# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests over Atoll: a fixed sample always, all of them in `make verify`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("distributed_suite.py")
LAYOUTS = [None, "A,B,A"]

# One or two of each family, none slow.
SAMPLE = [
    "test_all_gather",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_complex_unsupported_ops",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_full_group_max",
    "test_all_reduce_sum_async",
    "test_all_reduce_sum_complex",
    "test_barrier_full_group",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo",
    "test_ddp_create_graph",
    "test_DistributedDataParallelCPU",
    "test_gather_full_group",
    "test_irecv",
    "test_monitored_barrier_gloo",
    "test_reduce_full_group_product",
    "test_get_future",
    "test_scatter_complex",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag_torch_profiler",
    "test_sparse_all_reduce_sum",
]


def run_driver(layout: str | None, names: list[str], timeout: float) -> tuple[int, str]:
    command = [sys.executable, str(DRIVER), *(["--islands", layout] if layout else []), *names]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    summary = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", finished.stdout)
    assert summary, finished.stdout + finished.stderr
    assert finished.returncode == 0, "\n".join(
        line for line in finished.stdout.splitlines() if not line.startswith(("pass", "skip"))
    )
    return int(summary[1]), finished.stdout


def test_sample() -> None:
    passed, _ = run_driver("A,B,A", SAMPLE, timeout=110)
    assert passed == len(SAMPLE)


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["one island", "A,B,A"])
def test_all(layout: str | None) -> None:
    passed, output = run_driver(layout, [], timeout=3500)
    assert passed >= 90, output  # what Gloo passes on a machine without an accelerator
