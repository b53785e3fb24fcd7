# SPDX-License-Identifier: Apache-2.0
"""`atoll.DataLoader`: a global batch per step, divided among ranks by the plan, with gradients weighted to match."""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch import nn

from atoll import _C
from atoll._build_info import VERSION
from atoll.loading import arguments
from atoll.loading.exchange import Exchange
from atoll.loading.feed import Feed
from atoll.loading.logged_values import StepMeans
from atoll.loading.planner import Planner
from atoll.loading.reading import Reading, ends_with_rank
from atoll.loading.same_samples import check_alike
from atoll.loading.settings import Settings
from atoll.loading.source import Source, source_of
from atoll.loading.windows import Divided, Slice
from atoll.weighting.batch_part import Part, Total, counted
from atoll.weighting.weights import Turn, Weights, weights_of

SAME_ARGUMENTS = "Give all ranks the same arguments, the same dataset and the same Atoll."
SAME_DATASET = (
    "Give all ranks the same arguments, the same dataset and the same Atoll; if each rank has its own samples, pass "
    'divided=True and policy="equal".'
)
SAME_PLACE = (
    "All ranks must load the same samples in the same order, from the same state on, and leave a loop or freeze plans "
    "after the same step."
)
SUPERSEDED = "a newer iteration over this atoll.DataLoader has started: only that one can continue"
MOVED = (
    "load_state_dict or set_epoch has moved this atoll.DataLoader to another position, where only a new loop can "
    "start: leave this one"
)


