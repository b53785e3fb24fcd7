# SPDX-License-Identifier: Apache-2.0
"""Training data: scikit-learn's handwritten digits in CIFAR-10's shape, CIFAR-10 from its own files, and text."""

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

TEST_PART = 5  # one of this many samples is for testing
LENGTH = 32  # bytes in a sample of text
IMAGE = 3 * 32 * 32


@cache
def load(name: str, folder: str = "") -> tuple[TensorDataset, TensorDataset]:
    """Training and test samples of "digits", "cifar10" (whose folder holds data_batch_*.bin and test_batch.bin) or
    "text"."""
    if name == "cifar10":
        return cifar10(Path(folder))
    inputs, targets = digits() if name == "digits" else text()
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))
    inputs, targets = inputs[order], targets[order]
    cut = len(inputs) // TEST_PART
    return TensorDataset(inputs[cut:], targets[cut:]), TensorDataset(inputs[:cut], targets[:cut])


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 images of 8 x 8, resized to 3 x 32 x 32."""
    from sklearn.datasets import load_digits

    found = load_digits()
    small = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    large = torch.nn.functional.interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    return (large - 0.3).repeat(1, 3, 1, 1) / 0.35, torch.tensor(found.target, dtype=torch.int64)


def cifar10(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """The binary version: a byte of label and 3,072 bytes of image per sample. Raises RuntimeError without it."""
    parts = sorted(folder.glob("data_batch_*.bin"))
    if not parts or not (folder / "test_batch.bin").exists():
        raise RuntimeError(f"{folder} holds no data_batch_*.bin and test_batch.bin: CIFAR-10's binary version")
    return _cifar(parts), _cifar([folder / "test_batch.bin"])


def _cifar(files: list[Path]) -> TensorDataset:
    raw = np.concatenate([np.fromfile(file, dtype=np.uint8) for file in files]).reshape(-1, 1 + IMAGE)
    images = torch.tensor(raw[:, 1:].reshape(-1, 3, 32, 32), dtype=torch.float32) / 255
    return TensorDataset((images - 0.473) / 0.251, torch.tensor(raw[:, 0], dtype=torch.int64))


def text(most: int = 1 << 17) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns bytes of the standard library's source, and the byte that follows each."""
    held = b""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        held += file.read_bytes()
        if len(held) > most:
            break
    values = torch.tensor(list(held[:most]), dtype=torch.int64)
    windows = values.unfold(0, LENGTH + 1, LENGTH)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
