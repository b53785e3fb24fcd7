# SPDX-License-Identifier: Apache-2.0
"""How many operators of published networks compute with a part of their input: Intra-DP's table 2, counted here."""

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.infer import capture
from atoll.infer.planning.localities import localities
from results import ROOT, Settings, say, table

sys.path.append(str(ROOT / "tests/python/infer"))  # the networks that the tests divide
from networks import NETWORKS, Network

TITLE = "local and global operators of published networks"
UNTIMED = True  # so a busy machine makes no difference
PROFILES = ROOT / "tests/data/intradp/profiles"
ROWS = 2  # the dimension of an image that is divided
BASE = {"depths": (3, 3, 27, 3), "widths": (128, 256, 512, 1024)}


@dataclass(frozen=True)
class Case:
    model: str  # the name in the authors' programs
    network: str
    paper: tuple[int, int]  # local and global layers
    log: str  # in the authors' own log
    full: dict[str, Any] | None = None  # not the published network's arguments


CASES = (
    Case("DenseNet121", "densenet121", (428, 3), "nsdi25_DenseNet121"),
    Case("ResNet101", "resnet101", (341, 3), "eurosys25_ResNet101"),
    Case("ConvNeXt-Base", "convnext", (340, 6), "nsdi25_ConvNeXt_Base", BASE),
    Case("RegNetX-16GF", "regnet", (231, 3), "nsdi25_RegNet_X_16GF"),
)


def measure(settings: Settings) -> dict[str, Any]:
    rows = []
    for case in CASES:
        rows.append(_row(case, settings.quick))
        say(f"{case.model}: {rows[-1]['ours']}")
    return {"rows": rows}


def _row(case: Case, quick: bool) -> dict[str, Any]:
    network: Network = NETWORKS[case.network]
    arguments, shape = (network.reduced, network.shape) if quick else (case.full or network.full, network.full_shape)
    module = network.make(**arguments).eval()
    args, kwargs = network.inputs(shape)
    with tempfile.TemporaryDirectory() as folder:
        counts = localities(str(capture(module, args, kwargs).save(folder)))
    (ours,) = (row for row in counts["inputs"] if row["dim"] == ROWS)
    return {
        "model": case.model,
        "parameters": sum(each.numel() for each in module.parameters()),
        "paper": {"local": case.paper[0], "global": case.paper[1]},
        "log": _of_log(PROFILES / f"{case.log}.json"),
        "ours": {key: ours[key] for key in ("local", "partial", "global", "constant")},
    }


def _of_log(path: Path) -> dict[str, int]:
    """Returns the numbers of operators that the authors' program can divide along some dimension, and of others."""
    layers = json.loads(path.read_text())["layers"]
    divided = [layer["local_dim"] is not None for layer in layers if not layer["op"].startswith("_")]
    return {"local": sum(divided), "global": len(divided) - sum(divided)}


def report(document: dict[str, Any]) -> str:
    titles = ["", "parameters", "the paper", "its authors' log", "local", "partial", "global"]
    cells = [
        [
            row["model"], f"{row['parameters'] / 1e6:.1f} M",
            *(f"{row[key]['local']} and {row[key]['global']}" for key in ("paper", "log")),
            *(str(row["ours"][key]) for key in ("local", "partial", "global")),
        ]
        for row in document["rows"]
    ]  # fmt: skip
    return (
        "Networks as they were published, with random weights, exported as `atoll export` does it, counted as `atoll "
        "plan infer BUNDLE --operators` does, when the rows of the image are divided. *Local* operators compute their "
        "rows from some rows of their inputs; of a *partial* one both sides compute a part, and exchange what makes it "
        "whole; a *global* one needs everything. The paper and its authors' log have local and global ones.\n\n"
        + table(titles, cells)
        + "\nThe partial operator is the pooling over the whole image, which the authors call global. torchvision's "
        "DenseNet begins each of its four blocks by joining one tensor with nothing, which makes four operators more "
        "than here.\n"
    )
