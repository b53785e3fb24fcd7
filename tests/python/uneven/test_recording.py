# SPDX-License-Identifier: Apache-2.0
"""A recorded training: the measurements and notes of all ranks are in the record, and on the page."""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll
from atoll.loading.logged_values import MAX_NAMES, NOTED_NUMBERS, Notes, together
from atoll.report.page import report
from atoll.report.records import Training, read
from atoll.watching.options import Watch
from client_ranks import on_layouts
from support import Ranks, device
from test_loader import BATCH, Numbers, wrapped

STEPS = 6


def recorded(rank: int, size: int, folder: str) -> None:
    model = wrapped()
    settings = atoll.training.Settings(measure=False, update_interval=2, watch=Watch(live=False, record=folder))
    loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
    losses = []
    with pytest.raises(RuntimeError, match="there is no current batch"):
        loader.note(loss=1.0)
    for steps, (inputs, targets, _) in enumerate(loader, start=1):
        loss = nn.functional.cross_entropy(model(inputs.to(device())), targets.to(device()))
        loss.backward()
        loader.note(loss=loss, rank=float(rank))
        losses.append(loader.mean(loss).item())
        if steps == STEPS:
            break
    loader.planner._follower.watchers.close()
    if rank == 0:
        (record,) = read(Path(folder))
        found = Training.of(record)
        noted = [window.noted["loss"] for window in found.windows]
        pairs = zip(losses[0:STEPS:2], losses[1:STEPS:2], strict=True)
        assert noted == pytest.approx([sum(pair) / 2 for pair in pairs][: len(noted)], rel=1e-6)
        last = found.windows[-1]
        assert len(last.exposed_seconds) == len(last.bridge_seconds) == len(last.staging_seconds) == size
        assert min(last.exposed_seconds) > 0
        assert {source for source, _, _ in last.links} == set(range(size)), "every rank sends to another"
        assert all(source != target and count > 0 for source, target, count in last.links)
        assert record.about["policy"] == "minmax"
        text, _ = report([record])
        assert "Bytes by link" in text


@pytest.mark.parametrize("ranks", ["AAA", "Ab"], indirect=True)
def test_what_is_recorded(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(recorded, ranks.size, str(tmp_path))


@on_layouts("AA")
def test_ranks_that_note_different_names_get_a_warning(rank: int, size: int) -> None:
    model = wrapped()
    watch = Watch(live=False, prometheus=0) if rank == 0 else Watch(live=False)
    settings = atoll.training.Settings(measure=False, update_interval=1, watch=watch)
    loader = atoll.DataLoader(Numbers(), BATCH, model=model, settings=settings)
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: told.append(entry.getMessage())  # type: ignore[method-assign]
    logging.getLogger("atoll.plan").addHandler(handler)
    for steps, (inputs, targets, _) in enumerate(loader, start=1):
        nn.functional.cross_entropy(model(inputs), targets).backward()
        loader.note(**{("loss", "los")[rank]: 1.0})
        if steps == 3:
            break
    logging.getLogger("atoll.plan").removeHandler(handler)
    loader.planner._follower.watchers.close()
    assert len([text for text in told if "different names" in text]) == (1 if rank == 0 else 0)


def test_notes_are_weighted_means() -> None:
    ranks = [Notes(), Notes()]
    ranks[0].add(0.75, {"b": torch.tensor([[2.0]], requires_grad=True), "a": 1})
    ranks[0].add(0.75, {"b": 4.0, "a": 1})
    ranks[1].add(0.25, {"b": 10.0, "a": 3})
    ranks[1].add(0.0, {"b": float("nan"), "a": float("inf")})  # a batch without weight
    ranks[1].add(0.25, {"b": torch.tensor(10.0), "a": 3})
    names = ranks[0].names()
    rows = [each.take() for each in ranks]
    assert {len(row) for row in rows} == {NOTED_NUMBERS}
    assert together(names, rows) == {"a": pytest.approx(1.5), "b": pytest.approx(0.75 * 3 + 0.25 * 10)}
    assert [each.take() for each in ranks] == [[0.0] * NOTED_NUMBERS] * 2
    assert together([], [[0.0] * NOTED_NUMBERS] * 2) == {}
    assert together(["a"], [rows[0], [0.0] * NOTED_NUMBERS]) is None


def test_notes_that_cannot_be_shown() -> None:
    notes = Notes()
    with pytest.raises(ValueError, match="loss has 2 elements: give a single number"):
        notes.add(1.0, {"loss": torch.zeros(2)})
    with pytest.raises(ValueError, match=f"is one name too many: at most {MAX_NAMES} can be shown"):
        notes.add(1.0, {f"name{place}": 0.0 for place in range(MAX_NAMES + 1)})
