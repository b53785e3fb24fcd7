# SPDX-License-Identifier: Apache-2.0
"""The names that `import atoll` offers: each is there and in the reference, and none of them costs anything before."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import atoll

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/python.md"
PACKAGES = ("atoll", "atoll.infer", "atoll.pipeline")
LIGHT = {"atoll", "atoll._autoload", "atoll._build_info", "atoll._version_check"}  # what importing brings
NEW = """
import json, sys, time
import torch, torch.distributed
before = set(sys.modules)
begin = time.perf_counter()
import atoll
print(json.dumps([time.perf_counter() - begin, sorted(set(sys.modules) - before)]))
"""


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_in_the_reference(package: str) -> None:
    described = set(re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE))
    names = {f"{package}.{name}" for name in importlib.import_module(package).__all__}
    assert names - described - {"atoll.__version__", "atoll.infer", "atoll.pipeline"} == set()
    own = {name for name in described if name.rpartition(".")[0] == package}
    assert own - names == set(), "the page names what is not offered"


def test_importing_brings_nothing_heavy() -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # or `import torch` has imported it already
    command = [sys.executable, "-c", NEW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    seconds, found = json.loads(done.stdout)
    assert "atoll" in found
    assert set(found) <= LIGHT
    assert seconds < 1  # some milliseconds, on a machine that others use too


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        atoll.nothing_like_it  # noqa: B018