class DataLoader:
    """Iterates over batches of a dataset for a training run in which ranks take unequal shares of each global batch.

    Step s of an epoch owns the positions [s B, (s + 1) B) of one order of all samples, and the plan assigns them to
    ranks. So each sample is used exactly once per epoch, whatever changes of plan, restarts and changes of the number
    of ranks occur. With `model` (DistributedDataParallel or fully_shard) gradients are weighted so that the step equals
    that of one process with the whole global batch, for losses that are means over the samples of a batch.

    All ranks of `group` must construct it with equal arguments, except max_batch, micro_batch and the settings that may
    differ, and must iterate alike.

    dataset: map-style, or iterable (`samples` gives its size; for the protocol see atoll.loading.source.Stream).
    global_batch: samples per step over all ranks.
    policy: minmax, equal, random, fixed (with `shares`), kaitian, ... (docs/plan-batches.md).
    max_batch: the maximum number of samples per step that fit in this rank's memory.
    micro_batch: the maximum number of samples per forward pass of this rank; a larger share is split into several
        batches, which the loop gets one after another: call the optimizer when `step_complete` is true.
    elements: returns for a batch the number of elements that its loss is the mean of, if these are not samples but, for
        example, valid tokens.
    divided: True if each rank's dataset holds its own samples, as many as its length (`samples` of a stream): a step
        takes the rank's share of them while they last; for the policies equal and fixed. Otherwise all ranks hold the
        whole dataset, which is checked first if it might divide itself (False: without the check).
    shuffle, sampler, weights, samples: the order (atoll.loading.source.Order). settings: how devices are measured and
        plans are made. loader_options: those of torch.utils.data.DataLoader (num_workers, collate_fn, pin_memory, ...).

    A rank without samples in a step gets one that does not count (`weight` is 0), so that it takes part in
    collectives. The loop must compute each batch before it requests the next: nothing around the loader may prefetch.

    Raises ValueError or TypeError on every rank if arguments of any rank are invalid, contradict each other, or differ
    between ranks."""

    def __init__(
        self, dataset: Any, global_batch: int, *, model: nn.Module | None = None, policy: str = "minmax",
        shares: Sequence[float] | None = None, seed: int = 0, shuffle: bool = True, sampler: Iterable[int] | None =
        None, weights: Sequence[float] | torch.Tensor | None = None, samples: int | None = None, drop_last: bool =
        False, max_batch: int | None = None, micro_batch: int | None = None, elements: Callable[[Any], float] | None =
        None, divided: bool | None = None, group: dist.ProcessGroup | None = None, settings: Settings | None = None,
        **loader_options: Any,
    ) -> None:  # fmt: skip
        settings = settings or Settings()
        self._drop_last, self._elements, self._options = drop_last, elements, loader_options
        self._is_divided = bool(divided)
        self.epoch, self._position, self._steps = 0, 0, 0
        parameter = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        device = torch.device("cpu") if parameter is None else parameter.device
        self._exchange = Exchange(group or _group_of(model), device)

        def own() -> tuple[tuple[Weights, Source], dict[str, Any]]:
            arguments.check_options(loader_options, global_batch)
            arguments.check_counts(
                global_batch=global_batch, max_batch=max_batch, micro_batch=micro_batch, samples=samples
            )
            if divided:
                arguments.check_divided(policy, settings)
            weighing = Weights(self._exchange.group) if model is None else weights_of(model)
            weighing.check_group(self._exchange.group)
            source = source_of(dataset, seed, shuffle=shuffle, sampler=sampler, weights=weights, samples=samples)
            facts = {"Atoll": VERSION, "divided": divided, "seed": seed, "global_batch": global_batch,
                     "drop_last": drop_last, "policy": policy, "model": model is not None,
                     "shares": None if shares is None else [float(share) for share in shares],
                     "dataset": "divided" if divided else len(source.dataset), "elements": elements is not None,
                     "samples": None if divided else source.samples, **arguments.shared(settings)}  # fmt: skip
            return (weighing, source), facts

        self._weights, self._source = self._exchange.agree("atoll.DataLoader", own, SAME_DATASET)
        self.global_batch, self._seed = int(global_batch), seed
        lengths = self._exchange.facts([len(self._source.dataset), self._source.samples])
        sizes = zip(*(lengths if divided else lengths[:1]), strict=True)
        self._dataset_size, self._samples = map(sum, sizes)
        with contextlib.closing(Reading(self._source, loader_options)) as reading:
            if divided is not False:
                check_alike(self._exchange, reading, divided=divided)
            self.planner = Planner(
                self._exchange, self.global_batch, policy=policy, shares=shares, max_batch=max_batch,
                micro_batch=micro_batch, model=model, weights=self._weights, settings=settings, seed=seed,
                batch_of=reading.batch,
            )  # fmt: skip
        self._divided = self._division([samples for _, samples in lengths])
        if drop_last and len(self) == 0:
            raise ValueError(
                f"drop_last=True leaves no steps: an epoch has {self._samples} samples, but a step "
                f"has {self.planner.samples(0)}; lower global_batch, or pass drop_last=False"
            )
        self._feed = Feed(self.planner, self._exchange.rank, drop_last)
        self._draws = torch.Generator()  # of the workers' seeds, which must not move the program's random numbers
        self._loader = self._exchange.agree("atoll.DataLoader", self._torch_loader, SAME_ARGUMENTS)
        self._order_hash: int | None = None
        self._iteration: object = None
        self._part: Part | None = None
        self._means = StepMeans()

    def _torch_loader(self) -> tuple["torch.utils.data.DataLoader[Any]", dict[str, Any]]:
        own = {"worker_init_fn": ends_with_rank(self._options.get("worker_init_fn"))}
        options = {"generator": self._draws, **self._options, **own}
        return torch.utils.data.DataLoader(self._source.dataset, batch_sampler=self._feed, **options), {}

    def _division(self, lengths: list[int]) -> Divided | None:
        """Returns the division of an epoch in which ranks have their own samples; None if all have the same."""
        if not self._is_divided:
            return None
        return Divided(tuple(lengths), self.planner.newest.batches, self._drop_last)

    def __len__(self) -> int:
        """Returns the number of steps in an epoch."""
        if self._divided is not None:
            return self._divided.steps
        whole, rest = divmod(self._samples, self.planner.samples(self._steps))
        return whole + (1 if rest and not self._drop_last else 0)

    def batch_sizes(self) -> list[int]:
        """Returns the samples of a whole step by rank, by the newest plan. Workers may still hold steps of another."""
        return list(self.planner.newest.batches)

    @property
    def step_complete(self) -> bool:
        """Whether the current batch is this rank's last one of its step, after which the optimizer runs."""
        return self._part is None or self._part.is_last

    @property
    def weight(self) -> float:
        """The weight of the current batch: the sum over ranks and batches of weight times mean loss is the mean over
        the whole step. May wait for other ranks if `elements` are counted."""
        return 1.0 if self._part is None else self._part.share()

    @property
    def elements(self) -> float:
        """The number of elements that the loss of the current batch is the mean of. 0 if the batch does not count."""
        return 0.0 if self._part is None else self._part.own

    def mean(self, value: torch.Tensor | float) -> torch.Tensor:
        """Returns the mean over the whole step of a value that each rank has as the mean over its batch, such as a loss
        or an accuracy. Collective. In a step of several batches, call it for each batch: it returns NaN, without
        communication, before the last one. Raises RuntimeError at the last batch if calls are missing, and outside
        the loop."""
        if self._part is None:
            raise RuntimeError("loader.mean: there is no current batch; call it in the loop, for the loop's own batch")
        own = torch.as_tensor(value, dtype=torch.float64).detach().to(self._exchange.device)
        weight = self.weight
        return self._means.add(own * weight if weight else torch.zeros_like(own), self._exchange.group)

    def note(self, **values: torch.Tensor | float) -> None:
        """Shows values with the training, such as note(loss=loss). Each is this rank's mean over its batch; the mean
        over the steps of an update interval and all ranks is shown, weighted as gradients are. Does not communicate.
        All ranks must note the same names, at most 8. Raises RuntimeError outside the loop."""
        if self._part is None:
            raise RuntimeError("loader.note: there is no current batch; call it in the loop, for the loop's own batch")
        self.planner.note(self.weight, values)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration that of this epoch, from its start unless it is the current epoch. If it is another
        epoch, a running loop cannot take its next batch."""
        if epoch != self.epoch:
            self._position, self._iteration = 0, None
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the training. The current step counts as done if the current batch is its last. The
        state is the same on all ranks, for any number of ranks."""
        order = self._order_hash if self._position else None
        return {"version": arguments.STATE_VERSION, "epoch": self.epoch, "position": self._position,
                "steps": self._steps, "order": order, "dataset": self._dataset_size, "seed": self._seed,
                "global_batch": self.global_batch, "drop_last": self._drop_last}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes another run, even with another number of ranks or another global batch: the next step starts at the
        state's position. All ranks must load the same state; the next iteration checks that. A running loop cannot
        take its next batch. Raises ValueError for a damaged state, and for one of another dataset, seed or version."""
        arguments.check_state(state, self._dataset_size, self._seed)
        if not self._source.order.is_drawn:
            arguments.check_position(state["position"], self._samples)
        self.epoch, self._position, self._steps = state["epoch"], state["position"], state["steps"]
        self._order_hash, self._iteration = state["order"], None
        self.planner.resume(self._steps)

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the rest of the epoch; the next iteration is that of the next epoch. Collective at the start
        and at every change of plan."""
        order = self._agreed_order()
        self._iteration = mine = object()
        seed = hashlib.blake2b(repr((torch.initial_seed(), self.epoch, self._position)).encode(), digest_size=8)
        self._draws.manual_seed(int.from_bytes(seed.digest()) >> 1)
        epoch_of_keys = self.epoch if self._source.is_stream else None
        self._feed.begin(order, self._position, self._steps, epoch_of_keys, self._divided)
        self.planner.asks()
        turn = Turn(self._weights, self._part)
        try:
            for of, part, batch in self._parts():
                self._part = part
                self._means.begin(part)
                turn.begin(part)
                if part.is_first:
                    self.planner.step_begins()
                if part.is_last:
                    self._position, self._steps = of.window.last, self._steps + 1
                yield batch
                if self._iteration is not mine:
                    raise RuntimeError(MOVED if self._iteration is None else SUPERSEDED)
                turn.go_on()
                if part.is_last:
                    self.planner.step_ended(self._steps, self.epoch, self._feed.next_step, part.is_computed)
                self.planner.asks()
            turn.end()
        finally:
            turn.leave()
        self._part = None
        self._position, self.epoch = 0, self.epoch + 1

    def _parts(self) -> Iterator[tuple[Slice, Part, Any]]:
        """Yields batches with their weights."""
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
        """The same for a step whose elements must be counted; batches without elements come first."""
        assert self._elements is not None
        counts = counted(self._elements, [batch for _, batch in step], [of.counted for of, _ in step])
        total = Total(sum(counts), self._exchange.group, self._exchange.device)
        order = sorted(range(len(step)), key=lambda index: counts[index] > 0)
        for place, index in enumerate(order):
            of, batch = step[index]
            yield of, Part(counts[index], total, place == 0, place == len(step) - 1), batch

    def _agreed_order(self) -> torch.Tensor:
        of_state = self._order_hash if self._position else None

        def own() -> tuple[torch.Tensor, dict[str, Any]]:
            order = self._source.order.of_epoch(self.epoch)
            facts = {"epoch": self.epoch, "position": self._position, "steps": self._steps, "state": of_state,
                     **self.planner.alike()}  # fmt: skip
            if not self._is_divided:
                arguments.check_position(self._position, len(order))
                facts["order"] = _C.index_hash(order)
            return order, facts

        order = self._exchange.agree("atoll.DataLoader", own, SAME_PLACE)
        self._samples, self._order_hash = len(order), _C.index_hash(order)
        if self._is_divided:
            everyone = self._exchange.facts([len(order), self._order_hash])
            lengths, hashes = zip(*everyone, strict=True)
            self._divided = self._division(list(lengths))
            self._samples = sum(lengths)
            self._order_hash = _C.index_hash(torch.tensor([value >> 1 for value in hashes]))
        arguments.check_order(of_state, self._order_hash)
        if self._divided is not None:
            self._divided.steps_before(self._position)
        return order


def _group_of(model: nn.Module | None) -> dist.ProcessGroup:
    """Returns the group that reduces the model's gradients; the default group if there is none."""
    if model is not None:
        with contextlib.suppress(TypeError):  # all ranks report it together
            return weights_of(model).group
    return dist.distributed_c10d._get_default_group()
