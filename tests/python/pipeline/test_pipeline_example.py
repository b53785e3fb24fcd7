# SPDX-License-Identifier: Apache-2.0
"""The example runs as users run it, and learns something."""

import re
from pathlib import Path

import pytest

from launching import atoll

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "train_pipeline.py"


@pytest.mark.verify
@pytest.mark.parametrize(
    ("islands", "options", "stages"),
    [
        ((1, 1), ("--plan", "3,1"), 2),
        # A plan of measurements.
        pytest.param((1, 1), ("--model", "gpt2"), 2, marks=pytest.mark.verify),
        pytest.param(
            (2, 2), ("--replicas", "2", "--plan", "equal", "--schedule", "gpipe"), 4, marks=pytest.mark.verify
        ),
    ],
)
def test_byte_level_language_model(
    tmp_path: Path, islands: tuple[int, int], options: tuple[str, ...], stages: int
) -> None:
    named = [part for name, count in zip("ab", islands, strict=True)
             for part in ("--island", f"{name}:{count},device=cpu")]  # fmt: skip
    done = atoll("run", *named, EXAMPLE, *options, "--save", tmp_path / "state", OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"pipeline \d stage \d on rank \d: ", done.stdout)) == stages
    held_out = re.search(r"loss on held-out files: ([0-9.]+)", done.stdout)
    assert held_out is not None
    assert float(held_out.group(1)) < 4.5, "log(256) is 5.5"
    assert (tmp_path / "state" / ".metadata").exists()
