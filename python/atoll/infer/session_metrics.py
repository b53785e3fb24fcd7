# SPDX-License-Identifier: Apache-2.0
"""A session's metrics for Prometheus."""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from atoll.watching.exporter import Exporter


def check_port(port: Any) -> None:
    """Raises ValueError for an invalid port; None means no metrics."""
    if port is not None and not (type(port) is int and 0 <= port < 1 << 16):
        raise ValueError(f"Session(prometheus={port!r}): give a port from 0 to 65535")


def export(session: Any, port: int) -> Exporter:
    """Exports the metrics of a Session until the exporter is closed or the session is gone. Raises the errors of
    Exporter."""
    seen = weakref.ref(session)
    return Exporter(lambda core: _Figures(core, seen), port, f"Session(prometheus={port})")


class _Figures:
    """A collector of prometheus_client, read by its server's threads. The session may be closed in the meantime."""

    def __init__(self, core: Any, session: Any) -> None:
        self._core, self._session = core, session

    def collect(self) -> Iterator[Any]:
        session = self._session()
        if session is None:
            return
        try:
            report = session.report()
        except ValueError:  # the session is closed
            return
        yield from self._counts(report)
        yield from self._link(report)
        yield from self._latencies(report)
        if (last := session.last) is not None:
            for part in ("computing", "waiting", "sending", "receiving"):
                yield self._gauge(f"last_{part}_seconds", "Part of the last inference.", getattr(last, part))
            yield self._gauge("last_seconds", "Latency of the last inference.", last.seconds)

    def _counts(self, report: Mapping[str, Any]) -> Iterator[Any]:
        for name, key, help_text in (
            ("inferences", "inferences", "Answers."),
            ("missed", "missed", "Answers after their deadline."),
            ("guarded", "guarded", "Answers computed on this machine because the server's did not arrive in time."),
            ("up_bytes", "up_bytes", "Bytes to the server."),
            ("down_bytes", "down_bytes", "Bytes from the server."),
            ("joules", "joules", "Estimated energy of this machine."),
        ):
            yield self._core.CounterMetricFamily(f"atoll_session_{name}", help_text, value=report[key])
        origins = self._core.CounterMetricFamily("atoll_session_answers", "Answers by origin.", labels=["origin"])
        for origin, count in report["origins"].items():
            origins.add_metric([origin], count)
        yield origins

    def _link(self, report: Mapping[str, Any]) -> Iterator[Any]:
        yield self._gauge("link_up", "Whether the server can help.", float(report["link"]["state"] == "ready"))
        if report["up_rate"] > 0:
            yield self._gauge("up_bytes_per_second", "Estimated rate to the server.", report["up_rate"])
            yield self._gauge("down_bytes_per_second", "Estimated rate from the server.", report["down_rate"])
            yield self._gauge("link_latency_seconds", "Estimated latency of the link.", report["latency"])

    def _latencies(self, report: Mapping[str, Any]) -> Iterator[Any]:
        yield self._gauge("local_seconds", "An inference on this machine alone.", report["local_seconds"])
        if not report["inferences"]:
            return
        latency = self._core.GaugeMetricFamily(
            "atoll_session_latency_seconds", "Latency of the latest inferences.", labels=["quantile"]
        )
        for quantile, key in (("0.5", "p50"), ("0.95", "p95"), ("0.99", "p99"), ("1", "worst")):
            latency.add_metric([quantile], report[key])
        yield latency
        predicted = self._core.GaugeMetricFamily(
            "atoll_session_predicted_seconds", "Predicted latency of the last plan.", labels=["plan"]
        )
        predicted.add_metric([report["plan"]], report["predicted"])
        yield predicted
        if report["bound"] > 0:
            yield self._gauge("bound_seconds", "Lower bound of any plan's latency.", report["bound"])

    def _gauge(self, name: str, help_text: str, value: float) -> Any:
        return self._core.GaugeMetricFamily(f"atoll_session_{name}", help_text, value=value)
