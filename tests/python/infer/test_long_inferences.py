# SPDX-License-Identifier: Apache-2.0
"""Ten thousand inferences over several restarts of the server, and many sessions with one server: nothing leaks."""

import contextlib
import time
from pathlib import Path

import pytest

from long_robot import Robot
from processes import Held, check_growth, children, held
from serving import Serve
from split_cases import READY_S

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1200)]

LIVES = 5  # of the server
INFERENCES = 2000  # in each of them
WARM = 500  # until caches and the allocators' pools are filled
# MiB that allocators may add. This is 1.8 KiB for each of the 9000 inferences between the robot's measurements, and
# 2.7 KiB for each of the 1500 between those of the server and its worker in one life.
ROBOT_MEBIBYTES, SERVER_MEBIBYTES = 16.0, 4.0


def test_ten_thousand_inferences_leak_nothing(tmp_path: Path) -> None:
    address, robot, first = "127.0.0.1:0", None, None
    with contextlib.ExitStack() as stack:
        for _ in range(LIVES):
            with Serve(tmp_path, address=address) as server:
                address = server.address
                robot = robot or stack.enter_context(Robot(address, server.key_file))
                middle, end = live(server, robot)
                first = first or middle  # after a thousand
                check_growth("the robot", first, end, ROBOT_MEBIBYTES)
                assert server.stop() == 0, server.output
            assert set(robot.run(20)) == {"local"}


def live(server: Serve, robot: Robot) -> tuple[Held, Held]:
    """Runs one life of the server; returns what the robot holds in the middle of it and at its end."""
    robot.wait_until_ready()
    counts = [robot.run(WARM)]
    before = of_server(server)
    counts.append(robot.run(INFERENCES // 2 - WARM))
    middle = robot.held()
    counts.append(robot.run(INFERENCES // 2))
    after = of_server(server)
    assert after.keys() == before.keys(), "a worker has been replaced"
    for name, was in before.items():
        check_growth(name, was, after[name], SERVER_MEBIBYTES)
    assert sum(each.get("server", 0) for each in counts) > INFERENCES // 4, counts
    return middle, robot.held()


def of_server(server: Serve) -> dict[str, Held]:
    """Returns what the server and its one worker hold."""
    (worker,) = children(server.process.pid)
    return {"the server": held(server.process.pid), f"worker {worker}": held(worker)}


def test_sessions_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    with Serve(tmp_path) as server, Robot(server.address, server.key_file) as robot:
        robot.wait_until_ready()
        robot.ask("come_and_go", count=5)
        robot_before, server_before = robot.held(), alone(server)
        robot.ask("come_and_go", count=25)
        check_growth("the robot", robot_before, robot.held(), ROBOT_MEBIBYTES)
        check_growth("the server", server_before, alone(server), SERVER_MEBIBYTES)


def alone(server: Serve) -> Held:
    """Returns what the server holds once only the robot's first session has a worker."""
    begin = time.monotonic()
    while len(children(server.process.pid)) != 1:
        assert time.monotonic() - begin < READY_S, children(server.process.pid)
        time.sleep(0.01)
    return of_server(server)["the server"]
