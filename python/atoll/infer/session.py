# SPDX-License-Identifier: Apache-2.0
"""A session: one model that a robot and a server run together."""

import contextlib
import json
import os
import stat
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll import _C
from atoll.infer import graph as graphs
from atoll.infer.bundle import Bundle, ModelFiles
from atoll.infer.call_queue import CallQueue
from atoll.infer.engine import Engine, check_engine, engine_of, example_of
from atoll.infer.errors import RefusedError, warn
from atoll.infer.inputs import check_tensors
from atoll.infer.placement import device_for, moved
from atoll.infer.plain_state import plain_state
from atoll.infer.session_metrics import check_port, export
from atoll.infer.session_record import SessionRecord
from atoll.infer.tracing import capture

_MAX_NAME = 200
_MAX_SECONDS = 1e9
_MAX_WAITING = 1024  # submitted inferences
_MAX_WARNINGS = 8  # warnings of refusals


@dataclass(frozen=True)
class Inference:
    """How one answer was computed, in seconds, bytes and joules."""

    origin: str  # "local", "server" or "mixed"
    plan: str
    seconds: float
    predicted: float
    bound: float  # the lower bound of any plan; 0: unknown
    up_bytes: int
    down_bytes: int
    joules: float
    guard_used: bool
    missed: bool
    computing: float = 0.0  # on this machine
    waiting: float = 0.0
    sending: float = 0.0  # overlaps both; the time of the bytes at the link's estimated rates
    receiving: float = 0.0


class Report(dict[str, Any]):
    """The statistics of a session by name; str() is for people."""

    def __str__(self) -> str:
        origins = ", ".join(f"{count} {name}" for name, count in self["origins"].items() if count)
        lines = [
            f"{self['inferences']} inferences ({origins or 'none yet'}), {self['missed']} missed their deadline, "
            f"{self['guarded']} finished alone",
            f"latency: median {_ms(self['p50'])}, 95 % {_ms(self['p95'])}, 99 % {_ms(self['p99'])}, "
            f"worst {_ms(self['worst'])}; this machine alone {_ms(self['local_seconds'])}",
            f"plan: {self['plan'] or '-'}, predicted {_ms(self['predicted'])}, bound {_ms(self['bound'])} "
            f"(policy {self['policy']}; known: {', '.join(self['plans']) or 'local'})",
            f"bytes: {self['up_bytes']} up, {self['down_bytes']} down; {self['link']['probe_bytes']} on probes",
            f"energy: {self['mean_joules']:.3g} J per inference, estimated",
            f"link: {self['link']['text']}; up {_mbit(self['up_rate'])}, down {_mbit(self['down_rate'])}, latency "
            f"{_ms(self['latency'])}; forecasts off by {self['forecast']['median_error']:.0%} (median), "
            f"{self['forecast']['high_error']:.0%} (90 %)",
        ]
        if self["lossy"]["codec"] != "raw":
            lines.append(_lossy(self["lossy"]))
        if self["engine"]["state"] != "none":
            lines.append(_engine(self["engine"]))
        return "\n".join(lines)


