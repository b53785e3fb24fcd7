# SPDX-License-Identifier: Apache-2.0
"""`atoll doctor`: what it shows of a job, the problems that it finds, and that it ends whatever the ranks do."""

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from atoll.doctor import links, report, schedule, worker
from atoll.doctor.facts import Facts, of_this_rank
from atoll.doctor.findings import NOTE, WARNING, Finding, judge, ranks_text
from atoll.doctor.links import Measured, reason
from atoll.doctor.options import Options
from forking import module_source, run_module
from support import later, run_script

OPERATIONS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "gather", "scatter",
              "send", "barrier"]  # fmt: skip
JOB = """
import os, sys
rank = int(os.environ["RANK"])
{setup}
from atoll.doctor import self_test, worker
from atoll.doctor.options import Options
{patch}
sys.exit(worker.run(Options.from_json({options!r})))
"""


def doctor(*arguments: str, launcher: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    if not launcher:
        return run_module("atoll.doctor", *arguments)
    command = [sys.executable, *launcher, "-m", "atoll.doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def job(options: Options, setup: str = "", patch: str = "") -> list[Any]:
    """Runs one process per rank, each of which runs `setup` before it imports the doctor and `patch` afterwards."""
    return run_script(JOB.format(setup=setup, patch=patch, options=options.to_json()), options.ranks)


def test_tables_and_json_of_a_mixed_job(tmp_path: Path) -> None:
    path = tmp_path / "doctor.json"
    wanted = ["--schedule", "reduce_scatter", "--bytes", "1000", "--dtype", "float64", "--rank", "2"]
    done = doctor("--layout", "ABA", "--device", "cpu,sim,cpu", "--json", str(path), *wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "A 0 2 cpu atoll" in lines
    assert "B 1 sim atoll" in lines
    assert any(line.startswith("0-1 0-2 1-2 shm both on host ") for line in lines)
    assert "sim atoll 1 A: atoll, B: atoll" in lines
    assert "Schedule of reduce_scatter, 984 B: 123 x float64" in lines
    assert lines[lines.index("Steps of rank 2") + 1].startswith("algorithm: ")
    assert [line.split()[0] for line in lines if " PASS" in line] == 2 * OPERATIONS
    assert lines[-1].startswith("Atoll: doctor found no problem")
    document = json.loads(path.read_text())
    assert set(document) == {"schema", "ranks", "islands", "links", "groups", "schedule", "self_test", "findings",
                             "problems", "warnings", "verdict"}  # fmt: skip
    assert document["schema"] == 1
    assert document["verdict"] == lines[-1]
    assert [each["device"] for each in document["ranks"]] == ["cpu", "sim:1", "cpu"]
    assert document["islands"] == [
        {"island": "A", "ranks": [0, 2], "device": "cpu", "library": "atoll"},
        {"island": "B", "ranks": [1], "device": "sim", "library": "atoll"},
    ]
    assert [(pair["a"], pair["b"], pair["kind"]) for pair in document["links"]] == [
        (0, 1, "shm"), (0, 2, "shm"), (1, 2, "shm"),
    ]  # fmt: skip
    for pair in document["links"]:
        assert min(pair["latency_us"], pair["a_to_b"], pair["b_to_a"], pair["bytes"]) > 0
    assert document["groups"][0]["backends"] == [
        {"device": "cpu", "backend": "atoll", "ranks": [0, 1, 2]},
        {"device": "sim", "backend": "atoll", "ranks": [1]},
    ]
    assert [row["tensors"] for row in document["self_test"]] == 10 * ["cpu"] + 10 * ["device"]
    part = document["schedule"]
    assert (part["operation"], part["elements"], part["bytes"], part["steps_of"]) == ("reduce_scatter", 123, 984, 2)
    assert len(part["summaries"]) == 3
    assert "lane 0" in part["steps"]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("devices", "inner", "library"), [("sim,sim,cpu", "", "simccl"), later("cpu", "cpu:gloo", "gloo")]
)
def test_what_reduces_inside_each_island_is_shown(
    devices: str, inner: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_INNER", inner)
    done = doctor("--layout", "AAB", "--device", devices)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert f"A 0 1 {devices[:3]} {library}" in lines
    assert "B 2 cpu atoll" in lines
    assert f"cpu atoll 0-2 A: {library}, B: atoll" in lines


@pytest.mark.verify
def test_under_torchrun_rank_0_prints() -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = doctor("--layout", "AB", "--json", "-", launcher=launcher)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert [each["island"] for each in document["islands"]] == ["A", "B"]
    assert document["schedule"] is None
    assert all(row["passed"] for row in document["self_test"])


def test_a_wrong_result_is_found_and_two_hosts_use_tcp() -> None:
    setup = 'os.environ["ATOLL_HOST"] = ("left", "right")[rank]'
    first, second = job(Options(2, device="cpu,sim", json_path="-", fault="all_to_all"), setup)
    assert (first.returncode, second.returncode, second.stdout) == (1, 0, "")
    document = json.loads(first.stdout)
    failed = [row for row in document["self_test"] if not row["passed"]]
    assert [row["operation"] for row in failed] == ["all_to_all"] * 2
    assert [row["failures"] for row in failed] == [
        [{"rank": 1, "what": f"1 wrong elements of 1 x float32 on {device}"}] for device in ("cpu", "sim:1")
    ]
    (link,) = document["links"]
    assert link["link"].startswith("tcp ")
    assert " -> " in link["link"]
    assert link["reason"] == "one machine, ATOLL_HOST makes it two: left and right"
    levels = {finding["what"]: finding["level"] for finding in document["findings"]}
    for tensors in ("cpu", "device"):
        assert levels[f"all_to_all on the {tensors} gave wrong results, seen by rank 1"] == "problem"
    assert levels["TCP inside one machine, pair 0-1: one machine, ATOLL_HOST makes it two: left and right"] == "warning"
    assert document["verdict"].startswith("Atoll: doctor found 2 problems, ")


def test_a_rank_that_fails_ends_the_examination_of_all() -> None:
    patch = """
import atoll
if rank == 1:
    atoll.__version__ = "0.0.9"
    def fail(*_): raise MemoryError("out of device memory")
    self_test.run = fail
"""
    first, *others = job(Options(3, json_path="-"), patch=patch)
    assert [each.returncode for each in (first, *others)] == [1, 0, 0], first.stderr
    document = json.loads(first.stdout)
    problems = [finding["what"] for finding in document["findings"] if finding["level"] == "problem"]
    assert problems == ["rank 1 cannot test operations on the cpu: out of device memory"]
    (version,) = [finding["what"] for finding in document["findings"] if "differs" in finding["what"]]
    assert version.endswith("on ranks 0 2, 0.0.9 on rank 1")


def test_a_rank_that_dies_is_named() -> None:
    patch = """
if rank == 1:
    self_test.run = lambda *_: os._exit(7)
"""
    first, second, third = job(Options(3), patch=patch)
    assert [first.returncode, second.returncode, third.returncode] == [1, 7, 0], first.stderr
    text = " ".join(first.stdout.split())
    assert "problem: ranks 0 2 cannot test operations on the cpu: " in text
    assert "problem: rank 1 did not test operations on the cpu within 6 s" in text
    assert "Atoll: doctor found 2 problems" in text


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        (
            'os.environ["ATOLL_TRANSPORT"] = ("auto", "pigeon")[rank]',
            'rank 1 cannot start Atoll: ATOLL_TRANSPORT="pigeon": expected auto, shm, tcp or ucx',
        ),
        ('os.environ["ATOLL_REDUCE"] = ("", "flat")[rank]', "ranks 0 1 cannot join the group: "),
        ('os.environ["ATOLL_TRANSPORT"] = ("shm", "tcp")[rank]', "cannot measure the links: "),
    ],
)
def test_a_rank_that_cannot_join_is_reported(setup: str, expected: str) -> None:
    first, second = job(Options(2), setup)
    assert (first.returncode, second.returncode) == (1, 0), first.stderr
    text = " ".join(first.stdout.split())
    assert expected in text
    assert text.endswith("Atoll: doctor found 1 problem")


def test_a_device_that_is_not_there() -> None:
    (done,) = run_script(module_source("atoll.doctor", "--device", "warp"), 1)
    assert done.returncode == 1
    assert "rank 0 cannot look at the ranks: device 'warp' is not available on " in " ".join(done.stdout.split())


def test_a_missing_rank_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = run_module("atoll.doctor", "--timeout", 1)
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    assert "ranks 1 2 did not look at the ranks within 1 s start all 3 ranks" in text


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"MASTER_PORT": "1"}, "rank 1 cannot reach the job's store at 127.0.0.1:1 within 1 s: check MASTER_ADDR"),
        ({"MASTER_PORT": "eleven"}, "MASTER_PORT='eleven': expected a whole number"),
        ({"MASTER_PORT": "1", "RANK": "2"}, "RANK=2 does not fit WORLD_SIZE=2"),
        ({"MASTER_PORT": ""}, "RANK is set, but MASTER_PORT is not"),
    ],
)
def test_no_store(
    variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", **variables}.items():
        monkeypatch.setenv(name, value)
    assert worker.run(Options(2, timeout=1)) == worker.PROBLEMS
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "all_reduces"], "operation 'all_reduces': choose from all_reduce, "),
        (["--schedule", "all_reduce", "--bytes", "many"], "size 'many': expected a number with K, M or G"),
        (
            ["--schedule", "all_to_all", "--bytes", "4"],
            "4 bytes are too few for one float32 per rank (2): use --bytes 8 or more",
        ),
        (["--schedule", "all_reduce", "--dtype", "float31"], "dtype 'float31': choose from float32"),
        (["--rank", "1"], "--rank 1 shows steps of a schedule: give --schedule too"),
        (["--schedule", "all_reduce", "--rank", "2"], "--rank 2: the job's ranks count from 0 to 1"),
        (["--device", "cpu,cpu,cpu"], "device 'cpu,cpu,cpu' names 3 devices: give one, or one per rank (2)"),
        (["--json", "/no/such/folder/x"], "the folder /no/such/folder does not exist"),
        (["--inject-fault", "barrier"], "operation 'barrier': choose from all_reduce"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str) -> None:
    assert message in refusal(arguments)


