# SPDX-License-Identifier: Apache-2.0
"""atoll.Checkpointer: checkpoints that are there whole or not at all, whatever happens while they are written, and
that ranks agree on."""

import copy
import errno
import logging
import os
import random
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import atoll
from atoll.saving import files
from support import Ranks, raises
from training import network


class Place:
    """The part of a loader that a checkpoint uses."""

    def __init__(self) -> None:
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def make(folder: Path, **options: Any) -> tuple[nn.Module, Place, atoll.Checkpointer]:
    net, place = network(), Place()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4])
    items = {"model": net, "optimizer": optimizer, "schedule": schedule, "place": place}
    return net, place, atoll.Checkpointer(folder, **{"every": 1, "keep": 3, **items, **options})


def advance(net: nn.Module, place: Place, saved: atoll.Checkpointer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer = saved._items["optimizer"]
        inputs = torch.full((4, 12), float(place.at), dtype=torch.float64)
        nn.functional.cross_entropy(net(inputs), torch.arange(4)).backward()
        optimizer.step()
        optimizer.zero_grad()
        saved._items["schedule"].step()
        place.at += 1
        saved.step()


def names(folder: Path) -> list[int]:
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []
    return files.steps_in(folder)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def states(saved: atoll.Checkpointer) -> dict[str, Any]:
    return copy.deepcopy({name: item.state_dict() for name, item in saved._items.items()})


def test_goes_on_where_it_was(tmp_path: Path) -> None:
    net, place, saved = make(tmp_path / "made" / "new")
    assert saved.resume() == 0
    advance(net, place, saved, 5)
    _, other_place, other = make(tmp_path / "made" / "new")
    assert (other.resume(), other.steps, other_place.at) == (5, 5, 5)
    assert equal(states(other), states(saved))
    assert names(tmp_path / "made" / "new") == [5, 4, 3]


def test_saves_every_few_steps_and_when_asked(tmp_path: Path) -> None:
    net, place, saved = make(tmp_path, every=3)
    advance(net, place, saved, 7)
    assert names(tmp_path) == [6, 3]
    saved.save()
    before = (tmp_path / "step-000000000007.saved").stat().st_mtime_ns
    saved.save()
    assert (tmp_path / "step-000000000007.saved").stat().st_mtime_ns == before
    assert names(tmp_path) == [7, 6, 3]


class Crash(BaseException):
    """Stands for the end of the process."""


# Proves E-5.
@pytest.mark.parametrize("at", ["torch.save", "os.fsync", "os.replace"])
@pytest.mark.parametrize("crash", [True, False])
def test_a_fault_while_it_is_written(
    at: str, crash: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    net, place, saved = make(tmp_path)
    advance(net, place, saved, 2)
    before = states(saved)

    def fail(*arguments: Any, **options: Any) -> None:
        raise Crash if crash else OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(at, fail)
        if crash:
            patched.setattr(Path, "unlink", fail)  # nothing is cleaned up
            with pytest.raises(Crash):
                advance(net, place, saved)
        else:
            advance(net, place, saved)
            assert f"step 3 could not be saved in {tmp_path}: Input/output error; training continues" in caplog.text
            assert names(tmp_path) == [2, 1]
    _, _, other = make(tmp_path)
    assert other.resume() == 2
    assert equal(states(other), before)
    assert names(tmp_path) == [2, 1]
    if not crash:
        advance(net, place, saved)
        assert names(tmp_path) == [4, 2, 1]


def test_a_crash_before_the_folder_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renamed file may or may not exist; here it does."""
    net, place, saved = make(tmp_path)

    def fail(folder: Path) -> None:
        raise Crash

    monkeypatch.setattr(files, "_sync_folder", fail)
    with pytest.raises(Crash):
        advance(net, place, saved)
    assert make(tmp_path)[2].resume() == 1


def test_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net, place, saved = make(tmp_path)
    advance(net, place, saved)
    size = (tmp_path / "step-000000000001.saved").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (16, 4096, size - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            advance(net, place, saved)
            with pytest.raises(OSError, match=r"could not be saved in .*: File too large") as found:
                saved.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert found.value.errno == errno.EFBIG
        assert f"step {saved.steps} could not be saved" in caplog.text
        assert names(tmp_path) == [1]
    advance(net, place, saved)
    assert names(tmp_path) == [5, 1]
    assert make(tmp_path)[2].resume() == 5


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def lengthen(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def replace_by_torch(file: Path) -> None:
    torch.save({"items": {}}, file)


def rename_another(file: Path) -> None:
    file.write_bytes(file.with_name("step-000000000002.saved").read_bytes())


def forbid(file: Path) -> None:
    file.unlink()
    file.mkdir()


# Proves E-5.
@pytest.mark.parametrize(
    "damage",
    [cut, flip, lengthen, replace_by_torch, rename_another, forbid, lambda file: file.write_bytes(b"")],
    ids=["cut", "flip", "lengthen", "foreign", "renamed", "folder", "empty"],
)
def test_a_damaged_file_is_passed_over(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net, place, saved = make(tmp_path, keep=2)
    advance(net, place, saved, 3)
    damage(tmp_path / "step-000000000003.saved")
    net, place, other = make(tmp_path, keep=1)
    assert other.resume() == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "step-000000000003.saved" in record.getMessage()
    if damage is not forbid:
        advance(net, place, other, 2)
        assert names(tmp_path) == [4]


def test_nothing_but_damaged_files(tmp_path: Path) -> None:
    net, place, saved = make(tmp_path)
    advance(net, place, saved)
    cut(tmp_path / "step-000000000001.saved")
    assert make(tmp_path)[2].resume() == 0


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    net, place, saved = make(tmp_path)
    advance(net, place, saved, 2)
    file = tmp_path / "step-000000000002.saved"
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 8, files.VERSION + 1)
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"000002\.saved has version 2, but this Atoll reads version 1: resume with"):
        make(tmp_path)[2].resume()


class Evil:
    """A value that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


# Proves E-6.
def test_code_is_neither_saved_nor_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, place, saved = make(tmp_path)
    place.at = [Evil()]  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"place\['at'\]\[0\] is a test_checkpointer\.Evil: atoll\.Checkpointer writes"):
        saved.save()
    files.write(tmp_path, 0, {"items": {"place": Evil()}, "random": None})
    with pytest.raises(ValueError, match="is intact, but does not hold a valid state"):
        make(tmp_path)[2].resume()
    assert not Path("evil").exists()


def test_another_training_is_refused(tmp_path: Path) -> None:
    net, place, saved = make(tmp_path)
    advance(net, place, saved)
    before = states(saved)
    with pytest.raises(ValueError, match="holds model, optimizer, place, schedule, but this training run has model"):
        atoll.Checkpointer(tmp_path, model=net).resume()
    for other, message in (
        (nn.Linear(3, 2), r"saved does not fit model: 'weight' is only in the model; restore the original"),
        (
            nn.Sequential(nn.Linear(12, 34), *network()[1:]),
            r"model: '0.weight' is \[33, 12\] in the checkpoint, \[34, 12",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make(tmp_path, model=other, place=place)[2].resume()
    two_groups = torch.optim.Adam([{"params": [parameter]} for parameter in network().parameters()])
    with pytest.raises(ValueError, match="saved does not fit optimizer: "):
        make(tmp_path, optimizer=two_groups)[2].resume()
    assert equal(states(saved), before)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"every": 0}, ValueError, "every=0: must be an integer of at least 1"),
        ({"keep": True}, ValueError, "keep=True: must be an integer"),
        ({"model": 3}, TypeError, "model is a int, which has no state_dict"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], kind: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=message):
        make(tmp_path, **options)
    with pytest.raises(ValueError, match="nothing to save"):
        atoll.Checkpointer(tmp_path)


