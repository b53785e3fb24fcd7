# SPDX-License-Identifier: Apache-2.0
"""Losses as sums over elements, which may be cut into micro-batches and pipelines without changing."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

IGNORED = -100


def next_token_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of transformers' language models, as a sum: each token is predicted from those before it. In float32 at
    least."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    scores = logits[:, :-1].reshape(-1, logits.shape[-1])
    return functional.cross_entropy(scores, labels[:, 1:].reshape(-1), ignore_index=IGNORED, reduction="sum")


def next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """Of how many tokens that is the sum."""
    return (labels[:, 1:] != IGNORED).sum()


def samples(labels: torch.Tensor) -> int:
    return int(labels.shape[0])


@dataclass(frozen=True)
class Loss:
    """The step's loss is the sum over its elements divided by their number, over all micro-batches and pipelines."""

    total: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = next_token_sum
    """Of the model's output and the labels of a micro-batch: the sum over its elements."""
    elements: Callable[[torch.Tensor], torch.Tensor | int] = next_tokens
    """Of labels: how many elements they have."""


def loss_of(given: Loss | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None) -> Loss:
    """A bare function is a sum over samples; none is the language model's loss."""
    if given is None:
        return Loss()
    return given if isinstance(given, Loss) else Loss(given, samples)
