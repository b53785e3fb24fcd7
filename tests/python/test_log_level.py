# SPDX-License-Identifier: Apache-2.0
"""ATOLL_LOG_LEVEL decides which of Atoll's lines reach standard error."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from fault_jobs import Job, Me
from listeners import listening_ports


def provoke_lines(me: Me) -> None:
    """A stranger that connects and leaves gives a debug line; a dump, which SIGUSR1 requests, gives an info line."""
    me.join()
    me.check_sum()
    for port in listening_ports(os.getpid()):
        socket.create_connection(("127.0.0.1", port)).close()
    os.kill(os.getpid(), signal.SIGUSR1)
    folder = Path(os.environ["ATOLL_DUMP_DIR"])
    while not list(folder.glob(f"atoll-{os.getpid()}-rank*.json")):
        os.sched_yield()
    me.run_together()
    dist.destroy_process_group()  # after the lines of its thread


@pytest.mark.parametrize(("level", "levels"), [("debug", {"debug", "info"}), ("info", {"info"}), ("off", set())])
def test_lines_from_the_level_on(tmp_path: Path, level: str, levels: set[str]) -> None:
    with Job(tmp_path, provoke_lines, "AB", environment={"ATOLL_LOG_LEVEL": level, "ATOLL_TRANSPORT": "tcp"}) as job:
        job.wait_for("end")
        job.check_ends()
    text = "".join(path.read_text() for path in tmp_path.glob("rank*.log"))
    found = set(re.findall(r"^\[[-0-9 :.]+\] \[atoll \d+\] \[(\w+)\] ", text, re.MULTILINE))
    assert found - {"warning", "error"} == levels, text
    assert level != "off" or not found, text


def test_an_unknown_level_is_refused_by_a_session(tmp_path: Path) -> None:
    program = """
import sys, torch, atoll
net, example = torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),)
atoll.infer.Session(net, example, server="127.0.0.1:1", key_file=sys.argv[1])
"""
    key_file = tmp_path / "key"
    key_file.write_text("0" * 64)
    key_file.chmod(0o600)
    environment = {**os.environ, "ATOLL_LOG_LEVEL": "loud"}
    command = [sys.executable, "-c", program, str(key_file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert 'ValueError: ATOLL_LOG_LEVEL is "loud"; it may be debug, info, warning, error or off' in done.stderr
