# SPDX-License-Identifier: Apache-2.0
"""The environment variables that Atoll reads, to find misspelt ones."""

import functools
import logging
import os
from collections.abc import Iterable
from difflib import get_close_matches

_PREFIX = "ATOLL_"
# The names without the prefix; docs/environment.md explains them.
NAMES = frozenset(
    [
        "ADDRESS",
        "ARENA",
        "BRIDGE",
        "CACHE",
        "CHECK",
        "CHECK_DATA",
        "CHECK_VALUES",
        "DEPS_DIR",
        "DEVICE",
        "DUMP_DIR",
        "FOLD_THREADS",
        "HEARTBEAT",
        "HOST",
        "IFACE",
        "INNER",
        "ISLAND",
        "KEY_FILE",
        "LOG_LEVEL",
        "MEMBER",
        "METRICS",
        "PORTS",
        "RAILS",
        "REDIS_CA",
        "REDIS_CERT",
        "REDIS_KEY",
        "REDIS_PASSWORD_FILE",
        "REDUCE",
        "RUN_DIR",
        "SIMD",
        "SIM_BANDWIDTH",
        "SIM_DELAY",
        "SIM_DEVICES",
        "SIM_LINK",
        "SIM_MEMORY",
        "SIM_MODEL",
        "SIM_REORDER",
        "SIM_SEED",
        "SIM_SERIAL",
        "SIM_SPEED",
        "SIM_VENDOR",
        "SLOW_AFTER",
        "STAGING",
        "STORE",
        "SUPERVISOR",
        "TLS",
        "TRACE_DIR",
        "TRACE_EVENTS",
        "TRANSPORT",
        "UPLINK",
    ]
)


def unknown(names: Iterable[str]) -> dict[str, str]:
    """Returns those of `names` that look like Atoll's but are unknown, each with the closest known name or ""."""
    found = {}
    for name in sorted(names):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in NAMES:
            close = get_close_matches(name.removeprefix(_PREFIX), NAMES, n=1)
            found[name] = _PREFIX + close[0] if close else ""
    return found


@functools.cache
def warn_of_unknown() -> None:
    """Warns of unknown variables, once per process: a misspelt variable would otherwise have no effect, silently."""
    for name, meant in unknown(os.environ).items():
        advice = f"did you mean {meant}?" if meant else "docs/environment.md lists all variables"
        logging.getLogger("atoll").warning("%s has no effect: Atoll has no such variable; %s", name, advice)
