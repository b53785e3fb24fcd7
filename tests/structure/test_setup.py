# SPDX-License-Identifier: Apache-2.0
"""Errors of `make setup` name what is missing and what to type."""

import runpy
import sys
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The globals of scripts/setup.py, some of which tests replace; the build folder is empty."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delenv("ATOLL_DEPS_DIR", raising=False)
    names = runpy.run_path(str(ROOT / "scripts/setup.py"))
    found: FunctionType = names["ensure_packages"]
    monkeypatch.setitem(found.__globals__, "BUILD", tmp_path)
    return found.__globals__


def packages(setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch, absent: list[str], user: int) -> None:
    monkeypatch.setattr(setup["shutil"], "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setitem(setup, "missing", lambda packages: absent)
    known = {"--print-architecture": ["amd64"]}
    monkeypatch.setitem(setup, "words_of", lambda *command: known.get(command[-1], []))
    monkeypatch.setattr(setup["os"], "geteuid", lambda: user)
    setup["ensure_packages"]("build")


def test_who_is_not_root_is_told_what_to_type(setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        packages(setup, monkeypatch, ["libssl-dev", "g++"], 1000)
    said = str(ended.value)
    assert said.startswith("Atoll: Debian packages are missing. Please run, as root:\n")
    assert "apt-get install -y --no-install-recommends --no-remove libssl-dev g++" in said
    with pytest.raises(SystemExit) as ended:
        packages(setup, monkeypatch, ["libssl-dev:arm64"], 1000)
    assert "dpkg --add-architecture arm64\n  apt-get update\n" in str(ended.value)


def test_root_has_them_installed(
    setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setitem(setup, "run_logged", lambda step, log, what: ran.append(step))
    packages(setup, monkeypatch, ["libssl-dev"], 0)
    assert capsys.readouterr().out == "Atoll: installing Debian packages: libssl-dev\n"
    assert ran[-1][-1] == "libssl-dev"
    ran.clear()
    packages(setup, monkeypatch, [], 0)
    assert not ran


def test_other_systems_are_told_who_will_say_it(
    setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup["shutil"], "which", lambda program: None)
    setup["ensure_packages"]("build")
    told = capsys.readouterr().out
    assert "this system is not Debian: packages are not checked, CMake will name what is missing" in told


def test_an_old_python(setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"Python 3\.11 or newer is needed, this is .*: make setup PYTHON=python3\.11"):
        setup["check_python"]()


def test_a_python_without_headers(setup: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(setup["sysconfig"], "get_path", lambda name: str(tmp_path))
    with pytest.raises(SystemExit, match=r"has no C headers \(Python\.h\): install its development package"):
        setup["check_python"]()


def test_a_step_that_fails_shows_the_end_of_its_log(setup: dict[str, Any], tmp_path: Path) -> None:
    """Like pip without a network."""
    run_logged: FunctionType = setup["run_logged"]
    log = ROOT / "build/logs/test_setup.log"
    script = "print('first\\n' * 100); print('Could not fetch URL'); raise SystemExit(1)"
    with pytest.raises(SystemExit) as ended:
        run_logged([sys.executable, "-c", script], log, "pip install")
    log.unlink()
    said = str(ended.value)
    assert said.startswith("Atoll: pip install failed (exit status 1). The end of build/logs/test_setup.log:\n")
    assert said.endswith("Could not fetch URL")
    assert said.count("first") < 60
