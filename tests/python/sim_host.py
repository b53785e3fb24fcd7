# SPDX-License-Identifier: Apache-2.0
"""A process with simulated devices, for tests."""

import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from forking import PROCESSES, fork


def serve(environment: dict[str, str], connection: Connection) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    import atoll.sim  # noqa: F401

    while (request := connection.recv()) is not None:
        function, arguments = request
        try:
            connection.send((True, function(*arguments)))
        except BaseException:
            connection.send((False, traceback.format_exc()))


class Host:
    """A process with simulated devices. PyTorch supports one kind of accelerator per process, so the process of the
    tests has none."""

    def __init__(self, **environment: str) -> None:
        self.connection, there = PROCESSES.Pipe()
        self.process = fork(serve, environment, there)
        there.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.connection.send((function, arguments))
        succeeded, answer = self.connection.recv()
        assert succeeded, answer
        return answer

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.send(None)
        self.process.join(20)
        self.process.kill()