def draw() -> list[float]:
    return [random.random(), float(numpy.random.random()), float(torch.rand(()))]


def test_random_states(tmp_path: Path) -> None:
    saved = make(tmp_path, random=True)[2]
    saved.save()
    expected = draw()
    assert draw() != expected
    other = make(tmp_path, random=True)[2]
    assert other.resume() == 0
    assert draw() == expected


def agree(rank: int, folders: list[str]) -> tuple[int, int]:
    net, place, saved = make(Path(folders[rank]))
    net = DistributedDataParallel(net)
    saved = make(Path(folders[rank]), model=net, place=place)[2]
    found = saved.resume()
    place.at += 1
    saved.step()
    return found, place.at


def fill(folder: Path, steps: int) -> None:
    net, place, saved = make(folder)
    advance(net, place, saved, steps)


def test_ranks_take_the_newest_that_one_has(tmp_path: Path, two_ranks: Ranks) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    fill(one, 2)
    fill(two, 4)
    assert two_ranks.run(agree, [str(one), str(two)]) == [(4, 5), (4, 5)]
    assert (names(one), names(two)) == ([5, 2, 1], [4, 3, 2])  # rank 0 alone writes


def test_a_damaged_file_of_one_rank(tmp_path: Path, two_ranks: Ranks) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    fill(one, 2)
    fill(two, 4)
    flip(two / "step-000000000004.saved")
    assert two_ranks.run(agree, [str(one), str(two)]) == [(3, 4), (3, 4)]


def refuse(rank: int, folders: list[str]) -> None:
    with raises(ValueError, "has version 2", "" if rank else "rank 1: "):
        make(Path(folders[rank]))[2].resume()
    assert dist.get_world_size() == 2


def test_an_error_of_one_rank_is_raised_on_all(tmp_path: Path, two_ranks: Ranks) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    fill(one, 2)
    fill(two, 1)
    file = two / "step-000000000001.saved"
    data = bytearray(file.read_bytes())
    struct.pack_into("<I", data, 8, 2)
    file.write_bytes(data)
    two_ranks.run(refuse, [str(one), str(two)])


def of_each_host(rank: int, folder: str) -> None:
    """Each rank is the first rank of a host of its own."""
    before = os.environ["LOCAL_RANK"]
    os.environ["LOCAL_RANK"] = "0"
    try:
        make(Path(folder) / str(rank), each_host=True)[2].save()
        saved = make(Path(folder) / "random", random=True)[2]
        torch.manual_seed(rank)
        saved.save()
        expected = draw()
        torch.manual_seed(99)
        assert saved.resume() == 0
        assert draw() == expected
    finally:
        os.environ["LOCAL_RANK"] = before


def test_each_host_and_the_random_states_of_each_rank(tmp_path: Path, two_ranks: Ranks) -> None:
    two_ranks.run(of_each_host, str(tmp_path))
    assert (names(tmp_path / "0"), names(tmp_path / "1")) == ([0], [0])
