# SPDX-License-Identifier: Apache-2.0
"""`atoll trace`: its results and files for made-up records, and for those of real jobs."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.loader import read_dir
from typer.testing import CliRunner

from atoll.cli import app
from atoll.diagnosis.clocks import Clocks
from atoll.diagnosis.records import read_folder
from atoll.diagnosis.waiting import collectives, late, shares
from fault_jobs import Job, Me

BEGIN = 1_700_000_000_000_000


def event(sequence: int, issued: int, finished: int = 0, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    state = "completed" if finished else "started"
    times = {"issued_us": BEGIN + issued, "started_us": BEGIN + issued, "finished_us": finished and BEGIN + finished}
    facts = {"reduce_op": "sum", "dtype": "float32", "bytes": 400, "root": -1, "state": state}
    return {"operation": operation, "sequence": sequence, **facts, **times, **more}


def write(folder: Path, rank: int, events: list[dict[str, Any]], **more: Any) -> Path:
    """Writes what `rank` of three would record about the group of all."""
    content = {
        "format": 2, "job": "a job", "attempt": 0, "group": "0", "id": "77", "rank": rank, "size": 3,
        "process": {"pid": 100 + rank, "name": f"rank {rank}", "host": "here", "clock": "one"},
        "written_us": BEGIN + 1_000_000, "members": ["rank 0", "rank 1", "rank 2"], "islands": [], "clock": [],
        "links": [], "operations": events, **more,
    }  # fmt: skip
    path = folder / f"atoll-{100 + rank}-rank{rank}-{content['group']}.json"
    path.write_text(json.dumps(content))
    return path


def run(*arguments: str) -> Any:
    environment = {"COLUMNS": "250", "NO_COLOR": "1"}
    return CliRunner().invoke(app, ["trace", *arguments], env=environment, catch_exceptions=False)


def shown(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return [" ".join(line.split()) for line in result.output.splitlines()]


def late_job(folder: Path) -> None:
    """Writes records: rank 2 is 300 ms late for the second of three collectives, rank 1 is 20 ms late for the third."""
    write(folder, 0, [event(0, 0, 10), event(1, 1000, 301_200), event(2, 302_000, 322_100)])
    write(folder, 1, [event(0, 2, 10), event(1, 1100, 301_200), event(2, 322_000, 322_100)])
    write(folder, 2, [event(0, 4, 10), event(1, 301_100, 301_200), event(2, 302_000, 322_100)])


def test_the_rank_that_came_last(tmp_path: Path) -> None:
    late_job(tmp_path)
    lines = shown(str(tmp_path))
    assert "3 of 3 ranks, 1 group, 3 collectives in 322.1 ms; clocks agree within 0 s" in lines
    assert "all_reduce #1 0 400 rank 2 300 ms 600 ms" in lines
    assert "all_reduce #2 0 400 rank 1 20 ms 40 ms" in lines
    assert "2 600.1 ms 2 times 300 ms" in lines or "2 600 ms 2 times 300 ms" in lines
    assert lines[-1].startswith("Others waited most for rank 2: 600")
    assert "it came last to 2 of 3 collectives" in lines[-1]


def test_several_missing_ranks_share_the_blame(tmp_path: Path) -> None:
    write(tmp_path, 0, [event(0, 0, 50)])
    write(tmp_path, 1, [event(0, 30, 50)])
    write(tmp_path, 2, [event(0, 40, 50)])
    folder = read_folder(tmp_path)
    (one,) = collectives(folder, Clocks(folder.records))
    # 30 us of rank 0 for both, then 10 us of ranks 0 and 1 for rank 2.
    assert shares(one) == {0: 0, 1: 15, 2: 35}
    assert [(row.rank, row.by, row.waited) for row in late([one])] == [(2, 10, 35)]


@pytest.mark.parametrize(
    ("operation", "culprit", "waited"), [("broadcast", 1, 90), ("scatter", 1, 90), ("reduce", 2, 10), ("gather", 2, 10)]
)
def test_with_a_root_only_some_wait(tmp_path: Path, operation: str, culprit: int, waited: int) -> None:
    for rank, called in enumerate((0, 50, 60) if operation in ("reduce", "gather") else (0, 50, 10)):
        write(tmp_path, rank, [event(0, called, 70, operation, root=1)])
    folder = read_folder(tmp_path)
    (row,) = late(collectives(folder, Clocks(folder.records)))
    assert (row.rank, row.waited) == (culprit, waited)


def hung_job(folder: Path) -> None:
    """Writes records: ranks 0 and 1 wait in the second collective, which rank 2 has not entered."""
    for rank in (0, 1):
        write(folder, rank, [event(0, 0, 10), event(1, 100)], error={"kind": "timeout", "message": "all_reduce #1 ..."})
    write(folder, 2, [event(0, 0, 10)])


def test_a_rank_that_never_came(tmp_path: Path) -> None:
    hung_job(tmp_path)
    lines = shown(str(tmp_path))
    assert "2 0 all_reduce #1 all_reduce #0 (completed) ranks 0, 1" in lines
    assert "ranks 0, 1: timeout: all_reduce #1 ..." in lines
    assert lines[-1] == "Culprit: rank 2 never entered all_reduce #1 of group 0, in which ranks 0, 1 wait"


def test_a_record_that_is_older_than_the_call_proves_nothing(tmp_path: Path) -> None:
    hung_job(tmp_path)
    write(tmp_path, 2, [event(0, 0, 10)], written_us=BEGIN + 50)
    assert not any("Culprit" in line for line in shown(str(tmp_path)))


def test_torn_and_missing_files(tmp_path: Path) -> None:
    late_job(tmp_path)
    torn = tmp_path / "atoll-101-rank1-0.json"
    torn.write_text(torn.read_text()[:200])
    (tmp_path / "atoll-1-rank0-other.json").write_text("[]")
    write(tmp_path, 0, [], group="old", job="another", written_us=BEGIN)
    lines = shown(str(tmp_path), "-o", str(tmp_path / "out.json"), "--flight-recorder", str(tmp_path / "fr"))
    text = "\n".join(lines)
    assert "atoll-101-rank1-0.json is truncated or is not a record of Atoll" in text
    assert "atoll-1-rank0-other.json is truncated or is not a record of Atoll" in text
    assert "rank 1 left no record of group 0" in lines
    assert "1 files of earlier jobs or attempts are left out" in lines
    assert any(line.startswith("2 of 3 ranks, 1 group") for line in lines)


def test_wrong_calls(tmp_path: Path) -> None:
    for folder, why in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "has no files of Atoll")):
        result = run(str(folder))
        assert result.exit_code == 2
        assert why in " ".join(result.output.replace("│", " ").split())
    late_job(tmp_path)
    assert run(str(tmp_path), "-o", str(tmp_path / "no" / "where.json")).exit_code == 2


def elsewhere(rank: int, samples: list[tuple[int, int, int]]) -> dict[str, Any]:
    return {
        "process": {"pid": 1, "name": f"rank {rank}", "host": f"host{rank}", "clock": f"clock {rank}"},
        "clock": [[BEGIN + at, offset, error] for at, offset, error in samples],
    }


def test_clocks_are_brought_together(tmp_path: Path) -> None:
    """Rank 1's clock is 5 s behind, rank 2's 1 s ahead and gains 100 us in each second."""
    write(tmp_path, 0, [event(0, 0, 100)], **elsewhere(0, []))
    write(tmp_path, 1, [event(0, 20 - 5_000_000, 100 - 5_000_000)], **elsewhere(1, [(0, 5_000_000, 8)]))
    drifting = [(0, -1_000_000, 5), (10_000_000, -1_001_000, 3)]
    write(tmp_path, 2, [event(0, 5_000_010 + 500, 5_000_600)], **elsewhere(2, drifting))
    folder = read_folder(tmp_path)
    clocks = Clocks(folder.records)
    assert [clocks.error(rank) for rank in range(3)] == [0, 8, 5]
    (one,) = collectives(folder, clocks)
    assert one.called[1] == BEGIN + 20
    assert abs(one.called[2] - (BEGIN + 4_000_010 - 50 + 50)) < 100
    lines = shown(str(tmp_path))
    assert any("clocks agree within 8 us" in line for line in lines)


def test_a_clock_through_another_group(tmp_path: Path) -> None:
    """Rank 2 never compared its clock with rank 0's, but with rank 1's."""
    pair = {"group": "pair", "id": "78", "members": ["rank 1", "rank 2"], "size": 2}
    write(tmp_path, 0, [event(0, 0, 100)], **elsewhere(0, []))
    write(tmp_path, 1, [event(0, 1000, 1100)], **elsewhere(1, [(0, -1000, 4)]))
    write(tmp_path, 1, [], **{**elsewhere(2, [(0, 300, 2)]), **pair})
    folder = read_folder(tmp_path)
    clocks = Clocks(folder.records)
    assert clocks.error(2) == 6
    assert clocks.common(2, BEGIN + 700) == BEGIN


def test_unknown_clocks_are_named(tmp_path: Path) -> None:
    late_job(tmp_path)
    write(tmp_path, 2, [event(0, 0, 10)], **elsewhere(2, []))
    assert any("those of rank 2 are unknown" in line for line in shown(str(tmp_path)))


def test_the_timeline(tmp_path: Path) -> None:
    late_job(tmp_path)
    out = tmp_path / "trace.out"
    shown(str(tmp_path), "-o", str(out))
    content = json.loads(out.read_text())
    events = content["traceEvents"]
    slices = [each for each in events if each["ph"] == "X"]
    assert len(slices) == 9
    assert all(each["dur"] >= 0 and each["ts"] >= 0 for each in slices)
    assert {each["args"]["name"] for each in events if each["name"] == "process_name"} == {
        "rank 0 (here)", "rank 1 (here)", "rank 2 (here)",
    }  # fmt: skip
    begins = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = [each for each in events if each["ph"] == "f"]
    assert len(ends) == len(begins) == 6
    for end in ends:
        assert begins[end["id"]]["ts"] <= end["ts"]
    assert {each["pid"] for each in begins.values() if each["ts"] == 301_100} == {2}


def analysed(folder: Path) -> Any:
    arguments = argparse.Namespace(
        trace_dir=str(folder), prefix=None, verbose=False, just_print_entries=False, allow_incomplete_ranks=False,
        mismatch_cap=10,
    )  # fmt: skip
    return build_db(*(lambda details, version: (details, arguments, version))(*read_dir(arguments)))


def test_pytorchs_analyser_finds_nothing_wrong(tmp_path: Path) -> None:
    late_job(tmp_path)
    shown(str(tmp_path), "--flight-recorder", str(tmp_path / "fr"))
    database = analysed(tmp_path / "fr")
    assert len(database.collectives) == 3
    assert all(one.pass_check for one in database.collectives)


def test_pytorchs_analyser_finds_a_rank_that_never_came(tmp_path: Path) -> None:
    hung_job(tmp_path)
    shown(str(tmp_path), "--flight-recorder", str(tmp_path / "fr"))
    database = analysed(tmp_path / "fr")
    assert database.collectives[0].pass_check
    assert database.collectives[1].missing_ranks == {2}
    assert database.collectives[1].collective_name == "gloo:all_reduce"


def test_the_analyser_takes_every_operation(tmp_path: Path) -> None:
    rooted = {"broadcast": 0, "reduce": 1, "gather": 2, "scatter": 0}
    names = ["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier", *rooted]
    for rank in range(3):
        events = [
            event(5 + i, 10 * i, 10 * i + 5, name, root=rooted.get(name, -1), bytes=400 + 4 * rank * (name in UNEVEN))
            for i, name in enumerate(names)
        ]
        write(tmp_path, rank, events[rank:])  # each remembers fewer calls than the previous one
    shown(str(tmp_path), "--flight-recorder", str(tmp_path / "fr"))
    database = analysed(tmp_path / "fr")
    assert [one.collective_name for one in database.collectives] == [f"gloo:{name}" for name in names[2:]]
    assert all(one.pass_check for one in database.collectives)


UNEVEN = {"all_gather", "all_to_all", "gather", "scatter"}


def traced(me: Me) -> None:
    me.join()
    pair = dist.new_group([0, 2])
    for _ in range(3):
        me.check_sum()
    me.tell("ready")
    if me.rank == 2:
        me.listen()
    me.check_sum()
    if me.rank != 1:
        me.check_sum(group=pair)
    me.listen()
    dist.destroy_process_group()


def sleeping(job: Job, rank: int, seconds: float) -> None:
    """Sleeps while the others wait in a collective."""
    job.wait_for("ready")
    time.sleep(seconds)
    job.send(rank, "go on")


def test_a_real_job(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    with Job(tmp_path, traced, "ABA", environment={"ATOLL_TRACE_DIR": str(traces)}) as job:
        sleeping(job, 2, 2.0)
        deadline = time.monotonic() + 20
        for rank in range(3):
            job.send(rank, "end")
        job.check_ends(seconds=deadline - time.monotonic())
    folder = read_folder(traces)
    assert folder.problems == []
    assert {len(records) for records in folder.groups().values()} == {2, 3}
    samples = [sample for record in folder.records for sample in record.samples]
    assert samples
    for sample in samples:  # one machine: the truth is 0, and the bound holds
        assert abs(sample.offset) <= sample.error
    lines = shown(str(traces), "--flight-recorder", str(tmp_path / "fr"))
    assert lines[-1].startswith("Others waited most for rank 2:")
    assert all(one.pass_check for one in analysed(tmp_path / "fr").collectives)


def hang(me: Me) -> None:
    me.join()
    me.check_sum()
    me.limit(2)
    me.tell("calling")
    if me.rank == 1:
        me.listen()
    me.check_sum()


def test_a_real_job_that_hangs(tmp_path: Path) -> None:
    with Job(tmp_path, hang, "ABA") as job:
        since = max(each.at for each in job.wait_for("calling").values())
        for failure in job.failures([0, 2], since, 5.0).values():
            assert "rank 1 has not entered it for" in failure.text
        job.send(1, "too late")
        job.failures([1], time.monotonic(), 5.0)
    lines = shown(str(tmp_path), "--flight-recorder", str(tmp_path / "fr"))
    assert any("timed out" in line for line in lines)
    named = {
        *_culprits(lines),
        *(row for one in analysed(tmp_path / "fr").collectives for row in one.missing_ranks or ()),
    }
    assert named == {1}


def _culprits(lines: list[str]) -> set[int]:
    return {int(line.split()[2]) for line in lines if line.startswith("Culprit: rank ")}
