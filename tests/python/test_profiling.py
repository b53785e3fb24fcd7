# SPDX-License-Identifier: Apache-2.0
"""Profiles: caps from memory, energy counters, and files of earlier runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from atoll import _C
from atoll.loading.facts import RankFacts
from atoll.loading.windows import Window, cut
from atoll.profiling import power, stored_profiles
from atoll.profiling.device import DeviceProfile, Measured, drop_gradients, one_step, profile_device, sizes_to_try
from atoll.profiling.device_memory import fits, memory_used, usable_bytes
from atoll.profiling.forward import default_forward
from atoll.profiling.memory import confirmed_cap, optimizer_bytes, predicted_cap
from atoll.profiling.power import find_meter
from atoll.weighting.limits import depends_on_batch
from sim_host import Host

CPU = torch.device("cpu")


def test_the_cap_is_what_memory_holds() -> None:
    peaks = [(4, 1000 + 4 * 50), (16, 1000 + 16 * 50)]
    assert predicted_cap(peaks, 10_000, margin=0.1) == (9000 - 1000) // 50
    assert predicted_cap(peaks, 900, margin=0.1) == 1
    assert predicted_cap([(4, 1000), (16, 1000)], 10_000, margin=0.1) == 0, "such peaks say nothing"
    assert predicted_cap(peaks, 10_000, margin=0.1, reserve=2000) == (9000 - 2000 - 1000) // 50


class Pairs(torch.nn.Module):
    """Needs memory for each pair of samples, which two peaks do not show."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 16)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        made = self.layer(rows)
        return (made[:, None] * made[None]).tanh().sum((0, 1))


def batch_of(size: int) -> torch.Tensor:
    return torch.ones(size, 4)