def refusal(arguments: list[str], **variables: str) -> str:
    from atoll.cli import app

    environment = {"COLUMNS": "250", "NO_COLOR": "1", **variables}
    result = CliRunner().invoke(app, ["doctor", *arguments], env=environment)
    assert result.exit_code == 2
    return " ".join(result.output.replace("│", " ").split())


def test_a_launched_job_decides_the_number_of_ranks() -> None:
    assert "layout 'AAB' names 3 ranks, but the job has 2" in refusal(["--layout", "AAB"], RANK="0", WORLD_SIZE="2")
    assert "RANK is set, but WORLD_SIZE is not" in refusal([], RANK="0", WORLD_SIZE="")


def ranks(count: int, **changes: Any) -> list[Facts]:
    """Returns the facts of ranks on one machine without problems."""
    versions = {"atoll": "1.0", "torch": "2.13.0", "python": "3.11.7"}
    quiet = replace(of_this_rank(0, "cpu"), versions=versions, host_label="", cores=list(range(64)), threads=1,
                    interfaces=["eth0"], open_files=[65536, 65536], host="h", machine="m", key_file=False)  # fmt: skip
    return [replace(quiet, rank=rank, **changes) for rank in range(count)]


def on_two_machines(**changes: Any) -> list[Facts]:
    first, second = ranks(2, **changes)
    return [first, replace(second, machine="n", host="i", interfaces=["eth0", "ib0"])]