class Session:
    """A model prepared for inputs like `example_inputs`, whose inferences are divided between this machine and a
    server. `model` is a module in eval mode, a Bundle, or the folder of a bundle. `server` is the "host:port" of an
    `atoll serve`, `key_file` the key that both share; without a server everything is computed on this machine.

    Calling the session returns what the model returns, in the same structure and dtypes, on the same devices. This
    machine computes on `device`; None means the model's device, or the CPU for a folder, whose results are on `device`.
    Inputs may be on any device. Device memory holds the weights a second time. A call never fails because of the link
    or the server: this machine computes what the server does not answer in time, from the current point of the
    inference. `deadline` (seconds) sets that time: local computing starts at the last moment that still meets it.
    Without a deadline, or if this machine alone cannot meet it, an inference takes at most about twice its time on this
    machine alone. `hedge="always"` computes locally whenever this machine would wait; `"never"` does so only if the
    server is lost or silent for `patience` seconds, and raises RefusedError if it will never answer. One warning
    reports each kind of refusal by the server.

    PyTorch settings of the calling thread (autocast, inference mode, modes, ...) do not affect the computation, on
    either machine; docs/split-inference.md lists them.

    `policy` is "auto" or a policy of `atoll plan infer`. `lossy` ("half", "int8") packs floating-point tensors in both
    directions; "jpeg" packs inputs that are images, and raises ValueError if there are none. Without it answers differ
    from the model's only by rounding. The report gives the loss of values. `profile_seconds` limits how long the model
    is timed on this machine at the start. Robot and server both compute with the weights at the time when the session
    was made: a call after the module's weights, layers or hooks have changed raises ModelChangedError.

    `engine` is this machine's own way to run the whole model: the path of an AOTInductor package (".pt2"), or a
    callable with the model's signature and results. It answers instead of the model's operators if this machine
    computes alone and the engine is faster. Raises ValueError if its answers deviate from the model's by more than
    `engine_tolerance` of the largest magnitude (1e-4 for float32). If the engine raises or does not return, the model's
    operators answer.

    `cache` is a folder that keeps the captured model, in the format of `atoll export`, and is verified by its hash;
    None: nothing is kept or left behind, however the process ends.

    `record` is a folder for a record of every inference, from which `atoll report` makes a page; None: the folder that
    ATOLL_RUN_DIR names, "": no record.

    `prometheus` is a port that serves the session's metrics (0: a free port, which a log line names) for Prometheus and
    `atoll top`. It is open on all interfaces, without a password.

    `others` are `patience`, `profile_seconds` and `engine_tolerance` as above; `engine_start_limit`, seconds for the
    engine's first answer; `compute_watts`, `idle_watts` and `radio_watts` of this machine, for estimates of energy;
    `seed` and `chunks` of policies; `silence`, seconds after which a silent server counts as lost (2); and
    `probe_bytes`, the size of probes of the link. Raises ValueError for any other name, and lists these.

    Thread-safe; one inference runs at a time. `submit` queues."""

    def __init__(
        self,
        model: nn.Module | Bundle | str | os.PathLike[str],
        example_inputs: Any = None,
        server: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        policy: str = "auto",
        deadline: float | None = None,
        hedge: str = "deadline",
        device: str | torch.device | None = None,
        lossy: str | None = None,
        engine: Engine | None = None,
        cache: str | os.PathLike[str] | None = None,
        record: str | os.PathLike[str] | None = None,
        prometheus: int | None = None,
        **others: Any,
    ) -> None:
        options = {"policy": policy, "deadline": deadline, "hedge": hedge, "lossy": lossy, "name": _name(), **others}
        if server is not None:
            options |= {"server": server, "key_file": str(checked_key(key_file))}
        with plain_state():
            place = str(device or device_for(model, (example_inputs, example_kwargs)))
        _C.check_infer_session(options, place)  # before capturing, which takes long
        check_engine(engine)
        check_port(prometheus)
        with plain_state():
            self.bundle = _bundle(model, example_inputs, example_kwargs)
            example = [] if engine is None else example_of(example_inputs, example_kwargs, self.bundle)
        self._process = os.getpid()
        self._closing = threading.RLock()  # a signal handler may close the session in the middle of a call
        self._closed = False
        self._queue: CallQueue | None = None
        self._waiting = 0  # unfinished futures
        self._last: Inference | None = None
        self._told: set[str] = set()  # refusals
        folder_of_record = os.environ.get("ATOLL_RUN_DIR", "") if record is None else os.fspath(record)
        about = {"policy": policy, "deadline": deadline, "device": place, "to": server}
        self._record = SessionRecord(folder_of_record, about) if folder_of_record else None
        if self._record is not None:
            weakref.finalize(self, self._record.close, dict)  # for sessions that are never closed
        with plain_state(), _files(model, self.bundle, cache) as files:
            self._watch = self.bundle.watch
            self.bundle = self.bundle.of_file(files.weights)
            self._session = _C.InferSession(
                options, files.graph, files.weights.fileno(), files.hash, place, engine_of(engine, self.bundle), example
            )
        weakref.finalize(self, self._session.leave)  # also at interpreter exit, which daemon threads do not see
        self._exporter = None if prometheus is None else export(self, prometheus)
        if self._exporter is not None:
            weakref.finalize(self, self._exporter.close)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the model's result for these arguments. Raises InputError if they differ from the example."""
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, deadline: float | None = None) -> Any:
        """The same with a deadline for this call, in seconds from now. `args` may also be a single tensor. Raises
        ValueError for a deadline that is not a number, NaN, or above 1e9."""
        if deadline is not None and not (isinstance(deadline, Real) and deadline <= _MAX_SECONDS):
            raise ValueError(f"deadline is {deadline!r}: give seconds, at most 1e9, or None for the session's")
        args = args if isinstance(args, tuple) else (args,)
        return self._answer(time.monotonic(), args, kwargs or {}, deadline)

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Returns a future of a call's result. Inferences run one after the other, in order: they do not overlap, so a
        second frame waits for the first. The session's deadline, and the seconds in `last`, count from this call: an
        inference that waits too long is still answered, and is marked. Tensors must not change before the future is
        done. The end of the program does not wait for inferences. Raises RuntimeError if 1024 of them are already
        waiting, because then every answer would be late."""
        asked = time.monotonic()
        if os.getpid() != self._process:
            raise RuntimeError("the session belongs to the parent of this forked process: make another one")
        with self._closing:
            if self._closed:
                raise ValueError("the session is closed: make another one")
            if self._waiting >= _MAX_WAITING:
                raise RuntimeError(f"{self._waiting} inferences are waiting: take their answers before you submit more")
            queue = self._queue = self._queue or CallQueue("atoll-session")
            future = queue.submit(self._answer, asked, args, kwargs, None)
            self._waiting += 1
        if self.is_closed:  # by a signal handler, after the check
            future.cancel()
        future.add_done_callback(self._done)
        return future

    @property
    def last(self) -> Inference | None:
        """How the last answer was computed."""
        return self._last

    def report(self) -> Report:
        """Returns the session's statistics so far: print them, or look them up by name."""
        return Report(json.loads(self._session.report_json()))

    def wait_until_ready(self, seconds: float) -> bool:
        """Waits up to `seconds` for the server, and returns whether it can help. Waiting is optional: calls work from
        the start. Returns False at once without a server. Raises RefusedError as soon as it is known that the server
        will never help: it refuses the model, has another key, or is another release. Raises ValueError for a value
        that is not a number, NaN, below 0, or above 1e9."""
        if not isinstance(seconds, Real):
            raise ValueError(f"seconds is {seconds!r}: give a number")
        with _refusals():
            is_ready = self._session.wait_until_ready(float(seconds))
        if not is_ready:
            self._tell(self.report()["link"]["refusal"])
        return is_ready

    def close(self) -> None:
        """Ends the session and disconnects from the server. A running call stops after the current operator and raises
        RuntimeError; submitted inferences that have not started are cancelled; later calls fail. In a signal handler
        that has interrupted a call, this returns at once, and the call raises after it. Closing again does nothing, and
        neither does closing in a forked process, which cannot use the session."""
        if os.getpid() != self._process:
            return
        with self._closing:
            queue, self._queue, self._closed = self._queue, None, True
        if queue is not None:
            queue.cancel()
        if self._record is not None:
            self._record.close(self.report)
        if self._exporter is not None:
            self._exporter.close()
        self._session.close()
        if queue is not None:
            queue.join()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self, _: "Future[Any]") -> None:
        with self._closing:
            self._waiting -= 1

    def _answer(self, asked: float, args: tuple[Any, ...], kwargs: Mapping[str, Any], deadline: float | None) -> Any:
        """Computes one answer. `asked` is a time of the monotonic clock."""
        self._session.expect_open()
        if self._watch is not None:
            self._watch.refuse_changes()
        with torch._C.DisableTorchFunction():  # of the caller's modes
            tensors = self.bundle.check_inputs(args, kwargs)
            has_gradients = any(tensor.requires_grad for tensor in tensors)
        if has_gradients:
            with plain_state():
                tensors = [tensor.detach() for tensor in tensors]
        record = self._record
        wants_picture = record is not None and record.wants_picture
        with _refusals():
            outputs, facts = self._session.run(tensors, deadline, time.monotonic() - asked, wants_picture)
        picture = facts.pop("picture")
        self._tell(facts.pop("refusal"))
        self._last = Inference(**facts)
        if record is not None:
            record.add(facts, picture, self.report)
        return self.bundle.output.build(moved(outputs, self.bundle.place))

    def _tell(self, refusal: str) -> None:
        """Warns, once for each reason, that the server does not help, which answers would not show."""
        if refusal and refusal not in self._told and len(self._told) < _MAX_WARNINGS:
            self._told.add(refusal)
            warn(f"this machine computes everything alone: {refusal}")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Raises a server's refusal as RefusedError."""
    try:
        yield
    except torch.distributed.DistNetworkError as error:
        raise RefusedError(str(error)) from None


