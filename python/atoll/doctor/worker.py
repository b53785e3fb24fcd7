# SPDX-License-Identifier: Apache-2.0
"""One rank of an examination. All ranks take the same steps and exchange the outcome of each through the store, so that
a failure on one rank ends the examination on all ranks with its reason. Rank 0 reports."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rich.console import Console

import atoll
from atoll.doctor import facts, groups, heat_map, links, report, schedule, self_test
from atoll.doctor.findings import LEVELS, PROBLEM, WARNING, Finding, judge, ranks_text
from atoll.doctor.options import Options
from atoll.doctor.store_board import Board, JobError, open_board

GOOD, PROBLEMS = 0, 1
STEPS = 10  # at most, that wait for other ranks
_AFTER_A_FAILURE_SECONDS = 6.0  # for the other ranks: a failed group wakes them within two
_FAREWELL_SECONDS = 3.0


class StoppedError(Exception):
    """A step failed on some ranks, which ends the examination."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__(findings)
        self.findings = findings


class Examination:
    def __init__(self, options: Options, board: Board) -> None:
        self.options, self.board = options, board
        self.facts: list[facts.Facts] = []
        self.links: list[links.Measured] = []
        self.findings: list[Finding] = []
        self.document: report.Document = {
            "schema": 1, "ranks": [], "islands": [], "links": [], "groups": [], "schedule": None, "self_test": [],
        }  # fmt: skip
        self.status = Console(stderr=True).status("") if board.rank == 0 and sys.stderr.isatty() else None

    def run(self) -> int:
        """Returns the exit status of this rank: 1 on rank 0 if there are problems."""
        with self.status or contextlib.nullcontext():
            try:
                self.examine()
            except StoppedError as stopped:
                self.findings += stopped.findings
            except JobError as error:
                print(f"atoll doctor: rank {self.board.rank}: {error}", file=sys.stderr, flush=True)
                self.findings.append(Finding(PROBLEM, str(error), "see the output of the other ranks"))
        self.conclude()
        status = PROBLEMS if self.document["problems"] else GOOD
        status = max(status, self.write()) if self.board.rank == 0 else GOOD
        with contextlib.suppress(JobError):
            self.board.collect("the end", {}, _FAREWELL_SECONDS)
        if dist.is_initialized():
            dist.destroy_process_group()
        return status

    def examine(self) -> None:
        rank, options = self.board.rank, self.options
        wanted = options.device_of(rank)
        if wanted != "auto":
            os.environ["ATOLL_DEVICE"] = wanted  # for later groups
        answers = self.step("look at the ranks", lambda: asdict(facts.of_this_rank(rank, wanted)))
        self.facts = [facts.Facts(**answer) for answer in answers]
        self.document["ranks"] = answers
        self.step("start Atoll", self.start_alone)
        islands = self.step("join the group", self.join)[0]
        self.document["islands"] = islands
        group = dist.group.WORLD
        assert group is not None
        backends = self.step("query the backends", lambda: groups.backends_of(group))
        self.document["groups"] = [groups.row(backends, islands)]
        members = [island["ranks"] for island in islands]
        measured = self.step("measure the links", lambda: links.measure(group, members))
        self.take_links([links.Measured(**pair) for pairs in measured for pair in pairs])
        if options.schedule:
            count = schedule.elements(options.schedule, options.bytes, options.dtype, self.board.ranks)
            parts = self.step(
                "build the schedule", lambda: schedule.of_this_rank(group, options.schedule, count, options.dtype)
            )
            self.document["schedule"] = schedule.section(
                options.schedule, count, options.dtype, parts, options.steps_of
            )
        self.test_operations(group)

    def step(self, name: str, function: Callable[[], Any]) -> list[Any]:
        """Returns function()'s result of every rank. Raises StoppedError with the reasons of the ranks where it
        failed."""
        self.progress(name)
        answer: dict[str, Any] = {}
        seconds = self.options.timeout
        try:
            answer["value"] = function()
        except Exception as error:
            answer["error"] = " ".join(str(error).split()) or type(error).__name__
            seconds = min(seconds, _AFTER_A_FAILURE_SECONDS)
            # Whether this error may be a consequence of another rank's.
            answer["follows"] = dist.is_initialized() and "error" in atoll.dump()
            self.wake_the_others()
        answers = self.board.collect(name, answer, seconds)
        findings = failures(name, answers, self.options.timeout)
        if findings:
            raise StoppedError(findings)
        return [each["value"] for each in answers]

    def wake_the_others(self) -> None:
        """Wakes ranks that wait for this one in the group, so that they do not wait for its timeout."""
        if dist.is_initialized():
            from atoll.backend import backend_of

            with contextlib.suppress(RuntimeError):
                backend_of().abort()

    def start_alone(self) -> None:
        """Finds errors in this rank's own settings before other ranks wait for it."""
        if self.options.layout:
            os.environ["ATOLL_ISLAND"] = self.options.layout[self.board.rank]
        dist.init_process_group("atoll", store=dist.HashStore(), rank=0, world_size=1)
        dist.destroy_process_group()

    def join(self) -> list[dict[str, Any]]:
        store = dist.PrefixStore("group", self.board.store)
        limit = timedelta(seconds=self.options.timeout)
        dist.init_process_group("atoll", store=store, rank=self.board.rank, world_size=self.board.ranks, timeout=limit)
        group = dist.group.WORLD
        assert group is not None
        return groups.island_rows(group)

    def take_links(self, pairs: list[links.Measured]) -> None:
        self.links = pairs
        for pair in pairs:
            why = links.reason(pair.kind, self.facts[pair.a], self.facts[pair.b])
            self.document["links"].append({**asdict(pair), "kind": pair.kind, "reason": why})

    def test_operations(self, group: dist.ProcessGroup) -> None:
        places = {"cpu": ["cpu"] * self.board.ranks, "device": [each.device for each in self.facts]}
        if set(places["device"]) == {"cpu"}:
            del places["device"]
        for tensors, devices in places.items():
            device = devices[self.board.rank]
            test = partial(self_test.run, group, device, self.options.fault, self.progress)
            found = self.step(f"test operations on the {tensors}", test)
            self.document["self_test"] += self_test.rows(tensors, found)
        for row in self.document["self_test"]:
            if not row["passed"]:
                ranks = ranks_text(sorted({each["rank"] for each in row["failures"]}))
                what = f"{row['operation']} on the {row['tensors']} gave wrong results, seen by {ranks}"
                fix = "run again with ATOLL_CHECK=1 and ATOLL_SIMD=plain, and report what it writes with this output"
                self.findings.append(Finding(PROBLEM, what, fix))

    def progress(self, text: str) -> None:
        if self.status:
            self.status.update(text)

    def conclude(self) -> None:
        self.findings += judge(self.facts, self.links, self.document["islands"])
        self.findings.sort(key=lambda finding: LEVELS.index(finding.level))
        levels = [finding.level for finding in self.findings]
        problems, warnings = levels.count(PROBLEM), levels.count(WARNING)
        self.document["findings"] = [asdict(finding) for finding in self.findings]
        self.document["problems"], self.document["warnings"] = problems, warnings
        self.document["verdict"] = report.verdict(problems, warnings)

    def write(self) -> int:
        text = json.dumps(self.document, indent=1)
        status = GOOD
        if self.options.html_path:
            status = self.keep("--html", self.options.html_path, heat_map.html(self.document))
        if self.options.json_path == "-":
            print(text, flush=True)
            return status
        report.show(self.document)
        sys.stdout.flush()
        if self.options.json_path:
            status = max(status, self.keep("--json", self.options.json_path, text + "\n"))
        return status

    def keep(self, option: str, path: str, text: str) -> int:
        try:
            Path(path).write_text(text, encoding="utf-8")
        except OSError as error:
            print(f"atoll doctor: {option} cannot be written: {error}", file=sys.stderr, flush=True)
            return PROBLEMS
        return GOOD


