# SPDX-License-Identifier: Apache-2.0
"""One model that a robot and a server run together."""

import json
import os
import stat
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from atoll import _C
from atoll.infer import graph as graphs
from atoll.infer.bundle import Bundle
from atoll.infer.engine import Engine, engine_of, example_of
from atoll.infer.inputs import check_tensors
from atoll.infer.session_metrics import export
from atoll.infer.session_record import SessionRecord
from atoll.infer.tracing import capture

_MOST_NAME = 200
_MOST_SECONDS = 1e9
_MOST_WAITING = 1024  # inferences that were submitted


@dataclass(frozen=True)
class Inference:
    """How one answer came about. Seconds, bytes and joules."""

    origin: str  # "local", "server" or "mixed"
    plan: str
    seconds: float
    predicted: float
    bound: float  # that no plan undercuts; 0: not known
    up_bytes: int
    down_bytes: int
    joules: float
    guard_used: bool
    missed: bool
    computing: float = 0.0  # here; and waiting for the server
    waiting: float = 0.0
    sending: float = 0.0  # beside both, as long as the bytes take at the link's estimated rates
    receiving: float = 0.0


class Report(dict[str, Any]):
    """What a session has done, by name; as text for people."""

    def __str__(self) -> str:
        origins = ", ".join(f"{count} {name}" for name, count in self["origins"].items() if count)
        lines = [
            f"{self['inferences']} inferences ({origins or 'none yet'}), {self['missed']} missed their deadline, "
            f"{self['guarded']} went on alone",
            f"latency: median {_ms(self['p50'])}, 95 % {_ms(self['p95'])}, 99 % {_ms(self['p99'])}, "
            f"worst {_ms(self['worst'])}; here alone {_ms(self['local_seconds'])}",
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
    """A model prepared for inputs like `example_inputs`, divided between this machine and a server as suits each
    inference. `model` is a module in eval mode, a Bundle, or the folder of one. `server` is "host:port" of an
    `atoll serve`, `key_file` the key that both hold; without a server everything is computed here.

    Calling the session gives what the model gives, in the same structure and dtypes, on the CPU. No failure of link or
    server is one of a call: what the server does not answer in time is computed here, from wherever the inference was.
    `deadline` (seconds) is when that is: local computing starts at the last moment that still meets it. Without one, or
    with one that this machine alone cannot meet, an inference takes at most about twice what it takes here alone.
    `hedge="always"` computes here whenever this machine would wait, `"never"` only when the server is lost or silent
    for `patience` seconds.

    `policy` is "auto" or a policy of `atoll plan infer`. `lossy` ("half", "int8") packs floating-point tensors so, in
    both directions; "jpeg" packs inputs that are images, and is refused where none is; without it answers differ from
    the model's by rounding at most. The report says what it did to values. `profile_seconds` is how long the
    model is timed here at the beginning. Weights stay those of the module where they lie: do not change them while
    there is a session.

    `engine` is this machine's own way to run the whole model: the path of a package of AOTInductor (".pt2"), or what is
    called as the model is and gives what it gives. It answers instead of the model's operators where this machine
    computes alone, if it is quicker. ValueError where its answers deviate from the model's by more than
    `engine_tolerance` of the largest magnitude (1e-4 of float32). Where it raises, or does not come back, the model's
    operators answer.

    `record` is a folder for a record of every inference, which `atoll report` makes a page of; None: the folder that
    ATOLL_RUN_DIR names, "": none.

    `prometheus` is a port on which the session's figures can be read (0: a free one, which a log line names): by
    Prometheus, and `atoll top`. It is open on all interfaces, without a password.

    `others` are `patience`, `profile_seconds` and `engine_tolerance` as above; `engine_start_limit`, seconds for the
    engine's first answer; `compute_watts`, `idle_watts` and `radio_watts` of this machine, for estimates of energy;
    `seed` and `chunks` of policies; `silence`, seconds after which a server that says nothing is lost (2); and
    `probe_bytes`, of what measures the link. ValueError for any other name, which lists these.

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
        key = None if server is None else checked_key(key_file)
        self.bundle = _bundle(model, example_inputs, example_kwargs)
        self._process = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self._queue: ThreadPoolExecutor | None = None
        self._waiting = 0  # futures of it that are not done
        self._last: Inference | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        options = {"policy": policy, "deadline": deadline, "hedge": hedge, "lossy": lossy, "name": _name(), **others}
        if server is not None:
            options |= {"server": server, "key_file": str(key)}
        if cache is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="atoll-session-")
            cache = self._temporary.name
        folder = self.bundle.save(cache)
        weights = {name: tensor.detach() for name, tensor in self.bundle.weights.items()}
        example = [] if engine is None else example_of(example_inputs, example_kwargs, self.bundle)
        own = engine_of(engine, self.bundle)
        folder_of_record = os.environ.get("ATOLL_RUN_DIR", "") if record is None else os.fspath(record)
        about = {"policy": policy, "deadline": deadline, "device": str(device or "cpu"), "to": server}
        self._record = SessionRecord(folder_of_record, about) if folder_of_record else None
        if self._record is not None:
            weakref.finalize(self, self._record.close, dict)  # of sessions that nobody closes
        self._session = _C.InferSession(options, str(folder), weights, str(device or "cpu"), own, example)
        self._exporter = None if prometheus is None else export(self, prometheus)
        if self._exporter is not None:
            weakref.finalize(self, self._exporter.close)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model gives for these arguments. InputError where they are unlike the example."""
        return self.run(args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None, deadline: float | None = None) -> Any:
        """The same with a deadline of its own, in seconds from now. ValueError for NaN and above 1e9."""
        if deadline is not None and not deadline <= _MOST_SECONDS:
            raise ValueError(f"deadline is {deadline}: give seconds, at most 1e9, or None for the session's")
        return self._answer(time.monotonic(), args, kwargs or {}, deadline)

    def submit(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """A future of what a call gives. Inferences run one after the other, in order: they do not overlap, so a second
        frame waits for the first. The session's deadline, and the seconds that `last` tells, count from this call: what
        waited too long for its turn is answered all the same, and marked. Tensors must not change before the future is
        done. RuntimeError where 1024 wait already: who asks for more than can be answered is late with everything."""
        asked = time.monotonic()
        if os.getpid() != self._process:
            raise RuntimeError("the session belongs to the parent of this forked process: make another one")
        with self._closing:
            if self._closed:
                raise ValueError("the session is closed: make another one")
            if self._queue is None:
                self._queue = ThreadPoolExecutor(1, "atoll-session")
            if self._waiting >= _MOST_WAITING:
                raise RuntimeError(
                    f"{self._waiting} inferences wait for their turn: take their answers before you submit more"
                )
            future = self._queue.submit(self._answer, asked, args, kwargs, None)
            self._waiting += 1
        future.add_done_callback(self._done)  # not behind the lock, which it takes
        return future

    @property
    def last(self) -> Inference | None:
        """How the last answer came about."""
        return self._last

    def report(self) -> Report:
        """What the session has done so far: print it, or look names up."""
        return Report(json.loads(self._session.report_json()))

    def wait_until_ready(self, seconds: float) -> bool:
        """Whether the server can help; waits that long for it. Nobody needs to wait: calls work from the start.
        ValueError for NaN, below 0 and above 1e9."""
        return self._session.wait_until_ready(seconds)

    def close(self) -> None:
        """Ends what runs and says goodbye to the server. A call that runs meanwhile stops behind the operator at hand
        and raises RuntimeError; what was submitted and has not begun is cancelled; later calls fail. Closing again does
        nothing, nor does closing in a forked process, which cannot use the session either."""
        if os.getpid() != self._process:
            return
        with self._closing:
            queue, self._queue, self._closed = self._queue, None, True
        if queue is not None:
            queue.shutdown(wait=False, cancel_futures=True)
        if self._record is not None:
            self._record.close(self.report)
        if self._exporter is not None:
            self._exporter.close()
        self._session.close()
        if queue is not None and threading.current_thread() not in getattr(queue, "_threads", ()):
            queue.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _done(self, _: "Future[Any]") -> None:
        with self._closing:
            self._waiting -= 1

    def _answer(self, asked: float, args: tuple[Any, ...], kwargs: Mapping[str, Any], deadline: float | None) -> Any:
        """`asked` is a time of the monotonic clock."""
        tensors = [tensor.detach() for tensor in self.bundle.check_inputs(args, kwargs)]
        record = self._record
        wants_picture = record is not None and record.wants_picture
        outputs, facts = self._session.run(tensors, deadline, time.monotonic() - asked, wants_picture)
        picture = facts.pop("picture")
        self._last = Inference(**facts)
        if record is not None:
            record.add(facts, picture, self.report)
        return self.bundle.output.build(outputs)


def _bundle(model: Any, example: Any, kwargs: Mapping[str, Any] | None) -> Bundle:
    if isinstance(model, Bundle):
        bundle = model
    elif isinstance(model, nn.Module):
        return capture(model, example if example is not None else (), kwargs)
    else:
        bundle = Bundle.load(model)
    if example is not None:
        args = example if isinstance(example, tuple) else (example,)
        check_tensors(bundle.check_inputs(args, kwargs), graphs.of_inputs(bundle.graph), bundle.inputs.names())
    return bundle


def checked_key(key_file: str | os.PathLike[str] | None) -> Path:
    """ValueError that says what to do, before anything is captured or loaded."""
    if key_file is None:
        raise ValueError("a server needs a key: give key_file=, the file that `atoll serve --key-file` uses")
    path = Path(key_file)
    if not path.is_file():
        raise ValueError(f"key_file {path} is not there: copy the file of `atoll serve --key-file`")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ValueError(f"key_file {path} can be read by others: chmod 600 {path}")
    return path


def _name() -> str:
    return f"{os.uname().nodename} {os.getpid()}"[:_MOST_NAME]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms"


def _mbit(rate: float) -> str:
    return f"{8e-6 * rate:.1f} Mbit/s"


def _lossy(loss: Mapping[str, Any]) -> str:
    if not loss["measured"]:
        return f"{loss['codec']}: not used so far"
    return (
        f"{loss['codec']}: what went up differs by {loss['mean_error']:.2g} of its largest magnitude in the mean, "
        f"at most {loss['largest_error']:.2g} (in {loss['measured']} inferences that were looked at)"
    )


def _engine(engine: Mapping[str, Any]) -> str:
    failed = engine["failures"] + engine["late"]
    why = f"; it failed {failed} times, the last time: {engine['text']}" if failed else ""
    return (
        f"engine: {engine['state']}, {_ms(engine['seconds'])} a run, {engine['runs']} answers, deviates by "
        f"{engine['deviation']:.2g}{why}"
    )
