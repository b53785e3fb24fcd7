# SPDX-License-Identifier: Apache-2.0
"""`atoll plan batches`: ranks from all sources, the tables of plans, the page, and the errors of wrong calls."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from atoll import _C
from atoll.cli import app
from atoll.plan import BatchRequest, batch_policies, plan_batches
from atoll.plan.documents import cost_of
from atoll.planning import ranks as ranks_of
from atoll.planning.table import cost_text, seconds_text
from atoll.profiling.device import DeviceProfile, Measured

FAST, SLOW = "fast:cost=0.002+0.0005b,most=256,watts=300/60", "slow:cost=0.001b,watts=200/50"
TWO = ["--batch", "256", "--rank", FAST, "--rank", SLOW]


def plan(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["plan", "batches", *arguments], env=environment, catch_exceptions=False)


def shown(*arguments: str) -> list[str]:
    result = plan(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def document_of(*arguments: str) -> dict[str, Any]:
    result = plan(*arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def refusal(*arguments: str) -> str:
    result = plan(*arguments)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_all_policies_side_by_side() -> None:
    lines = shown(*TWO, "--shares", "3,1")
    assert lines[:4] == ["Ranks", "rank name seconds by batch least most watts", "0 fast 0.002+0.0005b 1 256 300/60",
                         "1 slow 0.001b 1 - 200/50"]  # fmt: skip
    assert "policy batches step idle step/bound J/sample" in lines
    # 2 + 169 / 2 ms and 87 ms; the first computes 86.5 ms with 300 W and waits 0.5 ms with 60 W, the second 87 ms.
    joules = (0.0865 * 300 + 0.0005 * 60 + 0.087 * 200) / 256
    assert f"minmax 169 87 87 ms 0.3 % 1.000 {joules:.4g}" in lines
    assert any(line.startswith("equal 128 128 128 ms 24.2 % 1.471 ") for line in lines)
    assert any(line.startswith("fixed 192 64 98 ms 17.3 % 1.126 ") for line in lines)
    firsts = [line.partition(" ")[0] for line in lines[lines.index("Plans for 256 samples") :]]
    assert [name for name in batch_policies() if name not in firsts] == []
    assert "balancenet-eq5, balancenet-eq5 (literal): no rank states latencies: equal values are used instead" in lines
    assert lines[-1] == "Atoll: 256 samples take at least 87 ms; equal takes 47.1 % longer"


def test_a_policy_that_lacks_something_is_left_out() -> None:
    lines = shown("--batch", "64", "--rank", "a:cost=1b", "--rank", "b:cost=1b,watts=2/1")
    assert "fixed is left out: the policy fixed needs shares, one per rank" in lines
    assert "energy is left out: the policy energy needs busy_watts and idle_watts of rank 0 (a)" in lines
    assert "minmax 32 32 32 s 0.0 % 1.000 -" in lines
    assert lines[-1] == "Atoll: 64 samples take at least 32 s; equal takes no longer"


def test_one_policy_rank_by_rank() -> None:
    lines = shown(*TWO, "--policy", "minmax")
    assert "0 fast 169 86.5 ms 500 us 0.6 %" in lines
    assert "1 slow 87 87 ms - 0.0 %" in lines
    assert not any(line.startswith("equal") for line in lines)


def test_a_rank_that_costs_more_than_it_brings_is_named(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    lines = shown(*TWO, "--rank", "late:cost=0.2+0.001b", "--html", str(page))
    told = "leave out rank 2 (late): without it a step is 56.7 % shorter than with all"
    assert told in lines
    assert told in page.read_text()
    equal = ["--batch", "3", *(["--rank", "a:cost=1b,least=0"] * 3)]  # an additional rank would gain nothing
    for arguments in (TWO, [*equal, "--rank", "b:cost=1b,least=0"]):
        assert not any("leave out" in line or line.startswith(("keep", "best")) for line in shown(*arguments))


def test_balancenet_shows_key_query_and_value() -> None:
    ranks = ["--rank", "a:cost=1b,ops=3,memory=1,latency=1", "--rank", "b:cost=1b,ops=1,memory=3,latency=2"]
    lines = shown("--batch", "60", *ranks, "--balancenet")
    assert lines.count("rank name K (Key) MW NL NCW Query Value") == 2
    # Algorithm 1: (3/4 + 3/4 + 1/2) / 3 = 2/3 of 60, and (1/4 + 1/4 + 0) / 3 = 1/6 of 60.
    one = lines.index("BalanceNet, Algorithm 1")
    assert lines[one + 2 : one + 4] == ["0 a 0.750 0.750 1 0.5 0.667 40", "1 b 0.250 0.250 2 0 0.167 10"]
    literal = shown("--batch", "60", *ranks, "--policy", "balancenet-alg1", "--form", "literal")
    assert literal[-1] == "Atoll: 60 samples take at least 30 s; balancenet-alg1 (literal) takes 40 s for 50 samples"
    document = document_of("--batch", "60", *ranks, "--policy", "equal", "--balancenet")
    assert [rank["value"] for rank in document["balancenet"]["alg1"]] == [40, 10]


def test_json_holds_what_was_asked_and_what_is_shown(tmp_path: Path) -> None:
    document = document_of(*TWO)
    assert set(document) == {"schema", "batch", "ranks", "plans", "left_out", "membership", "balancenet"}
    assert (document["schema"], document["batch"]) == (1, 256)
    assert [entry["policy"] for entry in document["left_out"]] == ["fixed"]
    request = {"ranks": document["ranks"], "batch": 256}
    assert _C.plan_batches(request) in document["plans"]
    path, again = tmp_path / "ranks.json", tmp_path / "plan.json"
    path.write_text(json.dumps(document["ranks"]))
    assert shown("--batch", "256", "--ranks", str(path), "--json", str(again))[0] == "Ranks"
    assert json.loads(again.read_text()) == document


def test_settings_of_policies_reach_the_planner() -> None:
    ranks = ranks_of.from_text(FAST, 0) + ranks_of.from_text(SLOW, 1)
    for arguments, request in (
        (["random", "--seed", "5"], {"seed": 5}),
        (["energy", "--slowdown", "0.3"], {"slowdown": 0.3}),
        (["kaitian", "--probe", "1"], {"probe": 1}),
        (["balancenet-eq5", "--form", "literal"], {"form": "literal"}),
    ):
        asked = {"ranks": ranks, "batch": 256, "policy": arguments[0], **request}
        (made,) = document_of(*TWO, "--policy", *arguments)["plans"]
        assert made == _C.plan_batches(asked)
        assert made != _C.plan_batches({"ranks": ranks, "batch": 256, "policy": arguments[0]}), arguments


def test_ranks_in_short_form() -> None:
    assert ranks_of.from_text("cuda:0:cost=2e-3+5e-4b,least=0,most=128,quantum=8,watts=300/60.5", 0) == [
        {"name": "cuda:0", "cost": {"shape": "affine", "fixed": 0.002, "per_sample": 0.0005}, "least": 0, "most": 128,
         "quantum": 8, "busy_watts": 300.0, "idle_watts": 60.5}
    ]  # fmt: skip
    costs = {
        "0.001b": {"shape": "affine", "fixed": 0.0, "per_sample": 0.001},
        "0.1+.001b,knee=16": {"shape": "saturating", "fixed": 0.1, "per_sample": 0.001, "knee": 16.0},
        "0.1+0.001b,step=8": {"shape": "staircase", "step": 8, "per_launch": 0.1, "per_sample": 0.001},
        "8:0.01/16:0.018": {"shape": "table", "points": [[8.0, 0.01], [16.0, 0.018]]},
    }
    for text, cost in costs.items():
        (rank,) = ranks_of.from_text(f"a:cost={text}", 0)
        assert rank["cost"] == cost
        assert plan_batches(BatchRequest([rank], 16)).batches == [16], "the planner reads it"
    many = ranks_of.from_text("a:cost=1b,ops=1e12,memory=5,latency=0.1,count=2", 0)
    assert [rank["name"] for rank in many] == ["a 0", "a 1"]
    assert many[1] == {**many[0], "name": "a 1"}
    assert (many[0]["ops"], many[0]["memory_used"], many[0]["latency"]) == (1e12, 5, 0.1)


def test_ranks_from_all_sources_in_order(tmp_path: Path) -> None:
    profile = DeviceProfile("H200", [Measured(8, 0.01), Measured(32, 0.034)], operations=7e12, memory_used=100, cap=40)
    (tmp_path / "h200.json").write_text(json.dumps(profile.to_json()))
    (tmp_path / "ranks.json").write_text(json.dumps(ranks_of.from_text("first:cost=1b", 0)))
    document = document_of(
        "--batch", "64", "--profiles", str(tmp_path / "h200.json"), "--rank", "second:cost=1b", "--ranks",
        str(tmp_path / "ranks.json"), "--policy", "minmax",
    )  # fmt: skip
    assert [rank["name"] for rank in document["ranks"]] == ["first", "second", "H200"]
    measured = document["ranks"][2]
    assert (measured["most"], measured["ops"]) == (40, 7e12)
    assert cost_of(measured["cost"]).seconds(32) == pytest.approx(0.034, rel=1e-3)
    assert document["plans"][0]["batches"] == [12, 12, 40]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no ranks are given: give --rank NAME:cost=FIXED+PER_SAMPLEb,KEY=VALUE,..., --ranks FILE or --profiles"),
        (["--rank", "fast"], "rank 0: 'fast' has no name or no cost: give NAME:cost="),
        (["--rank", FAST, "--rank", "cost=1b"], "rank 1: 'cost=1b' has no name or no cost: give NAME:cost="),
        (["--rank", FAST, "--rank", "b:cost=fast"], "rank 1 (b): cost 'fast': give seconds as FIXED+PER_SAMPLEb"),
        (["--rank", "b:cost=-1b"], "rank 0 (b): cost '-1b': give seconds as"),
        (["--rank", "b:most=5"], "rank 0 (b): it has no cost: give seconds as"),
        (["--rank", "b:cost=1b,mots=5"], "rank 0 (b): unknown key 'mots=5': choose from cost, knee, step"),
        (["--rank", "b:cost=1b,cost=2b"], "rank 0 (b): cost comes twice: give it once"),
        (["--rank", "b:cost=1b,most=many"], "rank 0 (b): most 'many': give an integer"),
        (["--rank", "b:cost=1b,knee=x"], "rank 0 (b): knee 'x': give a number of at least 0"),
        (["--rank", "b:cost=1b,watts=300"], "rank 0 (b): watts '300': give BUSY/IDLE, such as 300/60"),
        (
            ["--rank", "b:cost=1b,knee=2,step=2"],
            "rank 0 (b): incompatible with this cost: knee, step: give at most one",
        ),
        (["--rank", "b:cost=1:1/2:2,step=2"], "rank 0 (b): incompatible with this cost: step: give at most one"),
        (["--rank", "b:cost=1b,count=0"], "rank 0 (b): count 0: give 1 or more"),
        (["--rank", "b:cost=1b,most=4"], "hold 4 samples"),
        (["--rank", FAST, "--policy", "best"], 'policy "best" is not known: give one of equal, random'),
        (["--rank", FAST, "--policy", "fixed"], "the policy fixed needs shares, one per rank"),
        (["--rank", FAST, "--shares", "a,b"], "--shares 'a,b': give a number for each rank, separated by commas"),
        (["--rank", FAST, "--form", "literal"], "--form literal: give --policy balancenet-eq5 or balancenet-alg1"),
        (["--rank", FAST, "--policy", "balancenet-eq5", "--form", "x"], "give one of normalised, literal"),
        (["--ranks", "/no/such/file"], "/no/such/file cannot be read: No such file or directory"),
        (["--rank", FAST, "--json", "/no/such/file"], "/no/such/file cannot be written: No such file or directory"),
    ],
)
def test_wrong_calls(arguments: list[str], message: str) -> None:
    assert message in refusal("--batch", "64", *arguments)


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--ranks", "{", "is not JSON: "),
        ("--ranks", "{}", "does not hold a list of ranks: give a JSON list"),
        ("--ranks", "[]", "does not hold a list of ranks: give a JSON list"),
        ("--ranks", "[3]", "rank 0"),
        ("--ranks", '[{"cost": {"shape": "affine", "per_sample": 1}}, {"name": "b"}]', 'rank 1 lacks "cost"'),
        ("--profiles", "[]", "rank 0: "),
        ("--profiles", '{"device": "x"}', "does not hold a device profile ('sizes'): give a file from"),
        ("--profiles", '{"device": "x", "sizes": []}', "does not hold a device profile ("),
    ],
)
def test_wrong_files(option: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    told = refusal("--batch", "64", option, str(path))
    assert message in told
    assert "Traceback" not in told


def figures(html: str) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Data and layout of each chart of a page."""
    found = []
    decoder = json.JSONDecoder()
    for start in re.finditer(r'Plotly\.newPlot\(\s*"[^"]*",\s*', html):
        data, end = decoder.raw_decode(html, start.end())
        layout, _ = decoder.raw_decode(html, re.compile(r",\s*").match(html, end).end())  # type: ignore[union-attr]
        found.append((data, layout))
    return found


