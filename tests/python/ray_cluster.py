# SPDX-License-Identifier: Apache-2.0
"""A program that starts a Ray cluster of a fast node with one processor and a slow one with two, both on this
machine, runs the given command in it, and exits with its status."""

import os
import subprocess
import sys

from ray.cluster_utils import Cluster

TIMEOUT_S = 400


def main() -> int:
    def node(kind: str, processors: int) -> dict[str, object]:
        variables = {"ATOLL_ISLAND": kind, "ATOLL_DEVICE": "cpu"}
        return {"num_cpus": processors, "labels": {"kind": kind}, "env_vars": variables}

    cluster = Cluster(initialize_head=True, head_node_args=node("fast", 1) | {"include_dashboard": False})
    try:
        cluster.add_node(**node("slow", 2))
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        return subprocess.run(sys.argv[1:], env=environment, timeout=TIMEOUT_S, check=False).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
