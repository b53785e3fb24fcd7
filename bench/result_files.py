# SPDX-License-Identifier: Apache-2.0
"""The files of a result. The repository keeps what pages, figures and tables are computed from. Where that is not all,
the whole document is a file outside the repository, whose SHA-256 is kept too."""

import hashlib
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SAMPLES = ROOT / "build" / "bench" / "samples"
WIDTH = 120
# What run_scenario and simulated scenarios say of a measurement as a whole.
FRAME = ("scenario", "command", "measured", "commit", "machine", "torch", "quick", "others_cores_before",
         "others_cores_during", "busy", "backends", "simulated")  # fmt: skip

Document = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A page of a scenario. `kept` returns what the page needs of the document; None: everything."""

    title: str
    report: Callable[[Document], str]
    kept: Callable[[Document], Document] | None = None


def parts_of(name: str, scenario: Any) -> dict[str, Part]:
    """Returns the pages of a scenario by name: one of the scenario's name, and those in its PAGES."""
    main = Part(scenario.TITLE, scenario.report, getattr(scenario, "kept", None))
    return {name: main, **getattr(scenario, "PAGES", {})}


def store(name: str, scenario: Any, document: Document, output: Path) -> Path:
    """Writes a JSON file for each page of the scenario and returns the first one's path. If a page keeps only a part,
    the whole document is written to build/bench/samples/NAME.json, or to samples/NAME.json in another output."""
    document = rounded(document)
    parts = parts_of(name, scenario)
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    mark: Document = {}
    if any(part.kept for part in parts.values()):
        path = (SAMPLES if output == RESULTS else output / "samples") / f"{name}.json"
        text = json.dumps(document, indent=1) + "\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        file = path.relative_to(ROOT if output == RESULTS else output).as_posix()
        mark = {"samples": {"file": file, "sha256": hashlib.sha256(text.encode()).hexdigest()}}
    for each, part in parts.items():
        shown = document
        if part.kept:
            shown = {key: document[key] for key in FRAME if key in document} | mark | part.kept(document)
        (output / f"{each}.json").write_text(dense(shown) + "\n")
    return output / f"{name}.json"


def rounded(value: Any) -> Any:
    """Rounds floats to six significant digits: enough for any figure here, and the files stay readable."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return value


def dense(value: Any, indent: int = 0) -> str:
    """Returns JSON in which lists of numbers fill lines and everything else that fits on one line is there."""
    flat = json.dumps(value)
    if not isinstance(value, dict | list) or indent + len(flat) < WIDTH:
        return flat
    space = " " * (indent + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {dense(item, indent + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(space + item for item in items) + "\n" + " " * indent + "}"
    if all(isinstance(item, int | float) for item in value):
        lines = textwrap.wrap(flat[1:-1], WIDTH, initial_indent=space, subsequent_indent=space)
        return "[\n" + "\n".join(lines) + "\n" + " " * indent + "]"
    return "[\n" + ",\n".join(space + dense(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