def caps_of_pairs() -> None:
    sim = torch.device("sim", 0)
    model = Pairs().to(sim)
    profile = profile_device(model, batch_of, [8, 16], forward=default_forward, device=sim)
    assert [at.batch for at in profile.sizes] == [8, 16]
    peaks = [(at.batch, at.peak_bytes) for at in profile.sizes]
    tried = [predicted_cap(peaks, usable_bytes(sim), margin=0.1)]
    cap = confirmed_cap(model, batch_of, profile, default_forward, sim, margin=0.1, reserve=0, most=1000)
    while tried[-1] > cap:
        tried.append(tried[-1] - max(1, tried[-1] // 10))
    assert len(tried) > 1, "two peaks promise too much"
    assert tried[-1] == cap

    def step_fits(size: int) -> bool:
        drop_gradients(model)
        return fits(lambda: one_step(model, batch_of(size).to(sim), default_forward), sim)

    assert step_fits(cap)
    assert not step_fits(tried[-2])
    assert confirmed_cap(model, batch_of, profile, default_forward, sim, margin=0.1, reserve=0, most=cap - 1) == 0
    reserve = usable_bytes(sim) // 2
    less = confirmed_cap(model, batch_of, profile, default_forward, sim, margin=0.1, reserve=reserve, most=1000)
    assert less < cap


def caps_of_few_sizes() -> None:
    """Sizes that do not fit are not measured, and those that fit are found."""
    sim = torch.device("sim", 0)
    model = Pairs().to(sim)
    begun = []
    profile = profile_device(
        model, batch_of, [512, 1024, 2048], forward=default_forward, device=sim, together=lambda: begun.append(1)
    )
    sizes = [at.batch for at in profile.sizes]
    assert len(begun) == 3, "ranks begin as often, whatever fits"
    assert sizes[0] == 32
    assert sizes == sorted(sizes)
    assert sizes[-1] < profile.too_large <= 128
    filled = torch.empty(usable_bytes(sim) - memory_used(sim) - 2048, dtype=torch.uint8, device=sim)
    assert not profile_device(model, batch_of, [4], forward=default_forward, device=sim).sizes
    with pytest.raises(ValueError, match="one sample's step does not fit"):
        confirmed_cap(model, batch_of, profile, default_forward, sim, margin=0.1, reserve=0, most=1000)
    del filled


def gradients_that_stay() -> None:
    sim = torch.device("sim", 0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 200), torch.nn.Linear(200, 200)).to(sim)
    peaks = [
        profile_device(model, batch_of, [2], forward=default_forward, device=sim, accumulates=stay).sizes[0].peak_bytes
        for stay in (False, True)
    ]
    assert peaks[1] >= peaks[0] + model[1].weight.nbytes
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert optimizer_bytes(model) == 2 * held
    model[0].requires_grad_(False)
    assert optimizer_bytes(model) == 2 * sum(parameter.nbytes for parameter in model[1].parameters())


@pytest.mark.parametrize("check", [caps_of_pairs, caps_of_few_sizes, gradients_that_stay])
def test_caps_on_a_small_device(check: Callable[[], None]) -> None:
    with Host(ATOLL_SIM_MEMORY="2M") as host:
        host.run(check)


def test_sizes_are_within_cap_and_batch() -> None:
    assert sizes_to_try(256, 4, None) == [16, 32, 64, 128]
    assert sizes_to_try(256, 4, 48) == [16, 32, 48]
    assert sizes_to_try(256, 4, 16) == [4, 8, 16]
    assert sizes_to_try(256, 4, 1) == [1]
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


def test_a_sensor_is_read_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(power.time, "monotonic", lambda: now)
    sensor = tmp_path / "hwmon3" / "power1_average"
    sensor.parent.mkdir()
    sensor.write_text("40000000\n")  # microwatts
    meter = find_meter(CPU, ranks_here=4, rapl=tmp_path / "none", hwmon=tmp_path)
    assert meter is not None
    assert meter.source == "hwmon hwmon3"
    now += 0.5
    assert meter.joules() == pytest.approx(40 * 0.5 / 4), "four ranks share the board"
    package(tmp_path, "intel-rapl:0", 0, 999)
    better = find_meter(CPU, ranks_here=2, rapl=tmp_path, hwmon=tmp_path)
    assert better is not None
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("500\n")
    assert better.source == "RAPL"
    assert better.joules() == pytest.approx(250e-6)


def test_measured_watts_are_planned_where_none_are_stated() -> None:
    profile = DeviceProfile("cpu", [Measured(4, 0.25)], busy_watts=50.0, idle_watts=20.0)
    for stated, told in ((None, (50.0, 20.0)), ((300.0, 60.0), (300.0, 60.0))):
        known = RankFacts("cpu", watts=stated, profile=profile).as_planned(1, 1)
        assert (known["busy_watts"], known["idle_watts"]) == told
    assert "busy_watts" not in RankFacts("cpu", profile=DeviceProfile("cpu", [Measured(4, 0.25)])).as_planned(1, 1)


def test_a_share_costs_what_its_passes_cost() -> None:
    """Four ranks that are equally fast, but for 2 %, get about equal shares, although a share needs a whole pass."""
    facts = []
    for slowness in (1.0, 1.005, 1.01, 1.02):
        points = [Measured(size, slowness * (0.02 + 0.001 * size)) for size in (1, 2, 4, 8, 16, 32)]
        facts.append(RankFacts("cpu", micro_batch=32, profile=DeviceProfile("cpu", points)))
    cost = facts[0].cost()
    for batch in (*range(1, 513), 1024, 4096):
        parts = cut(Window(0, batch), [batch], 0, -(-batch // 32))
        wanted = sum(0.02 + 0.001 * part.counted for part in parts)
        assert cost.seconds(batch) == pytest.approx(wanted), batch
    ranks = [each.as_planned(1, 1) for each in facts]
    batches = _C.plan_batches({"policy": "minmax", "ranks": ranks, "batch": 64})["batches"]
    assert max(batches) <= 17, batches


def test_without_counters(tmp_path: Path) -> None:
    assert find_meter(CPU, rapl=tmp_path, hwmon=tmp_path) is None
    if not torch.cuda.is_available():
        assert find_meter(torch.device("cuda"), rapl=tmp_path, hwmon=tmp_path) is None
    assert find_meter(torch.device("meta"), rapl=tmp_path, hwmon=tmp_path) is None


def test_profiles_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    profile = DeviceProfile("cpu", [Measured(4, 0.25, 10), Measured(8, 0.5)], operations=3.0, cap=9)
    assert stored_profiles.load("name") is None
    stored_profiles.save("name", profile)
    assert stored_profiles.load("name") == profile
    (tmp_path / "profiles" / "name.json").write_text("{")
    assert stored_profiles.load("name") is None, "a broken file is measured again"


def test_another_model_or_device_is_another_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(width: int, sizes: list[int]) -> str:
        return stored_profiles.fingerprint(torch.nn.Linear(3, width), CPU, sizes, torch.ones(2, 3), 1)

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


def test_a_folder_that_cannot_be_created_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    def lost() -> bool:
        stored_profiles.save("name", DeviceProfile("cpu", [Measured(4, 0.25)]))
        return stored_profiles.load("name") is None

    (tmp_path / "file").touch()
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "file" / "folder"))
    assert lost()
    monkeypatch.delenv("ATOLL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(stored_profiles.Path, "home", no_home)
    assert lost()


def mean_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).mean()


def compiled(source: str) -> Callable[..., torch.Tensor]:
    scope: dict[str, Callable[..., torch.Tensor]] = {}
    exec(f"def loss(model, batch):\n    return {source}", scope)
    return scope["loss"]


class Summed:
    def __call__(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).sum()


def test_another_loss_is_another_profile() -> None:
    def name(forward: Callable[..., torch.Tensor] | None = None, **attributes: bool) -> str:
        model = torch.nn.Linear(3, 4)
        model.bias.requires_grad = attributes.pop("trains_bias", True)
        for attribute, value in attributes.items():
            setattr(model, attribute, value)
        return stored_profiles.fingerprint(model, CPU, [1, 2], torch.ones(2, 3), 1, forward=forward)

    sums = [f"sum({one} for row in model(batch) if str(row) not in {{'a', 'b'}})" for one in ("1", "2", "row")]
    forwards = [None, mean_loss, partial(mean_loss), Summed(), compiled("0"), *map(compiled, sums)]
    names = [name(forward) for forward in forwards] + [name(trains_bias=False), name(gradient_checkpointing=True)]
    with torch.autocast("cpu", torch.bfloat16):
        names.append(name())
    assert len(set(names)) == len(names)
    assert [name(compiled(source)) for source in sums] == [name(compiled(source)) for source in sums]
    assert name(gradient_checkpointing=False) == name()


class Follows(torch.nn.Module):
    """A module whose buffers are new tensors after each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("passes", None)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * rows.mean(0)
        self.passes = torch.ones(()) if self.passes is None else self.passes + 1
        return self.layer(rows - self.mean)


def test_buffers_that_are_replaced_are_restored() -> None:
    model = Follows()
    before = model.mean
    profile_device(model, batch_of, [2, 4], forward=default_forward, device=CPU)
    assert model.mean is before
    assert torch.equal(model.mean, torch.zeros(4))
    assert model.passes is None
