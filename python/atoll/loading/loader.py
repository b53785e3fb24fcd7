# SPDX-License-Identifier: Apache-2.0
"""`atoll.DataLoader`: one global batch per step, cut among the ranks as the plan says, with gradients weighted to
match."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch import nn

from atoll import _C
from atoll.loading.exchange import Exchange
from atoll.loading.feed import Feed
from atoll.loading.means import StepMeans
from atoll.loading.order import Order
from atoll.loading.planner import Planner
from atoll.loading.settings import Settings
from atoll.loading.stream import Stream, as_positions
from atoll.loading.windows import Slice
from atoll.weighting.elements import Total, counted
from atoll.weighting.part import Part
from atoll.weighting.weights import weights_of

STATE_VERSION = 1


class DataLoader:
    """Batches of a dataset for a training in which ranks take unequal shares of each global batch.

    Step s of an epoch owns the positions [s B, (s + 1) B) of one order of all samples, and the plan says which rank
    takes which of them: so each sample comes exactly once per epoch, whatever plans, restarts and numbers of ranks
    come between. With `model` (DistributedDataParallel or fully_shard) gradients are weighted so that the step is that
    of one process with the whole global batch, for losses that are means over the samples of a batch.

    All ranks of `group` must construct it with equal arguments, but for max_batch and micro_batch, and iterate alike.

    dataset: map-style, or iterable (`samples` says how many it holds; the protocol: atoll.loading.stream.Stream).
    global_batch: samples per step of all ranks together.
    policy: minmax, equal, random, fixed (with `shares`), kaitian, ... (docs/plan-batches.md).
    max_batch: the most samples that fit this rank's memory in one step.
    micro_batch: the most samples in one forward pass of this rank; a larger share is computed in several, which the
        loop gets one after another: call the optimizer where `step_complete` says so.
    elements: of a batch, how many elements its loss is the mean of, where these are not samples: valid tokens, say.
    shuffle, sampler, weights, samples: the order (atoll.loading.order.Order). settings: how devices are measured and
        plans are made. loader_options: those of torch.utils.data.DataLoader (num_workers, collate_fn, pin_memory, ...).

    Where a rank has no sample in a step it gets one that counts nothing (`weight` is 0), to take part in collectives.

    Raises ValueError on every rank when arguments are wrong, contradict each other, or differ between ranks."""

    def __init__(
        self, dataset: Any, global_batch: int, *, model: nn.Module | None = None, policy: str = "minmax",
        shares: Sequence[float] | None = None, seed: int = 0, shuffle: bool = True, sampler: Iterable[int] | None =
        None, weights: Sequence[float] | torch.Tensor | None = None, samples: int | None = None, drop_last: bool =
        False, max_batch: int | None = None, micro_batch: int | None = None, elements: Callable[[Any], float] | None =
        None, group: dist.ProcessGroup | None = None, settings: Settings | None = None, **loader_options: Any,
    ) -> None:  # fmt: skip
        for name in {"batch_size", "batch_sampler"} & set(loader_options):
            raise ValueError(f"{name} cannot be given: the plan sizes the batches of global_batch={global_batch}")
        self.global_batch, self._drop_last, self._elements = global_batch, drop_last, elements
        self._weights = None if model is None else weights_of(model)
        group = group or (self._weights.group if self._weights else dist.distributed_c10d._get_default_group())
        device = next(model.parameters()).device if model is not None else torch.device("cpu")
        self._exchange = Exchange(group, device)
        self._options = loader_options
        self._dataset = as_positions(dataset, samples)
        self._is_stream = isinstance(self._dataset, Stream)
        self._order = Order(
            len(self._dataset), seed, shuffle=shuffle and not self._is_stream, sampler=sampler, weights=weights,
            samples=samples,
        )  # fmt: skip
        self._facts = {
            "global_batch": global_batch,
            "seed": seed,
            "drop_last": drop_last,
            "dataset": len(self._dataset),
        }
        self._exchange.agree("atoll.DataLoader", self._facts, "Give all ranks the same arguments and the same dataset.")
        self.planner = Planner(
            self._exchange, global_batch, policy=policy, shares=shares, max_batch=max_batch, micro_batch=micro_batch,
            model=model, weights=self._weights, settings=settings or Settings(), seed=seed,
            batch_of=self._sample_batch,
        )  # fmt: skip
        self._feed = Feed(self.planner, self._exchange.rank, drop_last)
        self._loader = torch.utils.data.DataLoader(self._dataset, batch_sampler=self._feed, **loader_options)
        self._samples = (
            len(self._order.of_epoch(0)) if sampler is not None or weights is not None else len(self._dataset)
        )
        self.epoch, self._position, self._steps = 0, 0, 0
        self._slice: Slice | None = None
        self._part: Part | None = None
        self._means = StepMeans()

    def __len__(self) -> int:
        """Steps in an epoch."""
        whole, rest = divmod(self._samples, self.planner.samples(self._steps))
        return whole + (1 if rest and not self._drop_last else 0)

    def batch_sizes(self) -> list[int]:
        """Samples of a whole step by rank, by the newest plan; workers may have been handed some steps of the one
        before."""
        return list(self.planner.newest.batches)

    @property
    def step_complete(self) -> bool:
        """Whether the batch at hand is this rank's last one of its step: the optimizer goes on after its backward
        pass."""
        return self._slice is None or self._slice.is_last

    @property
    def weight(self) -> float:
        """What the batch at hand counts: the sum over ranks and batches of weight times mean loss is the mean over the
        whole step. May wait for other ranks where `elements` are counted."""
        return 1.0 if self._part is None else self._part.share()

    @property
    def elements(self) -> float:
        """Of the batch at hand: how many elements its loss is the mean of. 0 where it counts nothing."""
        return 0.0 if self._part is None else self._part.own

    def mean(self, value: torch.Tensor | float) -> torch.Tensor:
        """The mean over the whole step of what each rank has as the mean over its batch: a loss, an accuracy.
        Collective. Of a step in several batches it is to be called for each, and known at the last one; before that it
        is NaN, and nothing is communicated. Raises RuntimeError at the last one when earlier ones are missing."""
        own = torch.as_tensor(value, dtype=torch.float64).detach().to(self._exchange.device)
        weight = self.weight
        return self._means.add(own * weight if weight else torch.zeros_like(own), self._exchange.group)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is this epoch's. From its beginning, unless it is the one under way."""
        if epoch != self.epoch:
            self._position = 0
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the training is: the step of the batch at hand counts as done when it is the last of its step. The same
        on all ranks, for any number of ranks."""
        return {"version": STATE_VERSION, "epoch": self.epoch, "position": self._position, "steps": self._steps,
                **self._facts}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where another run was, also one with another number of ranks or another global batch. Raises
        ValueError for a state of another dataset, seed or version."""
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"a state of version {state.get('version')}; this Atoll reads version {STATE_VERSION}")
        for name in ("dataset", "seed"):
            if state[name] != self._facts[name]:
                raise ValueError(
                    f"the state is of a training with {name} {state[name]}, this one has {self._facts[name]}"
                )
        self.epoch, self._position, self._steps = state["epoch"], state["position"], state["steps"]
        self.planner.resume(self._steps)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch; the next iteration is the next epoch's. Collective at the beginning and at every
        re-plan."""
        order = self._agreed_order()
        self._feed.begin(order, self._position, self._steps, self.epoch if self._is_stream else None)
        self.planner.asks()
        for of, part, batch in self._parts():
            self._slice, self._part = of, part
            self._means.begin(part)
            if self._weights is not None:
                self._weights.begin(part)
            if part.is_first:
                self.planner.step_begins()
            if part.is_last:
                self._position, self._steps = of.window.last, self._steps + 1
            yield batch
            if part.is_last:
                self.planner.step_ended(self._steps, self.epoch, self._feed.next_step)
            self.planner.asks()
        self._slice = self._part = None
        self._position, self.epoch = 0, self.epoch + 1

    def _parts(self) -> Iterator[tuple[Slice, Part, Any]]:
        """Batches with what they count."""
        step: list[tuple[Slice, Any]] = []
        for batch in self._loader:
            of = self._feed.handed.popleft()
            if self._elements is None:
                yield of, Part(of.counted, partial(float, of.window.samples), of.is_first, of.is_last), batch
                continue
            step.append((of, batch))
            if of.is_last:
                yield from self._counted(step)
                step = []

    def _counted(self, step: list[tuple[Slice, Any]]) -> Iterator[tuple[Slice, Part, Any]]:
        """The same for a step whose elements must be counted; batches without any come first."""
        assert self._elements is not None
        counts = counted(self._elements, [batch for _, batch in step], [of.counted for of, _ in step])
        total = Total(sum(counts), self._exchange.group, self._exchange.device)
        order = sorted(range(len(step)), key=lambda index: counts[index] > 0)
        for place, index in enumerate(order):
            of, batch = step[index]
            first, last = place == 0, place == len(step) - 1
            yield replace(of, is_first=first, is_last=last), Part(counts[index], total, first, last), batch

    def _agreed_order(self) -> torch.Tensor:
        order = self._order.of_epoch(self.epoch)
        self._samples = len(order)
        facts = {"epoch": self.epoch, "position": self._position, "order": _C.index_hash(order)}
        self._exchange.agree("atoll.DataLoader", facts, "All ranks must load the same samples in the same order.")
        return order

    def _sample_batch(self, size: int, first: int = 0) -> Any:
        """`size` collated samples for measurements, from one of the dataset's first on, again from the beginning where
        it is too short."""
        places = [(first + index) % len(self._dataset) for index in range(size)]
        collate = self._options.get("collate_fn") or torch.utils.data.default_collate
        return collate([self._dataset[(0, place) if self._is_stream else place] for place in places])
