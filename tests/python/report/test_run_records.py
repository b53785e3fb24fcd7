# SPDX-License-Identifier: Apache-2.0
"""Records of runs: what was written is read back, whatever has happened to the file in between."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from atoll.infer.session_record import SessionRecord
from atoll.report.inferences import Inferences
from atoll.report.records import RecordError, Training, read, read_file
from atoll.watching.options import Watch
from atoll.watching.run_record import RunFile, bucket_of, latency_of
from atoll.watching.watcher import Watchers, watchers
from made_records import DIVISION, WINDOW, facts, inferences, training, windows


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_a_training_is_read_as_it_was(tmp_path: Path) -> None:
    training(tmp_path / "new" / "folder", count=6)
    (record,) = read(tmp_path)
    found = Training.of(record)
    assert [window.step for window in found.windows] == [50, 100, 150, 200, 250, 300]
    assert found.windows[0] == windows(6)[0]
    assert [event.kind for event in found.events] == ["new plan", "drift"]
    assert (record.about["policy"], record.about["pid"], record.notes) == ("minmax", os.getpid(), [])
    assert record.end == {**record.end, "error": None}  # type: ignore[dict-item]


def test_lines_are_there_at_once_and_a_killed_process_leaves_a_record_without_an_end(tmp_path: Path) -> None:
    training(tmp_path, count=2, is_closed=False)
    (record,) = read(tmp_path)
    assert len(record.of("window")) == 2
    assert record.end is None


def test_a_loader_that_shows_nothing_leaves_no_record(tmp_path: Path) -> None:
    all_watchers = Watchers(Watch(live=False, record=str(tmp_path)), rank=0)
    assert [str(watcher) for watcher in all_watchers.list] == [f"Watch(record='{tmp_path}')"]
    all_watchers.close()
    assert list(tmp_path.iterdir()) == []


def test_the_environment_names_a_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_RUN_DIR", str(tmp_path / "runs"))
    (watcher,) = watchers(Watch(live=False))
    watcher.window(WINDOW)
    watcher.close()
    assert len(read(tmp_path)) == 1
    assert watchers(Watch(live=False, record="")) == []


def test_a_folder_that_cannot_be_had_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match=r"Watch\(record='.*'\) cannot be written: .*: give a folder"):
            Watchers(Watch(live=False, record=str(folder)), rank=0)
        with pytest.raises(ValueError, match=r"the record of the run cannot be written to .*: set record="):
            RunFile(str(folder), "inference", {})


def test_an_error_that_ends_the_program_is_recorded(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from atoll.watching.options import Watch
from atoll.watching.watcher import Watchers
from made_records import WINDOW
all_watchers = Watchers(Watch(live=False, record={str(tmp_path)!r}), 0)
all_watchers.window(WINDOW)
raise RuntimeError("no memory")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    (record,) = read(tmp_path)
    assert record.end is not None, done.stderr
    assert record.end["error"] == "RuntimeError: no memory"


def test_a_large_record_is_thinned_and_stays_whole(tmp_path: Path) -> None:
    file = RunFile(str(tmp_path), "training", {"devices": []}, most_bytes=20_000)
    for step in range(2_000):
        file.add("window", {"step": step})
        if step % 200 == 0:
            file.add("event", {"step": step, "kind": "k", "text": "t"})
        assert file.path.stat().st_size < 21_000
    file.close()
    record = read_file(only(tmp_path))
    assert record is not None
    steps = [line["step"] for line in record.of("window")]
    gaps = {after - before for before, after in pairwise(steps)}
    assert len(steps) > 50
    assert max(gaps) <= 3 * min(gaps), "what is left is evenly spread"
    assert steps[-1] > 1_900
    assert len(record.of("event")) == 10, "events stay"
    assert record.end is not None


def test_events_alone_do_not_fill_the_disk(tmp_path: Path) -> None:
    file = RunFile(str(tmp_path), "training", {"devices": []}, most_bytes=20_000)
    for step in range(1_000):
        file.add("event", {"step": step, "kind": "k", "text": "t" * 100})
        assert file.path.stat().st_size < 21_000
    record = read_file(file.path)
    assert record is not None
    assert record.of("event")[-1]["step"] == 999


@pytest.mark.parametrize("cut", [1, 7, 100])
def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path, cut: int) -> None:
    training(tmp_path, count=3, is_closed=False)
    path = only(tmp_path)
    path.write_bytes(path.read_bytes()[:-cut])
    (record,) = read(tmp_path)
    assert len(record.of("window")) == 2
    assert record.notes == [f"the last line of {path.name} is truncated: it is ignored"]


def test_damaged_lines_are_left_out_and_reported(tmp_path: Path) -> None:
    training(tmp_path, count=3)
    path = only(tmp_path)
    lines = path.read_text().splitlines()
    lines[1:1] = ["{nonsense", '{"what": "window", "step": 4}']
    path.write_text("\n".join(lines) + "\n")
    (record,) = read(tmp_path)
    found = Training.of(record)
    assert len(found.windows) == 3
    assert record.notes[0] == f"1 damaged line of {path.name} left out"
    assert "holds a window that lacks fields" in record.notes[1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("", "", "does not exist: a training records with atoll.training.Watch"),
        ("other.csv", "a,b", r"has no record of a run \(it holds other.csv\): a training records with"),
        ("x.run.jsonl", '{"what": "song"}\n', "has no record of a run"),
        ("x.run.jsonl", "", "has no record of a run"),
        ("x.run.jsonl", '{"what": "run", "format": 1, "kind": "dance"}\n', "has no record of a run"),
        (
            "x.run.jsonl",
            '{"what": "run", "format": 7, "kind": "training", "atoll": "9.1"}\n',
            "was written by Atoll 9.1, in format 7, but this one reads up to 1: install that Atoll or a newer one",
        ),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    folder = tmp_path / "runs"
    if name:
        folder.mkdir()
        (folder / name).write_text(text)
    with pytest.raises(RecordError, match=message):
        read(folder)


def test_lines_of_a_watch_are_a_record_too(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    all_watchers = Watchers(Watch(live=False, json_lines=str(path)), rank=0)
    all_watchers.window(WINDOW)
    all_watchers.close()
    (record,) = read(path)
    assert Training.of(record).windows == [WINDOW]


def test_classes_of_latencies_are_narrow() -> None:
    for seconds in (1e-5, 0.0123, 0.5, 77.0):
        assert latency_of(bucket_of(seconds)) == pytest.approx(seconds, rel=0.011)


def test_a_session_counts_right_though_its_lines_are_thinned(tmp_path: Path) -> None:
    record = SessionRecord(str(tmp_path), {"policy": "auto"})
    assert record._file is not None
    record._file._most = 30_000
    latencies = [0.01 + 0.0001 * place for place in range(1_000)]
    picture = json.dumps({name: DIVISION[name] for name in ("operators", "plan")})
    for place, seconds in enumerate(latencies):
        record.add(facts(seconds, missed=place >= 990), picture if place > 1 else "", lambda: {"up_rate": 5.0})
    record.close(lambda: {"up_rate": 6.0, "local_seconds": 0.2})
    (read_back,) = read(tmp_path)
    found = Inferences.of(read_back)
    assert len(found.lines) < 500
    assert found.number == 1_000
    assert found.counts["missed"] == 10
    assert found.latency(0.5) == pytest.approx(0.06, rel=0.02)
    assert found.latency(1.0) == pytest.approx(latencies[-1], rel=0.02)
    assert len(found.divisions) == 1
    assert found.state("up_rate") == 6.0


def test_a_session_without_totals_is_counted_by_its_lines(tmp_path: Path) -> None:
    inferences(tmp_path, [0.01] * 30, is_closed=False)
    path = only(tmp_path)
    lines = [line for line in path.read_text().splitlines() if '"totals"' not in line]
    path.write_text("\n".join(lines) + "\n")
    found = Inferences.of(read(tmp_path)[0])
    assert (found.number, found.counts["origins"]) == (30, {"local": 3, "mixed": 27})
    assert found.latency(0.99) == 0.01


def test_a_record_that_fails_ends_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = SessionRecord(str(tmp_path), {})
    assert record._file is not None
    record._file._file.close()
    for _ in range(2):
        record.add(facts(0.01), "", dict)
    record.close(dict)
    assert not record.wants_picture
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "the record of the session ends, the session continues"
    ]
