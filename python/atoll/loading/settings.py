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
    """Settings of atoll.DataLoader. They must be equal on all ranks, except optimizer_bytes, watts and watch."""

    form: str = "normalised"
    """For BalanceNet's policies: literal keeps the paper's own integers, which do not add up to the global batch."""
    update_interval: int = 50
    """Steps between two evaluations of measured times. 0: the first plan is kept, and nothing is shown or advised."""
    gain: float = 0.03
    """The predicted gain that a new plan, or advice to use fewer ranks, must have, ..."""
    patience: int = 2
    """... for this many evaluations in a row."""
    changes_per_epoch: int | None = None
    """The maximum number of changes of plan per epoch."""
    replay: list[dict[str, Any]] | None = None
    """Recorded plans (`loader.planner.history()`) to follow instead of making new ones."""
    forward: Callable[[nn.Module, Any], torch.Tensor] | None = None
    """Returns the loss from model and batch, to run the model for measurements. Default: the model is called with the
    batch's first element, or with a dictionary as keywords."""
    measure: bool = True
    """Whether devices are measured before the first step. Else shares start equal and follow the training's times."""
    reuse: bool = True
    """Whether a profile of an earlier run of the same model on the same hardware is used."""
    least: int = 1
    """The minimum number of samples per rank. 0: slow ranks may get none."""
    quantum: int = 1
    """Shares are multiples of this number."""
    memory_margin: float = 0.1
    """The part of an accelerator's memory to keep free."""
    optimizer_bytes: int | None = None
    """The bytes of optimizer state on this rank's accelerator, which are kept free too. Default: twice the bytes of the
    trainable parameters, as for Adam. May differ between ranks."""
    check_replicas: int = 50
    """The number of steps between bit-for-bit comparisons of the ranks' parameters, which also run after the first 1,
    2, 4, ... steps. Differences as by rounding are a warning, larger ones a RuntimeError on all ranks. 0: never."""
    watts: tuple[float, float] | None = None
    """This rank's watts while it computes and while it waits, instead of measured values. Required for the policy
    energy without a meter. May differ between ranks."""
    watch: Watch = field(default_factory=Watch)
    """What rank 0 shows about the training. May differ between ranks."""
