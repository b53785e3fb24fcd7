# SPDX-License-Identifier: Apache-2.0
"""Split inference with real bytes: real sessions between processes, over links that replay recorded ones."""

import importlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from atoll.infer.planning.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
SLACK = 5.0  # seconds that a busy machine may add


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module


@pytest.fixture
def programs(load: Any) -> Any:
    """The programs that `make setup` has built."""
    folder = ROOT / "build" / "release" / "bench"
    found = load("split_stage").Programs(folder / "split_session", folder / "split_server")
    assert found.session.exists(), f"{found.session} is missing: make setup builds it"
    return found


def check(case: Any, robots: dict[str, Any], seconds: float) -> None:
    """Checks times; a wrong byte would have ended the robot. Local inferences take their time, and `auto` not much
    longer."""
    alone = case.robot_seconds() / case.speed
    for name, robot in robots.items():
        times = [line["seconds"] for line in robot.lines]
        assert times, name
        assert len(times) <= seconds / case.period() + 1
        assert all(0 <= line["at"] < seconds + SLACK for line in robot.lines)
        assert all(later["at"] > line["at"] for line, later in pairwise(robot.lines))
        if name == "local":
            assert {line["origin"] for line in robot.lines} == {"local"}
            assert min(times) >= alone
            assert min(line["overhead"] for line in robot.lines) >= 0
    worst = {name: max(line["seconds"] for line in robot.lines) for name, robot in robots.items()}
    assert worst["auto"] <= 2 * worst["local"] + SLACK
    energy = [line["joules"] for line in robots["local"].lines]
    assert min(energy) > 4.04 * alone  # computing draws more than waiting


@pytest.mark.verify
def test_a_short_window_of_a_recorded_link(load: Any, programs: Any) -> None:
    split_bytes = load("split_bytes")
    case = split_bytes.Case(split_bytes.VGG, "compact", 2.0)
    part = split_bytes.window_of(load("split_papers").recorded("outdoors"), 8.0, seed=3)
    robots = split_bytes.robots_over(programs, case, part, ("local", "offload", "auto"))
    check(case, robots, part.seconds / case.speed)
    assert {line["origin"] for line in robots["offload"].lines} <= {"server", "local"}
    assert any(line["origin"] == "server" for line in robots["offload"].lines)
    sent = [line["up"] for line in robots["offload"].lines if line["origin"] == "server"]
    assert set(sent) == {150528}, "a byte per pixel and channel, which does not compress"


def test_overhead_at_a_constant_rate(load: Any, programs: Any) -> None:
    split_bytes = load("split_bytes")
    rows = split_bytes.at_rate(programs, split_bytes.Case(split_bytes.VGG, "compact", 4.0), 400, count=6)
    assert [row["policy"] for row in rows] == ["offload", "auto"]
    for row in rows:
        assert row["inferences"] == 6
        assert row["clear"] == 6, "nothing guards, and nothing is lost"
        assert "local" not in row["origins"]
        # Never earlier than computing and the link allow, apart from the clocks of the relay and the server.
        assert row["overhead"]["p50"] > -1e-4
        assert row["with_framing"]["p50"] >= row["overhead"]["p50"]
        assert row["overhead"]["p50"] < SLACK


@pytest.mark.verify
def test_several_robots(load: Any, programs: Any) -> None:
    row = load("split_robots").fleet(programs, programs.session.with_name("plan_fleet"), "VGG19", 2, seconds=1.5)
    assert set(row["ways"]) == {"local", "selfish", "auto", "aware"}
    for name, way in row["ways"].items():
        assert way["frames"] >= 2, name
        assert way["joules"] > 0
        assert len(way["kinds"]) == 2
    assert row["ways"]["local"]["plans"].keys() == {"local"}
    assert row["ways"]["local"]["seconds"] >= 2 * 0.168
    assert "2 VGG19" in load("split_robots").report({"rows": [row], "mbps": 73, "latency": 0.002})


@pytest.mark.verify
@pytest.mark.parametrize("environment", ["indoors", "outdoors"])
@pytest.mark.parametrize("model", ["VGG", "KAPAO", "AGRNAV"])
def test_a_minute_of_each_recorded_link(load: Any, programs: Any, environment: str, model: str) -> None:
    split_bytes = load("split_bytes")
    case = next(case for case in split_bytes.JUDGED if case.profile == getattr(split_bytes, model))
    part = split_bytes.window_of(load("split_papers").recorded(environment), 60.0, split_bytes.SEED)
    assert part.seconds == pytest.approx(60)
    robots = split_bytes.robots_over(programs, case, part, tuple(split_bytes.POLICIES))
    check(case, robots, 60.0)
    rows = {name: load("split_stage").row_of(robot) for name, robot in robots.items()}
    assert rows["auto"]["origins"].get("server", 0) + rows["auto"]["origins"].get("mixed", 0) > 0
    # On average the link helps, and the slowest answers take about as long as the robot alone.
    assert rows["auto"]["seconds"]["mean"] < rows["local"]["seconds"]["mean"] + 0.05
    assert rows["auto"]["seconds"]["p99"] < 1.5 * rows["local"]["seconds"]["p99"] + 0.1


