# SPDX-License-Identifier: Apache-2.0
"""`atoll bench` and the scenarios in bench/, at tiny sizes: the right columns, and an error for anything wrong."""

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atoll.bench import links, sizes, table, values, worker
from atoll.bench.block import Block, choose_calls, quantile
from atoll.bench.options import Options
from forking import module_source
from support import Ranks, crossed, run_script

ROOT = Path(__file__).resolve().parents[2]
OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter",
              "send", "barrier"]  # fmt: skip


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `atoll bench`, which starts its ranks itself."""
    command = [sys.executable, "-m", "atoll.bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def bench_of_ranks(ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `atoll bench` in ranks that are started here; returns rank 0. The others must succeed, or end like rank
    0."""
    first, *others = run_script(module_source("atoll.bench", *arguments), ranks, timeout=100)
    assert all(other.returncode in (0, first.returncode) for other in others), others
    assert "Traceback" not in "".join(done.stderr for done in (first, *others)), first.stderr
    done: subprocess.CompletedProcess[str] = first
    return done


@pytest.mark.verify
def test_columns_layout_links_and_json(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    quick = ["--sizes", "4,4096", "--rounds", "3", "--iters", "2", "--warmup", "1", "--force-busy"]
    done = bench("all_reduce", "--layout", "ABA", "--against", "gloo", "--json", str(path), *quick)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    titles = next(line for line in lines if " algbw " in line)
    assert titles.split()[1:] == ["size", "count", "type", "redop", "time", "algbw", "busbw", "#wrong", "gloo", "ratio",
                                  "p10", "p90"]  # fmt: skip
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [row[:4] for row in rows] == [["4", "1", "float32", "sum"], ["4096", "1024", "float32", "sum"]]
    assert all(float(row[4]) > 0 and row[7] == "0" and row[9].endswith("x") for row in rows)
    assert any(re.fullmatch(r"# links: \d-\d shm(, \d-\d shm)+", line) for line in lines)
    assert any("A: 0 2, B: 1" in line for line in lines)
    document = json.loads(path.read_text())
    assert document["ranks"] == 3
    assert document["islands"] == ["A", "B", "A"]
    assert [len(row["gloo"]["rounds_us"]) for row in document["rows"]] == [3, 3]
    row = document["rows"][1]
    assert row["atoll"]["busbw_gb_s"] == pytest.approx(row["atoll"]["algbw_gb_s"] * 4 / 3)
    assert row["ratio"]["p10"] <= row["ratio"]["median"] <= row["ratio"]["p90"]


@pytest.mark.verify
def test_wrong_results_and_unexpected_links_fail() -> None:
    quick = ["--sizes", "64", "--rounds", "2", "--force-busy"]
    done = bench("all_gather", *quick, "--inject-fault")
    assert done.returncode == worker.WRONG_RESULTS, done.stderr
    assert "# FAILED: 1 wrong elements" in done.stdout
    done = bench_of_ranks(2, "all_reduce", *quick, "--expect-link", "tcp")
    assert done.returncode == worker.UNEXPECTED_LINK, done.stderr
    assert "# FAILED: the link of rank 0 to rank 1 is shm, expected tcp" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduces"], "choose from all_reduce"),
        (["all_reduce", "--sizes", "4..3"], "FIRST..LAST"),
        (["all_reduce", "--dtype", "float31"], "choose from float32"),
        (["all_reduce", "--op", "band"], "is not defined for float32"),
        (["all_reduce", "--expect-link", "pigeon"], "choose shm or tcp"),
        (["all_reduce", "--against", "atoll"], "must differ from --backend"),
        (["send", "--ranks", "1"], "two ranks"),
        (["all_reduce", "--device", "sim,cpu", "--ranks", "3"], "names 2 devices, but the job has 3 ranks"),
        (
            ["all_reduce", "--device", "sim,,cpu", "--ranks", "3"],
            "expected comma-separated devices, such as sim,sim,cpu",
        ),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    from typer.testing import CliRunner

    from atoll.cli import app

    result = CliRunner().invoke(app, ["bench", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def is_supported(dtype: str, reduction: str) -> bool:
    try:
        values.check_supported(dtype, reduction)
    except ValueError:
        return False
    return True


LAYOUTS = ["two_ranks", "three_ranks", "island_ranks"]
SUPPORTED = [of for of in itertools.product(values.NUMBER_TYPES, values.REDUCTIONS) if is_supported(*of)]


def wrong_elements(rank: int, operation: str, dtype: str, reduction: str, count: int, calls: int, fault: bool) -> int:
    from atoll.bench.block import run_block
    from atoll.bench.operations import Problem, make

    group = torch.distributed.group.WORLD
    assert group is not None
    item = values.NUMBER_TYPES[dtype].dtype.itemsize
    measured = make(Problem(operation, count * item, dtype, reduction), group)
    last = torch.distributed.get_world_size() - 1
    block = run_block(measured, min(calls, measured.most_calls), fault=fault and rank == last)
    assert block.calls == len(block.call_ns)
    assert block.seconds >= 0
    return block.wrong


@pytest.mark.parametrize(("any_ranks", "operation"), crossed(LAYOUTS, OPERATIONS), indirect=["any_ranks"])
def test_every_operation_is_right(any_ranks: Ranks, operation: str) -> None:
    for count in (1, 1000, 300_007):
        assert sum(any_ranks.run(wrong_elements, operation, "float32", "sum", count, 3, False)) == 0


@pytest.mark.parametrize("operation", sorted({*OPERATIONS} - {"reduce", "gather", "send", "barrier"}))
def test_a_wrong_element_is_found(any_ranks: Ranks, operation: str) -> None:
    assert sum(any_ranks.run(wrong_elements, operation, "float32", "sum", 3000, 2, True)) == 1


@pytest.mark.parametrize(
    ("any_ranks", "of"), crossed(LAYOUTS, SUPPORTED), ids=lambda of: of if isinstance(of, str) else "-".join(of),
    indirect=["any_ranks"],
)  # fmt: skip
def test_every_reduction_is_right(any_ranks: Ranks, of: tuple[str, str]) -> None:
    dtype, reduction = of
    assert sum(any_ranks.run(wrong_elements, "all_reduce", dtype, reduction, 1009, 200, False)) == 0


@pytest.mark.parametrize("name", values.NUMBER_TYPES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_a_missing_contribution_is_found_after_many_calls(name: str, ranks: int) -> None:
    number = values.NUMBER_TYPES[name]
    calls = values.most_calls(number, "sum", ranks)
    vectors = [values.contribution(number, rank) for rank in range(ranks)]
    expected = values.reduced_repeatedly(vectors, "sum", calls)
    relative = values.tolerance(number, "sum", ranks, calls)
    buffer = torch.empty(1000, dtype=number.dtype)
    values.fill(buffer, expected)
    assert values.wrong(buffer, expected, relative=relative) == 0
    assert not number.dtype.is_floating_point or bool(buffer.isfinite().all())
    # One rank's contribution is missing in the first call: all elements are wrong except those that no longer show it.
    lacking = values.reduced_repeatedly([*vectors[1:], torch.zeros_like(vectors[0])], "sum", calls)
    values.fill(buffer, lacking)
    assert values.wrong(buffer, expected, relative=relative) > 500


def test_a_chunk_in_the_wrong_place_is_found() -> None:
    vector = values.contribution(values.NUMBER_TYPES["float32"], 1)
    buffer = torch.empty(1 << 12)
    values.fill(buffer, vector, phase=5)
    assert values.wrong(buffer, vector, phase=5) == 0
    for shift in (1 << power for power in range(12)):
        assert values.wrong(torch.roll(buffer, shift), vector, phase=5) > 0


def test_sizes() -> None:
    assert sizes.parse_sizes("4..64*4") == [4, 16, 64]
    assert sizes.parse_sizes("1K..3K") == [1024, 2048, 3072]
    assert sizes.parse_sizes("64k,1MiB,25M") == [1 << 16, 1 << 20, 25 << 20]
    assert [sizes.format_size(size) for size in (4, 1 << 16, 25 << 20)] == ["4 B", "64 KiB", "25 MiB"]
    for text in ("", "x", "0..4", "8..4", "4..8*1", "-4"):
        with pytest.raises(ValueError, match="size"):
            sizes.parse_sizes(text)


def test_quantiles_and_calls() -> None:
    assert [quantile([3, 1, 2], share) for share in (0, 0.25, 0.5, 1)] == [1, 1.5, 2, 3]
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)
    assert [choose_calls(seconds, 0.02, 100) for seconds in (1.0, 0.005, 1e-9, 0.0)] == [1, 4, 100, 100]


def test_the_slowest_rank_counts() -> None:
    first = [Block(2, 2.0, [1, 1], 0), Block(2, 6.0, [3, 3], 0)]
    second = [Block(2, 4.0, [2, 2], 1), Block(2, 1.0, [5, 5], 0)]
    timing = table.Timing.of_blocks("atoll", [first, second], messages_per_call=2)
    assert timing.rounds == [1.0, 1.5]
    assert timing.wrong == 1
    assert timing.p50 == pytest.approx(1.25e-9)


def test_expected_links_follow_the_place() -> None:
    def view(rank: int, place: str, transport: str, kinds: dict[int, str]) -> links.RankLinks:
        return links.RankLinks(rank, "A", place, transport, kinds)

    ranks = [view(0, "x", "auto", {1: "shm", 2: "tcp"}), view(1, "x", "auto", {0: "shm"})]
    ranks.append(view(2, "y", "auto", {0: "tcp"}))
    assert links.unexpected(ranks, "") == []
    assert len(links.unexpected(ranks, "shm")) == 2
    ranks[0].transport = ranks[1].transport = "tcp"
    assert len(links.unexpected(ranks, "")) == 2


class OneRank(worker.Session):
    """A single rank without processes."""

    said = ""

    @property
    def rank(self) -> int:
        return 0

    def say(self, text: str) -> None:
        self.said += text

    def agree(self, value: object) -> object:
        return value


def test_a_busy_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.bench.machine.cores_used_by_others", lambda: 1.5)
    session = OneRank(Options("all_reduce", [4]), {}, None, torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(SystemExit) as ended:
        worker.check_quiet(session)
    assert ended.value.code == worker.BUSY
    assert "1.50 cores" in session.said
    session.options.force_busy = True
    assert worker.check_quiet(session) == 1.5


def run_scenarios(folder: Path, *arguments: str, timeout: float = 110) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "bench/run.py"),
        *arguments,
        "--output",
        str(folder),
        "--quick",
        "--force-busy",
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.mark.verify
def test_scenarios_write_pages(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "latency", "idle")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "latency.json").read_text())
    assert [part["ranks"] for part in document["parts"]] == [2, 4]
    page = (tmp_path / "latency.md").read_text()
    assert "| size | atoll, median | atoll, p99 | gloo, median | gloo, p99 | gloo / atoll |" in page
    assert "measures nothing" in page
    assert "| atoll | tcp |" in (tmp_path / "idle.md").read_text()
    index = (tmp_path / "index.md").read_text()
    assert "(latency.md)" in index
    assert "not measured yet (`bench/run.py host`)" in index


@pytest.mark.verify
def test_planner_scenario_times_plans_and_simulations(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "planner")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "planner.json").read_text())
    assert [row["tied"] for row in document["plans"]] == [False, True]
    for row in (*document["plans"], *document["simulations"]):
        assert 0 < row["seconds"]["median"] < 10
    assert all(row["distance"] >= 1 for row in document["plans"])
    assert document["simulations"][0]["ranks"] == 16
    page = (tmp_path / "planner.md").read_text()
    assert "| micro-batches | tied | ms |" in page
    assert "| 16 | 4 |" in page


