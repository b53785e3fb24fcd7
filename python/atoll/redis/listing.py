# SPDX-License-Identifier: Apache-2.0
"""The jobs of a Redis server as rows of a table."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from atoll import _C

_TIMEOUT = timedelta(seconds=5)
_MAX_SCORE = 1e100
_SHOWN = ("rank", "island", "device", "score", "host", "pid")


def rows(url: str) -> Iterator[tuple[str, int, list[str]]]:
    """Yields for each member of each job: the job's name, when it was created (seconds since 1970), and rank, island,
    device, score, host, process and the number of live processes. Scores are relative to the job's fastest rank. Raises
    the errors of RedisStore."""
    for job in _C.redis_jobs(url, _TIMEOUT):
        members = [_member(text) for _, text in sorted(job.members.items())]
        scores = [score for member in members if (score := _score(member)) is not None]
        alive = f"{job.alive}/{job.world_size}" if job.world_size else str(job.alive)
        for member in members or [{}]:
            if (score := _score(member)) is not None:
                member["score"] = f"{score / max(scores):.2f}"
            yield job.name, job.created, [*(_text(member.get(name)) for name in _SHOWN), alive]


def _member(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _score(member: dict[str, Any]) -> float | None:
    """Returns the score; None if it is missing or invalid, because any program may write there."""
    score = member.get("score")
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    return float(score) if 0 < score < _MAX_SCORE else None


def _text(value: Any) -> str:
    """Returns the value on one line, whatever was written into the server."""
    shown = "-" if value is None else str(value) if isinstance(value, str | int | float) else "?"
    return "".join(character if character.isprintable() else "?" for character in shown)[:60]
