# SPDX-License-Identifier: Apache-2.0
"""`make gpu`: its plan, what it leaves out, how it handles steps that fail or hang, and the page of its results."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import gpu  # noqa: E402
import gpu_build  # noqa: E402
import gpu_page  # noqa: E402
from gpu_running import Record, pids, read_rows, run_limited  # noqa: E402
from gpu_steps import BUILD_SECONDS, STEPS, Step, chosen, fitting  # noqa: E402

BUDGET = 520
SLEEPS = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
AWAY = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
    "print('started', flush=True)\n"
)


def test_the_plan_names_all_steps_and_adds_them_up() -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "scripts/gpu.py"), "--plan"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["build", *(step.name for step in STEPS), "together"]
    seconds = [int(line[17:24]) for line in lines]
    assert sum(seconds[:-1]) == seconds[-1]
    assert f"{len(STEPS)} of {len(STEPS)} steps" in lines[-1]


def test_everything_fits_the_time_that_a_lent_machine_gives() -> None:
    assert BUILD_SECONDS + sum(step.expected for step in STEPS) + gpu.RESERVE_SECONDS <= BUDGET
    assert all(step.limit() >= step.expected for step in STEPS)
    assert all(step.path.is_file() for step in STEPS)
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_a_budget_leaves_out_by_worth() -> None:
    expected = {"a": 30, "b": 50, "c": 10}
    first, second, third = (Step(name, name, "x.py", (), seconds) for name, seconds in expected.items())
    assert fitting([first, second, third], None) == [first, second, third]
    assert fitting([first, second, third], 80) == [first, second]
    assert fitting([first, second, third], 45) == [first, third], "a smaller one may still fit"
    assert fitting([first, second, third], 45, slower=2) == [third]
    assert fitting([first, second, third], 5) == []
    lines = subprocess.run(
        [sys.executable, str(ROOT / "scripts/gpu.py"), "--plan", "--budget", str(BUILD_SECONDS + 60)],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout.splitlines()  # fmt: skip
    left_out = [line.split()[0] for line in lines if "[left out: does not fit the budget]" in line]
    assert STEPS[0].name not in left_out
    assert STEPS[-1].name in left_out


def test_steps_are_chosen_by_name() -> None:
    assert [step.name for step in chosen(["pair", "killed"], [])] == ["killed", "pair"]
    assert "pair" not in [step.name for step in chosen([], ["pair"])]
    with pytest.raises(ValueError, match=r"there is no step 'pear': choose from groups-1\+1"):
        chosen(["pear"], [])


def marked(text: str) -> list[int]:
    """Returns the processes that sleep for a test."""
    found = []
    for pid in pids():
        try:
            found += [pid] if text.encode() in Path(f"/proc/{pid}/environ").read_bytes() else []
        except OSError:
            continue
    return found


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    text = f"TEST_GPU={request.node.name}-{os.getpid()}"
    yield text
    assert marked(text) == []


@pytest.mark.parametrize("source", [SLEEPS, f"{AWAY}time.sleep(600)"])
def test_a_step_that_hangs_is_killed_with_its_children(tmp_path: Path, name: str, source: str) -> None:
    key, _, value = name.partition("=")
    begin = time.monotonic()
    outcome = run_limited([sys.executable, "-c", source], os.environ | {key: value}, 2.0, tmp_path / "log")
    assert outcome.state == "timed out"
    assert time.monotonic() - begin < 20
    assert marked(name) == []


def test_what_a_step_leaves_behind_is_killed(tmp_path: Path, name: str) -> None:
    key, _, value = name.partition("=")
    outcome = run_limited([sys.executable, "-c", AWAY], os.environ | {key: value}, 60, tmp_path / "log")
    assert (outcome.state, outcome.status, outcome.tail) == ("passed", 0, "started")
    assert marked(name) == []


def trial(folder: Path, budget: float | None = None) -> gpu.Trial:
    given = argparse.Namespace(slower=1.0, quick=True)
    record = Record(folder)
    record.add(**machine())
    deadline = None if budget is None else time.monotonic() + budget
    return gpu.Trial(given, record, gpu_build.Ready(()), "sim", deadline)


def machine(**more: Any) -> dict[str, Any]:
    return {"kind": "machine", "device": "sim", "name": "simulated device", "vendor": "sim", "torch": "2.11.0",
            "runtime": "", "python": "3.12.1", "cores": 2, "memory_gib": 8, "quick": True, "commit": "abc",
            "day": "2026-11-27", "build_s": 60.0, "build_cpu_s": 900.0, **more}  # fmt: skip


def program(folder: Path, name: str, body: str) -> Step:
    """Makes a step that first prints which results of earlier steps are on disk."""
    path = folder / f"{name}.py"
    path.write_text(
        "import json, os, sys\n"
        "results = sys.argv[sys.argv.index('--results') + 1]\n"
        "done = [json.loads(line)['step'] for line in open(results) if '\"step\", ' in line or 'state' in line]\n"
        f"print('before:', *done)\n{body}\n"
    )
    return Step(name, f"{name} it", str(path), (), 1)


def test_steps_that_fail_do_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_steps.MIN_LIMIT", 1.5)
    steps = [
        program(tmp_path, "crashes", "os.kill(os.getpid(), 11)"),
        program(tmp_path, "raises", "raise ValueError('no such card')"),
        program(tmp_path, "hangs", "import time; time.sleep(600)"),
        program(tmp_path, "works", "print('well')"),
    ]
    running = trial(tmp_path / "out")
    assert not running.run(steps)
    rows = [row for row in read_rows(tmp_path / "out/results.jsonl") if row["kind"] == "step"]
    assert [(row["step"], row["state"]) for row in rows] == [
        ("crashes", "failed"), ("raises", "failed"), ("hangs", "timed out"), ("works", "passed"),
    ]  # fmt: skip
    assert "ValueError: no such card" in rows[1]["tail"]
    assert "status -11" in rows[0]["said"]
    assert "before: crashes raises hangs" in (tmp_path / "out/log.txt").read_text(), "results come before the next step"


def test_what_no_longer_fits_is_left_out_and_told(tmp_path: Path) -> None:
    small, large = (program(tmp_path, name, "") for name in ("small", "large"))
    large = Step("large", "large it", large.program, (), 1000)
    running = trial(tmp_path / "out", budget=60)
    assert running.run([large, small])
    rows = {row["step"]: row for row in read_rows(tmp_path / "out/results.jsonl") if row["kind"] == "step"}
    assert rows["large"]["state"] == "left out"
    assert "needs about 1000 s, and 5" in rows["large"]["said"]
    assert rows["small"]["state"] == "passed"


def test_a_row_that_was_not_written_to_its_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(machine()) + '\n{"kind": "st')
    assert read_rows(tmp_path / "results.jsonl") == [machine()]


@pytest.mark.verify
def test_without_a_card_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", gpu_build.PROBE], capture_output=True, text=True, timeout=60, check=True
    )
    if json.loads(done.stdout)[0]:
        pytest.skip("this machine has a device that PyTorch finds")
    with pytest.raises(SystemExit, match="finds no device in this machine: there is none, its driver is missing"):
        gpu_build.find_device("")
    assert gpu_build.find_device("sim") == "sim"


def test_what_a_build_misses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match=r"no-such-compiler is missing: install g\+\+"):
        gpu_build.require_tools()


RUN: list[dict[str, Any]] = [
    machine(device="cuda", name="A card", vendor="nvidia", quick=False),
    {"kind": "figure", "step": "killed", "text": "the others know after 0.10 s"},
    *({"kind": "step", "step": step.name, "state": "passed", "seconds": 3.0, "said": ""} for step in STEPS),
]


def test_the_page_is_filled_from_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "hardware.md"
    page.write_text(f"before\n{gpu_page.BEGIN}\nold\n{gpu_page.END}\nbehind\n")
    monkeypatch.setattr(gpu_page, "PAGE", page)
    monkeypatch.setattr(gpu_page, "RECORD", tmp_path / "gpu.json")
    monkeypatch.setattr(gpu_page, "ROOT", tmp_path)
    record = Record(tmp_path / "out")
    for row in RUN:
        record.add(**row)
    gpu_page.fill(tmp_path / "out")
    text = page.read_text()
    assert "| NVIDIA GPU | NCCL | run: `groups-1+1`, " in text
    assert "| AMD GPU | RCCL | not run | not run | not run |" in text
    assert "- the others know after 0.10 s" in text
    assert "old" not in text
    assert text.endswith("behind\n")
    assert json.loads((tmp_path / "gpu.json").read_text()) == {"nvidia": RUN}
    with pytest.raises(SystemExit, match="are of a real device"):
        gpu_page.write_rehearsal(tmp_path / "out")


def test_a_rehearsal_never_reaches_the_page(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.add(**machine())
    with pytest.raises(SystemExit, match=r"docs/hardware\.md takes those of a card, at full size"):
        gpu_page.fill(tmp_path)
    assert "**No GPU took part, and no figure here says anything about one**" in gpu_page.rehearsal(record.read())


def test_states_are_told_as_they_are() -> None:
    failed = [*RUN[:-1], {**RUN[-1], "state": "failed"}]
    assert gpu_page.state_of(RUN) == "**run**"
    assert gpu_page.state_of(failed) == "run, with failures"
    assert gpu_page.state_of(RUN[:5]) == "run in part"
    assert gpu_page.told(failed, ("pair",)) == "`pair` failed"


def test_the_page_says_what_the_record_says() -> None:
    text = gpu_page.PAGE.read_text().partition(gpu_page.BEGIN)[2].partition(gpu_page.END)[0].strip()
    assert text == gpu_page.part(gpu_page.saved())
    for step in STEPS:
        assert f"| `{step.name}` | {step.what} |" in gpu_page.PAGE.read_text()
