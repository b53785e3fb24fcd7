# SPDX-License-Identifier: Apache-2.0
"""The judgement of bench/ about what it measured."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


@pytest.mark.parametrize(
    ("buckets", "backward", "bandwidth", "exposed"),
    [
        ([10], 4.0, 5.0, 2.0),  # one bucket is ready at the very end
        ([10, 10], 20.0, 1.0, 10.0),  # the first has crossed when the second is ready
        ([5, 10], 3.0, 1.0, 13.0),  # the second waits for the first
    ],
)
def test_least_exposed(load: Any, buckets: list[int], backward: float, bandwidth: float, exposed: float) -> None:
    assert load("ddp").least_exposed(buckets, backward, bandwidth) == pytest.approx(exposed)


def bridge_document(**changes: Any) -> dict[str, Any]:
    def row(layout: str, us: float) -> dict[str, Any]:
        times = {"median": us, "p10": us, "p90": us}
        return {"rate": 10**9, "layout": layout, "bound_us": 95.0, "us": {"atoll": times}, "ratio": {"gloo": times}}

    return {"quick": False, "busy": False, "rows": [row("AABB", 96.0), row("AAAB", 101.0)], **changes}


def test_the_worst_case_counts(load: Any, tmp_path: Path) -> None:
    aims = load("aims_table")
    (tmp_path / "bridge.json").write_text(json.dumps(bridge_document()))
    line = next(line for line in aims.summary(tmp_path).splitlines() if "of M/B" in line)
    assert "94.1%, AAAB at 1 Gbit/s" in line
    assert "**missed**" in line


def test_readme_has_the_headlines_with_their_pages(load: Any, tmp_path: Path) -> None:
    aims = load("aims_table")
    assert {aim.name for aim in aims.AIMS} >= aims.HEADLINES
    (tmp_path / "bridge.json").write_text(json.dumps(bridge_document()))
    text = aims.summary(tmp_path, headlines=True)
    assert [line.split(" | ")[0] for line in text.splitlines()[2:4]] == [
        "| [200 Mbit/s and 1 Gbit/s, of M/B](docs/results/bridge.md)",
        "",
    ]
    assert "Of 2 aims 1 are met" in text


@pytest.mark.parametrize("mark", ["quick", "busy"])
def test_doubtful_measurements_are_not_judged(load: Any, tmp_path: Path, mark: str) -> None:
    (tmp_path / "bridge.json").write_text(json.dumps(bridge_document(**{mark: True})))
    assert "missed" not in load("aims_table").summary(tmp_path)
    assert " met " not in load("aims_table").summary(tmp_path)


def devices_document(**changes: Any) -> dict[str, Any]:
    def added(size: int, low: float, median: float, high: float) -> dict[str, Any]:
        return {"library": "gloo", "bytes": size, "added_us": {"median": median, "low": low, "high": high}}

    def staged(case: str, share: float, late: list[int]) -> dict[str, Any]:
        ratio = {"median": share, "p10": share, "p90": share}
        row = {"case": case, "devices": ["cpu", "sim"], "fraction": ratio, "ratio": {"relay": ratio}}
        return {**row, "oversubscribed": late, "most_to_gain": 2.5}

    return {
        "quick": False, "busy": False,
        "overhead": [added(4, 1, 2, 3), added(1 << 20, 5, 15, 30), added(64 << 20, -900, 300, 1200)],
        "staging": [staged("fast", 0.9, []), staged("slow", 0.5, [1])],
        **changes,
    }  # fmt: skip


def lines_of(load: Any, folder: Path, document: dict[str, Any], scenario: str = "devices") -> dict[str, str]:
    (folder / f"{scenario}.json").write_text(json.dumps(document))
    rows = (line.split(" | ") for line in load("aims_table").summary(folder).splitlines())
    return {row[0].removeprefix("| "): f"{row[2]} {row[3].removesuffix(' |')}" for row in rows if len(row) == 4}


def test_added_time_is_judged_where_it_can_be_seen(load: Any, tmp_path: Path) -> None:
    line = "added per call to Gloo alone"
    assert lines_of(load, tmp_path, devices_document())[line] == "15.0 us (5.0 us to 30.0 us), at 1 MiB met"
    noisy_but_slower = [{"library": "gloo", "bytes": 4, "added_us": {"median": 300, "low": 50, "high": 900}}]
    found = lines_of(load, tmp_path, devices_document(overhead=noisy_but_slower))
    assert found[line].endswith("at 4 B **missed**")
    unclear = [{"library": "gloo", "bytes": 4, "added_us": {"median": 300, "low": -50, "high": 900}}]
    assert lines_of(load, tmp_path, devices_document(overhead=unclear))[line] == "not measured "


def test_ratios_of_steps(load: Any, tmp_path: Path) -> None:
    row = {"library": "gloo", "ratio": {"median": 1.0, "low": 0.99, "high": 1.03}, "oversubscribed": []}
    document = {"quick": False, "busy": False, "rows": [row]}
    found = lines_of(load, tmp_path, document, "library")
    assert found["DDP step over a library by that alone: how far its interval is from 1.00"].endswith("over gloo met")
    assert found["DDP step over a library by that alone: half of its interval"].startswith("2.0 percent")
    row["ratio"] = {"median": 1.02, "low": 1.01, "high": 1.03}
    found = lines_of(load, tmp_path, document, "library")
    assert found["DDP step over a library by that alone: how far its interval is from 1.00"].endswith("**missed**")


def test_oversubscribed_rows(load: Any, tmp_path: Path) -> None:
    found = lines_of(load, tmp_path, devices_document())
    assert found["islands of devices, of the slowest stage"] == "90%, fast, cpu + sim met"
    document = devices_document()
    line = "islands of devices, against the relay, where 2x can be"
    assert found[line].startswith("0.90x")
    document["staging"][0]["most_to_gain"] = 1.1  # the relay itself is that close to the slowest stage
    assert lines_of(load, tmp_path, document)[line] == "not measured "


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (9, 2, 8), (61, 23, 39)],  # by tables of the sign test
)
def test_median_interval(load: Any, count: int, low: int, high: int) -> None:
    found = load("intervals").median_interval([float(value) for value in range(count, 0, -1)])
    assert found == {"median": (count + 1) / 2, "low": low, "high": high}


def test_the_slowest_stage(load: Any) -> None:
    row = {"bytes": 1000, "copy_bytes_s": 1e9, "us": {}}  # 1 us at that rate
    for bridge, slowest, fraction in ((0.5, "the copies", 0.5), (1.5, "the bridge", 0.75)):
        row["us"] = {name: {"median": us, "rounds": [us]} for name, us in (("atoll", 2.0), ("bridge", bridge))}
        found = load("devices_staging").of_slowest(row)
        assert (found["slowest"], found["fraction"]["median"]) == (slowest, fraction)


def ready_document(load: Any) -> dict[str, Any]:
    ready = load("ready")
    rows = {
        part: [
            {"name": name, "seconds": load("compare").spread([1.0]), "more": load("compare").spread([0.1])}
            for name in names
        ]
        for part, names in (("imports", ready.IMPORTS), ("jobs", ready.JOBS))
    }
    return {"quick": False, "busy": False, **rows}


@pytest.mark.verify
def test_the_import_is_timed_alone(load: Any, tmp_path: Path) -> None:
    """An older measurement without it gives no figure."""
    ready, document = load("ready"), ready_document(load)
    path = tmp_path / "ready.json"
    path.write_text(json.dumps(document))
    assert "In one process" not in ready.report(document)
    assert re.search(r"^\| import, beyond torch's \|.*not measured", load("aims_table").summary(tmp_path), re.MULTILINE)
    seconds = [0.002, ready._import_seconds("import atoll", "0", "import torch"), 0.02]
    path.write_text(json.dumps(document | {"after": {"seconds": load("compare").spread(seconds)}}))
    assert 0 < seconds[1] < 1
    assert f"{ready.AFTER} | met |" in load("aims_table").summary(tmp_path)
    assert "In one process, `import atoll` after `import torch`" in ready.report(json.loads(path.read_text()))
