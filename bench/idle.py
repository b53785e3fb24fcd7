# SPDX-License-Identifier: Apache-2.0
"""The processor time of a rank that waits for a late one."""

from typing import Any

from contenders import Place, TorchRanks
from results import Settings, say, table

TITLE = "processor time of a rank that waits in a barrier"


def measure(settings: Settings) -> dict[str, Any]:
    late = 1.0 if settings.quick else 10.0
    rows = []
    for transport in ("shm", "tcp"):
        places = [Place(environment=(("ATOLL_TRANSPORT", transport),))] * 3
        with TorchRanks(places, settings.backends) as ranks:
            for backend in settings.backends:
                if backend != settings.backends[0] and transport == "shm":
                    continue  # the setting is Atoll's own, so other backends are measured once
                waiting = ranks.ask("late_barrier", backend=backend, late_seconds=late)[:-1]
                share = max(answer["cpu_s"] / answer["wall_s"] for answer in waiting)
                link = transport if backend == settings.backends[0] else "-"
                rows.append({"backend": backend, "link": link, "share": share, "waiting": waiting})
                say(f"{backend} over {link}: {share:.2%} of a core")
    return {"late_seconds": late, "rows": rows}


def report(document: dict[str, Any]) -> str:
    rows = [[row["backend"], row["link"], f"{row['share']:.2%}"] for row in document["rows"]]
    text = (
        f"Two of three ranks wait in a barrier for {document['late_seconds']:g} seconds. The share of one core that "
        "the whole process of a waiting rank takes, the larger of the two.\n\n"
    )
    return text + table(["backend", "link", "of a core"], rows)
