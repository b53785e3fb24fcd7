# SPDX-License-Identifier: Apache-2.0
"""One host, with Atoll's tensors in memory that the ranks of the host map: all_reduce against the same peers."""

from typing import Any

import host
import peers
from results import Settings

TITLE = "one host, tensors of atoll.empty against Gloo, Open MPI and the memory bound"


def measure(settings: Settings) -> dict[str, Any]:
    mpis = [peers.open_mpi_4(), peers.open_mpi_5()]
    dram = peers.cxx_program("dram_bandwidth")
    part = host.all_reduce(settings, 2, host.large_sizes(settings), mpis, dram, arena=True)
    return {"open_mpi": {mpi.name: mpi.version for mpi in mpis}, "parts": [part]}


report = host.report
