# SPDX-License-Identifier: Apache-2.0
"""The payload rate of one plain TCP stream, measured by the receiver.

As a program: `tcp_stream.py receive ADDRESS` prints its port, then (JSON) bytes and seconds; `tcp_stream.py send
ADDRESS PORT SECONDS` sends."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

BLOCK = 1 << 20
SETTLE_SECONDS = 0.3  # slow start, and the shaper's bucket, which is full at first


def receive(address: str) -> None:
    with socket.create_server((address, 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    buffer = bytearray(BLOCK)
    start = time.monotonic()
    begin, total = start, 0
    with connection:
        while size := connection.recv_into(buffer):
            total += size
            now = time.monotonic()
            if begin == start and now - start > SETTLE_SECONDS:
                begin, total = now, 0
    print(json.dumps({"bytes": total, "seconds": now - begin}), flush=True)


def send(address: str, port: int, seconds: float) -> None:
    block = bytes(BLOCK)
    with socket.create_connection((address, port)) as connection:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(block)


def payload_rate(receiver: Sequence[str], address: str, sender: Sequence[str], seconds: float) -> float:
    """Returns the bytes per second from where the command prefix `sender` runs to `address`, where `receiver` runs."""
    program = [sys.executable, __file__]
    with subprocess.Popen([*receiver, *program, "receive", address], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            subprocess.run([*sender, *program, "send", address, port, str(seconds)], check=True)
            result = json.loads(process.stdout.readline())
        finally:
            process.kill()
    return float(result["bytes"] / result["seconds"])


if __name__ == "__main__":
    if sys.argv[1] == "receive":
        receive(sys.argv[2])
    else:
        send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