def test_windows_are_like_the_record(load: Any) -> None:
    split_bytes = load("split_bytes")
    record = Trace(0.5, [1e5] * 500 + [1e7] * 500)
    part = split_bytes.window_of(record, 60.0, seed=1)
    assert len(part.up) == 120
    assert part == split_bytes.window_of(record, 60.0, seed=1)
    # It contains the rates of both halves of the record: 119 of the 881 windows do, and 64 are drawn.
    assert min(part.up.count(1e5), part.up.count(1e7)) > 10
    assert split_bytes.window_of(record, 1e6, seed=1).up == record.up
    faster = split_bytes.faster(part, 4.0)
    assert faster.seconds == pytest.approx(15)
    assert sum(faster.up) == pytest.approx(4 * sum(part.up))


def test_spreads_are_of_values_that_occur(load: Any) -> None:
    spread = load("split_stage").spread
    assert spread([]) == {}
    assert spread([3.0]) == {"mean": 3, "std": 0, "p50": 3, "p95": 3, "p99": 3, "most": 3}
    found = spread([float(value) for value in range(1, 101)])
    assert (found["p50"], found["p95"], found["p99"], found["most"]) == (50, 95, 99, 100)


def document(load: Any, **changes: Any) -> dict[str, Any]:
    split_bytes = load("split_bytes")

    def row(mean: float, p99: float, over: float) -> dict[str, Any]:
        times = {"mean": mean, "std": 0.0, "p50": mean, "p95": p99, "p99": p99, "most": p99}
        spent = {"mean": over, "std": 0.0, "p50": over, "p95": over, "p99": 2 * over, "most": 2 * over}
        return {"inferences": 5, "seconds": times, "overhead": spent, "with_framing": spent, "clear": 5,
                "on_bytes": 1e-4, "joules": times, "plans": {"stream": 5}, "origins": {"server": 5}, "guarded": 0,
                "link_losses": 0, "robot": 0.0, "up_bytes": 1.0, "down_bytes": 1.0}  # fmt: skip

    links = {name: {"mean": 1e7, "seconds": 60.0,
                    "rows": {"local": row(0.168, 0.170, 0.0005), "auto": row(0.05, 0.174, 0.001)}}
             for name in ("indoors", "outdoors")}  # fmt: skip
    case = {"profile": split_bytes.VGG, "encoding": "compact", "speed": 1.0, "links": links}
    other = {**case, "profile": "mobicom25_VGG19_BN", "speed": 6.0}
    rate = {**row(0.03, 0.04, 3e-3), "profile": split_bytes.VGG, "encoding": "compact", "mbps": 100,
            "policy": "offload", "plans": {"stream": 5}}  # fmt: skip
    return {"quick": False, "busy": False, "full": False, "window": 60.0, "seed": 1, "rates": [rate],
            "cases": [case, other], **changes}  # fmt: skip


def test_figures_that_miss_their_limits_are_marked(load: Any, tmp_path: Path) -> None:
    (tmp_path / "split_bytes.json").write_text(json.dumps(document(load)))
    rows = (line.split(" | ") for line in load("aims_table").summary(tmp_path).splitlines())
    found = {row[0].removeprefix("| "): f"{row[2]} {row[3].removesuffix(' |')}" for row in rows if len(row) == 4}
    over = found["real bytes: overhead of an inference, median"]
    assert over.startswith("3.0 ms")
    assert "offload at 100 Mbit/s" in over
    assert over.endswith("**missed**")
    assert found["real bytes: VGG19, outdoors"].endswith("a window met")
    assert found["real bytes: VGG19, indoors"].endswith("**missed**")
    assert found["real bytes: VGG19, p99 beyond local's, outdoors"].startswith("4.0 ms")
    assert found["real bytes: kapao, outdoors"] == "not measured "


def test_the_page_has_all_rows(load: Any) -> None:
    page = load("split_bytes").report(document(load))
    assert "| nsdi25_VGG19_BN | compact | 100 | offload | stream |" in page
    assert "| nsdi25_VGG19_BN | compact | indoors | auto | 5 | 50 |" in page
    assert "6 times as fast" in page
    assert "| mobicom25_VGG19_BN | compact | indoors | auto | 5 | 300 |" in page
