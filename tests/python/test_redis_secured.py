# SPDX-License-Identifier: Apache-2.0
"""Jobs in a Redis server with TLS and a password run as with any other, and never show the password."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from redis_server import RedisServer, make_certificates
from support import later
from test_redis_rendezvous import TRAIN, check_two_commands_meet, finished, programs

PASSWORD = "open/sesame: 4711"


@pytest.fixture(autouse=True)
def _own_job_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))


@dataclass
class Secured:
    """A server with TLS and a password, and the credentials of ranks and commands."""

    server: RedisServer
    url: str
    environment: dict[str, str]


@pytest.fixture(params=["by files", "by the url"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Secured]:
    folder = tmp_path / "secured"
    folder.mkdir()
    authority = make_certificates(folder) / "ca.pem"
    running = RedisServer(folder, ["--tls-auth-clients", "no"], folder, PASSWORD)
    if request.param == "by files":
        file = tmp_path / "password"
        file.touch(mode=0o600)
        file.write_text(PASSWORD)
        environment = {"ATOLL_REDIS_CA": str(authority), "ATOLL_REDIS_PASSWORD_FILE": str(file)}
        yield Secured(running, running.url(), environment)
    else:
        yield Secured(running, running.url(f"ca={authority}", f":{quote(PASSWORD, safe='')}@"), {})
    running.stop()


def shows_password(text: str) -> bool:
    return any(form in text for form in (PASSWORD, quote(PASSWORD, safe=""), quote(PASSWORD), "sesame"))


def test_two_ranks_train_over_a_secured_server(secured: Secured, tmp_path: Path) -> None:
    import training

    alone = training.train_alone(training.network(), 2, 10)
    mark = "&" if secured.url[-1] != "?" else ""
    environment = {**secured.environment, "STORE": f"{secured.url}{mark}job=train", "ATOLL_LOG_LEVEL": "debug"}
    done = finished(programs(tmp_path, TRAIN, 2, **environment))
    assert [one.returncode for one in done] == [0, 0], "\n".join(one.stderr for one in done)
    assert json.loads(done[0].stdout) == pytest.approx(alone, rel=1e-12)
    assert not any(shows_password(one.stdout + one.stderr) for one in done)


@pytest.mark.parametrize("secured", ["by files", later("by the url")], indirect=True)
def test_two_commands_meet_in_a_secured_server(secured: Secured, tmp_path: Path) -> None:
    """The password is neither in the output of commands and ranks nor in their log files."""
    told = {"LOGLEVEL": "DEBUG", "ATOLL_LOG_LEVEL": "debug", **secured.environment}
    logs = ["--tee=3", f"--log-dir={tmp_path / 'logs'}"]
    text = check_two_commands_meet(secured.server, secured.url, tmp_path, *logs, **told)
    files = [path.read_text() for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert files
    assert not any(shows_password(one) for one in (text, *files))
