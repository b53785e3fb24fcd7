# SPDX-License-Identifier: Apache-2.0
"""DDP over a shaped link: how much communication a step exposes. Needs root."""

from collections.abc import Sequence
from typing import Any

from atoll.bench.sizes import format_size
from bridge import rate_text
from compare import spread
from contenders import TorchRanks
from netns import ADDRESSES, ShapedLink
from results import Settings, say, table
from tcp_stream import payload_rate

TITLE = "exposed communication of DDP over a shaped link"
LINKS = ((200_000_000, "AB"), (1_000_000_000, "AB"), (200_000_000, "AABB"))
LAYERS, WIDTH = 24, 1024
BACKWARD_TO_BRIDGE = 1.5
AIM = 1.7  # the batch is chosen for this ratio, so that noise does not bring it below the one above


def measure(settings: Settings) -> dict[str, Any]:
    rows = []
    for rate, layout in LINKS[1:2] if settings.quick else LINKS:
        with ShapedLink(rate) as link, TorchRanks(link.places(layout), settings.backends, link.store) as ranks:
            rows.append(_measure_link(settings, link, ranks, layout))
    return {"layers": LAYERS, "width": WIDTH, "rows": rows}


def _step(ranks: TorchRanks, backend: str, batch: int, communicate: bool) -> tuple[float, float]:
    """Returns the seconds of the slowest rank for a step and for its backward pass."""
    answers = ranks.ask("ddp_step", backend=backend, batch=batch, communicate=communicate)
    return max(answer["step_s"] for answer in answers), max(answer["backward_s"] for answer in answers)


def _choose_batch(ranks: TorchRanks, backend: str, seconds: float) -> int:
    """Returns the batch whose backward takes `seconds`, found by measuring a small one and then a first guess."""
    batch = 64
    for _ in range(3):
        _step(ranks, backend, batch, False)
        backward = min(_step(ranks, backend, batch, False)[1] for _ in range(2))
        batch = max(16, round(batch * seconds / backward))
    return batch


def least_exposed(buckets: Sequence[int], backward_s: float, bandwidth: float) -> float:
    """Returns the seconds after the backward pass that any backend needs for these buckets: each becomes ready when its
    share of the backward pass is over, and they cross the link one after another at its full rate."""
    total, ready, free = sum(buckets), 0.0, 0.0
    for size in buckets:
        ready += size / total * backward_s
        free = max(ready, free) + size / bandwidth
    return free - backward_s


def _measure_link(settings: Settings, link: ShapedLink, ranks: TorchRanks, layout: str) -> dict[str, Any]:
    layers, width = (4, 512) if settings.quick else (LAYERS, WIDTH)
    stream_seconds = 0.6 if settings.quick else 3.0
    bandwidth = payload_rate(link.prefix(1), ADDRESSES[1], link.prefix(0), stream_seconds)
    parameter_bytes = ranks.ask("ddp_model", layers=layers, width=width)[0]["parameter_bytes"]
    bridge = parameter_bytes / bandwidth
    batch = _choose_batch(ranks, settings.backends[0], AIM * bridge)
    row: dict[str, Any] = {"rate": link.rate, "layout": layout, "batch": batch, "parameter_bytes": parameter_bytes}
    row |= {"bandwidth_bytes_s": bandwidth, "bridge_s": bridge, "backends": {}}
    for backend in settings.backends:
        for _ in range(2):  # DDP rebuilds its buckets after the first
            _step(ranks, backend, batch, True)
    samples: dict[str, list[dict[str, float]]] = {backend: [] for backend in settings.backends}
    for _ in range(settings.rounds(7)):
        for backend in settings.backends:
            alone, backward = _step(ranks, backend, batch, False)
            together, _ = _step(ranks, backend, batch, True)
            samples[backend].append({"alone_s": alone, "backward_s": backward, "together_s": together})
    for backend, of_backend in samples.items():
        buckets = ranks.ask("ddp_buckets", backend=backend)[0]["bytes"]
        exposed = spread([sample["together_s"] - sample["alone_s"] for sample in of_backend])
        row["backends"][backend] = {
            "exposed_s": exposed, "bucket_bytes": buckets, "allowed_s": 1.15 * buckets[-1] / bandwidth + 0.005,
            "least_s": least_exposed(buckets, spread([s["backward_s"] for s in of_backend])["median"], bandwidth),
            "backward_to_bridge": spread([sample["backward_s"] / bridge for sample in of_backend]),
            "rounds": of_backend,
        }  # fmt: skip
        say(f"{rate_text(link.rate)}, {layout}, {backend}: exposed {exposed['median'] * 1e3:.0f} ms")
    return row


def report(document: dict[str, Any]) -> str:
    text = (
        f"Stock `DistributedDataParallel` with stock buckets on {document['layers']} layers of {document['width']} x "
        f"{document['width']}, with a batch whose backward takes at least {BACKWARD_TO_BRIDGE} times as long as the "
        "gradients need to cross the link (M/B). Exposed is the time of a step less that of the same step without "
        "communication (`no_sync`); the last bucket cannot be hidden, so that 1.15 x (its bytes / B) + 5 ms is the "
        "aim. Least is what any backend would need for these buckets: each is ready when its share of the backward is "
        "over, and they cross one after another at the link's full rate. Medians over rounds, in brackets the 10th to "
        "90th percentile.\n\n"
    )
    titles = ["link", "islands", "backend", "M/B", "backward / (M/B)", "last bucket", "exposed", "least", "aim"]
    rows = []
    for row in document["rows"]:
        for backend, found in row["backends"].items():
            exposed = {name: value * 1e3 for name, value in found["exposed_s"].items()}
            cells = [rate_text(row["rate"]), row["layout"], backend, f"{row['bridge_s'] * 1e3:.0f} ms"]
            cells += [f"{found['backward_to_bridge']['median']:.2f}", format_size(found["bucket_bytes"][-1])]
            cells.append(f"{exposed['median']:.0f} ms ({exposed['p10']:.0f} to {exposed['p90']:.0f})")
            rows.append([*cells, f"{found['least_s'] * 1e3:.0f} ms", f"{found['allowed_s'] * 1e3:.0f} ms"])
    return text + table(titles, rows)
