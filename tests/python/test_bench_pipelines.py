# SPDX-License-Identifier: Apache-2.0
"""The AMD and NVIDIA paper's experiment at tiny sizes, and its figures and pages for made-up samples."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
import torch.distributed as dist

BENCH = Path(__file__).resolve().parents[2] / "bench"
FAST, SLOW, MIXED, DCBS = "fast-fast", "slow-slow", "mixed", "dcbs"
PLANNER, PAPER, TURNED = "the planner's", "the paper's", "the paper's, turned"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def measured(name: str, folder: Path) -> Any:
    command = [sys.executable, str(BENCH / "run.py"), name, "--output", str(folder), "--quick", "--force-busy"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_long_pipelines_write_their_page(tmp_path: Path) -> None:
    (part,) = measured("pipelines_long", tmp_path)["parts"]
    assert [len(row["losses"]) for row in part["long"]["rows"]] == [4] * 3
    assert len(part["long"]["alone"]) == 4
    page = (tmp_path / "pipelines_long.md").read_text()
    for name in ("pipelines-llama-8b-loss", "pipelines-llama-8b-steps"):
        assert f"({name}.svg)" in page
        ElementTree.parse(tmp_path / f"{name}.svg")


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_pipelines_write_their_page(tmp_path: Path) -> None:
    document = measured("pipelines", tmp_path)
    (part,) = document["parts"]
    rows = {(row["layout"], row["transport"], row["split"]): row for row in part["rows"]}
    assert {(FAST, DCBS, PLANNER), (SLOW, DCBS, PAPER), (MIXED, DCBS, TURNED), (MIXED, DCBS, "replicas"),
            (MIXED, "global-gloo", PAPER), (MIXED, "dcbs+mpdt", PLANNER)} <= set(rows)  # fmt: skip
    assert ("device-direct" in part["missing"]) != ((MIXED, "device-direct", PAPER) in rows)
    assert all(len(row["tokens_s"]["rounds"]) == 2 and min(row["tokens_s"]["rounds"]) > 0 for row in rows.values())
    links = part["links"]
    assert "over 2 of 2 rails" in next(iter(links["dcbs+mpdt"].values()))
    assert "tcp" in next(iter(links["dcbs"].values()))
    assert links["global-gloo"] == {}
    for row in part["float64"]:
        assert row["relative"] < 1e-10, row
    assert document["square"]["float64"]["relative"] < 1e-10
    transfers = {row["transport"]: row for row in document["transfers"]["rows"]}
    assert "over 2 of 2 rails" in next(iter(transfers["dcbs+mpdt"]["links"].values()))
    assert next(iter(transfers["shared memory"]["links"].values())).startswith("shm")
    assert document["transfers"]["weight"] > 0.3
    page = (tmp_path / "pipelines.md").read_text()
    assert "| mixed by fast-fast | 98.2% |" in page
    assert "(pipelines-llama-8b.svg)" in page
    ElementTree.parse(tmp_path / "pipelines-llama-8b.svg")


def spread_of(values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "p10": ordered[0], "p90": ordered[-1], "rounds": values}


def row_of(layout: str, split: str, rates: list[float], transport: str = DCBS, **more: Any) -> dict[str, Any]:
    stages = [{"first": 0, "last": 4, "rank": 0}, {"first": 4, "last": 7, "rank": 1}]
    predicted = {"planned_s": 0.49, "simulated_s": 0.48} if transport == DCBS else {}
    return {"layout": layout, "transport": transport, "split": split, "tokens_s": spread_of(rates), "late": [],
            "passes_s": spread_of([0.5, 0.5, 0.5]), "bound_s": 0.48, **predicted,
            "plan": {"pipes": [{"stages": stages, "micro_batches": 4}]}, **more}  # fmt: skip


def links_of(transport: str) -> dict[str, str]:
    return {} if transport == "global-gloo" else {"1": f"{transport} to 1"}


@pytest.fixture
def document(load: Any) -> dict[str, Any]:
    cases = load("pipelines_cases")
    rows = [row_of(FAST, PLANNER, [102.0, 100.0, 100.0]), row_of(FAST, PAPER, [99.0, 98.0, 98.0]),
            row_of(SLOW, PLANNER, [97.0, 96.0, 96.0]), row_of(SLOW, PAPER, [95.0, 95.0, 94.0]),
            row_of(MIXED, PLANNER, [99.0, 99.0, 98.0]), row_of(MIXED, PAPER, [97.0, 97.0, 97.0]),
            row_of(MIXED, TURNED, [90.0, 90.0, 90.0]), row_of(MIXED, "replicas", [80.0, 80.0, 80.0]),
            row_of(MIXED, PLANNER, [85.0, 85.0, 85.0], "global-gloo")]  # fmt: skip
    losses = [5.0 - step / 100 for step in range(100)]
    long = {
        "rows": [{"layout": layout, "losses": losses, "late": [], "tokens_s": [100.0 + step % 3 for step in range(100)]}
                 for layout in (FAST, SLOW, MIXED)],
        "alone": [loss * 1.001 for loss in losses], "chunk": 10,
    }  # fmt: skip
    exact = [{"split": PLANNER, "transport": DCBS, "steps": 20, "relative": 3e-13}]
    part = {"pair": vars(cases.PAIRS[0]) | {"blocks": 4}, "rows": rows, "missing": {"device-direct": "no UCX"},
            "links": {}, "head": 2.41, "long": long, "float64": exact}  # fmt: skip
    square = {"pair": vars(cases.SQUARE) | {"blocks": 4}, "rows": [row_of(MIXED, PLANNER, [50.0, 50.0, 50.0])],
              "float64": {"steps": 20, "relative": 5e-12}}  # fmt: skip
    slow = [row_of(MIXED, PLANNER, [70.0, 70.0, 70.0], name) for name in ("global-gloo", "device-direct")]
    exposed = {"shared memory": 0.3, "global-gloo": 0.6, DCBS: 0.5, "dcbs+mpdt": 0.4}
    apart = [row_of(MIXED, PLANNER, [70.0, 70.0, 70.0], name, passes_s=spread_of([seconds] * 3), links=links_of(name))
             for name, seconds in exposed.items()]  # fmt: skip
    transfers = {"rows": apart, "missing": {}, "weight": 0.45, "rate": 2 * 10**7, "boundary": 1 << 18, "blocks": 8,
                 "micro_batches": 4}  # fmt: skip
    return {"parts": [part], "transfers": transfers, "slow_link": slow, "square": square, "rate": 10**9,
            "slow_rate": 5 * 10**7, "speed": 0.5, "steps": 3, "tokens": 32, "case": vars(cases.PAIRS[0].case()),
            "quick": False, "busy": False}  # fmt: skip


def test_figures_follow_from_rows(load: Any, document: dict[str, Any]) -> None:
    figures = load("pipelines_figures")
    rows = document["parts"][0]["rows"]
    mixed = figures.row_of(rows, MIXED, PLANNER)
    assert mixed["tokens_s"]["rounds"] == [99.0, 99.0, 98.0]  # not from rows of another transport
    ratio = figures.by(mixed, figures.row_of(rows, FAST, PLANNER))
    assert ratio["median"] == pytest.approx(0.98)  # of 99/102, 99/100 and 98/100
    assert figures.of_seconds(mixed, "bound_s")["median"] == pytest.approx(0.96)
    assert figures.apart(mixed) == pytest.approx(0.04)
    (bound,) = figures.mixed_of("bound_s")(document)
    assert bound.value == pytest.approx(96)
    (beyond,) = figures.beyond_paper(FAST)(document)
    assert beyond.value == pytest.approx(98.0 - 98.2)
    (over,) = figures.beyond_paper(SLOW)(document)
    assert over.value == pytest.approx(100 * (98 / 96 - 1.009))
    (bad,) = figures.bad_split(document)
    assert bad.value == pytest.approx(90 / 95)
    assert max(found.value for found in figures.simulated(document)) == pytest.approx(4)
    assert max(found.value for found in figures.exactness(document)) == pytest.approx(0.05)
    assert all(found.value == pytest.approx(100 / 1001, rel=1e-3) for found in figures.losses(document))
    assert [found.value for found in figures.steadiness(document)] == [0.0]


def test_exposed_time_is_beyond_shared_memory(load: Any, document: dict[str, Any]) -> None:
    transfers = load("pipelines_transfers")
    found = document["transfers"]
    by_name = {row["transport"]: row for row in found["rows"]}
    spread = transfers.exposed(by_name["dcbs+mpdt"], found["rows"])
    assert spread["median"] == pytest.approx(0.1)
    page = transfers.report(found)
    assert "take at least 45% of its computing. *Exposed*" in page
    assert "boundaries of 256 KiB" in page
    assert "| dcbs+mpdt | 400.0 (400.0 to 400.0) | 100.0 (100.0 to 100.0) | dcbs+mpdt to 1 |" in page
    assert "| global-gloo | 600.0 (600.0 to 600.0) | 300.0 (300.0 to 300.0) | Gloo |" in page
    found["weight"] = 0.2
    assert "less than the 30%" in transfers.report(found)
    by_name["shared memory"]["late"] = [0]
    assert transfers.exposed(by_name[DCBS], found["rows"]) is None
    assert "no figure" in transfers.report(found)


def test_a_stages_transfers_are_weighed(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = load("pipelines_transfers")
    stages = [{"send": 0.0, "forward": 1.0, "backward": 2.0}, {"send": 0.6, "forward": 0.5, "backward": 1.0},
              {"send": 0.9, "forward": 0.5, "backward": 1.0}]  # fmt: skip
    monkeypatch.setattr(transfers, "stages_of", lambda request, plan: stages)
    assert transfers.weight({}, {}) == pytest.approx(0.4)


def test_late_rows_give_no_figures(load: Any, document: dict[str, Any]) -> None:
    figures = load("pipelines_figures")
    part = document["parts"][0]
    for row in part["rows"]:
        if row["layout"] == MIXED:
            row["late"] = [1]
    part["long"]["rows"][2]["late"] = [0]
    assert figures.mixed_of("bound_s")(document) == figures.beyond_paper(FAST)(document) == []
    assert figures.bad_split(document) == figures.steadiness(document) == []
    page = load("pipelines").report(document)
    assert "oversubscribed (ranks 1)" in page


def test_losses_are_compared_as_means(load: Any) -> None:
    figures = load("pipelines_figures")
    assert figures.windows([1.0, 3.0]) == [2.0]
    assert figures.windows([1.0] * 20 + [2.0] * 20 + [9.0]) == [1.0, 2.0]
    noisy = [4.0 + (0.5 if step % 2 else -0.5) for step in range(40)]
    assert figures.loss_apart(noisy, [4.0] * 40) == pytest.approx(0.0)
    assert figures.loss_apart([4.0] * 20 + [4.4] * 20, [4.0] * 40) == pytest.approx(0.1)
    row = {"tokens_s": [1.0] * 10 + [50.0, *[100.0] * 9]}
    assert figures.settled(row, 10) == {"median": 100.0, "p10": 100.0, "p90": 100.0}


def test_the_page_says_what_was_found(load: Any, document: dict[str, Any]) -> None:
    page = load("pipelines").report(document)
    assert "| mixed by fast-fast | 98.2% | 98.0% " in page
    assert "| mixed by slow-slow | 100.9% | " in page
    assert "wrong way round falls below slow-slow" in page
    assert "device-direct did not start here: no UCX." in page
    assert "| 3 on 0 + 1 on 1 |" in page
    document["parts"][0]["rows"][6]["tokens_s"]["rounds"] = [96.0, 96.0, 96.0]
    assert "wrong way round does not fall below slow-slow" in load("pipelines").report(document)
    for name, drawing in load("pipelines_tables").plots_of(document).items():
        assert f"({name}.svg)" in page
        ElementTree.fromstring(drawing)
    page = load("pipelines_long").report(document)
    assert "| mixed | 101.0 " in page
    for name, drawing in load("pipelines_long_tables").plots_of(document["parts"]).items():
        assert f"({name}.svg)" in page
        ElementTree.fromstring(drawing)


def test_the_experiment_has_aims(load: Any, document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "pipelines.json").write_text(json.dumps(document))
    aims = [line for line in load("aims_table").summary(tmp_path).splitlines() if "not measured" not in line]
    assert any("of the planner's bound" in line and "96.0 percent" in line and "missed" in line for line in aims)
    assert any("a bad split" in line and "0.95x" in line and "| met |" in line for line in aims)
    assert any("float64" in line and "| met |" in line for line in aims)


def test_plans_are_asked_as_the_planner_reads_them(load: Any) -> None:
    prediction, cases = load("pipelines_prediction"), load("pipelines_cases")
    request = {"micro_batch": 8, "devices": [{"name": "a", "ranks": [1]}, {"name": "b", "ranks": [0, 2]}]}
    plan = cases.cut_plan([[0, 1]], 3, 4, 5)
    assert prediction.as_asked(request, plan) == {
        "micro_batch": 8,
        "pipelines": [{"micro_batches": 5, "stages": [{"items": [0, 3], "device": "b", "recompute": False},
                                                      {"items": [3, 7], "device": "a", "recompute": False}]}],
    }  # fmt: skip
    assert cases.blocks_text(plan, 4) == "2 on 0 + 2 on 1"
    assert cases.blocks_text({"pipes": [{"stages": [{"first": 0, "last": 7, "rank": 1}]}]}, 4) == "4 on 1"
    kinds = ["embedding", "block", "block", "norm", "head"]
    items = [{"kind": kind, "times": {"a": [[8, seconds, seconds]]}} for kind, seconds in
             zip(kinds, (0.1, 1.0, 3.0, 0.5, 3.5), strict=True)]  # fmt: skip
    assert prediction.head_blocks({"items": items}) == pytest.approx(2.0)


def test_predictions_come_from_a_request(load: Any) -> None:
    prediction, cases = load("pipelines_prediction"), load("pipelines_cases")
    kinds = [("embedding", 1e-3), *[("block", 1.0)] * 4, ("norm", 1e-3), ("head", 2.0)]
    items = [{"name": f"{kind} {number}", "kind": kind, "output_bytes": 0,
              "times": {"fast": [[8, seconds / 3, seconds / 1.5]], "slow": [[8, seconds / 1.5, seconds / 0.75]]}}
             for number, (kind, seconds) in enumerate(kinds)]  # fmt: skip
    devices = [{"name": name, "count": 1, "ranks": [rank]} for rank, name in enumerate(("fast", "slow"))]
    request = {"items": items, "devices": devices, "batch": 32, "micro_batch": 8, "replicas": 1, "schedule": "1f1b"}
    best = prediction.best_cut(request, [[0, 1]], 4, 4)
    assert cases.blocks_text(best, 4) == "4 on 0 + 0 on 1"  # four seconds beside two, twice as slow
    found = prediction.predict(request, best)
    assert found["planned_s"] == pytest.approx(3 * 4 + 8, rel=1e-2)
    assert 0 < found["simulated_s"] <= found["planned_s"] * (1 + 1e-9)
    worse = prediction.predict(request, cases.cut_plan([[0, 1]], 3, 4, 4))
    assert worse["simulated_s"] > found["simulated_s"]
    devices[0]["memory_bytes"] = 1
    items[0]["weight_bytes"] = 2
    with pytest.raises(RuntimeError, match=r"the plan does not fit .* on fast needs"):
        prediction.predict(request, best)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_process_learns_bytes(load: Any, dtype: str) -> None:
    training, cases = load("pipelines_training"), load("pipelines_cases")
    case = cases.Case(2, 300, dtype=dtype, rate=1e-2)
    rows = training.rows_of(case, 0)
    assert rows.shape == (32, 32)
    assert int(rows.max()) < 256
    assert torch.equal(rows, training.rows_of(case, 0))
    assert not torch.equal(rows, training.rows_of(case, 1))
    losses = training.alone(case, 6)
    assert losses == training.alone(case, 6)
    assert losses[-1] < losses[0]


def test_staged_messages_and_sums(load: Any) -> None:
    """Two ranks of stock Gloo in one process: threads cannot share a default group, so each has its own object."""
    from concurrent.futures import ThreadPoolExecutor
    from datetime import timedelta

    staged = load("staged")
    store = dist.HashStore()

    def rank(number: int) -> list[list[float]]:
        settings = SimpleNamespace(store=store, group_rank=number, group_size=2, timeout=timedelta(seconds=30))
        group = staged.Staged(settings)
        total, told = torch.full((3,), 1.0 + number), torch.full((2,), float(number))
        group.allreduce([total]).wait()
        group.broadcast([told]).wait()
        every = torch.empty(4)
        group._allgather_base(every, torch.tensor([number, 10.0 + number])).wait()
        got = torch.empty(2, requires_grad=True)  # as the input of a stage
        works = [group.send([torch.tensor([number, 5.0])], 1 - number, 0), group.recv([got], 1 - number, 0)]
        assert all(work.wait() for work in works)
        group.barrier().wait()
        return [total.tolist(), told.tolist(), every.tolist(), got.tolist()]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    both = [[3.0] * 3, [0.0] * 2, [0.0, 10.0, 1.0, 11.0]]
    assert first == [*both, [1.0, 5.0]]
    assert second == [*both, [0.0, 5.0]]
