# SPDX-License-Identifier: Apache-2.0
"""Watching a training: records, values derived from them, and each output format, read back."""

import io
import json
import logging
import os
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.loading.settings import Settings
from atoll.watching.json_lines import JsonLines
from atoll.watching.live import PlainLines, TerminalLine, event_line, line_of
from atoll.watching.options import Watch
from atoll.watching.prometheus import Prometheus
from atoll.watching.record import PlanEvent, WindowRecord
from atoll.watching.tensorboard import Board
from atoll.watching.watcher import Watchers, watchers

RECORD = WindowRecord(
    step=350, plan=3, plan_id="91a62eda1b70c104", devices=("cuda:0", "cuda:1", "cpu"), batches=(96, 96, 64),
    compute_seconds=(0.38, 0.375, 0.29), input_seconds=(0.01, 0.01, 0.014), wall_seconds=0.41,
    predicted_seconds=0.40, bound_seconds=0.39, speed_factors=(1.0, 1.02, 0.97), replica_drift=2e-7,
)  # fmt: skip
BARE = WindowRecord(50, 0, "", ("cpu", "cpu"), (8, 8), (0.0, 0.0), (0.0, 0.0), 0.0)
NEW_PLAN = PlanEvent.new_plan(400, 4, (100, 96, 60), "rank 2 slowed down")


def test_what_is_derived() -> None:
    assert RECORD.samples == 256
    assert RECORD.samples_per_second == pytest.approx(256 / 0.41)
    assert RECORD.distance == pytest.approx(0.41 / 0.39)
    # Rank 0 is the slowest with 0.39 s; rank 2 is done 0.086 s before it.
    assert RECORD.waiting == pytest.approx((0, 0.005 / 0.41, 0.086 / 0.41))
    # A slow loader makes the others wait, and is not taken for slow peers.
    late = replace(RECORD, input_seconds=(0.0, 0.0, 0.2))
    assert late.waiting == pytest.approx(((0.49 - 0.38) / 0.49, (0.49 - 0.375) / 0.49, 0))


def test_a_record_without_measurements() -> None:
    assert BARE.waiting == (0, 0)
    assert (BARE.distance, BARE.samples_per_second) == (None, 0)
    assert line_of(BARE) == "step 50: 16 samples in 0 s, 0.00 samples/s; waiting: no rank over 5 %; plan 0: 8 8"


@pytest.mark.parametrize("record", [RECORD, BARE])
def test_records_travel_as_json(record: WindowRecord) -> None:
    text = json.loads(json.dumps(record.to_json()))
    assert WindowRecord.from_json(text) == record
    assert text["samples_per_second"] == record.samples_per_second
    assert text["waiting"] == list(record.waiting)
    assert text["distance"] == record.distance


def test_events() -> None:
    events = [
        NEW_PLAN,
        PlanEvent.drift(400, 2, "cpu", 1.31),
        PlanEvent.leave_out(400, (2,), ("cuda:0", "cuda:1", "cpu"), 0.124, 0.0513),
        PlanEvent.leave_out(400, (1, 2), ("cuda:0", "cpu", "cpu"), 0.124, 0.0513),
        PlanEvent.leave_out(400, (), ("cuda:0", "cpu"), 0.0, 0.0),
        PlanEvent.replica_drift(400, 0.00012),
    ]
    for event in events:
        assert PlanEvent.from_json(json.loads(json.dumps(event.to_json()))) == event
    assert [event_line(event) for event in events] == [
        "step 400: new plan 4: 100 96 60: rank 2 slowed down",
        "step 400: rank 2 (cpu) takes 1.31 times its predicted time",
        "step 400: leave rank 2 (cpu) out: a step would take 51.3 ms (12 %) less; start the training without it",
        "step 400: leave ranks 1 (cpu), 2 (cpu) out: a step would take 51.3 ms (12 %) less; "
        "start the training without them",
        "step 400: all ranks are useful again: no rank should be left out any more",
        "step 400: parameters differ by up to 0.00012 of the largest between ranks",
    ]


def test_many_ranks_are_not_all_named() -> None:
    event = PlanEvent.leave_out(400, tuple(range(10)), ("cpu",) * 11, 0.5, 0.01)
    assert "6 (cpu), 7 (cpu) and 2 more out:" in event.text
    assert event.ranks == tuple(range(10))
    assert event.rank is None


def test_the_line() -> None:
    assert line_of(RECORD) == (
        "step 350: 256 samples in 0.41 s (predicted 0.40, bound 0.39), 624 samples/s; "
        "waiting: rank 2 21 %; plan 3: 96 96 64"
    )
    many = replace(RECORD, devices=("cpu",) * 10, batches=(1,) * 10, compute_seconds=(0.4, *(0.1,) * 8, 0.05),
                   input_seconds=(0.0,) * 10, bound_seconds=None)  # fmt: skip
    assert line_of(many).endswith(
        "(predicted 0.40), 24 samples/s; waiting: rank 9 85 %, rank 1 73 %, rank 2 73 % and 6 more; "
        "plan 3: 1 1 1 1 1 1 1 1 ..."
    )


