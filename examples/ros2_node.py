# SPDX-License-Identifier: Apache-2.0
"""A ROS 2 node: classifies the newest picture of a topic with a model that the robot and a server share.

Topics: it subscribes to `image` (sensor_msgs/Image, rgb8 or bgr8) and publishes `kind` (std_msgs/Int32).
Parameters: server (HOST:PORT, empty: none), key_file, deadline (seconds).

Source the setup.bash of ROS 2, then run
python examples/ros2_node.py --ros-args -p server:=10.0.0.2:4700 -p key_file:=atoll.key -r image:=/camera/image_raw

Needs rclpy, sensor_msgs and std_msgs, which come with ROS 2 and not from PyPI."""

import sys
from typing import Any

import torch

import atoll
from camera import as_input, make_model

try:
    import rclpy  # type: ignore[import-not-found]
    from rclpy.executors import ExternalShutdownException  # type: ignore[import-not-found]
    from rclpy.node import Node  # type: ignore[import-not-found]
    from rclpy.qos import qos_profile_sensor_data  # type: ignore[import-not-found]
    from sensor_msgs.msg import Image  # type: ignore[import-not-found]
    from std_msgs.msg import Int32  # type: ignore[import-not-found]
except ImportError as missing:
    print(f"ros2_node.py: {missing.name} is missing: source ROS 2's setup.bash first", file=sys.stderr)
    sys.exit(2)

CHANNELS = {"rgb8": [0, 1, 2], "bgr8": [2, 1, 0]}


def pixels_of(message: Any) -> torch.Tensor:
    """Returns the picture (height, width, 3) of a sensor_msgs/Image as red, green, blue. Rows may be padded."""
    if message.encoding not in CHANNELS:
        raise ValueError(f"pictures are {message.encoding}: publish one of {', '.join(CHANNELS)}")
    rows = torch.frombuffer(bytearray(message.data), dtype=torch.uint8).reshape(message.height, message.step)
    picture = rows[:, : 3 * message.width].reshape(message.height, message.width, 3)
    return picture[:, :, CHANNELS[message.encoding]]


class Classifier(Node):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("atoll_classifier")
        server = self.declare_parameter("server", "").value
        key_file = self.declare_parameter("key_file", "").value
        deadline = self.declare_parameter("deadline", 0.2).value
        net, example = make_model()
        where = {"server": server, "key_file": key_file} if server else {}
        self.session = atoll.infer.Session(net, (example,), deadline=deadline, **where)
        self.kinds = self.create_publisher(Int32, "kind", 10)
        # Best effort with a queue of one: while a picture is computed, only the newest of the others is kept.
        profile = qos_profile_sensor_data
        profile.depth = 1
        self.create_subscription(Image, "image", self.classify, profile)

    def classify(self, message: Any) -> None:
        try:
            scores = self.session(as_input(pixels_of(message)))
        except (RuntimeError, ValueError) as error:
            self.get_logger().error(str(error), throttle_duration_sec=5.0)
            return
        last = self.session.last
        self.get_logger().info(f"{last.origin} in {1000 * last.seconds:.1f} ms", throttle_duration_sec=1.0)
        self.kinds.publish(Int32(data=int(scores.argmax())))


def main() -> None:
    rclpy.init()
    node = Classifier()
    try:
        rclpy.spin(node)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        node.session.close()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