def _files(model: Any, bundle: Bundle, cache: str | os.PathLike[str] | None) -> ModelFiles:
    """Returns the files in the folder that the model came from or is kept in; otherwise in a file that disappears with
    the process."""
    if isinstance(model, str | os.PathLike):
        return ModelFiles.of_folder(Path(model))
    return ModelFiles.unnamed(bundle) if cache is None else ModelFiles.of_folder(bundle.save(cache))


def _bundle(model: Any, example: Any, kwargs: Mapping[str, Any] | None) -> Bundle:
    if isinstance(model, Bundle):
        bundle = model
    elif isinstance(model, str | os.PathLike):
        bundle = Bundle.load(model)
    else:
        return capture(model, example if example is not None else (), kwargs)
    if example is not None:
        args = example if isinstance(example, tuple) else (example,)
        check_tensors(bundle.check_inputs(args, kwargs), graphs.of_inputs(bundle.graph), bundle.inputs.names())
    return bundle


def checked_key(key_file: str | os.PathLike[str] | None) -> Path:
    """Checks the key file before anything is captured or loaded. Raises ValueError that says what to do."""
    if key_file is None:
        raise ValueError("a server needs a key: pass key_file=, the file that `atoll serve --key-file` uses")
    path = Path(key_file)
    if not path.is_file():
        raise ValueError(f"key_file {path} does not exist: copy the file of `atoll serve --key-file`")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"key_file {path} can be read by others: chmod 600 {path}")
    return path


def _name() -> str:
    return f"{os.uname().nodename} {os.getpid()}"[:_MAX_NAME]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _mbit(rate: float) -> str:
    return f"{8e-6 * rate:.1f} Mbit/s"


def _lossy(loss: Mapping[str, Any]) -> str:
    if not loss["measured"]:
        return f"{loss['codec']}: not used so far"
    return (
        f"{loss['codec']}: sent values differ by {loss['mean_error']:.2g} of their largest magnitude on average, "
        f"at most {loss['largest_error']:.2g} (measured in {loss['measured']} inferences)"
    )


def _engine(engine: Mapping[str, Any]) -> str:
    failed = engine["failures"] + engine["late"]
    why = f"; it failed {failed} times, the last time: {engine['text']}" if failed else ""
    return (
        f"engine: {engine['state']}, {_ms(engine['seconds'])} per run, {engine['runs']} answers, deviates by "
        f"{engine['deviation']:.2g}{why}"
    )
