# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of each item of a model on this rank's device: seconds forward and backward, and bytes. Equal items
are measured once. Only the measured item takes memory."""

import copy
import hashlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import nn

from atoll.loading.timing import now, seconds_between
from atoll.pipeline.initial import Draw, fill
from atoll.pipeline.items import Call, Item, Parts
from atoll.pipeline.losses import Loss
from atoll.pipeline.stage import Computing, passes
from atoll.profiling import stored_profiles
from atoll.profiling.device_memory import fits

WARM_UP, STEPS = 2, 5
VERSION = 2


@dataclass
class Cost:
    """The cost of one item for a number of samples, all together."""

    samples: int
    forward: float
    backward: float
    """The backward pass with new gradients of parameters."""
    accumulate: float
    """The extra time if they are added to those of earlier micro-batches."""
    kept_bytes: int
    """Bytes kept from forward to backward, without parameters."""


@dataclass(frozen=True)
class Example:
    """The arguments of a step."""

    inputs: torch.Tensor
    labels: torch.Tensor | None

    def samples(self, count: int) -> "Example":
        """Returns `count` rows, wrapping around if there are fewer."""
        rows = torch.arange(count) % self.inputs.shape[0]
        return Example(self.inputs[rows], None if self.labels is None else self.labels[rows])


class Measuring:
    """Measures one model on one device."""

    def __init__(
        self, whole: nn.Module, parts: Parts, example: Example, loss: Loss, computing: Computing, device: torch.device,
        seed: int, draw: Draw | None, source: nn.Module | None = None,
    ) -> None:  # fmt: skip
        """`whole` has no data, and stays so. `source`: the model with its data, if any."""
        self._whole, self._parts, self._example, self._loss, self._source = whole, parts, example, loss, source
        self._computing, self._device, self._seed, self._draw = computing, device, seed, draw

    def earlier(self, name: str) -> list[list[Cost]] | None:
        """Returns the measurements of an earlier run with this fingerprint, if any."""
        text = stored_profiles.read(name)
        try:
            return None if text is None else [[Cost(**cost) for cost in item] for item in text["items"]]
        except (KeyError, TypeError):
            return None

    def costs(self, name: str, sizes: Sequence[int]) -> list[list[Cost]]:
        """Returns the costs by item at those of `sizes` samples that fit, ascending, and saves them for later runs."""
        by_kind: dict[str, list[Cost]] = {}
        found = []
        for number, kind in enumerate(self.kinds()):
            if kind not in by_kind:
                by_kind[kind] = self._measured(number, sizes)
            found.append(by_kind[kind])
        stored_profiles.write(name, {"items": [[asdict(cost) for cost in item] for item in found]})
        return found

    def kinds(self) -> list[str]:
        """Returns by item a text that is equal for equal items: their modules, parameters, and inputs."""
        given = [self._example.inputs, *passes(self._whole, self._parts, self._example.inputs)]
        found = []
        for item, value in zip(self._parts.items, given, strict=True):
            layers, shapes = [], []
            for name in item.modules:
                module = self._whole.get_submodule(name)
                layers += [f"{type(each).__qualname__}({each.extra_repr()})" for each in module.modules()]
                shapes += [(list(each.shape), str(each.dtype), each.requires_grad) for each in module.parameters()]
            is_last = item is self._parts.items[-1]
            layer_kind = _attention_of(self._whole, item)
            found.append(json.dumps([item.kind, layer_kind, layers, shapes, list(value.shape[1:]), str(value.dtype),
                                     is_last]))  # fmt: skip
        return found

    def fingerprint(self, sizes: Sequence[int], ranks_here: int) -> str:
        """Returns a text that is equal if a measurement can be reused."""
        facts = {
            "version": VERSION, **stored_profiles.conditions(self._device, ranks_here), "sizes": list(sizes),
            "kinds": self.kinds(), "autocast": str(self._computing.autocast),
        }  # fmt: skip
        text = json.dumps(facts, sort_keys=True)
        return "layers-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _measured(self, number: int, sizes: Sequence[int]) -> list[Cost]:
        whole = self._with_item(number)
        found: list[Cost] = []

        def measure(size: int) -> None:
            found.append(self._cost(whole, number, self._example.samples(size)))

        for size in sorted(sizes):
            if not fits(partial(measure, size), self._device):
                break
        return found

    def _with_item(self, number: int) -> nn.Module:
        """Returns a copy of the model in which only this item has data."""
        whole = copy.deepcopy(self._whole)
        names = list(dict.fromkeys([*self._parts.items[number].modules, *self._parts.everywhere]))
        fill(whole, names, self._source, self._seed, self._draw, self._device)
        return whole

    def work(self, number: int, samples: int) -> Callable[[], torch.Tensor]:
        """Returns a function that issues the item's forward and backward pass and returns the output."""
        whole, example = self._with_item(number), self._example.samples(samples)
        run, value = self._run(whole, number, example), self._value(number, example)

        def once() -> torch.Tensor:
            output = run(value)
            if output.requires_grad:
                output.backward(torch.ones_like(output))  # type: ignore[no-untyped-call]
            return output

        return once

    def _cost(self, whole: nn.Module, number: int, example: Example) -> Cost:
        run, value = self._run(whole, number, example), self._value(number, example)
        parameters = [parameter for parameter in whole.parameters() if not parameter.is_meta]
        kept = _kept_bytes(run, value, parameters)
        forward, fresh = self._seconds(run, value, parameters, are_new=True)
        _, added = self._seconds(run, value, parameters, are_new=False)
        return Cost(len(example.inputs), forward, fresh, max(0.0, added - fresh), kept)

    def _seconds(
        self, run: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, parameters: Sequence[nn.Parameter],
        are_new: bool,
    ) -> tuple[float, float]:  # fmt: skip
        """Returns the seconds forward and backward. `are_new`: whether parameters have no gradients yet."""
        moments = []
        for step in range(WARM_UP + STEPS):
            if are_new:
                for parameter in parameters:
                    parameter.grad = None
            begin = now(self._device)
            output = run(value)
            between = now(self._device)
            if output.requires_grad:
                output.backward(torch.ones_like(output))  # type: ignore[no-untyped-call]
            if step >= WARM_UP:
                moments.append((begin, between, now(self._device)))
            value.grad = None
        for parameter in parameters:
            parameter.grad = None
        if self._device.type != "cpu":
            moments[-1][-1].synchronize()  # then the device has passed all of them
        forward = statistics.median(seconds_between(begin, between) for begin, between, _ in moments)
        backward = statistics.median(seconds_between(between, end) for _, between, end in moments)
        return forward, backward

    def _run(self, whole: nn.Module, number: int, example: Example) -> Callable[[torch.Tensor], torch.Tensor]:
        item, is_last = self._parts.items[number], number == len(self._parts.items) - 1
        labels = None if example.labels is None else example.labels.to(self._device)

        def run(value: torch.Tensor) -> torch.Tensor:
            with self._computing.context(self._device):
                output = item.run(whole, value, Call(self._parts, whole, {}))
                if is_last and labels is not None:
                    output = self._loss.total(output, labels)
            return output

        return run

    def _value(self, number: int, example: Example) -> torch.Tensor:
        """Returns the item's input: the inputs, or a tensor with the shape of the previous item's output."""
        if number == 0:
            return example.inputs.to(self._device)
        like = passes(self._whole, self._parts, example.inputs)[number - 1]
        if not like.is_floating_point():
            return torch.zeros(like.shape, dtype=like.dtype, device=self._device)  # any embedding has a row 0
        generator = torch.Generator().manual_seed(self._seed)
        value = torch.randn(like.shape, generator=generator).to(like.dtype).to(self._device)
        return value.requires_grad_()


def _attention_of(whole: nn.Module, item: Item) -> str:
    """Returns a layer's kind of attention if its model has several kinds."""
    kinds = getattr(getattr(whole, "config", None), "layer_types", None)
    place = item.modules[0].rpartition(".")[2]
    return str(kinds[int(place)]) if kinds and item.kind == "block" and place.isdigit() else ""


def _kept_bytes(
    run: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor, parameters: Sequence[nn.Parameter]
) -> int:
    """Returns the bytes that a forward pass saves for its backward pass, counting each memory once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run(value)
    del output
    return sum(kept.values())
