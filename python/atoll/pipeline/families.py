# SPDX-License-Identifier: Apache-2.0
"""The models of the transformers library that are divided into items automatically. Stages send only hidden states, and
each computes positions, rotary embeddings and masks by the library's own functions, as the whole model does."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from atoll.pipeline.items import Call, Item, Parts, calls, in_turn

GIVEN = frozenset({"attention_mask", "position_ids"})


def parts_of(whole: nn.Module, items: Sequence[str] | Parts | None) -> Parts:
    """Returns the parts of a known model, or those that the user gives: names of modules that are called one after the
    other, or Parts. Raises ValueError for an unknown model."""
    if isinstance(items, Parts):
        return items
    if items is not None:
        return in_turn(items)
    for kind in type(whole).__mro__:
        if kind.__name__ in FAMILIES and kind.__module__.startswith("transformers."):
            return FAMILIES[kind.__name__](whole)
    raise ValueError(
        f"{type(whole).__name__} is not a model that atoll.pipeline can divide by itself (it knows "
        f"{', '.join(sorted(FAMILIES))}): pass items=[...], the names of modules that are called one after the other, "
        "or atoll.pipeline.Parts"
    )


def _positions(hidden: torch.Tensor, given: Mapping[str, Any]) -> torch.Tensor:
    positions: torch.Tensor | None = given.get("position_ids")
    if positions is None:
        return torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
    return positions


def _hidden(table: str, whole: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Returns hidden states without data, as wide as the rows of an embedding's table."""
    weight = whole.get_parameter(table)
    return torch.empty(*inputs.shape, weight.shape[1], dtype=weight.dtype, device="meta")


def _rotary(whole: nn.Module) -> Parts:
    """Returns the parts of LLaMA and Qwen2: `model` with embed_tokens, layers, norm and rotary_emb; then lm_head."""

    def context(whole: nn.Module, hidden: torch.Tensor, given: Mapping[str, Any]) -> dict[str, Any]:
        base: Any = whole.get_submodule("model")
        positions = _positions(hidden, given)
        return {
            "masks": _masks(base, hidden, given.get("attention_mask"), positions),
            "position_ids": positions,
            "position_embeddings": base.rotary_emb(hidden, position_ids=positions),
        }

    def block(number: int, whole: nn.Module, value: torch.Tensor, call: Call) -> torch.Tensor:
        base: Any = whole.get_submodule("model")
        known = call.context(value)
        kinds = getattr(base.config, "layer_types", None)
        mask = known["masks"][kinds[number] if kinds else "full_attention"]
        output: torch.Tensor = base.layers[number](
            value, attention_mask=mask, position_embeddings=known["position_embeddings"],
            position_ids=known["position_ids"], past_key_values=None, use_cache=False,
        )  # fmt: skip
        return output

    embedding = Item("embedding", ("model.embed_tokens",), calls("model.embed_tokens"), "embedding")
    items = _items(whole, embedding, "model.layers", block, "model.norm")
    return Parts(items, ("model.rotary_emb",), context, GIVEN, partial(_hidden, "model.embed_tokens.weight"))


def _items(
    whole: nn.Module, embedding: Item, layers: str, block: Callable[..., torch.Tensor], norm: str
) -> tuple[Item, ...]:
    """Returns the items of a language model. `layers` and `norm`: names of modules. `block`: takes a layer's number,
    then the arguments of Item.run."""
    count = len(whole.get_submodule(layers))  # type: ignore[arg-type]
    blocks = [Item(f"block {number}", (f"{layers}.{number}",), partial(block, number)) for number in range(count)]
    ends = [Item("norm", (norm,), calls(norm), "norm"), Item("head", ("lm_head",), calls("lm_head"), "head")]
    return (embedding, *blocks, *ends)


def _masks(base: Any, hidden: torch.Tensor, mask: torch.Tensor | None, positions: torch.Tensor) -> dict[str, Any]:
    """Returns the masks by the kind of a layer's attention."""
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    known = {"config": base.config, "inputs_embeds": hidden, "attention_mask": mask, "past_key_values": None,
             "position_ids": positions}  # fmt: skip
    masks = {"full_attention": create_causal_mask(**known)}
    if getattr(base, "has_sliding_layers", False):
        masks["sliding_attention"] = create_sliding_window_causal_mask(**known)
    return masks


def _gpt2(whole: nn.Module) -> Parts:
    """Returns the parts of GPT-2: `transformer` with wte, wpe, drop, h and ln_f; then lm_head."""

    def embed(whole: nn.Module, value: torch.Tensor, call: Call) -> torch.Tensor:
        base: Any = whole.get_submodule("transformer")
        hidden = base.wte(value)
        output: torch.Tensor = base.drop(hidden + base.wpe(_positions(hidden, call.given)))
        return output

    def context(whole: nn.Module, hidden: torch.Tensor, given: Mapping[str, Any]) -> dict[str, Any]:
        base: Any = whole.get_submodule("transformer")
        positions = _positions(hidden, given)
        mask = _masks(base, hidden, given.get("attention_mask"), positions)["full_attention"]
        return {"attention_mask": mask, "position_ids": positions}

    def block(number: int, whole: nn.Module, value: torch.Tensor, call: Call) -> torch.Tensor:
        layer = whole.get_submodule(f"transformer.h.{number}")
        output: torch.Tensor = layer(value, None, use_cache=False, **call.context(value))
        return output

    embedding = Item("embedding", ("transformer.wte", "transformer.wpe", "transformer.drop"), embed, "embedding")
    items = _items(whole, embedding, "transformer.h", block, "transformer.ln_f")
    return Parts(items, (), context, GIVEN, partial(_hidden, "transformer.wte.weight"))


FAMILIES: dict[str, Callable[[nn.Module], Parts]] = {
    "GPT2LMHeadModel": _gpt2,
    "LlamaForCausalLM": _rotary,
    "Qwen2ForCausalLM": _rotary,
}
"""By the name of a transformers class; also used for derived classes."""
