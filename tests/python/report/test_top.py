# SPDX-License-Identifier: Apache-2.0
"""`atoll top`: what it reads and shows, and that it continues when an endpoint is gone."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from atoll.infer.session_metrics import export
from atoll.top.endpoint import Endpoint, endpoints, fetch, parse, url_of
from atoll.top.table import shown
from atoll.watching.prometheus import Prometheus
from atoll.watching.record import PlanEvent
from made_records import WINDOW

SERVE = """# TYPE atoll_serve_connections gauge
atoll_serve_connections 3.0
# TYPE atoll_serve_inferences_total counter
atoll_serve_inferences_total {count}
atoll_serve_waiting_inferences 2.0
other_metric{{a="b"}} 5
"""


@pytest.fixture
def watcher() -> Iterator[Prometheus]:
    made = Prometheus(0)
    made.event(PlanEvent.new_plan(50, 1, (1, 2), "why"))
    made.window(WINDOW)
    yield made
    made.close()


@dataclass
class MadeSession:
    made: dict[str, Any]
    last: Any

    def report(self) -> dict[str, Any]:
        return self.made


def run(*arguments: str, **environment: str) -> tuple[int, str]:
    from atoll.cli import app

    result = CliRunner().invoke(app, ["top", *arguments], env={"COLUMNS": "80", "NO_COLOR": "1", **environment})
    return result.exit_code, result.output


def drawn(*asked: Endpoint, width: int = 80) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(shown(asked))
    return stream.getvalue().splitlines()


def test_a_training_in_80_columns(watcher: Prometheus) -> None:
    status, text = run("--once", f"127.0.0.1:{watcher.port}")
    assert status == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"http://127.0.0.1:{watcher.port}/metrics"
    assert lines[1] == "  step 50, 364 ms per step, 703 samples/s, plan 0, loss 2"
    assert lines[2] == "  4.0 % above the bound of 350 ms"
    assert lines[3].split() == ["rank", "device", "samples", "computes", "loads", "waits", "bridge", "step"]
    assert lines[6].split()[:9] == ["2", "cpu", "40", "210", "ms", "10", "ms", "25", "%"]
    bar = lines[6].split()[-1]
    assert bar.startswith("█" * 13)
    assert "░" * 5 in bar
    assert "…" not in text
    assert "new plan: 1" in text


def test_the_environment_names_endpoints(watcher: Prometheus) -> None:
    url = f"http://127.0.0.1:{watcher.port}/metrics"
    status, text = run("--once", ATOLL_METRICS=f"{url},127.0.0.1:1")
    assert status == 0
    assert "step 50" in text
    assert "http://127.0.0.1:1/metrics\n  Connection refused" in text


def test_no_answer_at_all() -> None:
    status, text = run("--once", "127.0.0.1:1")
    assert status == 1
    assert "Connection refused" in text


@pytest.mark.parametrize("url", ["ftp://host", "http://", "host:port", "file:///etc/passwd"])
def test_invalid_endpoints(url: str) -> None:
    status, text = run("--once", url)
    assert status == 2
    assert "is not an endpoint: give" in " ".join(text.replace("│", " ").split())


def test_without_the_package_that_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    status, text = run("--once", "127.0.0.1:1")
    assert status == 2
    said = " ".join(text.replace("│", " ").split())
    assert "atoll top needs the package prometheus_client (" in said
    assert "): pip install prometheus_client" in said


def test_short_forms_of_endpoints() -> None:
    assert url_of("host:9400") == "http://host:9400/metrics"
    assert url_of("https://host") == "https://host/metrics"
    assert url_of("http://host:1/other") == "http://host:1/other"
    assert len(endpoints(["host:1", "http://host:1/metrics"])) == 1


def test_an_endpoint_that_goes_and_comes_back() -> None:
    now, answers = [100.0], [SERVE.format(count=10), SERVE.format(count=30)]
    problems: list[Exception] = []

    def get(_: str) -> str:
        if problems:
            raise problems.pop()
        return answers.pop(0)

    endpoint = Endpoint("http://a/metrics", get, clock=lambda: now[0])
    endpoint.ask()
    assert drawn(endpoint)[1] == "  server: 3 clients, 0 models, 2 inferences wait, 10 done"
    now[0] = 104.0
    for problem, said in (
        (urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (TimeoutError("timed out"), "has not answered within 2 s"),
        (urllib.error.URLError(TimeoutError()), "has not answered within 2 s"),
        (urllib.error.HTTPError("u", 503, "Busy", None, None), "answers 503 Busy"),  # type: ignore[arg-type]
        (ConnectionResetError(104, "Connection reset by peer"), "Connection reset by peer"),
    ):
        problems.append(problem)
        endpoint.ask()
        assert drawn(endpoint)[1:3] == [
            f"  {said}; metrics from 4 s ago",
            "  server: 3 clients, 0 models, 2 inferences wait, 10 done",
        ]
    endpoint.ask()
    assert drawn(endpoint)[1] == "  server: 3 clients, 0 models, 2 inferences wait, 30 done, 5 per second"


def test_answers_that_are_not_prometheus() -> None:
    endpoint = Endpoint("http://a/metrics", lambda _: "<html>no</html>")
    endpoint.ask()
    assert "does not answer as Prometheus expects" in drawn(endpoint)[1]
    empty = Endpoint("http://a/metrics", lambda _: "up 1\n")
    empty.ask()
    assert "has no metrics of Atoll yet" in drawn(empty)[1]


def test_many_ranks_and_little_room(watcher: Prometheus) -> None:
    ranks = 40
    some = replace(WINDOW, devices=("cuda:0",) * ranks, batches=(4,) * ranks, compute_seconds=(0.1,) * ranks,
                   input_seconds=(0.0,) * ranks, exposed_seconds=(), bridge_seconds=(), links=())  # fmt: skip
    watcher.window(some)
    asked = endpoints([f"127.0.0.1:{watcher.port}"])
    asked[0].ask()
    lines = drawn(*asked)
    assert any("8 more" in line for line in lines)
    assert [line.split()[0] for line in lines[4:36]] == [str(rank) for rank in range(32)]
    assert max(map(len, drawn(*asked, width=40))) <= 40


def test_a_session_in_80_columns() -> None:
    last = SimpleNamespace(seconds=0.04, computing=0.03, waiting=0.01, sending=0.02, receiving=0.0)
    report = {
        "inferences": 1200, "missed": 3, "guarded": 1, "up_bytes": 1200 * 147_456, "down_bytes": 1200 * 4000,
        "joules": 1200 * 0.32, "origins": {"local": 100, "server": 0, "mixed": 1100}, "link": {"state": "ready"},
        "up_rate": 4.75e6, "down_rate": 5e6, "latency": 0.002, "local_seconds": 0.402, "p50": 0.043, "p95": 0.06,
        "p99": 0.081, "worst": 0.4, "plan": "mixed 3", "predicted": 0.041, "bound": 0.033,
    }  # fmt: skip
    session = MadeSession(report, last)
    exporter = export(session, 0)
    try:
        status, text = run("--once", f"127.0.0.1:{exporter.port}")
        report |= {"link": {"state": "lost"}, "up_rate": 0.0, "inferences": 0}
        nothing_yet = run("--once", f"127.0.0.1:{exporter.port}")[1]
    finally:
        exporter.close()
    lines = text.splitlines()
    assert status == 0
    assert max(map(len, lines)) <= 80
    assert lines[1:] == [
        "  session: 1,200 inferences, 100 local, 1,100 mixed",
        "  link: the server can help; 38.0 Mbit/s up, 40.0 Mbit/s down",
        "  missed deadlines: 3, finished alone: 1",
        "  latency: median 43 ms, 95 % 60 ms, 99 % 81 ms, worst 400 ms; alone 402 ms",
        "  plan mixed 3: predicted 41 ms, bound 33 ms",
        "  an inference: 147 kB up, 4 kB down, 0.32 J",
        "  last: 40 ms " + "█" * 30 + "░" * 10,
        "  █ computes here  ░ waits for the server  ",
        "",
    ]
    assert nothing_yet.splitlines()[1:3] == [
        "  session: 0 inferences, 100 local, 1,100 mixed",
        "  link: without the server",
    ]


def test_samples_are_read_by_labels() -> None:
    sample = parse('# TYPE atoll_noted gauge\natoll_noted{name="a \\"b\\""} 4\natoll_step 3\n')
    assert sample.by("noted", "name") == {'a "b"': 4.0}
    assert sample.one("step") == 3.0
    assert sample.one("noted") is None
    assert sample.is_training
    assert not sample.is_server


def test_an_endpoint_that_trickles_is_given_up() -> None:
    """Each byte comes in time, but the answer never ends."""

    def trickle() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not over.wait(0.05):
                connection.sendall(b"#")

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            with pytest.raises(TimeoutError):
                fetch(f"http://127.0.0.1:{server.getsockname()[1]}/", 0.3)
        finally:
            over.set()
            thread.join()


class Counting(BaseHTTPRequestHandler):
    asked = threading.Semaphore(0)

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(SERVE.format(count=1).encode())
        Counting.asked.release()

    def log_message(self, *_: object) -> None:
        pass


def test_ctrl_c_ends_it_silently() -> None:
    server = HTTPServer(("127.0.0.1", 0), Counting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    command = [sys.executable, "-m", "atoll.cli", "top", f"127.0.0.1:{server.server_port}", "--interval", "0.1"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "80"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it otherwise
    )  # fmt: skip
    try:
        for _ in range(3):
            assert Counting.asked.acquire(timeout=60)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        server.shutdown()
        thread.join()
        server.server_close()
    assert (process.returncode, errors) == (0, "")
    assert "server: 3 clients" in output
