# SPDX-License-Identifier: Apache-2.0
"""The table of vendors: the library that a rank uses, and the errors if it cannot."""

import importlib
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import atoll
from atoll import communicators, vendors
from support import run_script

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vendors, "_rows", list(vendors._rows))
    for name in ("ATOLL_INNER", "ATOLL_DEVICE", "ATOLL_SIM_VENDOR"):
        monkeypatch.delenv(name, raising=False)


def module(name: str, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType(name)
    made.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, made)


def test_the_cpu_needs_no_library() -> None:
    assert vendors.find("cpu") is None
    place = vendors.this_place()
    assert (place.device, place.library, place.stack, place.problem) == ("cpu", "", "cpu", "")


def test_gloo_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_INNER", "cuda:none,cpu:gloo")
    found = vendors.find("cpu")
    assert found is not None
    assert found.library == "gloo"
    assert vendors.find("cuda") is None


@pytest.mark.parametrize("of", ["torch.distributed.distributed_c10d", "acme"])
def test_a_registration_counts_where_it_is_not_pytorchs_own(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Since 2.14 PyTorch registers its own backends too, and since 2.15 another class for "nccl"."""
    asked = []

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        asked.append((rank, size))
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    create.__module__ = of
    plugin = SimpleNamespace(creator_fn=create, extended_api=False)
    monkeypatch.setitem(dist.Backend._plugins, "GLOO", plugin)
    request = communicators.Request("gloo", "cpu", dist.HashStore(), 0, 1, timedelta(seconds=20), "one", [0])
    assert isinstance(communicators.connect(request), dist.ProcessGroupGloo)
    assert asked == ([(0, 1)] if of == "acme" else [])


def test_nccls_watchdog_is_kept_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process after an error, or sleep for a minute with locks that an abort needs."""
    seen: dict[str, Any] = {}

    def nccl(store: Any, rank: int, size: int, options: Any) -> Any:
        seen.update(os.environ, level=dist.get_debug_level(), timeout=options._timeout)
        return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=20))

    nccl.Options = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)
    monkeypatch.setattr(vendors, "plugin_of", lambda library: None)
    monkeypatch.setenv("TORCH_NCCL_DESYNC_DEBUG", "1")
    monkeypatch.delenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", raising=False)
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        communicators.connect(
            communicators.Request("nccl", "cuda", dist.HashStore(), 0, 1, timedelta(seconds=20), "one", [0])
        )
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
    finally:
        dist.set_debug_level(level)
    assert (os.environ["TORCH_NCCL_DESYNC_DEBUG"], os.environ.get("TORCH_NCCL_RETHROW_CUDA_ERRORS")) == ("1", None)
    for name in ("ASYNC_ERROR_HANDLING", "DESYNC_DEBUG", "DUMP_ON_TIMEOUT", "ENABLE_MONITORING", "RETHROW_CUDA_ERRORS"):
        assert seen[f"TORCH_NCCL_{name}"] == "0", name
    assert seen["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] == "0"
    assert seen["level"] != dist.DebugLevel.DETAIL
    assert seen["timeout"] >= timedelta(hours=1)


@pytest.mark.parametrize("value", ["gloo", "cpu=gloo", "cpu:", ":gloo", "cpu:gloo;x"])
def test_inner_must_parse(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ATOLL_INNER", value)
    with pytest.raises(vendors.VendorError, match=r"ATOLL_INNER=.*expected DEVICE:LIBRARY"):
        vendors.find("cpu")


def test_inner_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_INNER", "cpu:best")
    with pytest.raises(vendors.VendorError, match=r"requests best on cpu; known there: gloo, or none.*register_vendor"):
        vendors.find("cpu")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(vendors.VendorError, match=r"npu needs the module torch_npu for hccl.*ATOLL_INNER=npu:none"):
        vendors.find("npu")


def test_a_module_for_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module("torch_npu", "2.1.0.post3", monkeypatch)
    wanted = ".".join(torch.__version__.split(".")[:2])
    with pytest.raises(vendors.VendorError) as raised:
        vendors.find("npu")
    assert f"torch_npu 2.1.0.post3 is not built for PyTorch {torch.__version__}: " in str(raised.value)
    assert f"install torch_npu {wanted}.*" in str(raised.value)


def test_a_module_for_another_torch_may_bring_the_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module("torch_npu", "2.1.0.post3", monkeypatch)
    with pytest.raises(vendors.VendorError, match="or set ATOLL_INNER=npu:none"):
        vendors.load_module_of("npu")
    monkeypatch.setenv("ATOLL_INNER", "npu:none")
    vendors.load_module_of("npu")


def test_a_module_without_its_backend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    module("torch_npu", torch.__version__, monkeypatch)
    with pytest.raises(vendors.VendorError, match=r"has no backend hccl for npu.*ATOLL_INNER=npu:none"):
        vendors.find("npu")


def test_rows_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    row = atoll.Vendor("acme", "xyz", "gloo")
    atoll.register_vendor(row)
    atoll.register_vendor(row)
    assert vendors.find("xyz") == row
    with pytest.raises(ValueError, match="'acme' on 'xyz' is already registered"):
        atoll.register_vendor(atoll.Vendor("acme", "xyz", "other"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"name": "Acme Inc"}, "name 'Acme Inc' is not a word"),
        ({"device": ""}, "device '' is not a word"),
        ({"reductions": frozenset({"median"})}, r"unknown reductions \['median'\]; known:.*sum"),
    ],
)
def test_a_row_is_checked(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        atoll.Vendor(**{"name": "acme", "device": "xyz", "library": "gloo", **change})


def test_entry_points_add_rows(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Point:
        def __init__(self, name: str, row: Any) -> None:
            self.name, self.value, self._row = name, f"{name}:ROW", row

        def load(self) -> Any:
            if isinstance(self._row, Exception):
                raise self._row
            return self._row

    points = [Point("bad", ImportError("no such thing")), Point("acme", atoll.Vendor("acme", "xyz", "gloo"))]
    monkeypatch.setattr(vendors, "entry_points", lambda group: points if group == "atoll.vendors" else [])
    vendors._load_entry_points.cache_clear()
    assert [row.name for row in vendors.vendors() if row.device == "xyz"] == ["acme"]
    assert "the vendor row bad of bad:ROW was left out: no such thing" in caplog.text
    vendors._load_entry_points.cache_clear()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("CUDA!", 'ATOLL_DEVICE="CUDA!": expected a device such as cpu, cuda or cuda:1'),
        ("cuda", "ATOLL_DEVICE=cuda: this process finds no device of type cuda"),
        ("npu:1", "install it, or let this rank compute on the CPU with ATOLL_DEVICE=cpu"),
        ("gpu:0", "; use one of cuda, xpu, npu, mlu, musa, sim, cpu (cuda: NVIDIA's and AMD's)"),
    ],
)
def test_a_device_that_is_not_available(monkeypatch: pytest.MonkeyPatch, value: str, text: str) -> None:
    monkeypatch.setenv("ATOLL_DEVICE", value)
    assert text in vendors.this_place().problem


