# SPDX-License-Identifier: Apache-2.0
"""What is read and computed for profiles: memory that holds so many samples, energy counters, files of earlier runs."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atoll.loading.facts import RankFacts
from atoll.profiling import saved
from atoll.profiling.device import DeviceProfile, Measured, profile_device, sizes_to_try
from atoll.profiling.forward import default_forward
from atoll.profiling.memory import predicted_cap
from atoll.profiling.power import EnergyMeter, find_meter
from atoll.weighting.limits import depends_on_batch

CPU = torch.device("cpu")


def test_the_cap_is_what_memory_holds() -> None:
    peaks = [(4, 1000 + 4 * 50), (16, 1000 + 16 * 50)]
    assert predicted_cap(peaks, 10_000, margin=0.1) == (9000 - 1000) // 50
    assert predicted_cap(peaks, 900, margin=0.1) == 1
    assert predicted_cap([(4, 1000), (16, 1000)], 10_000, margin=0.1) == 0, "such peaks say nothing"


def test_sizes_are_within_cap_and_batch() -> None:
    assert sizes_to_try(256, 4, None) == [16, 32, 64, 128]
    assert sizes_to_try(256, 4, 48) == [16, 32, 48]
    assert sizes_to_try(3, 4, None) == [1, 2]


def package(root: Path, name: str, used: int, limit: int) -> Path:
    zone = root / name
    zone.mkdir(parents=True)
    (zone / "energy_uj").write_text(f"{used}\n")
    (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    return zone


def test_packages_are_added_up_and_their_counters_wrap(tmp_path: Path) -> None:
    first = package(tmp_path, "intel-rapl:0", 900, 999)
    second = package(tmp_path, "intel-rapl:1", 10, 999)
    package(tmp_path, "intel-rapl:0:0", 5, 999)  # a part of the first
    meter = find_meter(CPU, rapl=tmp_path, hwmon=tmp_path / "none")
    assert meter is not None
    assert meter.source == "RAPL"
    (first / "energy_uj").write_text("100\n")
    (second / "energy_uj").write_text("60\n")
    assert meter.joules() == pytest.approx((200 + 50) * 1e-6)


class Steady:
    """A device whose steps take 40 J more than it takes while it waits, at 10 W."""

    def __init__(self) -> None:
        self.begin, self.steps = time.perf_counter(), 0

    def __call__(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.steps += 1
        return default_forward(model, batch)

    def joules(self) -> float:
        return 10 * (time.perf_counter() - self.begin) + 40 * self.steps


def test_power_is_measured_while_computing_and_while_waiting() -> None:
    steady = Steady()
    profile = profile_device(
        nn.Linear(3, 2), lambda size: (torch.ones(size, 3),), [2, 4], forward=steady, device=CPU,
        meter=EnergyMeter("test", joules=steady.joules),
    )  # fmt: skip
    assert profile.idle_watts == pytest.approx(10, rel=0.01)
    assert profile.busy_watts > 100
    measured = RankFacts("cpu", profile=profile.to_json())
    assert measured.power() == (profile.busy_watts, profile.idle_watts)
    assert RankFacts("cpu", watts=(5, 1), profile=profile.to_json()).power() == (5, 1)
    known = measured.as_planned(1, 1)
    assert (known["busy_watts"], known["idle_watts"]) == measured.power()
    without = profile_device(nn.Linear(3, 2), lambda size: (torch.ones(size, 3),), [2], forward=steady, device=CPU)
    assert RankFacts("cpu", profile=without.to_json()).power() is None


def test_nothing_to_read(tmp_path: Path) -> None:
    assert find_meter(CPU, rapl=tmp_path, hwmon=tmp_path) is None
    assert find_meter(torch.device("meta"), rapl=tmp_path, hwmon=tmp_path) is None


def test_profiles_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    profile = DeviceProfile("cpu", [Measured(4, 0.25, 10), Measured(8, 0.5)], operations=3.0, cap=9)
    assert saved.load("name") is None
    saved.save("name", profile)
    assert saved.load("name") == profile
    (tmp_path / "profiles" / "name.json").write_text("{")
    assert saved.load("name") is None, "a broken file is measured again"


def test_another_model_or_device_is_another_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(width: int, sizes: list[int]) -> str:
        return saved.fingerprint(torch.nn.Linear(3, width), CPU, sizes, torch.ones(2, 3), 1)

    names = {name(4, [1, 2]), name(5, [1, 2]), name(4, [1, 3])}
    monkeypatch.setenv("ATOLL_SIM_SPEED", "2")
    assert len(names | {name(4, [1, 2])}) == 4


def test_asking_whether_a_loss_is_a_mean_leaves_frozen_layers_frozen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).train()
    model[1].eval()
    rows = torch.arange(12.0).view(4, 3)
    for reduce, expected in ((torch.mean, False), (torch.sum, True)):
        found = depends_on_batch(
            lambda net, batch, reduce=reduce: reduce(net(batch)), model, rows, [rows[:2], rows[2:]]
        )
        assert found is expected
    assert model[0].training
    assert not model[1].training