ISLANDS = [{"island": "A", "ranks": [0, 1]}]
TCP = Measured(0, 1, "tcp 1.2.3.4:5 -> 1.2.3.4:6", 30.0, 1.0, 1.0, 1 << 20)


def found(facts: list[Facts], *pairs: Measured) -> list[Finding]:
    return judge(facts, pairs, ISLANDS)


def test_a_good_job_has_no_findings() -> None:
    assert found(ranks(2), replace(TCP, link="shm")) == []
    protected = [replace(each, key_file=True, address="ib0") for each in on_two_machines()]
    assert found(protected, TCP) == []


@pytest.mark.parametrize(("package", "level"), [("atoll", WARNING), ("python", WARNING), ("torch", NOTE)])
def test_versions_that_differ(package: str, level: str) -> None:
    first, second = ranks(2)
    (finding,) = found([first, replace(second, versions={**second.versions, package: "9"})])
    assert finding.level == level
    assert finding.what == f"{package} differs: {first.versions[package]} on rank 0, 9 on rank 1"
    assert finding.fix


def test_vendor_libraries_differ_inside_an_island_only() -> None:
    first, second = ranks(2, library="NCCL 2.27")
    facts = [first, replace(second, library="NCCL 2.20")]
    (finding,) = found(facts)
    assert "inside island A: NCCL 2.27 on rank 0, NCCL 2.20 on rank 1" in finding.what
    assert judge(facts, [], [{"island": "A", "ranks": [0]}, {"island": "B", "ranks": [1]}]) == []


