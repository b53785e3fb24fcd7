# SPDX-License-Identifier: Apache-2.0
"""The sockets on which a process listens, and its connections."""

import os
import re
import socket
import struct
from collections.abc import Callable
from pathlib import Path


def sockets_of(pid: int) -> set[str]:
    """Returns the inode numbers of the process's sockets."""
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
    """Returns the abstract Unix sockets on which the process listens."""
    mine, names = sockets_of(pid), []
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "00010000" and fields[6] in mine and fields[7].startswith("@"):
            names.append("\0" + fields[7][1:])
    return names


def with_socket(descriptor: int, act: Callable[[socket.socket], None]) -> None:
    """Calls act() with a socket of this process, which stays open."""
    copy = socket.socket(fileno=os.dup(descriptor))
    try:
        act(copy)
    finally:
        copy.close()


def own_sockets() -> dict[int, str]:
    """Returns the inodes of this process's sockets, by descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # closed since
            continue
        if target.startswith("socket:["):
            found[int(name)] = target[8:-1]
    return found


def tcp_ports() -> dict[str, tuple[str, str]]:
    """Returns, by inode, the local and the remote port."""
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            found[fields[9]] = (fields[1].rpartition(":")[2], fields[2].rpartition(":")[2])
    return found


def connections_with(pid: int) -> list[int]:
    """Returns the descriptors of this process's TCP and Unix connections with another process of this machine."""
    ports = tcp_ports()
    ends = {ports[inode] for inode in sockets_of(pid) if inode in ports}
    found: list[int] = []
    for descriptor, inode in own_sockets().items():

        def look(each: socket.socket, descriptor: int = descriptor, inode: str = inode) -> None:
            if each.family == socket.AF_UNIX:
                peer = struct.unpack("3i", each.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                if peer == pid:
                    found.append(descriptor)
            elif inode in ports and ports[inode][::-1] in ends:
                found.append(descriptor)

        with_socket(descriptor, look)
    return found
