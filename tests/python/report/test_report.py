# SPDX-License-Identifier: Apache-2.0
"""`atoll report`: the contents of its pages, and its errors without anything to show."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from atoll.report.charts import Chart, Series, ticks
from atoll.report.inferences import percentile
from atoll.report.page import report
from atoll.report.parts import number, scaled, seconds_text
from atoll.report.records import read
from atoll.report.steps import parts_of
from atoll.watching.record import PlanEvent
from atoll.watching.run_record import TrainingRecord
from made_records import ABOUT, WINDOW, inferences, training
from pages import Page


def run(*arguments: str | Path) -> tuple[int, str]:
    from atoll.cli import app

    result = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "250", "NO_COLOR": "1"})
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def page_of(folder: Path) -> tuple[Page, str]:
    text, _ = report(read(folder))
    return Page(text), text


def test_a_page_of_a_training(tmp_path: Path) -> None:
    training(tmp_path / "run")
    status, said = run(tmp_path / "run", "-o", tmp_path / "report.html")
    assert status == 0, said
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    assert page.problems == []
    assert len(text) < 400_000
    assert [said for said in (
        "2,000 steps on 4 ranks (2 on cuda, 2 on cpu): a step of 256 samples takes",
        "A step is 2", "above the bound (350 ms)",
        "Rank 2 (cpu) waits 2", "% of each step for rank ",
        "Plans changed 1 time, the last time at step 1,050: 100 98 34 24: rank 2 slowed down.",
        "Step 1,050: rank 2 (cpu) takes 1.31 times its predicted time.",
        "The noted value loss went from 2.3",
    ) if said not in page.text] == []  # fmt: skip
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles == [
        "A step of each rank", "Rank 0 (cuda:0)", "Rank 1 (cuda:1)", "Rank 2 (cpu)", "Rank 3 (cpu)", "Step time",
        "Distance from the bound", "Pace", "Shares", "loss", "Bridge", "Inside islands", "Staging", "Bytes by link",
    ]  # fmt: skip


def test_a_page_is_self_contained_and_accessible(tmp_path: Path) -> None:
    training(tmp_path)
    inferences(tmp_path, [0.04 + 0.0001 * place for place in range(200)])
    page, text = page_of(tmp_path)
    assert re.findall(r"(?:https?:)?//[a-z]", text) == [], "nothing is loaded"
    assert [each for each in page.of("script") if "src" in each] == []
    assert page.of("html") == [{"lang": "en"}]
    for picture in page.of("svg"):
        assert picture.get("aria-hidden") == "true" or len(picture["aria-label"] or "") > 30
    assert len(page.of("figure")) == len(page.of("figcaption")) > 15
    charts = page.of("figure", "chart")
    assert len(page.of("details")) >= len(charts), "a table beneath each"
    for data in re.findall(r'<script type="application/json">(.*?)</script>', text):
        chart = json.loads(data)
        assert all(len(values) == len(chart["x"]) for _, values in chart["series"])
    assert len(page.of("meta")) == 2
    assert "width=device-width" in text


def test_hostile_names_stay_texts(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    record = TrainingRecord(str(tmp_path), {**ABOUT, "policy": bad})
    for step in (50, 100):
        record.window(replace(WINDOW, step=step, devices=(bad, '"', "&", "cpu"), noted={bad: 1.0, "b": 2.0}))
    record.event(PlanEvent(100, bad, bad))
    record.close()
    page, text = page_of(tmp_path)
    assert bad not in text
    assert page.problems == []
    assert bad in page.text


def test_parts_add_up_to_the_step() -> None:
    for rank in range(4):
        assert sum(parts_of(WINDOW, rank)) == pytest.approx(WINDOW.wall_seconds)
    waits = [parts_of(WINDOW, rank).wait for rank in range(4)]
    assert waits == pytest.approx([0, 0, 0.09, 0.02])
    assert parts_of(WINDOW, 2).exchange == pytest.approx(0.03)
    assert parts_of(replace(WINDOW, exposed_seconds=()), 2).exchange == 0


def test_a_training_without_measurements_says_so(tmp_path: Path) -> None:
    record = TrainingRecord(str(tmp_path), {**ABOUT, "policy": "equal"})
    bare = replace(WINDOW, predicted_seconds=None, bound_seconds=None, exposed_seconds=(), inside_seconds=(),
                   bridge_seconds=(), staging_seconds=(), links=(), noted={})  # fmt: skip
    record.window(replace(bare, compute_seconds=(0.3, 0.3, 0.21, 0.0)))
    page, text = page_of(tmp_path)
    assert "The distance of a step from the best division is unknown" in page.text
    assert 'shares do not follow speeds with policy="equal": use policy="minmax"' in page.text
    assert "There are no measurements of rank 3" in page.text
    assert "How the run ended: unknown: the process was killed, or is still running." in page.text
    assert "Communication</h2>" not in text


def test_a_good_training_is_called_good(tmp_path: Path) -> None:
    record = TrainingRecord(str(tmp_path), ABOUT)
    good = replace(WINDOW, compute_seconds=(0.33,) * 4, exposed_seconds=(0.01,) * 4, wall_seconds=0.355)
    for step in (50, 100):
        record.window(replace(good, step=step))
    record.close()
    page, _ = page_of(tmp_path)
    assert "Good: A step is 1.4 % above the bound (350 ms)" in page.text
    assert "Good: No rank waits longer than 5 %" in page.text
    assert "To improve" not in page.text.partition("Where the time goes")[0]


def test_a_slow_loader_is_named(tmp_path: Path) -> None:
    record = TrainingRecord(str(tmp_path), ABOUT)
    record.window(replace(WINDOW, input_seconds=(0.0, 0.2, 0.0, 0.0), wall_seconds=0.55))
    page, _ = page_of(tmp_path)
    assert "Rank 1 (cuda:1) waits 36 % of each step for its data: more workers" in page.text
    assert "rank 1 (cuda:1) waits for its data in the meantime: give its loader more workers" in page.text


def test_restarts_are_listed_and_the_last_is_shown(tmp_path: Path) -> None:
    training(tmp_path, count=4, is_closed=False)
    (first,) = tmp_path.iterdir()
    text = first.read_text()
    about = json.loads(text.partition("\n")[0])
    earlier = json.dumps({**about, "pid": 1, "time": about["time"] - 60})
    (tmp_path / "earlier.run.jsonl").write_text(earlier + "\n" + text.partition("\n")[2])
    training(tmp_path, count=8)
    page, _ = page_of(tmp_path)
    assert "400 steps on 4 ranks" in page.text
    assert "Records of trainings in this folder" in page.text
    assert page.text.count("unknown: the process was killed, or is still running") == 2


def test_many_ranks_and_many_windows_stay_a_small_page(tmp_path: Path) -> None:
    ranks, count = 48, 2_000
    devices = ("cpu",) * ranks
    record = TrainingRecord(str(tmp_path), {**ABOUT, "devices": list(devices)})
    window = replace(WINDOW, devices=devices, batches=(4,) * ranks, compute_seconds=(0.3,) * 47 + (0.1,), links=(),
                     input_seconds=(0.0,) * ranks, exposed_seconds=(), inside_seconds=(), bridge_seconds=(),
                     staging_seconds=())  # fmt: skip
    for step in range(count):
        record.window(replace(window, step=step))
    page, text = page_of(tmp_path)
    assert len(text) < 1_000_000
    assert "Of 48 ranks, the 8 that wait least and most." in page.text
    assert "Each point is the mean of 7." in page.text


def test_what_links_can_carry(tmp_path: Path) -> None:
    training(tmp_path / "run")
    pairs = [{"a": a, "b": b, "a_to_b": 1.0, "b_to_a": 2.0} for a in range(4) for b in range(a + 1, 4)]
    document = tmp_path / "doctor.json"
    document.write_text(json.dumps({"links": pairs, "ranks": [{}] * 4}))
    status, said = run(tmp_path / "run", "-o", tmp_path / "r.html", "--doctor", document)
    assert status == 0, said
    page = Page((tmp_path / "r.html").read_text())
    assert "% of the measured rate" in page.text
    document.write_text(json.dumps({"links": pairs[:1], "ranks": [{}] * 2}))
    run(tmp_path / "run", "-o", tmp_path / "r.html", "--doctor", document)
    assert "The doctor measured 2 ranks, but the training has 4" in Page((tmp_path / "r.html").read_text()).text


def test_a_page_of_inferences(tmp_path: Path) -> None:
    inferences(tmp_path, [0.04 if place % 50 else 0.15 for place in range(300)])
    page, text = page_of(tmp_path)
    assert page.problems == []
    assert [said for said in (
        "300 inferences: half of them take at most 40",
        "10 % by this machine alone, 90 % by both",
        "This machine alone takes 120 ms: ",
        "2.0 % missed their deadline of 100 ms",
        "above the lower bound of any plan",
        "An inference sends 40 kB and receives 9 kB, and takes 0.4 J",
        "server cpu",
    ) if said not in page.text] == []  # fmt: skip
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert titles == [
        "Latency", "Missed deadlines", "Who answered", "What this machine does in the meantime",
        "Operators of plan rows", "Bandwidth", "Bytes of an inference", "Energy of an inference",
    ]  # fmt: skip
    assert len(page.of("rect", "event")) == 7
    assert "&lt;relu&gt;" in text


def test_a_damaged_division_is_left_out(tmp_path: Path) -> None:
    path = inferences(tmp_path, [0.04] * 3)
    text = path.read_text().replace('"seconds":0.035', '"seconds":null')
    path.write_text(text)
    page, text = page_of(tmp_path)
    assert page.problems == []
    assert "Operators of plan" not in text


def test_both_are_shown_on_one_page(tmp_path: Path) -> None:
    training(tmp_path)
    for size in (3, 5, 7, 9, 11):
        inferences(tmp_path, [0.02] * size)
    page, text = page_of(tmp_path)
    assert [re.sub("<.*?>", "", title) for title in re.findall("<h1>.*?</h1>", text)] == ["Training"] + 4 * [
        "Inference"
    ]
    assert "1 more sessions have records here" in page.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{folder}/none"], "none does not exist: a training records with"),
        (["{folder}"], "has no record of a run (it is empty)"),
        (["{folder}/run", "-o", "{folder}/no/x.html"], "cannot be written: No such file or directory"),
        (["{folder}/run", "--doctor", "{folder}/no"], "no cannot be read: No such file or directory"),
        (["{folder}/run", "--doctor", "{folder}/run/x.csv"], "x.csv was not written by atoll doctor --json FILE"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: list[str], message: str) -> None:
    if "run" in "".join(arguments):
        training(tmp_path / "run", count=2)
        (tmp_path / "run" / "x.csv").write_text("1,2")
    status, said = run(*(argument.format(folder=tmp_path) for argument in arguments))
    assert status == 2
    assert message in said


def test_a_record_without_a_step(tmp_path: Path) -> None:
    record = TrainingRecord(str(tmp_path), ABOUT)
    record.event(PlanEvent(0, "new plan", "t"))
    status, said = run(tmp_path)
    assert status == 2
    assert "has records, but without steps or inferences yet" in said


def test_numbers() -> None:
    assert [number(value) for value in (0, 0.0123456, 9.999, 99.94, 99.99, 640.4, 12345.6, None)] == [
        "0", "0.0123", "10", "99.9", "100", "640", "12,346", "-",
    ]  # fmt: skip
    assert [seconds_text(value) for value in (0, 3e-6, 0.0123, 2.5, 130, 7300)] == [
        "0 us", "3 us", "12.3 ms", "2.5 s", "2 min 10 s", "2 h 1 min",
    ]  # fmt: skip
    assert scaled(2e6, "B") == (1e-6, "MB")
    assert ticks(0, 1.06, 4) == pytest.approx([0, 0.5, 1.0])
    assert ticks(3, 3, 4) == [3]
    assert [percentile([3, 1, 2], share) for share in (0, 0.5, 1)] == [1, 2, 3]


def test_charts_of_odd_numbers() -> None:
    def chart(values: list[float | None], **options: bool) -> str:
        x = [float(place) for place in range(len(values))]
        return Chart("T", "about", "step", "s", x, [Series("a", values, "blue")], **options).html()

    assert chart([]) == chart([None]) == ""
    for values in ([0.0], [5.0], [1.0, None, 2.0], [0.0, 0.0], [-1.0, -1.0], [1e-12, 2e12]):
        for options in ({}, {"from_zero": False}, {"is_stepped": True}):
            text = chart(values, **options)
            assert Page(text).problems == []
            assert "nan" not in text
    assert Page(chart([1.0], is_stacked=True)).problems == []
    gap = chart([1.0, None, 2.0])
    assert gap.count("h0") == 2, "a value alone is a dot"
