# SPDX-License-Identifier: Apache-2.0
"""Kinds of simulated devices: their tables, and the time of an operator on each."""

import importlib.util
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import atoll
from sim_host import Host


def without_the_device(path: Path) -> Any:
    """Loads the module alone, because its package would create the device in this process."""
    spec = importlib.util.spec_from_file_location("kinds_alone", path)
    assert isinstance(spec, ModuleSpec)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


kinds = without_the_device(Path(atoll.__file__).parent / "sim/kinds/__init__.py")

GOOD = (Path(kinds.__file__).parent / "gpu.toml").read_text()


@pytest.mark.parametrize("name", ["even", "gpu", "npu"])
def test_tables_are_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_SIM_MODEL", name)
    given = kinds.chosen()
    known = {operator.split(".")[0] for operator in torch._C._dispatch_get_all_op_names()}
    assert {f"aten::{operator}" for operator in given["operators"]} - known == set()


def test_the_kinds_differ_by_operator() -> None:
    gpu, npu = (kinds.arguments_of(tomllib.loads((Path(kinds.__file__).parent / f"{name}.toml").read_text()))
                for name in ("gpu", "npu"))  # fmt: skip
    speedup = {name: npu["operators"][name][0] / gpu["operators"][name][0] for name in ("mm", "convolution", "sort")}
    assert speedup["convolution"] > 1 > speedup["mm"] > speedup["sort"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("launch_us = 5", "launch_us = true"), ["launch_us", "True", "number"]),
        (("jitter = 0.03", ""), ["jitter", "None"]),
        (("speed = 0.88", "speed = 1.5"), ["warm.speed", "1.5", "0.01 to 1"]),
        (("gflops = 8", "gflops = 0"), ["work.convolution.gflops", "0"]),
        (("gflops = 8", "flops = 8"), ["work.convolution.flops", "unknown"]),
        (('"bmm",', '"sort",'), ["sort", "in another list too"]),
        (('"bmm",', "7,"), ["work.product.operators", "list of names"]),
        (("[work.other]", "[work.others]"), ["[work.other] is missing"]),
        (("[warm]", "[[warm]]"), ["warm must be a table"]),
        (("[warm]", "[warm"), ["line"]),
    ],
)
def test_a_wrong_table_is_named(
    change: tuple[str, str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert change[0] in GOOD
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(*change))
    monkeypatch.setenv("ATOLL_SIM_MODEL", str(path))
    with pytest.raises(ValueError, match="ATOLL_SIM_MODEL") as caught:
        kinds.chosen()
    assert [word for word in [str(path), *words] if word not in str(caught.value)] == []


@pytest.mark.parametrize("wanted", ["cpu", "missing.toml", "/"])
def test_an_unknown_kind_is_named(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_SIM_MODEL", wanted)
    with pytest.raises(ValueError, match="even, gpu, npu, or the path of a table") as caught:
        kinds.chosen()
    assert wanted in str(caught.value)


def modelled_ms() -> dict[str, float]:
    """Returns the time of one call of each, on a device so slow that this machine easily keeps its times."""
    x = torch.ones(64, 64, device="sim")
    image = torch.ones(1, 8, 24, 24, device="sim")
    weight = torch.ones(8, 8, 3, 3, device="sim")
    calls = {
        "product": lambda: x @ x,
        "convolution": lambda: nn.functional.conv2d(image, weight),
        "sort": lambda: x.sort(),
        "add": lambda: x + x,
        "view": lambda: x.view(-1).squeeze(0),
    }
    times = {}
    for name, call in calls.items():
        call()
        torch.sim.synchronize()
        begin, end = torch.sim.Event(enable_timing=True), torch.sim.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times[name] = begin.elapsed_time(end)
    return times


def test_each_kind_takes_its_times() -> None:
    expected = {  # ms at speed 0.0005: work or filling, and the launch
        "even": {"product": 2 * 64**3 / 10e6 + 0.005, "sort": 64 * 64 * 16 / 5e6 + 0.005},
        "npu": {"product": 0.09 + 0.012, "sort": 64 * 64 * 16 / 0.25e6 + 0.012},
    }
    found = {}
    for kind, times in expected.items():
        with Host(ATOLL_SIM_SPEED="0.0005", ATOLL_SIM_MODEL=kind) as host:
            found[kind] = host.run(modelled_ms)
        for name, ms in times.items():
            assert 0.9 * ms / 0.0005 <= found[kind][name] <= 1.6 * ms / 0.0005, (kind, name, found[kind])
        assert found[kind]["view"] < found[kind]["add"] / 4, "a view costs the device nothing"
    assert found["npu"]["sort"] > 4 * found["even"]["sort"]