@pytest.mark.verify
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_rails_scenario_writes_its_page(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "rails", timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "rails.json").read_text())
    assert [row["device"] for row in document["rows"]] == ["cpu", "sim"]
    for row in document["rows"]:
        assert row["rails"] == 2
        assert "tcp over 2 of 2 rails" in row["link"]
        assert row["large"]["median"] > 0.5
    (cut,) = document["cuts"]
    assert "over 1 of 2 rails" in cut["link_while_cut"]
    assert "| back again |" in (tmp_path / "rails.md").read_text()


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_links_scenario_compares_with_ucx(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "links", timeout=880)
    if "installs UCX" in done.stdout:
        pytest.skip("there is no UCX")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "links.json").read_text())["rows"]
    assert [row["kind"] for row in rows if row["is_own"]] == ["shared memory", "TCP"]
    assert "| UCX: tcp |" in (tmp_path / "links.md").read_text()


@pytest.mark.verify
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_bridge_scenario_leaves_no_namespace(tmp_path: Path) -> None:
    done = run_scenarios(tmp_path, "bridge")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "bridge.json").read_text())["rows"]
    assert [row["layout"] for row in rows] == ["AABB", "AAAB"]
    assert all(0.2 < row["bound_fraction"]["atoll"] < 1.1 for row in rows)
    named = (path.name.split("-")[1] for path in Path("/run/netns").glob("atollbench-*"))
    assert [pid for pid in named if not Path("/proc", pid).exists()] == []