@pytest.mark.parametrize(
    ("changes", "why", "fix"),
    [
        ({"transport": "tcp"}, "ATOLL_TRANSPORT=tcp", "unset ATOLL_TRANSPORT"),
        ({"host_label": "x"}, "one machine, ATOLL_HOST makes it two: unset and x", "unset ATOLL_HOST"),
        ({"network": "7"}, "one machine, two network namespaces: ", "one network namespace"),
    ],
)
def test_tcp_inside_a_machine(changes: dict[str, Any], why: str, fix: str) -> None:
    first, second = ranks(2)
    (finding,) = found([first, replace(second, **changes)], TCP)
    assert f"TCP inside one machine, pair 0-1: {why}" in finding.what
    assert fix in finding.fix


def test_a_rail_that_is_down_is_named() -> None:
    text = "tcp over {} of 2 rails: 10.0.0.1:5 -> 10.0.0.2:6 118.1 MB/s, 10.0.1.1:7 -> 10.0.1.2:8 {}"
    protected = [replace(each, key_file=True, address="eth0") for each in on_two_machines()]
    (finding,) = found(protected, replace(TCP, link=text.format(1, "down (end of file)")))
    assert "pair 0-1 uses 1 of its 2 rails" in finding.what
    assert "10.0.1.1:7 -> 10.0.1.2:8 down (end of file)" in finding.what
    assert "ATOLL_RAILS" in finding.fix
    assert found(protected, replace(TCP, link=text.format(2, "117.9 MB/s"))) == []


