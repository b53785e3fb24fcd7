# SPDX-License-Identifier: Apache-2.0
"""Serves the newest record as gauges for Prometheus over HTTP."""

from collections.abc import Iterator
from typing import Any

from atoll.watching.exporter import Exporter
from atoll.watching.record import REPLICA_DRIFT, PlanEvent, WindowRecord


class Prometheus:
    """One endpoint with only Atoll's gauges, from the first record on. Unknown values have no gauge."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._gauges: _Gauges
        self._exporter = Exporter(
            self._gauges_of, port, str(self), hint="; another atoll.DataLoader of this process may use this one"
        )
        self.port = self._exporter.port

    def _gauges_of(self, core: Any) -> "_Gauges":
        self._gauges = _Gauges(core)
        return self._gauges

    def __str__(self) -> str:
        return f"Watch(prometheus={self.port})"

    def window(self, record: WindowRecord) -> None:
        self._gauges.record = record

    def event(self, event: PlanEvent) -> None:
        self._gauges.count(event)

    def close(self) -> None:
        self._exporter.close()


class _Gauges:
    """A collector of prometheus_client, read by its server's threads."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.record: WindowRecord | None = None
        self._events: dict[str, int] = {}
        self._drift: float | None = None

    def count(self, event: PlanEvent) -> None:
        self._events = {**self._events, event.kind: self._events.get(event.kind, 0) + 1}
        if event.kind == REPLICA_DRIFT:
            self._drift = event.value

    def collect(self) -> Iterator[Any]:
        events = self._core.CounterMetricFamily("atoll_events", "Events by kind.", labels=["kind"])
        for kind, number in self._events.items():
            events.add_metric([kind], number)
        yield events
        record = self.record
        drift = record.replica_drift if record is not None and record.replica_drift is not None else self._drift
        yield from self._single(
            "replica_drift", "Largest difference of a parameter between ranks, over the largest parameter.", drift
        )
        if record is None:
            return
        for name, help_text, value in (
            ("step", "Steps done.", record.step),
            ("step_seconds", "Measured time of a step.", record.wall_seconds),
            ("predicted_step_seconds", "Time of a step as predicted by the plan.", record.predicted_seconds),
            ("bound_step_seconds", "The shortest step of any plan.", record.bound_seconds),
            ("bound_distance_ratio", "Measured time of a step over the shortest of any plan.", record.distance),
            ("samples_per_second", "Samples of all ranks.", record.samples_per_second),
            ("plan_version", "Version of the current plan.", record.plan),
        ):
            yield from self._single(name, help_text, value)
        for name, help_text, values in (
            ("batch_samples", "Samples in a step.", record.batches),
            ("compute_seconds", "Time in a step up to the last gradient.", record.compute_seconds),
            ("input_seconds", "Time in a step that waits for the data loader.", record.input_seconds),
            ("waiting_ratio", "Share of a step that waits for the slowest rank.", record.waiting),
            ("speed_factor", "Measured over profiled time.", record.speed_factors),
            ("exposed_seconds", "Time from the last gradient to the last reduced one.", record.exposed_seconds),
            ("bridge_seconds", "Waits in a step's collectives for other islands.", record.bridge_seconds),
            ("inside_seconds", "Time in a step's collectives inside islands.", record.inside_seconds),
            ("staging_seconds", "Copies in a step between device and host.", record.staging_seconds),
        ):
            if values:
                yield self._by_rank(name, help_text, record.devices, values)
        yield from self._others(record)

    def _others(self, record: WindowRecord) -> Iterator[Any]:
        sent = self._core.GaugeMetricFamily("atoll_link_bytes", "Payload of a step.", labels=["source", "target"])
        for source, target, count in record.links:
            sent.add_metric([str(source), str(target)], count)
        noted = self._core.GaugeMetricFamily("atoll_noted", "Values noted by the loop.", labels=["name"])
        for name, value in record.noted.items():
            noted.add_metric([name], value)
        yield from (family for family in (sent, noted) if family.samples)

    def _single(self, name: str, help_text: str, value: float | None) -> Iterator[Any]:
        if value is not None:
            yield self._core.GaugeMetricFamily(f"atoll_{name}", help_text, value=value)

    def _by_rank(self, name: str, help_text: str, devices: tuple[str, ...], values: tuple[float, ...]) -> Any:
        gauge = self._core.GaugeMetricFamily(f"atoll_{name}", help_text, labels=["rank", "device"])
        for rank, (device, value) in enumerate(zip(devices, values, strict=False)):
            gauge.add_metric([str(rank), device], value)
        return gauge
