# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests over Atoll: a fixed sample always, all of them in `make verify`."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import PAGE, RECORD, RUN_LIMIT_S, RUNS, filled

DRIVER = Path(__file__).with_name("distributed_suite.py")

# One of each family, none slow; `make verify` runs all tests, in all modes.
SAMPLE = [
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_full_group_sum",
    "test_all_reduce_sum_complex",
    "test_batch_isend_irecv_gloo",
    "test_DistributedDataParallelCPU",
    "test_scatter_complex",
    "test_send_recv_any_source",
    "test_sparse_all_reduce_sum",
]


def run_driver(options: list[str], names: list[str], timeout: float) -> tuple[int, str]:
    command = [sys.executable, str(DRIVER), *options, *names]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    summary = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", finished.stdout)
    assert summary, finished.stdout + finished.stderr
    assert finished.returncode == 0, "\n".join(
        line for line in finished.stdout.splitlines() if not line.startswith(("pass", "skip"))
    )
    return int(summary[1]), finished.stdout


def test_sample() -> None:
    passed, _ = run_driver(["--islands", "A,B,A"], SAMPLE, timeout=110)
    assert passed == len(SAMPLE)


@pytest.mark.verify
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", RUNS)
def test_all(mode: str) -> None:
    passed, output = run_driver([*RUNS[mode].options], [], timeout=RUN_LIMIT_S)
    print(output.splitlines()[-1])
    assert passed >= json.loads(RECORD.read_text())[mode]["passed"], output


def test_the_page_is_what_was_recorded() -> None:
    """If it fails, tests/python/conformance.py --page-only writes the page."""
    record = json.loads(RECORD.read_text())
    assert record.keys() == RUNS.keys()
    assert not any(found["failed"] for found in record.values())
    assert all(found["options"] == list(RUNS[mode].options) for mode, found in record.items())
    assert filled(PAGE.read_text(), record) == PAGE.read_text()
