# SPDX-License-Identifier: Apache-2.0
"""Classifies a camera's newest picture again and again on a robot, with the help of an `atoll serve` if there is one.

atoll serve --listen 0.0.0.0:4700 --key-file atoll.key                              (on the server)
python examples/camera.py --camera 0 --server SERVER:4700 --key-file atoll.key      (on the robot)

Pictures that arrive while one is computed are skipped, so an answer is never about an old picture. Without --camera a
test picture moves by. Once a second a line shows how many pictures were answered, where, and how quickly."""

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import atoll

SIZE = 96
PICTURES_PER_SECOND = 30


class Net(nn.Module):
    """Takes a picture as bytes, so that bytes are sent to the server; weights are random. Put your own model here."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(64, 10)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Returns scores of 10 kinds for a picture (1, 3, SIZE, SIZE) of uint8."""
        return self.head(self.body(picture.to(self.head.weight.dtype) / 255).mean((2, 3)))


def make_model() -> tuple[nn.Module, torch.Tensor]:
    """Returns the model in eval mode, and an example of its input."""
    torch.manual_seed(0)
    return Net().eval(), torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8)


def as_input(pixels: torch.Tensor) -> torch.Tensor:
    """Returns the model's input for a picture (height, width, 3) of uint8."""
    values = pixels.permute(2, 0, 1)[None].float()
    return nn.functional.interpolate(values, (SIZE, SIZE), mode="bilinear", antialias=True).round().to(torch.uint8)


class Newest:
    """Holds the newest picture: a new picture replaces the old one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._picture: torch.Tensor | None = None
        self._failure: Exception | None = None
        self.left_out = 0

    def put(self, picture: torch.Tensor) -> None:
        with self._changed:
            self.left_out += self._picture is not None
            self._picture = picture
            self._changed.notify()

    def fail(self, failure: Exception) -> None:
        with self._changed:
            self._failure = failure
            self._changed.notify()

    def take(self, timeout: float) -> torch.Tensor:
        """Waits for a picture that was not taken yet. Raises the camera's exception, or TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._picture is not None or self._failure is not None, timeout):
                raise TimeoutError(f"the camera has given no picture for {timeout:g} s: is it in use elsewhere?")
            if self._picture is None:
                assert self._failure is not None
                raise self._failure
            picture, self._picture = self._picture, None
            return picture


def camera_pictures(number: int) -> Iterator[torch.Tensor]:
    import cv2  # type: ignore[import-not-found] # of opencv-python-headless

    camera = cv2.VideoCapture(number)
    try:
        while True:
            good, pixels = camera.read()
            if not good:
                raise RuntimeError(f"camera {number} gives no picture: --camera takes the N of /dev/videoN")
            yield torch.from_numpy(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))
    finally:
        camera.release()


def test_pictures() -> Iterator[torch.Tensor]:
    """Yields moving stripes, at the pace of a camera."""
    rows, columns = torch.arange(480)[:, None, None], torch.arange(640)[None, :, None]
    for number in range(sys.maxsize):
        yield ((rows + columns * torch.tensor([1, 2, 3]) + 5 * number) % 256).to(torch.uint8)
        time.sleep(1 / PICTURES_PER_SECOND)


@contextmanager
def newest_of(pictures: Iterator[torch.Tensor]) -> Iterator[Newest]:
    """Reads the pictures on a separate thread, and provides the newest."""
    newest, over = Newest(), threading.Event()

    def read() -> None:
        try:
            for pixels in pictures:
                if over.is_set():
                    return
                newest.put(as_input(pixels))
        except Exception as failure:
            newest.fail(failure)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield newest
    finally:
        over.set()
        thread.join(5)


def look(session: Any, newest: Newest, count: int | None) -> int:
    """Answers the newest picture again and again; returns the number of answers."""
    answered, since, seconds, origins = 0, time.monotonic(), [], Counter[str]()
    while count is None or answered < count:
        kind = int(session(newest.take(timeout=10)).argmax())
        answered += 1
        seconds.append(session.last.seconds)
        origins[session.last.origin] += 1
        if (passed := time.monotonic() - since) >= 1 or answered == count:
            who = ", ".join(f"{number} {origin}" for origin, number in origins.items())
            middle = 1000 * sorted(seconds)[len(seconds) // 2]
            print(f"kind {kind}; {len(seconds) / passed:.1f} pictures/s, {middle:.1f} ms each: {who}", flush=True)
            since, seconds = time.monotonic(), []
            origins.clear()
    return answered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--camera", type=int, metavar="N", help="the camera /dev/videoN (default: a test picture)")
    parser.add_argument("--server", metavar="HOST:PORT", help="where `atoll serve` listens (default: no server)")
    parser.add_argument("--key-file", metavar="FILE", help="the server's key")
    parser.add_argument("--deadline", type=float, default=0.2, metavar="SECONDS", help="for each picture (default 0.2)")
    parser.add_argument("--pictures", type=int, metavar="COUNT", help="number of pictures (default: until Ctrl-C)")
    options = parser.parse_args()
    if (options.server is None) != (options.key_file is None):
        parser.error("--server and --key-file go together")
    net, example = make_model()
    pictures = test_pictures() if options.camera is None else camera_pictures(options.camera)
    server = {} if options.server is None else {"server": options.server, "key_file": options.key_file}
    try:
        with (
            atoll.infer.Session(net, (example,), deadline=options.deadline, **server) as session,
            newest_of(pictures) as newest,
        ):
            answered = look(session, newest, options.pictures)
            print(f"{answered} pictures answered, {newest.left_out} left out because a newer one was there")
    except KeyboardInterrupt:
        return 130
    except ImportError:
        print("camera.py: --camera needs OpenCV: pip install opencv-python-headless", file=sys.stderr)
        return 2
    except (RuntimeError, TimeoutError) as error:
        print(f"camera.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