def failures(step: str, answers: list[Any], seconds: float) -> list[Finding]:
    """Returns one problem for each reason that ranks reported, and one that names the ranks without an answer. Failures
    that follow from another rank's are left out, or become one problem if that rank is silent."""
    failed = {rank: answer for rank, answer in enumerate(answers) if answer is not None and "error" in answer}
    causes = {rank: answer["error"] for rank, answer in failed.items() if not answer["follows"]}
    if not causes and failed:
        causes = dict.fromkeys(failed, next(iter(failed.values()))["error"])
    reasons: dict[str, list[int]] = {}
    for rank, reason in causes.items():
        reasons.setdefault(reason, []).append(rank)
    found = [
        Finding(
            PROBLEM, f"{ranks_text(ranks)} cannot {step}: {reason}", "fix this first; the remaining steps were skipped"
        )
        for reason, ranks in reasons.items()
    ]
    missing = [rank for rank, answer in enumerate(answers) if answer is None]
    if missing:
        limit = f"{min(seconds, _AFTER_A_FAILURE_SECONDS) if reasons else seconds:g} s"
        fix = f"start all {len(answers)} ranks, check their output, or raise --timeout"
        found.append(Finding(PROBLEM, f"{ranks_text(missing)} did not {step} within {limit}", fix))
    return found


def run(options: Options) -> int:
    """Runs the examination and returns the exit status of this rank."""
    try:
        board = open_board(options.timeout)
    except JobError as error:
        print(f"atoll doctor: {error}", file=sys.stderr, flush=True)
        return PROBLEMS
    return Examination(options, board).run()


if __name__ == "__main__":
    sys.exit(run(Options.from_json(sys.argv[1])))
