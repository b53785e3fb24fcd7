# SPDX-License-Identifier: Apache-2.0
"""Small language models with random weights, batches for them, and their training in one process; also layers
between which nothing has a gradient."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import atoll
from atoll.pipeline.losses import next_token_sum, next_tokens

VOCABULARY, WIDTH, TOKENS, SEED = 29, 16, 9, 3
Make = Callable[[], nn.Module]


def llama(blocks: int = 4, **more: Any) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**_sizes(blocks), **more)).double()


def qwen2(blocks: int = 4, **more: Any) -> nn.Module:
    """Qwen2 with one weight for embedding and head."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**_sizes(blocks), tie_word_embeddings=True, **more)).double()


def gpt2(blocks: int = 4, **more: Any) -> nn.Module:
    """GPT-2, also with one weight for embedding and head."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=WIDTH, n_layer=blocks, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0, **more,
    )).double()  # fmt: skip


MODELS: dict[str, Callable[..., nn.Module]] = {"llama": llama, "qwen2": qwen2, "gpt2": gpt2}


def _sizes(blocks: int) -> dict[str, Any]:
    return {
        "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": blocks,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "bos_token_id": 0,
        "eos_token_id": 0,
    }  # fmt: skip


def batch(samples: int, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs and labels, some of which do not count; their number differs between samples."""
    random = torch.Generator().manual_seed(100 + step)
    inputs = torch.randint(VOCABULARY, (samples, TOKENS), generator=random)
    labels = inputs.clone()
    for row in range(samples):
        labels[row, : row % (TOKENS - 2)] = -100
    return inputs, labels


def mean_loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
    """The mean loss over all tokens that count."""
    return next_token_sum(model(inputs, use_cache=False, **given).logits, labels) / next_tokens(labels)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=False)


def train_alone(
    model: nn.Module, steps: int, samples: int, clip: float | None = None, first: int = 0,
    update: torch.optim.Optimizer | None = None,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Trains with the whole batch in one process; returns the losses and norms of the steps."""
    update = update or adam(model.parameters())
    losses, norms = [], []
    for step in range(first, first + steps):
        update.zero_grad()
        loss = mean_loss(model, *batch(samples, step))
        loss.backward()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        update.step()
        losses.append(loss.item())
    return losses, norms


def alone(make: Make) -> nn.Module:
    """Returns the whole model as pipelines initialise it."""
    return atoll.pipeline.initialise(make(), SEED)


def my_rows(pipe: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """Returns this pipeline's part of a batch."""
    shares = pipe.plan.shares
    size = len(tensors[0]) // sum(shares)
    first = sum(shares[: pipe.place]) * size
    return [tensor[first : first + shares[pipe.place] * size] for tensor in tensors]


def train_together(
    pipe: Any, steps: int, samples: int, clip: float | None = None, first: int = 0,
    update: torch.optim.Optimizer | None = None,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Trains like `train_alone`, on all ranks."""
    update = update or adam(pipe.parameters())
    losses, norms = [], []
    for step in range(first, first + steps):
        losses.append(pipe.step(*my_rows(pipe, *batch(samples, step))).item())
        if clip is not None:
            norms.append(float(pipe.clip_grad_norm_(clip)))
        update.step()
    return losses, norms


def check_same(pipe: Any, model: nn.Module, relative: float = 1e-10) -> None:
    """Checks that this rank's parameters are those of the whole model, within `relative` of the largest."""
    expected = dict(model.named_parameters())
    largest = max(float(parameter.abs().max()) for parameter in expected.values())
    for name, parameter in pipe.named_parameters():
        difference = float((parameter.detach().cpu() - expected[name]).abs().max())
        assert difference <= relative * largest, f"{name} is {difference} off"


def check_close(own: list[float], expected: list[float], relative: float = 1e-10) -> None:
    assert len(own) == len(expected)
    for step, (mine, other) in enumerate(zip(own, expected, strict=True)):
        assert abs(mine - other) <= relative * abs(other), f"step {step}: {mine} instead of {other}"


class Tokens(nn.Module):
    """Returns values without a gradient, so that its parameters have none either."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear, self.dtype = nn.Linear(3, 4), dtype

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return (self.linear(value) > 0).to(self.dtype)


class Weighs(nn.Module):
    """Takes the output of Tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2).double()

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(value.double())
        return result


def square_sum(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().sum()
