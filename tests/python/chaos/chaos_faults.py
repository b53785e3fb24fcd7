# SPDX-License-Identifier: Apache-2.0
"""Faults that a process can inflict on itself and its connections, without root."""

import ctypes
import os
import resource
import socket
import struct

from listeners import with_socket

_LIBC = ctypes.CDLL(None, use_errno=True)
_ATTACH_FILTER = 26  # SO_ATTACH_FILTER, which Python does not name
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)  # a packet filter's instruction to pass no byte


def end(each: socket.socket) -> None:
    """Shuts a connection down as if the program had closed it."""
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended already


def reset(each: socket.socket) -> None:
    """Resets a connection as if a device on the way had rejected it."""
    if each.family == socket.AF_UNIX:
        return end(each)
    nowhere = struct.pack("H14x", socket.AF_UNSPEC)
    _LIBC.connect(each.fileno(), nowhere, len(nowhere))
    return None


def lose_what_comes(each: socket.socket) -> None:
    """Drops everything that is sent to this connection from now on."""
    program = ctypes.create_string_buffer(_RETURN_NOTHING)
    each.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program)))


BREAK = {"end": end, "reset": reset, "both ways": lose_what_comes, "one way": lose_what_comes}


def break_all(descriptors: list[int], how: str) -> None:
    for descriptor in descriptors:
        with_socket(descriptor, BREAK[how])


def leave_descriptors(spare: int) -> None:
    """Lowers the limit so that this process can open `spare` more."""
    used = {int(name) for name in os.listdir("/proc/self/fd")}
    free = (number for number in range(1 << 20) if number not in used)
    for _ in range(spare):
        next(free)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (next(free), hard))