def test_the_page_holds_everything(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    name = "</script><b>&"
    assert plan(*TWO, "--rank", f"{name}:cost=1b", "--balancenet", "--html", str(path)).exit_code == 0
    html = path.read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=(?!\"data:)", html), "nothing is loaded"
    assert "plotly.js v" in html
    assert name not in html
    assert "&lt;/script&gt;&lt;b&gt;&amp;" in html
    document = document_of(*TWO, "--rank", f"{name}:cost=1b")
    plans, names = document["plans"], ["0 fast", "1 slow", f"2 {name}"]
    (computes, waits), layout = figures(html)[0]
    policies = [f"{each['policy']}{' (literal)' if each.get('form') == 'literal' else ''}" for each in plans]
    assert computes["x"] == waits["x"]
    in_one_line = [text.replace("<br>(", " (").replace("<br>", "") for text in computes["x"][0]]
    assert in_one_line == [policy for policy in policies for _ in names]
    assert computes["x"][1] == names * len(plans)
    assert computes["y"] == [seconds for each in plans for seconds in each["seconds"]]
    ends = [sum(both) for both in zip(computes["y"], waits["y"], strict=True)]
    assert ends == pytest.approx([each["step"] for each in plans for _ in names])
    (line,) = layout["shapes"]
    assert line["y0"] == line["y1"] == plans[0]["bound"]
    data, _ = figures(html)[1]
    curves = [trace for trace in data if trace["mode"] == "lines"]
    assert [trace["name"] for trace in curves] == names
    assert dict(zip(curves[0]["x"], curves[0]["y"], strict=True))[100] == pytest.approx(0.002 + 100 * 0.0005)
    points = {trace["name"]: trace for trace in data if trace["mode"] == "markers"}
    assert points["minmax"]["x"] == plans[-1]["batches"]
    assert points["minmax"]["y"] == plans[-1]["seconds"]
    assert [points["minmax"]["marker"]["color"][0]] == [curves[0]["line"]["color"]]


def test_the_page_of_many_ranks_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    ranks = ["--rank", "a:cost=0.002+0.0005b,count=16", "--rank", "b:cost=0.002+0.0008b,count=16"]
    assert plan("--batch", "8192", *ranks, "--html", str(path)).exit_code == 0
    assert "Bars of the literal forms extend beyond the chart" in path.read_text()
    plans = document_of("--batch", "8192", *ranks)["plans"]
    (_, bars), (data, curves) = figures(path.read_text())
    assert [trace["name"] for trace in data[:2]] == ["0 a 0, 1 a 1, 2 a 2 and 13 more",
                                                     "16 b 0, 17 b 1, 18 b 2 and 13 more"]  # fmt: skip
    # A literal form takes ten times as long, and would make all other bars tiny.
    whole = [each for each in plans if each["total"] == 8192]
    assert max(each["step"] for each in plans) > 5 * max(each["step"] for each in whole)
    assert bars["yaxis"]["range"] == curves["yaxis"]["range"] == [0, 1.1 * max(each["step"] for each in whole)]
    assert curves["xaxis"]["range"] == [0, 1.1 * max(max(each["batches"]) for each in whole)]


def test_a_page_without_its_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "atoll.planning.page", raising=False)
    monkeypatch.setitem(sys.modules, "plotly", None)
    told = refusal(*TWO, "--html", str(tmp_path / "plan.html"))
    assert "--html needs the package plotly" in told
    assert "pip install plotly" in told


def test_tables_do_not_import_plotly() -> None:
    code = (
        "import sys; from atoll.cli import app\n"
        f"app(['plan', 'batches', *{TWO!r}], standalone_mode=False)\n"
        "print({'plotly'} & {name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines()[-1:] == ["set()"], done.stdout + done.stderr


def test_texts() -> None:
    assert [seconds_text(value) for value in (12.3456, 0.0875, 2.5e-5, 3e-9, 0.0)] == [
        "12.35 s", "87.5 ms", "25 us", "3 ns", "0 ns",
    ]  # fmt: skip
    costs = ["a:cost=0.1+1b,knee=16", "a:cost=1b,step=4", "a:cost=1:1/2:3"]
    assert [cost_text(ranks_of.from_text(text, 0)[0]["cost"]) for text in costs] == [
        "0.1+1b, knee 16", "1b, steps of 4", "2 measured points",
    ]  # fmt: skip
    assert cost_text({"shape": "affine", "per_sample": 1, "factor": 2, "overlap": {}}) == "2 x 1b, overlapped"
