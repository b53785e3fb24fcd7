# SPDX-License-Identifier: Apache-2.0
"""Where a process listens."""

import os
import re
from pathlib import Path


def sockets_of(pid: int) -> set[str]:
    """Inode numbers of the process's sockets."""
    found = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:  # closed since
            continue
        match = re.fullmatch(r"socket:\[(\d+)\]", target)
        if match:
            found.add(match[1])
    return found


def listening_ports(pid: int) -> list[int]:
    mine, ports = sockets_of(pid), set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in mine:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(ports)


def listening_names(pid: int) -> list[str]:
    """Abstract Unix sockets that the process listens on."""
    mine, names = sockets_of(pid), []
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "00010000" and fields[6] in mine and fields[7].startswith("@"):
            names.append("\0" + fields[7][1:])
    return names
