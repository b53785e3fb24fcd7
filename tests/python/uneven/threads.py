# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of this process, for loaders without models, process groups and gradients."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from atoll.loading import loader as loader_module
from atoll.loading.exchange import Exchange
from atoll.weighting.weights import Weights

MEETING_S = 30


class Meeting:
    """An exchange between threads."""

    def __init__(self, ranks: int, parts_must_match: bool) -> None:
        self.ranks, self.parts_must_match = ranks, parts_must_match
        self._said: list[Any] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=MEETING_S)

    def gather(self, rank: int, own: Any) -> list[Any]:
        self._said[rank] = own
        self._barrier.wait()
        everyone = list(self._said)
        self._barrier.wait()
        return everyone

    def leave(self) -> None:
        """Makes the exchange fail for others that wait, now or later."""
        self._barrier.abort()


class Seat:
    """One rank's place in a meeting, which stands for its process group."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank = meeting, rank

    def _get_backend(self, _device: torch.device) -> Any:
        raise RuntimeError("threads have no backend")


class SeatedExchange(Exchange):
    def __init__(self, seat: Seat, device: torch.device) -> None:
        self.group, self.device, self._meeting = seat, device, seat.meeting  # type: ignore[assignment]
        self.rank, self.ranks = seat.rank, seat.meeting.ranks

    def numbers(self, own: list[float]) -> list[list[float]]:
        return self._meeting.gather(self.rank, own)

    def facts(self, own: Any) -> list[Any]:
        return [json.loads(text) for text in self._meeting.gather(self.rank, json.dumps(own))]


class NoWeights(Weights):
    """The weights of a model without gradients."""

    def __init__(self, parts_must_match: bool) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.parts_must_match = parts_must_match

    def check_group(self, group: Any) -> None:
        """Does nothing, because threads have no group."""


class Model(torch.nn.Linear):
    """Stands for the wrapped model of a rank."""

    def __init__(self, meeting: Meeting) -> None:
        super().__init__(1, 1)
        self.weights = NoWeights(meeting.parts_must_match)


def seat_loaders(patch: pytest.MonkeyPatch) -> None:
    """Makes atoll.DataLoader(model=Model(...), group=Seat(...)) exchange with other threads."""
    patch.setattr(loader_module, "Exchange", SeatedExchange)
    patch.setattr(loader_module, "weights_of", lambda model: model.weights)


def on_threads(meeting: Meeting, body: Callable[[Seat], Any]) -> list[Any]:
    """Runs body(seat) for all ranks at once; returns the results by rank. Raises the first error that is a rank's
    own."""

    def run(rank: int) -> Any:
        try:
            return body(Seat(meeting, rank))
        except BaseException:
            meeting.leave()
            raise

    with ThreadPoolExecutor(meeting.ranks) as pool:
        running = [pool.submit(run, rank) for rank in range(meeting.ranks)]
        errors = [error for future in running if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in running]
