# SPDX-License-Identifier: Apache-2.0
"""The tree is the architecture: includes point down, and each external library stays in its layer."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "atoll"

# What each layer may include, besides itself. A new folder must be entered here.
BELOW: dict[str, set[str]] = {
    "core": set(),
    "json": {"core"},
    "logging": {"core"},
    "transport": {"core"},
    "redis": {"core", "transport"},
    "collectives": {"core", "json", "logging", "transport"},
    "plan": {"core", "json"},
    "infer": {"core", "json", "transport", "plan"},
    "pytorch": {"core", "json", "logging", "transport", "redis", "collectives", "plan", "infer"},
    "sim": {"core"},
}

# What each folder of a layer may include of its layer, besides itself and the files at the layer's root; a layer that
# is not named here has one folder. The root includes none of its folders: it holds what they share and the interfaces.
FOLDERS: dict[str, dict[str, set[str]]] = {
    "transport": {
        "stream": set(),
        "handshake": {"stream"},
        "rails": {"stream", "handshake"},
        "shm": {"stream", "handshake"},
        "tcp": {"stream", "handshake", "rails"},
        "ucx": {"stream", "handshake", "tcp"},
        "endpoint": {"stream", "handshake", "rails", "shm", "tcp", "ucx"},
    },
    "collectives": {
        "reduce": set(),
        "schedule": {"reduce"},
        "messages": set(),
        "group": {"reduce", "schedule", "messages"},
    },
    "plan": {
        "batches": set(),
        "layers": {"batches"},
        "operators": set(),
        "simulate": set(),
    },
    "infer": {
        "wire": set(),
        "run": set(),
        "operators": set(),
        "safety": {"operators"},
        "bundle": {"run", "wire"},
        "link": {"run", "wire"},
        "serve": {"bundle", "link", "safety", "wire"},
        "worker": {"bundle", "link", "run", "safety"},
        "client": {"link", "run", "wire"},
        "engine": {"run", "wire"},
        "session": {"bundle", "client", "engine", "link", "run", "wire"},
    },
    "pytorch": {
        "aten": set(),
        "staging": {"aten"},
        "python": {"aten", "staging"},
        "worker": {"aten"},
    },
    "sim": {"device": set(), "library": {"device"}, "pytorch": {"device", "library"}},
}

# The layers in which headers of an external library may appear.
OUTSIDE: dict[str, set[str]] = {
    "torch": {"pytorch", "sim"},
    "ATen": {"pytorch", "sim"},
    "c10": {"pytorch", "sim"},
    "pybind11": {"pytorch", "sim"},
    "Python.h": {"pytorch"},
    "spdlog": {"logging"},
    "fmt": {"logging"},
    "openssl": {"transport"},
    "hiredis": {"redis"},
    "seccomp.h": {"infer"},
    "nlohmann": {"json"},
    "flatbuffers": {"infer"},
    "xxhash.h": {"collectives", "infer"},
    "zstd.h": {"infer"},
    "jpeglib.h": {"infer"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def source_files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*") if path.suffix in {".h", ".cpp"})


def includes_of(text: str) -> list[str]:
    return [match.group(2) for match in INCLUDE.finditer(text)]


def faults_of(layer: str, includes: list[str]) -> list[str]:
    """Returns what is wrong with a file of `layer` that has these includes."""
    faults = []
    for name in includes:
        first, _, rest = name.partition("/")
        if first == "atoll":
            target = rest.partition("/")[0]
            if target != layer and target not in BELOW[layer]:
                faults.append(f"{layer} must not include {name}")
        elif first in OUTSIDE and layer not in OUTSIDE[first]:
            faults.append(f"{name} belongs to {' or '.join(sorted(OUTSIDE[first]))}, not to {layer}")
    return faults


def test_every_folder_is_a_known_layer() -> None:
    assert {path.name for path in SOURCE.iterdir() if path.is_dir()} <= set(BELOW)


def test_includes_point_down() -> None:
    files = source_files()
    assert files
    faults = {
        str(path.relative_to(ROOT)): found
        for path in files
        if (found := faults_of(path.relative_to(SOURCE).parts[0], includes_of(path.read_text())))
    }
    assert not faults


def folder_of(inside: tuple[str, ...]) -> str:
    """Returns the folder of a file within its layer, "" for the root."""
    return inside[0] if len(inside) > 1 else ""


def test_folders_of_a_layer_point_down() -> None:
    faults = []
    for path in source_files():
        layer, *inside = path.relative_to(SOURCE).parts
        if layer not in FOLDERS:
            continue
        folder = folder_of(tuple(inside))
        allowed = {"", folder} | (FOLDERS[layer][folder] if folder else set())
        for name in includes_of(path.read_text()):
            parts = tuple(name.split("/"))
            if parts[:2] == ("atoll", layer) and folder_of(parts[2:]) not in allowed:
                faults.append(f"{path.relative_to(SOURCE)} must not include {name}")
    assert faults == []


def test_every_folder_of_a_layer_is_known() -> None:
    for layer, folders in FOLDERS.items():
        assert {path.name for path in (SOURCE / layer).iterdir() if path.is_dir()} == set(folders)


def test_only_the_glue_of_the_simulated_device_knows_pytorch() -> None:
    files = [path for folder in ("device", "library") for path in (SOURCE / "sim" / folder).iterdir()]
    assert files
    outside = re.compile(r"^(torch|ATen|c10|pybind11|atoll/sim/pytorch)\b")
    faults = [
        f"{path.relative_to(ROOT)} includes {name}"
        for path in files
        for name in includes_of(path.read_text())
        if outside.match(name)
    ]
    assert faults == []


def test_own_header_comes_first() -> None:
    faults = []
    for path in source_files():
        header = path.with_suffix(".h")
        if path.suffix == ".cpp" and header.exists():
            expected = header.relative_to(ROOT / "src").as_posix()
            includes = [
                name for name in includes_of(path.read_text()) if "/" in name
            ]  # CPython requires its header before all others
            if not includes or includes[0] != expected:
                faults.append(f"{path.relative_to(ROOT)} does not include {expected} first")
    assert not faults


def test_headers_have_a_guard() -> None:
    faults = [str(path.relative_to(ROOT)) for path in source_files()
              if path.suffix == ".h" and "#pragma once" not in path.read_text()]  # fmt: skip
    assert not faults


@pytest.mark.parametrize(
    ("layer", "line", "good"),
    [
        ("core", '#include "atoll/core/fd.h"', True),
        ("core", '#include "atoll/transport/link.h"', False),
        ("transport", '#include "atoll/core/fd.h"', True),
        ("transport", "  #  include <atoll/collectives/group/group.h>", False),
        ("collectives", "#include <torch/torch.h>", False),
        ("collectives", "#include <spdlog/spdlog.h>", False),
        ("plan", "#include <nlohmann/json.hpp>", False),
        ("pytorch", "#include <torch/torch.h>", True),
        ("core", "#include <vector>", True),
    ],
)
def test_the_rules_themselves(layer: str, line: str, good: bool) -> None:
    assert (faults_of(layer, includes_of(line)) == []) is good
