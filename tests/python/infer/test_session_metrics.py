# SPDX-License-Identifier: Apache-2.0
"""A session's metrics for Prometheus and `atoll top`."""

import gc
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import atoll
from atoll.top.endpoint import Sample, parse
from serving import Serve
from split_cases import READY_S

X = torch.zeros(1, 3, 8, 8)


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()


@pytest.fixture
def session(net: nn.Module) -> Iterator[atoll.infer.Session]:
    with atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=0) as made:
        yield made


def port_of(session: atoll.infer.Session) -> int:
    assert session._exporter is not None
    return session._exporter.port


def scraped(port: int) -> Sample:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        return parse(answer.read().decode())


def test_metrics_of_inferences(session: atoll.infer.Session) -> None:
    before = scraped(port_of(session))
    assert before.one("session_inferences_total") == 0
    assert "session_latency_seconds" not in before.numbers
    for _ in range(3):
        session(X)
    sample, report = scraped(port_of(session)), session.report()
    assert sample.is_session
    assert sample.one("session_inferences_total") == 3
    assert sample.by("session_answers_total", "origin") == {"local": 3, "mixed": 0, "server": 0}
    assert sample.by("session_latency_seconds", "quantile") == pytest.approx(
        {"0.5": report["p50"], "0.95": report["p95"], "0.99": report["p99"], "1": report["worst"]}
    )
    assert sample.one("session_link_up") == 0
    assert session.last is not None
    assert sample.one("session_last_seconds") == pytest.approx(session.last.seconds)
    assert sample.one("session_last_computing_seconds") == pytest.approx(session.last.computing)


def test_the_link_to_a_server(net: nn.Module, tmp_path: Path) -> None:
    options = {"policy": "offload", "hedge": "never", "profile_seconds": 0.02, "prometheus": 0}
    with Serve(tmp_path) as server:
        with atoll.infer.Session(net, X, server.address, server.key_file, **options) as session:
            assert session.wait_until_ready(READY_S), session.report()
            session(X)
            sample = scraped(port_of(session))
        assert server.stop() == 0, server.output
    assert sample.one("session_link_up") == 1
    assert sample.by("session_answers_total", "origin")["server"] == 1
    assert (sample.one("session_up_bytes_per_second") or 0) > 0
    assert (sample.one("session_up_bytes_total") or 0) >= X.nbytes


def test_the_port_is_free_when_the_session_is_closed_or_gone(net: nn.Module) -> None:
    session = atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=0)
    port = port_of(session)
    session.close()
    session.close()
    with pytest.raises(urllib.error.URLError):
        scraped(port)
    session = atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=port)
    assert port_of(session) == port
    del session
    gc.collect()
    with pytest.raises(urllib.error.URLError):
        scraped(port)


def test_a_forked_process_ends_though_the_parent_is_read(session: atoll.infer.Session) -> None:
    """The child's exit closes what Python closes at exit, but the endpoint's thread exists only in the parent."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert session._exporter is not None
            session._exporter.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert scraped(port_of(session)).is_session


def test_what_cannot_be_had(session: atoll.infer.Session, net: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    port = port_of(session)
    with pytest.raises(ValueError, match=rf"Session\(prometheus={port}\) cannot listen: Address already in use: give"):
        atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=port)
    with pytest.raises(ValueError, match=r"Session\(prometheus=65536\): give a port from 0 to 65535"):
        atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=1 << 16)
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(
        ImportError, match=r"Session\(prometheus=0\) needs the package prometheus_client .*: pip install"
    ):
        atoll.infer.Session(net, X, profile_seconds=0.0, prometheus=0)
