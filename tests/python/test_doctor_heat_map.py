# SPDX-License-Identifier: Apache-2.0
"""The doctor's heat maps and fixes: colours follow the measured rates, and every finding has a fix."""

import ast
import io
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atoll.doctor import findings, heat_map, report
from atoll.doctor.findings import NOTE, WARNING, Finding, judge
from atoll.doctor.links import Measured

SHM = Measured(0, 1, "shm", 20.0, 9.0, 9.0, 1 << 20)


def document(*pairs: Measured, ranks: int = 3, **others: Any) -> dict[str, Any]:
    rank = {"host": "h", "pid": 1, "device": "cpu", "device_count": 1, "device_name": "<b>", "cores": [0],
            "versions": {"atoll": "1", "torch": "2", "python": "3"}, "library": "",
            "memory_bytes": 1 << 30}  # fmt: skip
    return {
        "ranks": [{"rank": number, **rank} for number in range(ranks)], "islands": [], "groups": [], "schedule": None,
        "self_test": [], "problems": 0, "warnings": 0, "findings": [], "verdict": "Atoll: doctor found no problem",
        "links": [{**asdict(pair), "kind": pair.kind, "reason": "both on host h"} for pair in pairs], **others,
    }  # fmt: skip


def some_links() -> list[Measured]:
    return [SHM, replace(SHM, b=2, latency_us=200.0, a_to_b=0.9, b_to_a=3.0), replace(SHM, a=1, b=2)]


def test_the_best_is_green_and_the_worst_red() -> None:
    values = {(0, 1): 1.0, (1, 0): 10.0, (0, 2): 100.0}
    assert [heat_map.goodness(value, values, low_is_good=False) for value in values.values()] == pytest.approx(
        [0, 0.5, 1]
    )
    assert [heat_map.goodness(value, values, low_is_good=True) for value in values.values()] == pytest.approx(
        [1, 0.5, 0]
    )
    alike = {(0, 1): 1.0, (1, 0): 1.2}
    assert heat_map.goodness(1.0, alike, low_is_good=False) == 1.0
    assert heat_map.goodness(0.0, {(0, 1): 0.0, (1, 0): 5.0}, low_is_good=False) == 1.0
    red, green = (heat_map.cell("x", good).spans or heat_map.cell("x", good).style for good in (0.0, 1.0))
    assert red != green


def test_a_terminal_shows_colours_and_a_file_none() -> None:
    for is_terminal in (True, False):
        stream = io.StringIO()
        colours: Any = "truecolor" if is_terminal else None
        console = Console(file=stream, force_terminal=is_terminal, color_system=colours, width=100, highlight=False)
        report.show(document(*some_links()), console)
        text = stream.getvalue()
        assert ("\x1b[37;48;2;18;112;74m" in text) == is_terminal, "green"
        assert ("\x1b[37;48;2;168;50;40m" in text) == is_terminal, "red"
        assert "200.0" in text


def test_the_page() -> None:
    finding = asdict(Finding(WARNING, "TCP inside <one> machine", "unset ATOLL_TRANSPORT"))
    page = heat_map.html(document(*some_links(), findings=[finding], warnings=1))
    assert "TCP inside &lt;one&gt; machine. What to do: unset ATOLL_TRANSPORT." in page
    assert page.count('<td style="--heat:60%">9</td>') == 4, "the fastest, each way"
    assert page.count('<td style="--heat:6%">200</td>') == 2, "the latest, both ways"
    assert page.count("<td>-</td>") == 6, "nobody has a link to itself"
    assert "<b>" not in page.partition("<body>")[2].replace("<b></b>", "").replace("<b>To improve: </b>", "")
    nothing = heat_map.html(document(ranks=0))
    assert "Heat map" not in nothing


def test_a_large_group_has_the_pairs_that_were_measured() -> None:
    page = heat_map.html(document(SHM, ranks=20))
    assert page.count("<td>-</td>") == 2 * (400 - 2)


def test_a_slow_link_is_named() -> None:
    def found(*links: Measured) -> list[Finding]:
        return list(findings._slow_links(links))

    links = [replace(SHM, b=other) for other in range(1, 5)]
    assert found(*links) == []
    slow = replace(SHM, b=5, b_to_a=1.0)
    (finding,) = found(*links, slow)
    assert finding.what == "pair 0-5 far slower than other shm links: 1 GB/s (0-5), where 9 is usual"
    assert "bind these ranks" in finding.fix
    assert found(links[0], slow) == [], "two links tell nothing about a third"
    tcp = replace(slow, link="tcp 1.2.3.4:5 -> 1.2.3.4:6")
    assert found(*links, tcp) == [], "another kind of link"


def test_every_finding_has_a_way_out() -> None:
    for level in findings.LEVELS:
        with pytest.raises(ValueError, match="without a fix: bad"):
            Finding(level, "bad", " ")
    folder = Path(findings.__file__).parent
    count = 0
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                count += 1
                assert len(node.args) == 3, f"{path.name}:{node.lineno}"
                fix = node.args[2]
                if isinstance(fix, ast.Constant):
                    assert len(str(fix.value)) > 15, f"{path.name}:{node.lineno}"
    assert count > 12
    assert judge([], [], []) == []
    assert NOTE in findings.LEVELS


@pytest.mark.verify
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    path = tmp_path / "links.html"
    command = [sys.executable, "-m", "atoll.doctor", "--ranks", "3", "--html", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = path.read_text()
    assert text.count("<h3>") == 2
    assert text.count("--heat:") >= 12
    again = [*command[:-1], str(tmp_path / "none" / "x.html")]
    done = subprocess.run(again, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert "does not exist" in done.stderr
