# SPDX-License-Identifier: Apache-2.0
"""The camera's loop and the ROS 2 node: only the newest pictures, with and without a server. Small stand-ins replace
ROS 2, which is not installed."""

import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from serving import Serve
from support import later

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def camera(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("camera")


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.verify
def test_camera_with_a_server(tmp_path: Path) -> None:
    with Serve(tmp_path) as server:
        done = run("camera.py", "--pictures", "12", "--server", server.address, "--key-file", str(server.key_file))
    assert done.returncode == 0, done.stderr
    assert "12 pictures answered" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--server", "10.0.0.2:4700"], 2, "--server and --key-file go together"),
        later(["--camera", "9"], 2, "pip install opencv-python-headless"),
    ],
)
def test_camera_says_what_is_missing(arguments: list[str], status: int, message: str) -> None:
    done = run("camera.py", *arguments)
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr


def test_only_the_newest_picture_is_kept(camera: Any) -> None:
    newest = camera.Newest()
    for number in range(3):
        newest.put(torch.tensor(number))
    assert newest.take(1).item() == 2
    assert newest.left_out == 2
    with pytest.raises(TimeoutError, match=r"no picture for 0\.01 s"):
        newest.take(0.01)
    newest.fail(RuntimeError("unplugged"))
    with pytest.raises(RuntimeError, match="unplugged"):
        newest.take(1)


def test_inputs_of_any_picture(camera: Any) -> None:
    pixels = torch.randint(0, 256, (31, 17, 3), dtype=torch.uint8)
    made = camera.as_input(pixels)
    assert made.shape == (1, 3, camera.SIZE, camera.SIZE)
    assert made.dtype == torch.uint8
    even = torch.full((480, 640, 3), 77, dtype=torch.uint8)
    assert torch.equal(camera.as_input(even), torch.full_like(made, 77))


class Message:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class FakeNode:
    """The part of rclpy's Node that the node uses."""

    def __init__(self, name: str) -> None:
        self.published: list[Any] = []
        self.errors: list[str] = []
        self.callbacks: dict[str, Callable[[Any], None]] = {}

    def declare_parameter(self, name: str, value: Any) -> Any:
        return Message(value=value)

    def create_publisher(self, kind: type, topic: str, depth: int) -> Any:
        return Message(publish=self.published.append)

    def create_subscription(self, kind: type, topic: str, callback: Callable[[Any], None], profile: Any) -> None:
        self.callbacks[topic] = callback

    def get_logger(self) -> Any:
        return Message(info=lambda text, **_: None, error=lambda text, **_: self.errors.append(text))


def test_ros_node_with_stand_ins(camera: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "rclpy": {}, "rclpy.executors": {"ExternalShutdownException": RuntimeError}, "rclpy.node": {"Node": FakeNode},
        "rclpy.qos": {"qos_profile_sensor_data": Message(depth=5)}, "sensor_msgs": {},
        "sensor_msgs.msg": {"Image": Message}, "std_msgs": {}, "std_msgs.msg": {"Int32": Message},
    }  # fmt: skip
    for name, values in parts.items():
        module = types.ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "ros2_node", raising=False)
    ros2_node = importlib.import_module("ros2_node")
    node = ros2_node.Classifier()
    try:
        pixels = torch.randint(0, 256, (24, 32, 3), dtype=torch.uint8)
        padded = torch.cat([pixels.reshape(24, 96), torch.zeros(24, 4, dtype=torch.uint8)], 1)
        picture = Message(encoding="bgr8", height=24, width=32, step=100, data=bytes(padded.flatten().tolist()))
        assert torch.equal(ros2_node.pixels_of(picture), pixels.flip(2))
        node.callbacks["image"](picture)
        node.callbacks["image"](Message(encoding="mono8", height=24, width=32, step=32, data=b""))
    finally:
        node.session.close()
    net, _ = camera.make_model()
    assert [message.data for message in node.published] == [int(net(camera.as_input(pixels.flip(2))).argmax())]
    assert node.errors == ["pictures are mono8: publish one of rgb8, bgr8"]


def test_ros_node_says_what_is_missing() -> None:
    done = run("ros2_node.py")
    assert done.returncode == 2
    assert done.stderr == "ros2_node.py: rclpy is missing: source ROS 2's setup.bash first\n"
