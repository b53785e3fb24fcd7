# SPDX-License-Identifier: Apache-2.0
"""Gradients of DistributedDataParallel that cross between islands as packed blocks, with error feedback."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from atoll.packing.blocks import check_format
from atoll.packing.exchange import Exchange

_log = logging.getLogger("atoll.packing")
_NOT_IN_BACKWARD = "Final callbacks can only be installed during backward"


@dataclass
class _Span:
    """A parameter's gradient in its bucket."""

    name: str
    begin: int
    end: int


@dataclass
class _Bucket:
    parameters: tuple[int, ...]
    """By id."""
    spans: list[_Span]
    led: range | None
    residual: torch.Tensor | None


class CompressedGradients:
    """What `compress_gradients` has done to a model. Its residuals belong into checkpoints, each rank's own."""

    def __init__(self, names: dict[int, str], sizes: dict[str, int], exchange: Exchange, error_feedback: bool) -> None:
        self._names, self._sizes = names, sizes
        self._exchange = exchange
        self._feeds_back = error_feedback
        self._buckets: dict[int, _Bucket] = {}
        # Residuals that are in no bucket yet, by parameter: where they begin in it, and values.
        self._pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="atoll-packing")
        self._pending: list[Future[None]] = []  # of this backward pass
        self._error: Exception | None = None
        self._stream: torch.Stream | None = None

    def time_split(self) -> dict[str, float]:
        """As atoll.time_split, of these gradients alone: `bytes_bridge` is what has crossed to other islands."""
        return self._exchange.time_split()

    @property
    def is_lossy(self) -> bool:
        """False where all ranks are one island: then gradients are exact."""
        return self._exchange.is_lossy

    def state_dict(self) -> dict[str, Any]:
        """This rank's residuals, as parts of the mean gradient. Between backward passes."""
        self._wait()
        self._dissolve()
        pieces = [
            {"name": name, "begin": begin, "values": values / self._exchange.size}
            for name, held in self._pieces.items()
            for begin, values in held
        ]
        return {"version": 1, "pieces": pieces}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes residuals of any rank's state_dict in place of its own; where ranks are others than before, hand each
        state to some rank. Raises ValueError for parameters that the model has not."""
        pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
        for piece in state["pieces"]:
            name, begin, values = piece["name"], int(piece["begin"]), piece["values"]
            if begin < 0 or begin + values.numel() > self._sizes.get(name, 0):
                raise ValueError(
                    f"residuals of {name}[{begin}:{begin + values.numel()}], of which the model has "
                    f"{self._sizes.get(name, 0)} elements: load the state of the same model"
                )
            pieces.setdefault(name, []).append((begin, values.float() * self._exchange.size))
        self.reset()
        self._pieces = pieces

    def reset(self) -> None:
        """Forgets residuals, as for gradients that were scaled otherwise."""
        self._wait()
        self._buckets.clear()
        self._pieces.clear()

    def close(self) -> None:
        """Ends its connections, after the last backward pass. On all ranks."""
        try:
            self._wait()
        finally:
            self._worker.shutdown()
            self._exchange.close()

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: the mean over ranks, computed while the backward pass goes on. One thread takes the
        buckets in order, so that collectives are called in the same order on all ranks."""
        buffer = bucket.buffer()
        if not buffer.is_floating_point():
            raise TypeError(f"gradients are {buffer.dtype}: only floating-point ones can be compressed")
        held = self._held(bucket.index(), bucket.parameters(), buffer)
        on_device = buffer.device.type != "cpu"
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[buffer.device] if on_device else None)
        ready = torch.accelerator.current_stream(buffer.device).record_event() if on_device else None
        self._pending.append(self._worker.submit(self._reduce, buffer, held.residual, ready, done))
        if bucket.is_last():
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._wait)
            except RuntimeError as error:  # DDP's join calls hooks outside, and waits for their futures
                if _NOT_IN_BACKWARD not in str(error):
                    raise
        return done

    def _reduce(
        self, buffer: torch.Tensor, residual: torch.Tensor | None, ready: torch.Event | None,
        done: torch.futures.Future[torch.Tensor],
    ) -> None:  # fmt: skip
        """On the worker's thread. The first error is every later call's too."""
        try:
            if self._error is not None:
                raise self._error
            with torch.no_grad(), self._own_stream(buffer.device, ready):
                self._exchange.mean(buffer, residual)
                done.set_result(buffer)
        except Exception as error:
            self._error = error
            done.set_exception(error)  # type: ignore[arg-type]
            raise

    def _own_stream(self, device: torch.device, ready: torch.Event | None) -> Any:
        if ready is None:
            return nullcontext()
        if self._stream is None:
            self._stream = torch.Stream(device=device)
        self._stream.wait_event(ready)
        return self._stream

    def _wait(self) -> None:
        """At the end of a backward pass, where DDP is about to wait: an error keeps its type here."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()

    def _held(self, index: int, parameters: Sequence[torch.Tensor], buffer: torch.Tensor) -> _Bucket:
        """DDP may form its buckets anew, after the first step for example: residuals go along with parameters."""
        identities = tuple(map(id, parameters))
        held = self._buckets.get(index)
        if held is not None and held.parameters == identities:
            return held
        if held is not None:
            self._settle(buffer.device)
            self._dissolve()
        if sum(map(_elements, parameters)) != buffer.numel():
            raise RuntimeError(f"bucket {index} of {buffer.numel()} elements is not laid out as its parameters: a bug")
        spans, begin = [], 0
        for parameter in parameters:
            spans.append(_Span(self._names[id(parameter)], begin, begin + _elements(parameter)))
            begin = spans[-1].end
        led = self._exchange.led(buffer.numel()) if self._feeds_back else None
        residual = buffer.new_zeros(len(led), dtype=torch.float32) if led is not None else None
        held = self._buckets[index] = _Bucket(identities, spans, led, residual)
        for span in spans:
            for offset, values in self._pieces.pop(span.name, ()):
                self._give(held, buffer, span.begin + offset, values)
        return held

    def _settle(self, device: torch.device) -> None:
        """Buckets of this pass that are under way change their residuals no more."""
        wait(self._pending)
        if self._stream is not None:
            torch.accelerator.current_stream(device).wait_stream(self._stream)

    def _give(self, held: _Bucket, buffer: torch.Tensor, begin: int, values: torch.Tensor) -> None:
        """Adds residuals where this rank has residuals, and elsewhere to the gradient, which another rank leads now."""
        end = begin + values.numel()
        values = values.to(buffer.device)
        low, high = (begin, begin) if held.led is None else _common(held.led, begin, end)
        if held.residual is not None and held.led is not None and low < high:
            held.residual[low - held.led.start : high - held.led.start].add_(values[low - begin : high - begin])
        for first, last in ((begin, low), (high, end)):
            if first < last:
                buffer[first:last].add_(values[first - begin : last - begin])

    def _dissolve(self) -> None:
        """Residuals leave their buckets."""
        for held in self._buckets.values():
            if held.led is None or held.residual is None:
                continue
            for span in held.spans:
                low, high = _common(held.led, span.begin, span.end)
                if low < high:
                    values = held.residual[low - held.led.start : high - held.led.start].clone()
                    self._pieces.setdefault(span.name, []).append((low - span.begin, values))
        self._buckets.clear()


def _elements(parameter: torch.Tensor) -> int:
    """In DDP's buckets, where a complex number is two."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _common(led: range, begin: int, end: int) -> tuple[int, int]:
    """What is in both; nothing as `begin`, `begin`."""
    low, high = max(led.start, begin), min(led.stop, end)
    return (low, high) if low < high else (begin, begin)


