# SPDX-License-Identifier: Apache-2.0
"""All scenarios by name, in the order in which they run."""

import balancenet
import breakeven
import bridge
import ddp
import ddp_host
import devices
import fewer_bytes
import host
import host_arena
import idle
import kaitian
import latency
import library
import links
import online
import operators
import parity
import pipelines
import pipelines_long
import planner
import rails
import ready
import reliability
import shares
import split_bytes
import split_fleet
import split_papers
import split_robots
import startup
import throttled
from results import Scenario

SCENARIOS: dict[str, Scenario] = {
    "host": host,
    "host_arena": host_arena,
    "latency": latency,
    "bridge": bridge,
    "rails": rails,
    "links": links,
    "ddp": ddp,
    "ddp_host": ddp_host,
    "devices": devices,
    "library": library,
    "idle": idle,
    "startup": startup,
    "ready": ready,
    "reliability": reliability,
    "kaitian": kaitian,
    "shares": shares,
    "throttled": throttled,
    "balancenet": balancenet,
    "online": online,
    "parity": parity,
    "breakeven": breakeven,
    "fewer_bytes": fewer_bytes,
    "pipelines": pipelines,
    "pipelines_long": pipelines_long,
    "planner": planner,
    "operators": operators,
    "split_papers": split_papers,
    "split_fleet": split_fleet,
    "split_bytes": split_bytes,
    "split_robots": split_robots,
}
