# SPDX-License-Identifier: Apache-2.0
"""The names that `import atoll` offers: each exists and is in the reference, and none costs anything before it is
used."""

import ast
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
PACKAGES = ("atoll", "atoll.training", "atoll.infer", "atoll.pipeline", "atoll.plan")
MODULES = {f"atoll.{name}" for name in ("training", "infer", "pipeline", "plan")}  # described by their own names
LIGHT = {"atoll", "atoll._autoload", "atoll._build_info", "atoll._version_check"}  # names that the import itself adds
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
    module = importlib.import_module(package)
    known = [] if module is atoll else [name for name in module.__all__ if name in atoll.__all__]
    assert [name for name in known if getattr(module, name) is not getattr(atoll, name)] == []
    names = {f"{package}.{name}" for name in module.__all__ if name not in known}
    assert names - described - {"atoll.__version__"} - MODULES == set()
    own = {name for name in described if name.rpartition(".")[0] == package}
    assert own - names == set(), "the page names what is not offered"


def defined_in(module: str) -> set[str]:
    """Returns the module's own public classes and functions, by their full names."""
    tree = ast.parse((Path(atoll.__file__).parents[1] / module).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    prefix = module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return {f"{prefix}.{name}" for name in names if not name.startswith("_")}


def test_what_is_imported_by_its_own_name_is_in_the_reference() -> None:
    described = set(re.findall(r"^::: (\S+)$", PAGE.read_text(), re.MULTILINE))
    folder = Path(atoll.__file__).parent / "adapters"
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py", "reducing.py"}  # a module that they share
    adapters = set().union(*(defined_in(f"atoll/adapters/{name}") for name in modules))
    assert "atoll.adapters.huggingface.Trainer" in adapters
    assert adapters == {name for name in described if name.startswith("atoll.adapters.")}
    assert defined_in("atoll/sim/__init__.py") == {name for name in described if name.startswith("atoll.sim.")}


def test_importing_brings_nothing_heavy() -> None:
    environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}  # or `import torch` has imported it already
    command = [sys.executable, "-c", NEW]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=True)
    seconds, found = json.loads(done.stdout)
    assert "atoll" in found
    assert set(found) <= LIGHT
    assert seconds < 1  # some milliseconds, on a machine that may be busy


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        atoll.nothing_like_it  # noqa: B018
