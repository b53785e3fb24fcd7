# SPDX-License-Identifier: Apache-2.0
"""`atoll bench` on devices, and its baselines, at tiny sizes, with every element checked."""

import json
import os
from pathlib import Path

import pytest

from atoll.bench import groups, worker
from test_bench import bench_of_ranks, run_scenarios

QUICK = ["--sizes", "4,4096", "--rounds", "2", "--iters", "2", "--warmup", "1", "--force-busy"]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("layout", "devices", "against", "inner"),
    [
        ("AAB", "sim,sim,cpu", "relay", ""),
        ("AA", "sim", "inner", ""),
        ("AA", "cpu", "inner", "cpu:gloo"),
    ],
)
def test_devices_and_baselines(
    layout: str, devices: str, against: str, inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.json"
    monkeypatch.setenv("ATOLL_INNER", inner)
    names = ["--layout", layout, "--device", devices, "--against", against, "--json", str(path)]
    done = bench_of_ranks(len(layout), "all_reduce", *names, *QUICK)
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    wanted = devices.split(",") if "," in devices else [devices] * len(layout)
    assert [device.partition(":")[0] for device in document["devices"]] == wanted
    assert document["oversubscribed"] == []
    assert all(row[name]["us"] > 0 for row in document["rows"] for name in ("atoll", against))


@pytest.mark.verify
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "inner"], "this island uses no library; on the CPU set ATOLL_INNER=cpu:gloo"),
        (["--layout", "AB", "--against", "inner"], "inner is the library of a single island, but there are 2 (A, B)"),
        (["--device", "pdp11"], "ATOLL_DEVICE=pdp11: pdp11 is not a device type of PyTorch"),
    ],
)
def test_what_cannot_be_compared(arguments: list[str], message: str) -> None:
    done = bench_of_ranks(2, "all_reduce", *arguments, *QUICK)
    assert done.returncode == worker.BAD_USAGE, done.stdout
    assert message in done.stderr


def test_each_library_has_its_limits() -> None:
    with pytest.raises(groups.UsageError, match="gloo takes tensors on cpu, but rank 1 is on sim: compare with relay"):
        groups.check("gloo", "all_reduce", ["cpu", "sim"])
    groups.check("simccl", "send", ["sim", "sim"])
    with pytest.raises(groups.UsageError, match="measure it with --against inner"):
        groups.make_default("inner")
    with pytest.raises(groups.UsageError, match="the relay does not support send, only all_reduce, reduce_scatter"):
        groups.check("relay", "send", ["cpu", "cpu"])


def test_a_fault_on_a_device_is_found() -> None:
    done = bench_of_ranks(2, "all_gather", "--device", "sim", *QUICK, "--inject-fault")
    assert done.returncode == worker.WRONG_RESULTS, done.stderr
    assert "# FAILED: 2 wrong elements" in done.stdout


@pytest.mark.verify
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_devices_scenario_writes_its_page(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "devices")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "devices.json").read_text())
    assert [(row["library"], row["bytes"]) for row in document["overhead"]] == [
        ("gloo", 4), ("gloo", 256), ("simccl", 4), ("simccl", 256)
    ]  # fmt: skip
    assert [row["devices"] for row in document["staging"]] == [["cpu", "sim"], ["sim", "sim"]]
    assert all(0 < row["fraction"]["median"] < 1.5 for row in document["staging"])
    assert [row["layout"] for row in document["fsdp"]] == ["AB"]
    page = (tmp_path / "devices.md").read_text()
    assert "## Added time per call" in page
    assert "| PCIe 4 x16 : 10 GbE | cpu + sim | 1.25 GB/s | 500 Mbit/s |" in page
    assert "## FSDP2's exposed communication" in page


@pytest.mark.verify
def test_library_scenario_writes_its_page(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "library")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "library.json").read_text())["rows"]
    assert (row["library"], len(row["launches"])) == ("simccl", 2)
    assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
    assert "| simccl |" in (tmp_path / "library.md").read_text()
