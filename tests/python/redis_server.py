# SPDX-License-Identifier: Apache-2.0
"""A real `redis-server` for tests, on a free port of the loopback: with data on disk or not, a password, TLS."""

import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launching import free_port

_START_S = 20


class RedisServer:
    """Runs until stop(). `options` are redis-server's own, such as ["--maxclients", "10"]."""

    def __init__(
        self, folder: Path, options: list[str] | None = None, certificates: Path | None = None, password: str = ""
    ) -> None:
        self.folder, self._certificates, self._password = folder, certificates, password
        self._options = [*(options or []), *(_tls_options(certificates) if certificates else [])]
        self._options += ["--requirepass", password] if password else []
        for _ in range(5):
            self.port = free_port()
            if self.start():
                return
        raise AssertionError(f"redis-server does not start: {self.log()}")

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, options: str = "", login: str = "") -> str:
        return f"redis{'s' if self._certificates else ''}://{login}{self.place}/0?{options}"

    def start(self) -> bool:
        """Starts the server on the same port; returns True when it answers, False if it has ended."""
        port = ["--port", "0", "--tls-port", str(self.port)] if self._certificates else ["--port", str(self.port)]
        self._process = subprocess.Popen(
            ["redis-server", *port, "--bind", "127.0.0.1", "--dir", str(self.folder), "--logfile", "log",
             "--save", "", *self._options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.ask("PING"):
                    return True
            except OSError:
                time.sleep(0.005)
        self.kill()
        return False

    def ask(self, *words: str) -> bytes:
        """Returns the first bytes of the answer to a request on a new connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as plain:
            connection = self._secured(plain)
            if self._password:
                connection.sendall(_command("AUTH", self._password))
                assert connection.recv(65536) == b"+OK\r\n"
            connection.sendall(_command(*words))
            answer = connection.recv(65536)
        if not answer or answer.startswith(b"-LOADING"):
            raise ConnectionError("not ready")
        return answer

    def _secured(self, plain: socket.socket) -> socket.socket:
        if self._certificates is None:
            return plain
        context = ssl.create_default_context(cafile=str(self._certificates / "ca.pem"))
        context.load_cert_chain(self._certificates / "client.pem", self._certificates / "client.key")
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def log(self) -> str:
        file = self.folder / "log"
        return file.read_text()[-2000:] if file.exists() else ""

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    stop = kill


@contextmanager
def store_options(place: str, folder: Path, job: str) -> Iterator[list[str]]:
    """Yields the options of an `atoll run` whose store is in the "launcher" or in "redis", where its name must be
    free afterwards."""
    if place == "launcher":
        yield []
        return
    data = folder / "redis"
    data.mkdir()
    server = RedisServer(data)
    try:
        yield ["--rdzv-backend=redis", f"--rdzv-endpoint={server.place}", f"--rdzv-id={job}"]
        assert server.ask("EXISTS", f"atoll:{{{job}}}:job") == b":0\r\n"
    finally:
        server.stop()


def _command(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(data), data) for data in map(str.encode, words))


def _tls_options(folder: Path) -> list[str]:
    return [
        "--tls-ca-cert-file", str(folder / "ca.pem"), "--tls-cert-file", str(folder / "server.pem"),
        "--tls-key-file", str(folder / "server.key"),
    ]  # fmt: skip


def make_certificates(folder: Path) -> Path:
    """Makes two authorities, ca.pem and another.pem, and of the first server.pem for 127.0.0.1 and client.pem, with
    a .key each."""
    for authority in ("ca", "another"):
        _openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                 "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        _openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                 f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
                 "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    return folder


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=30)
