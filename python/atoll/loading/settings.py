# SPDX-License-Identifier: Apache-2.0
"""How devices are measured and when plans change."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from atoll.watching.options import Watch


@dataclass(frozen=True)
class Settings:
    """Of atoll.DataLoader; equal on all ranks, but for optimizer_bytes, watts and watch."""

    form: str = "normalised"
    """Of BalanceNet's policies: literal keeps the paper's own integers, which do not add up to the global batch."""
    update_interval: int = 50
    """Steps between two looks at the measured times. 0: the first plan stays, and nothing is shown or advised."""
    gain: float = 0.03
    """A new plan must be that much faster by prediction, and so must fewer ranks for advice, ..."""
    patience: int = 2
    """... that many times in a row."""
    changes_per_epoch: int | None = None
    """The most changes of plan in an epoch."""
    replay: list[dict[str, Any]] | None = None
    """Plans recorded earlier (`loader.planner.history()`): they are followed instead of made."""
    forward: Callable[[nn.Module, Any], torch.Tensor] | None = None
    """Of model and batch, the loss: how measurements run the model. Without it the model is called with the batch's
    first element, or with a dictionary as keywords."""
    measure: bool = True
    """Whether devices are measured before the first step. Without it shares begin equal and follow the training's
    times."""
    reuse: bool = True
    """Whether a profile of an earlier run of the same model on the same hardware is taken."""
    least: int = 1
    """Samples that each rank takes at least. 0: slow ranks may be left without."""
    quantum: int = 1
    """Shares are multiples of it."""
    memory_margin: float = 0.1
    """Part of an accelerator's memory that stays free."""
    optimizer_bytes: int | None = None
    """What the optimizer will keep on this rank's accelerator, for which memory stays free too. Without it twice the
    bytes of the trainable parameters, as for Adam. May differ between ranks."""
    check_replicas: int = 50
    """Once in so many steps, and before that after 1, 2, 4, ... of them, ranks compare their parameters bit for bit:
    a warning where they differ as by rounding, RuntimeError on all ranks where they differ by more. 0: never."""
    watts: tuple[float, float] | None = None
    """This rank's power while it computes and while it waits, instead of what is measured. Needed for the policy energy
    where nothing measures it. May differ between ranks."""
    watch: Watch = field(default_factory=Watch)
    """What rank 0 shows of the training. May differ between ranks."""