def test_the_device_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert atoll.device() == torch.device("cpu")
    monkeypatch.setenv("ATOLL_DEVICE", "cpu")
    assert atoll.device() == torch.device("cpu")


def blocks() -> dict[str, str]:
    """Returns the files that docs/adding-a-vendor.md tells the reader to write."""
    text = (DOCS / "adding-a-vendor.md").read_text()
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL)
    return dict(found)


@pytest.mark.parametrize("islands", ["AA", "AAB"])
def test_the_guide_works_step_by_step(tmp_path: Path, islands: str) -> None:
    files = blocks()
    assert sorted(files) == ["acme_atoll.py", "acme_torch.py", "train.py"]
    for name, source in files.items():
        (tmp_path / name).write_text(source)
    job = (
        "import os, runpy, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"os.environ['ATOLL_ISLAND'] = {islands!r}[int(os.environ['RANK'])]\n"
        f"runpy.run_path({str(tmp_path / 'train.py')!r})\n"
    )
    for process in run_script(job, len(islands)):
        assert process.returncode == 0, process.stderr
        assert process.stdout.strip() == str(["acmeccl", "atoll"][: len(set(islands))])


def test_the_guide_lists_every_vendor() -> None:
    importlib.reload(vendors)
    text = (DOCS / "adding-a-vendor.md").read_text()
    for row in vendors.vendors():
        assert f"| `{row.device}` | `{row.library}`" in text, row