def test_plain_lines_are_not_too_many() -> None:
    stream, now = io.StringIO(), [100.0]
    lines = PlainLines(stream, clock=lambda: now[0], every=5)
    for step, at in ((50, 100.0), (100, 101.0), (150, 104.9), (200, 105.0), (250, 106.0), (300, 107.0)):
        now[0] = at
        lines.window(replace(RECORD, step=step))
    lines.event(NEW_PLAN)
    lines.close()
    lines.close()
    shown = [line.partition(":")[0] for line in stream.getvalue().splitlines()]
    assert shown == ["step 50", "step 200", "step 400", "step 300"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Returns the terminal's lines; text after a carriage return overwrites a line."""
        rows = []
        for written in self.getvalue().split("\n"):
            row = ""
            for text in written.rpartition("\x1b[2K")[2].split("\r"):
                row = text + row[len(text) :]
            rows.append(row)
        return rows


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes standard output and standard error one terminal for the rest of the test."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


LINE = ": 256 samples in 0.41 s (predicted 0.40, bound 0.3…"


def test_a_terminal_keeps_one_line_below_what_the_program_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_a_terminal(monkeypatch)
    print("begin")
    (watcher,) = watchers(Watch())
    assert isinstance(watcher, TerminalLine)
    watcher.event(NEW_PLAN)
    watcher.window(replace(RECORD, step=100))
    assert terminal.screen() == ["begin", "step 400: new plan 4: 100 96 60: rank 2 slowed down", "step 100" + LINE]
    print("loss", 0.5)
    sys.stderr.writelines(["a warning\n", "and another\n"])
    watcher.event(replace(NEW_PLAN, step=101))
    watcher.window(replace(RECORD, step=150))
    assert terminal.screen()[2:] == [
        "loss 0.5",
        "a warning",
        "and another",
        "step 101: new plan 4: 100 96 60: rank 2 slowed down",
        "step 150" + LINE,
    ]
    proxy = sys.stdout
    watcher.close()
    assert sys.stdout is sys.stderr is terminal
    print("end", file=proxy)  # it was held
    assert terminal.screen()[-3:] == ["step 150" + LINE, "end", ""]


def test_a_progress_bar_in_the_same_terminal_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_a_terminal(monkeypatch)
    (watcher,) = watchers(Watch())
    watcher.window(replace(RECORD, step=50))
    for percent in (10, 20):
        sys.stderr.write(f"\r{percent} %")
        sys.stderr.flush()
    assert terminal.screen() == ["20 %"]
    watcher.window(replace(RECORD, step=100))
    assert terminal.screen() == ["step 100" + LINE]
    sys.stderr.write("\r100 %\n")
    assert terminal.screen() == ["100 %", "step 100" + LINE]
    watcher.close()


def test_what_goes_elsewhere_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = in_a_terminal(monkeypatch)
    file = io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    (watcher,) = watchers(Watch())
    watcher.window(RECORD)
    assert sys.stdout is file
    assert sys.stderr is not terminal
    assert sys.stderr.isatty()
    watcher.close()


def test_what_fits_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_terminal(monkeypatch)
    assert isinstance(watchers(Watch())[0], TerminalLine)
    assert watchers(Watch(live=False)) == []
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(watchers(Watch())[0], PlainLines)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert watchers(Watch()) == []
    assert isinstance(watchers(Watch(live=True))[0], PlainLines)


def test_json_lines_are_added_and_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "training.jsonl"
    for step in (350, 400):
        lines = JsonLines(str(path), now=lambda: 12.5)
        lines.window(replace(RECORD, step=step, speed_factors=(1.0, float("nan"), 2.0)))
        lines.event(NEW_PLAN)
        written = [json.loads(line) for line in path.read_text().splitlines()]
        lines.close()
    assert [(line["what"], line["time"], line["step"]) for line in written] == [
        ("window", 12.5, 350), ("event", 12.5, 400), ("window", 12.5, 400), ("event", 12.5, 400),
    ]  # fmt: skip
    assert written[0]["speed_factors"] == [1.0, None, 2.0]
    assert WindowRecord.from_json({**written[0], "speed_factors": [1.0, 1.02, 0.97]}) == RECORD
    assert PlanEvent.from_json(written[1]) == NEW_PLAN


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = Board(str(tmp_path / "board"))
    board.window(replace(RECORD, step=300, batches=(90, 90, 76), bound_seconds=None, speed_factors=()))
    board.window(RECORD)
    board.event(NEW_PLAN)
    board.close()
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()

    def read(tag: str) -> list[tuple[int, float]]:
        return [(each.step, pytest.approx(each.value)) for each in events.Scalars(f"atoll/{tag}")]

    assert read("rank2_cpu/batch") == [(300, 76), (350, 64)]
    assert read("rank1_cuda_1/speed_factor") == [(350, 1.02)]
    assert read("rank2_cpu/waiting")[1] == (350, 0.086 / 0.41)
    assert read("step/seconds") == [(300, 0.41), (350, 0.41)]
    assert read("step/distance") == [(350, 0.41 / 0.39)]
    assert read("step/plan") == [(300, 3), (350, 3)]
    (text,) = events.Tensors("atoll/events/text_summary")
    assert text.step == 400
    assert text.tensor_proto.string_val[0].decode() == "new plan: new plan 4: 100 96 60: rank 2 slowed down"


def scraped(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_prometheus_reads_the_newest_record() -> None:
    watcher = Prometheus(0)
    try:
        assert scraped(watcher.port) == {}
        watcher.window(replace(BARE, step=300))
        gauges = scraped(watcher.port)
        assert gauges["atoll_step"] == 300
        assert "atoll_predicted_step_seconds" not in gauges
        assert "atoll_replica_drift" not in gauges
        watcher.event(PlanEvent.replica_drift(310, 0.5))
        watcher.event(NEW_PLAN)
        watcher.event(NEW_PLAN)
        assert scraped(watcher.port)["atoll_replica_drift"] == 0.5
        watcher.window(RECORD)
        gauges = scraped(watcher.port)
    finally:
        watcher.close()
    expected = {
        'atoll_batch_samples{device="cpu",rank="2"}': 64, 'atoll_waiting_ratio{device="cpu",rank="2"}': 0.086 / 0.41,
        'atoll_speed_factor{device="cuda:1",rank="1"}': 1.02, 'atoll_compute_seconds{device="cuda:0",rank="0"}': 0.38,
        'atoll_input_seconds{device="cpu",rank="2"}': 0.014, "atoll_step_seconds": 0.41,
        "atoll_predicted_step_seconds": 0.4, "atoll_bound_step_seconds": 0.39, "atoll_plan_version": 3,
        "atoll_bound_distance_ratio": 0.41 / 0.39, "atoll_samples_per_second": 256 / 0.41, "atoll_replica_drift": 2e-7,
        'atoll_events_total{kind="new plan"}': 2, 'atoll_events_total{kind="replica drift"}': 1,
    }  # fmt: skip
    assert {name: gauges[name] for name in expected} == pytest.approx(expected)


def test_the_port_is_free_again_though_a_forked_process_lives() -> None:
    watcher = Prometheus(0)
    ends, goes_on = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(goes_on)
        os.read(ends, 1)
        os._exit(0)
    watcher.close()
    try:
        Prometheus(watcher.port).close()
    finally:
        os.close(goes_on)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("watch", "package", "message"),
    [
        (
            Watch(live=False, tensorboard="x"),
            "tensorboard",
            r"Watch\(tensorboard='x'\) needs .* pip install tensorboard",
        ),
        (Watch(live=False, prometheus=0), "prometheus_client", r"Watch\(prometheus=0\) needs .* pip install prom"),
    ],
)
def test_an_absent_package_is_named(
    watch: Watch, package: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ImportError, match=message):
        Watchers(watch, rank=0)
    assert Watchers(watch, rank=1).list == []


def test_what_cannot_be_had_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give a port from 0 to 65535"):
        Watch(prometheus=1 << 16)
    with pytest.raises(
        ValueError, match=r"json_lines='.*none.file'\) cannot be written: No such file or directory: give"
    ):
        Watchers(Watch(json_lines=str(tmp_path / "none" / "file")), rank=0)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"tensorboard='.*'\) cannot be written: .*: give a folder"):
        Watchers(Watch(tensorboard=str(tmp_path / "file" / "board")), rank=0)
    taken = Prometheus(0)
    path = tmp_path / "lines"
    try:
        with pytest.raises(
            ValueError, match=rf"prometheus={taken.port}\) cannot listen: Address already in use: give a free"
        ):
            Watchers(Watch(json_lines=str(path), prometheus=taken.port), rank=0)
    finally:
        taken.close()
    assert str(path) not in open_files(), "a watcher that was made before the error stays open"


def open_files() -> list[str]:
    folder = Path("/proc/self/fd")
    return [os.readlink(link) for link in folder.iterdir() if link.is_symlink()]


def test_a_watcher_that_fails_stops_alone_and_says_so_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    all_watchers = Watchers(Watch(live=False, json_lines=str(path)), rank=0)
    full = JsonLines("/dev/full")
    all_watchers.list.insert(0, full)
    with caplog.at_level(logging.WARNING):
        for step in (50, 100):
            all_watchers.window(replace(RECORD, step=step))
        all_watchers.event(NEW_PLAN)
        all_watchers.close()
        all_watchers.window(RECORD)
    assert [entry.getMessage() for entry in caplog.records] == [
        "Watch(json_lines='/dev/full') stops, the training continues: [Errno 28] No space left on device"
    ]
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [50, 100, 400]


def test_only_rank_0_shows_anything(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    other = Watchers(Watch(live=True, json_lines=str(path)), rank=1)
    other.window(RECORD)
    other.close()
    assert not path.exists()


def test_settings_hold_what_is_watched() -> None:
    assert Settings().watch == Watch()
    assert Settings(watch=Watch(live=False)).watch.live is False
