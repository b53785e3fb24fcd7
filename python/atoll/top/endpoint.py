# SPDX-License-Identifier: Apache-2.0
"""Reads Atoll's metrics from an endpoint for Prometheus."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT = "http://localhost:9400/metrics"
SECONDS, MAX_BYTES = 2.0, 8 << 20  # limits of an answer
Labels = tuple[tuple[str, str], ...]


@dataclass
class Sample:
    """The metrics of one moment, by name (without "atoll_") and labels."""

    numbers: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def one(self, name: str) -> float | None:
        """Returns the value without labels."""
        return self.numbers.get(name, {}).get(())

    def by(self, name: str, label: str) -> dict[str, float]:
        return {dict(labels).get(label, ""): value for labels, value in self.numbers.get(name, {}).items()}

    @property
    def is_training(self) -> bool:
        return "step" in self.numbers

    @property
    def is_server(self) -> bool:
        return any(name.startswith("serve_") for name in self.numbers)

    @property
    def is_session(self) -> bool:
        return "session_inferences_total" in self.numbers


def url_of(text: str) -> str:
    """Returns the URL; HOST:PORT is short for http://HOST:PORT/metrics. Raises ValueError for an invalid address."""
    full = text if "://" in text else f"http://{text}"
    parts = urlsplit(full)
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # an invalid port
        is_good = False
    if not is_good:
        raise ValueError(f"{text!r} is not an endpoint: give http://HOST:PORT/metrics, or HOST:PORT")
    return full if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/metrics"


def parse(text: str) -> Sample:
    """Parses an answer. Raises ValueError if it is not in Prometheus's format. Other metrics than Atoll's are
    ignored."""
    from prometheus_client.parser import text_string_to_metric_families

    found = Sample()
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if each.name.startswith("atoll_"):
                labels = tuple(sorted(each.labels.items()))
                found.numbers.setdefault(each.name.removeprefix("atoll_"), {})[labels] = float(each.value)
    return found


def fetch(url: str, seconds: float = SECONDS) -> str:
    """Fetches an answer. Raises TimeoutError if it is not complete in time, even if each of its parts is."""
    until = time.monotonic() + seconds
    data = b""
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        while part := answer.read1(1 << 16):
            data += part
            if len(data) > MAX_BYTES:
                raise ValueError(f"answers more than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
    return str(data.decode("utf-8", errors="replace"))


class Endpoint:
    """One endpoint, with its last answer and the time since then."""

    def __init__(
        self, url: str, get: Callable[[str], str] = fetch, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self.url, self._get, self._clock = url, get, clock
        self.sample: Sample | None = None
        self.before: Sample | None = None
        self.between = 0.0  # seconds from `before` to `sample`
        self.problem = ""
        self._heard = 0.0

    def ask(self) -> None:
        """Polls the endpoint. Never raises, whatever the endpoint answers."""
        try:
            sample = parse(self._get(self.url))
        except urllib.error.HTTPError as error:
            self.problem = f"answers {error.code} {error.reason}"
        except urllib.error.URLError as error:
            self.problem = _reason(error.reason)
        except OSError as error:
            self.problem = _reason(error)
        except ValueError as error:
            self.problem = f"does not answer as Prometheus expects: {str(error)[:60]}"
        else:
            now = self._clock()
            self.before, self.between = self.sample, now - self._heard
            self.sample, self.problem, self._heard = sample, "", now
            if not sample.numbers:
                self.problem = "has no metrics of Atoll yet: a training has some after its first update interval"

    @property
    def silent_seconds(self) -> float:
        return self._clock() - self._heard

    def rate(self, name: str) -> float | None:
        """Returns the rate of a counter, per second."""
        if self.sample is None or self.before is None or self.between <= 0:
            return None
        now, then = self.sample.one(name), self.before.one(name)
        return None if now is None or then is None or now < then else (now - then) / self.between


def endpoints(texts: Iterable[str]) -> list[Endpoint]:
    """Returns the endpoints. Raises the errors of url_of."""
    return [Endpoint(url) for url in dict.fromkeys(url_of(text) for text in texts)]


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"has not answered within {SECONDS:g} s"
    return str(getattr(error, "strerror", None) or error)
