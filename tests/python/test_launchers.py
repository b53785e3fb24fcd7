# SPDX-License-Identifier: Apache-2.0
"""Jobs under the launchers that users have: torchrun, Ray Train, and one command on each of two hosts."""

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frameworks import FRAMEWORKS, skip_without
from launching import atoll

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TORCHRUN = ["-m", "torch.distributed.run"]
TIMEOUT_S = 100


def ended_well(*command: object, timeout: float = TIMEOUT_S, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def steps_and_accuracy(output: str) -> tuple[str, float]:
    found = re.search(r"steps (\d+ to \d+ on \d ranks): accuracy on the held-out fifth: ([0-9.]+)%", output)
    assert found is not None, output
    return found[1], float(found[2])


@pytest.mark.verify
def test_fsdp_loop_resumes_under_torchrun_on_other_ranks(tmp_path: Path) -> None:
    program = [EXAMPLES / "digits_fsdp.py", "--checkpoint", tmp_path / "checkpoint"]
    done = atoll("run", "--island=a:1,device=cpu", "--island=b:1,device=sim", *program, "--steps=30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps_and_accuracy(done.stdout)[0] == "0 to 30 on 2 ranks"
    output = ended_well(sys.executable, *TORCHRUN, "--standalone", "--nproc-per-node=3", *program, "--steps=60")
    steps, accuracy = steps_and_accuracy(output)
    assert steps == "30 to 60 on 3 ranks"
    assert accuracy > 80


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} is not installed (Debian: iproute2)")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    try:
        with importlib.import_module("netns").ShapedLink(1_000_000_000) as link:
            yield link
    except RuntimeError as error:
        pytest.skip(f"this machine allows no network namespaces: {error}")


@pytest.mark.verify
@pytest.mark.parametrize("launcher", ["atoll run", pytest.param("torchrun", marks=pytest.mark.verify)])
def test_two_hosts(two_hosts: Any, launcher: str) -> None:
    """Each host is a network namespace, with one rank on the first and two on the second."""
    address, port = two_hosts.store
    processes = []
    for host, ranks in enumerate((1, 2)):
        command = [*two_hosts.prefix(host), "env", f"ATOLL_HOST=host{host}"]
        if launcher == "atoll run":
            command += [sys.executable, "-m", "atoll.cli", "run", f"--island=island{host}:{ranks},device=cpu"]
        else:
            command += [f"ATOLL_ISLAND=island{host}", sys.executable, *TORCHRUN, f"--nproc-per-node={ranks}"]
        command += ["--nnodes=2", f"--node-rank={host}", f"--master-addr={address}", f"--master-port={port}"]
        command.append(str(EXAMPLES / "all_reduce.py"))
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    assert [output.count("of 3: the sum is 6") for output in outputs] == [1, 2], "\n".join(outputs)


@pytest.mark.verify
@pytest.mark.timeout(500)
def test_ray_train_on_two_kinds_of_nodes() -> None:
    skip_without("ray")
    python = FRAMEWORKS / "bin/python"
    program = [python, EXAMPLES / "digits_ray.py", "--workers", "fast", "slow", "slow"]
    command = [python, Path(__file__).parent / "ray_cluster.py", *program]
    output = ended_well(*command, timeout=450, RAY_USAGE_STATS_ENABLED="0")
    found = re.search(r"workers on the islands fast, slow, slow over atoll: accuracy ([0-9.]+)%", output)
    assert found is not None, output
    assert float(found[1]) > 80
