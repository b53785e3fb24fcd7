# SPDX-License-Identifier: Apache-2.0
"""Sends gradients of DistributedDataParallel between islands as packed blocks, with error feedback."""

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
    """Parameters by id."""
    spans: list[_Span]
    led: range | None
    residual: torch.Tensor | None


class CompressedGradients:
    """The handle of `compress_gradients` on a model. Checkpoints must include the residuals of every rank."""

    def __init__(self, names: dict[int, str], sizes: dict[str, int], exchange: Exchange, error_feedback: bool) -> None:
        self._names, self._sizes = names, sizes
        self._exchange = exchange
        self._feeds_back = error_feedback
        self._buckets: dict[int, _Bucket] = {}
        # Residuals that are not in a bucket yet, by parameter: the start in it, and the values.
        self._pieces: dict[str, list[tuple[int, torch.Tensor]]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="atoll-packing")
        self._pending: list[Future[None]] = []  # of this backward pass
        self._error: Exception | None = None
        self._stream: torch.Stream | None = None

    def time_split(self) -> dict[str, float]:
        """Returns the same as atoll.time_split for these gradients: `bytes_bridge` counts bytes sent to other
        islands."""
        return self._exchange.time_split()

    @property
    def is_lossy(self) -> bool:
        """False if all ranks are one island: then gradients are exact."""
        return self._exchange.is_lossy

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's residuals, as parts of the mean gradient. Call it between backward passes."""
        self._wait()
        self._dissolve()
        pieces = [
            {"name": name, "begin": begin, "values": values / self._exchange.size}
            for name, held in self._pieces.items()
            for begin, values in held
        ]
        return {"version": 1, "pieces": pieces}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces this rank's residuals by those of any rank's state_dict. If the ranks have changed, load each state
        on some rank. Raises ValueError for parameters that the model does not have."""
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
        """Drops the residuals, for example after a change of gradient scaling."""
        self._wait()
        self._buckets.clear()
        self._pieces.clear()

    def close(self) -> None:
        """Ends its connections, after the last backward pass. All ranks must call it."""
        try:
            self._wait()
        finally:
            self._worker.shutdown()
            self._exchange.close()

    def hook(self, _state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: computes the mean over ranks while the backward pass continues. One thread takes the
        buckets in order, so that collectives are called in the same order on all ranks."""
        buffer = bucket.buffer()
        if not buffer.is_floating_point():
            raise TypeError(f"gradients are {buffer.dtype}: only floating-point gradients can be compressed")
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
        """Runs on the worker's thread. The first error is also that of every later call."""
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
        """Waits at the end of a backward pass, before DDP does, so that an error keeps its type."""
        pending, self._pending = self._pending, []
        for each in pending:
            each.result()

    def _held(self, index: int, parameters: Sequence[torch.Tensor], buffer: torch.Tensor) -> _Bucket:
        """Returns the bucket. DDP may rebuild its buckets, after the first step for example; residuals move with their
        parameters."""
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
        """Waits until buckets in progress no longer change their residuals."""
        wait(self._pending)
        if self._stream is not None:
            torch.accelerator.current_stream(device).wait_stream(self._stream)

    def _give(self, held: _Bucket, buffer: torch.Tensor, begin: int, values: torch.Tensor) -> None:
        """Adds residuals to this rank's residuals where it has them, and elsewhere to the gradient, which another rank
        now leads."""
        end = begin + values.numel()
        values = values.to(buffer.device)
        low, high = (begin, begin) if held.led is None else _common(held.led, begin, end)
        if held.residual is not None and held.led is not None and low < high:
            held.residual[low - held.led.start : high - held.led.start].add_(values[low - begin : high - begin])
        for first, last in ((begin, low), (high, end)):
            if first < last:
                buffer[first:last].add_(values[first - begin : last - begin])

    def _dissolve(self) -> None:
        """Moves residuals out of their buckets."""
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
    """Returns the number of elements in DDP's buckets, where a complex number counts as two."""
    return parameter.numel() * (2 if parameter.is_complex() else 1)


def _common(led: range, begin: int, end: int) -> tuple[int, int]:
    """Returns the intersection of both ranges; (`begin`, `begin`) if it is empty."""
    low, high = max(led.start, begin), min(led.stop, end)
    return (low, high) if low < high else (begin, begin)


def compress_gradients(
    model: DistributedDataParallel, format: str = "int8", *, error_feedback: bool = True, compress_inside: bool = False
) -> CompressedGradients:
    """Sends the model's gradients between islands as blocks of 8-bit numbers from now on: 0.516 of bfloat16's bytes,
    with a loss that the next step compensates. Inside an island they are added in full precision. All ranks get the
    same bits.

    `format`: int8, fp8_e4m3 or fp8_e5m2. Without `error_feedback` no residuals are kept (4 bytes per element, divided
    among the ranks of an island), and losses are not compensated. `compress_inside`: compresses between the ranks of an
    island too, for example if it spans several hosts.

    Collective over the model's group, before the first backward pass; before or after an atoll.DataLoader is made. The
    group's backend must be atoll. Raises ValueError if the ranks' arguments differ, and RuntimeError if the model
    already has a communication hook. If all ranks are one island, gradients stay exact, with a warning."""
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(f"compress_gradients: got a {type(model).__name__}: pass DistributedDataParallel(net)")
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
    """Returns the number of the next exchange of the group. Raises ValueError on all ranks if their arguments
    differ."""
    said: list[Any] = [None] * group.size()
    dist.all_gather_object(said, (wanted, _made.get(group.group_name, 0)), group=group)
    for rank, (other, _) in enumerate(said):
        if other != said[0][0]:
            raise ValueError(
                f"compress_gradients: rank 0 requests {said[0][0]}, but rank {rank} {other}: pass the same arguments"
            )
    number: int = 1 + max(made for _, made in said)
    _made[group.group_name] = number
    return number
