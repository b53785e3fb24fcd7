# SPDX-License-Identifier: Apache-2.0
"""What an endpoint for Prometheus says of Atoll."""

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT = "http://localhost:9400/metrics"
SECONDS, MOST_BYTES = 2.0, 8 << 20  # for an answer
Labels = tuple[tuple[str, str], ...]


@dataclass
class Sample:
    """The numbers of one moment, by name (without "atoll_") and labels."""

    numbers: dict[str, dict[Labels, float]] = field(default_factory=dict)

    def one(self, name: str) -> float | None:
        """The number without labels."""
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
    """HOST:PORT is short for http://HOST:PORT/metrics. ValueError for what is no address of a web server."""
    full = text if "://" in text else f"http://{text}"
    parts = urlsplit(full)
    try:
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is none
        is_good = False
    if not is_good:
        raise ValueError(f"{text!r} is no endpoint: give http://HOST:PORT/metrics, or HOST:PORT")
    return full if parts.path not in ("", "/") else f"{parts.scheme}://{parts.netloc}/metrics"


def parse(text: str) -> Sample:
    """ValueError for what is not Prometheus's format. What others export is left out."""
    from prometheus_client.parser import text_string_to_metric_families

    found = Sample()
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if each.name.startswith("atoll_"):
                labels = tuple(sorted(each.labels.items()))
                found.numbers.setdefault(each.name.removeprefix("atoll_"), {})[labels] = float(each.value)
    return found


def fetch(url: str, seconds: float = SECONDS) -> str:
    """TimeoutError for an answer that has not come whole by then: each of its parts may be in time."""
    until = time.monotonic() + seconds
    data = b""
    with urllib.request.urlopen(url, timeout=seconds) as answer:
        while part := answer.read1(1 << 16):
            data += part
            if len(data) > MOST_BYTES:
                raise ValueError(f"answers more than {MOST_BYTES >> 20} MiB")
            if time.monotonic() > until:
                raise TimeoutError
    return str(data.decode("utf-8", errors="replace"))


class Endpoint:
    """Keeps what was last heard, and since when nothing is heard any more."""

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
        """Never raises for what an endpoint can do."""
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
                self.problem = "has no figures of Atoll yet: a training has some after its first update interval"

    @property
    def silent_seconds(self) -> float:
        return self._clock() - self._heard

    def rate(self, name: str) -> float | None:
        """How fast a counter grows, per second."""
        if self.sample is None or self.before is None or self.between <= 0:
            return None
        now, then = self.sample.one(name), self.before.one(name)
        return None if now is None or then is None or now < then else (now - then) / self.between


def endpoints(texts: Iterable[str]) -> list[Endpoint]:
    """ValueError as url_of."""
    return [Endpoint(url) for url in dict.fromkeys(url_of(text) for text in texts)]


def _reason(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"has not answered within {SECONDS:g} s"
    return str(getattr(error, "strerror", None) or error)