def compress_gradients(
    model: DistributedDataParallel, format: str = "int8", *, error_feedback: bool = True, compress_inside: bool = False
) -> CompressedGradients:
    """From now on the model's gradients cross between islands as blocks of 8-bit numbers: 0.516 of bfloat16's bytes, at
    a loss that the next step makes good. Inside an island they are added in full precision. All ranks get the same
    bits.

    `format`: int8, fp8_e4m3 or fp8_e5m2. Without `error_feedback` no residual is kept (4 bytes per element, over the
    ranks of an island), and what is lost is lost. `compress_inside`: also between ranks of an island, as where it spans
    several hosts.

    Collective over the model's group, before the first backward pass; with atoll.DataLoader before or after it is made.
    The group's backend must be atoll. Raises ValueError where ranks ask for different things, and RuntimeError where
    the model has a communication hook already. Where all ranks are one island gradients stay exact, and a warning says
    so."""
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"compress_gradients: got a {type(model).__name__}: give DistributedDataParallel(net)")
    wanted = {"format": format, "error_feedback": bool(error_feedback), "compress_inside": bool(compress_inside)}
    number = _agree(wanted, model.process_group)
    check_format(format)
    exchange = Exchange(model.process_group, format, compress_inside, number)
    if not exchange.is_lossy and exchange.size > 1 and exchange.rank == 0:
        _log.warning(
            "compress_gradients: all ranks are one island, so nothing is compressed; compress_inside=True compresses "
            "between its ranks"
        )
    parameters = dict(model.module.named_parameters())
    names = {id(parameter): name for name, parameter in parameters.items()}
    sizes = {name: _elements(parameter) for name, parameter in parameters.items()}
    compressed = CompressedGradients(names, sizes, exchange, error_feedback)
    try:
        model.register_comm_hook(None, compressed.hook)
    except RuntimeError:
        compressed.close()
        raise
    return compressed


_made: dict[str, int] = {}  # exchanges by name of their group


def _agree(wanted: dict[str, object], group: dist.ProcessGroup) -> int:
    """The number of the next exchange of the group. Raises ValueError on all ranks alike."""
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, (wanted, _made.get(group.group_name, 0)), group=group)
    for rank, (other, _) in enumerate(said):
        if other != said[0][0]:
            raise ValueError(
                f"compress_gradients: rank 0 asks for {said[0][0]}, rank {rank} for {other}: ask for the same"
            )
    number: int = 1 + max(made for _, made in said)
    _made[group.group_name] = number
    return number