def test_a_pair_without_ucx_is_reported() -> None:
    facts = [replace(each, transport="ucx") for each in ranks(2)]
    (finding,) = found(facts, replace(TCP, link=TCP.link + " (not UCX: this end: no transport (at all))"))
    assert finding.what == "pair 0-1 uses tcp, not UCX: this end: no transport (at all)"
    assert "UCX_TLS" in finding.fix
    (finding,) = found([facts[0], replace(facts[1], transport="auto")], replace(TCP, link="shm"))
    assert "pair 0-1 uses shm, not UCX, because one of them may not use it" in finding.what
    fallen_back = replace(TCP, link=TCP.link + " (not UCX: the other end: no transport)")
    whats = [each.what for each in found(on_two_machines(), fallen_back)]
    assert "pair 0-1 uses tcp, not UCX: the other end: no transport" in whats, "RDMA on both, and no wish"
    assert found(facts, replace(TCP, link="ucx posix cma, beside " + TCP.link)) == []
    assert reason("ucx", *facts) == "ATOLL_TRANSPORT=ucx"
    staged = "ucx rc_mlx5 (staged: 64 bytes cannot be made known: no memory; raise it (ulimit -l)), beside "
    (finding,) = found(facts, replace(TCP, link=staged + TCP.link))
    assert finding.what.endswith("in UCX's own memory: 64 bytes cannot be made known: no memory")


def test_several_hosts_want_an_interface_and_a_key_file() -> None:
    interface, key = found(on_two_machines(), TCP)
    assert interface.what == "rank 1 could use several network interfaces: eth0, ib0"
    assert "ATOLL_IFACE" in interface.fix
    assert "ranks 0 1 have no key file" in key.what
    assert "ATOLL_KEY_FILE" in key.fix
    assert links.reason("tcp", *on_two_machines()) == "different hosts: h and i"


def test_few_descriptors_and_few_cores() -> None:
    (few,) = found(ranks(2, open_files=[256, 4096]))
    assert "ranks 0 1 may open 256 files at once" in few.what
    assert "ulimit -n 4096" in few.fix
    (crowded,) = found(ranks(2, cores=[0, 1, 2, 3], threads=4))
    assert "ranks 0 1 compute with 8 threads on 4 cores of h" in crowded.what
    assert crowded.fix == "OMP_NUM_THREADS=2"
    (more_ranks,) = found(ranks(2, cores=[0]))
    assert more_ranks.fix == "start fewer ranks on this machine"
    facts = ranks(3, cores=[0])
    (bound,) = found([*facts[:2], replace(facts[2], cores=[1, 2])])
    assert "ranks 0 and 1 are bound to the same 1 cores" in bound.what


def test_pairs_of_large_groups() -> None:
    assert links.pairs_to_measure(3, [[0, 1, 2]]) == [(0, 1), (0, 2), (1, 2)]
    pairs = links.pairs_to_measure(20, [list(range(0, 20, 2)), list(range(1, 20, 2))])
    assert len(pairs) == 19
    assert {(0, 1), (0, 2), (1, 3), (17, 19)} <= set(pairs)


def test_text() -> None:
    assert [ranks_text(some) for some in ([3], [0, 2], [1, 0], [2, 1, 3])] == [
        "rank 3", "ranks 0 2", "ranks 0 1", "ranks 1-3",
    ]  # fmt: skip
    assert report.verdict(0, 0) == "Atoll: doctor found no problem"
    assert report.verdict(2, 1) == "Atoll: doctor found 2 problems, 1 warning"
    assert schedule.elements("reduce_scatter", 100, "float32", 3) == 24
    with pytest.raises(ValueError, match="--bytes 24 or more"):
        schedule.elements("reduce_scatter", 8, "float64", 3)


def test_the_report_of_a_large_group_lists_pairs() -> None:
    pair = {**asdict(TCP), "kind": "tcp", "reason": "ATOLL_TRANSPORT=tcp"}
    note = asdict(Finding(NOTE, "something differs", "nothing to do"))
    document = {"ranks": [asdict(each) for each in ranks(20)], "islands": [], "links": [pair], "groups": [],
                "schedule": None, "self_test": [], "problems": 0, "findings": [note], "verdict": "V"}  # fmt: skip
    written = io.StringIO()
    report.show(document, Console(file=written, highlight=False))
    lines = [" ".join(line.split()) for line in written.getvalue().splitlines()]
    assert "0-1 30.0 1.00 1.00" in lines
    assert lines[-3:] == ["note: something differs", "nothing to do", "V"]
