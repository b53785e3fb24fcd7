# SPDX-License-Identifier: Apache-2.0
"""`atoll.pipeline.Pipeline`: this rank's stages of a model, and the steps of its training."""

import copy
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from atoll.loading.communication import islands_of
from atoll.loading.exchange import Exchange
from atoll.loading.loader import DataLoader
from atoll.loading.settings import Settings as LoaderSettings
from atoll.loading.timing import Moment, has_passed, now, seconds_between
from atoll.packing.boundary import BoundaryCodec
from atoll.pipeline import checkpoints
from atoll.pipeline.building import SAME_ARGUMENTS, Known, PlanLike, Wanted, find_plan, given_plan, know
from atoll.pipeline.initial import Draw, fill
from atoll.pipeline.items import Parts, first_named, ties_of
from atoll.pipeline.losses import Loss, loss_of
from atoll.pipeline.measuring import Example
from atoll.pipeline.packing import Packing
from atoll.pipeline.plan import Plan
from atoll.pipeline.reducing import Groups, Reducer, holders_of, total_norm
from atoll.pipeline.reporting import verdict, warn_of_one_kind
from atoll.pipeline.running import Runner
from atoll.pipeline.settings import Settings
from atoll.pipeline.stage import Computing, StageModule, passes, prune
from atoll.vendors import this_device
from atoll.weighting.weights import Weights
from atoll.weighting.weights import know as know_weights


class Pipeline:
    """A model whose layers are divided among the ranks of the default group. All ranks must construct it with equal
    arguments and make the same calls.

    model: a function that returns the model. It is called with tensors that have no data, so that no rank needs memory
        for the whole model; parameters are drawn from `seed` and their modules' names (`atoll.pipeline.initialise`
        gives a whole model the same values). Or a model with data, of which each rank keeps its part.
    example: the inputs of a step of all pipelines, or inputs and labels. Their shape matters, and plan="auto" measures
        with them.
    micro_batches: the number of equal parts into which each pipeline divides its batch, or a number for each pipeline.
        With plan="auto" it is the mean, and None leaves it to the planner. A Plan or a planner's answer includes it,
        and recompute too: values that are also passed must agree.
    plan: "auto" measures the devices and finds the fastest division that fits their memory; "equal" divides the blocks
        evenly; [15, 17] gives the number of blocks of each stage, or of items if those around the blocks are included;
        a Plan, or a planner's answer as a dictionary or a JSON file.
    schedule: "1f1b", "gpipe", "interleaved", "zero-bubble" or "zbv" of torch.distributed.pipelining.
    replicas: the number of parallel pipelines. Rank r belongs to pipeline r modulo `replicas`, or as plan="auto" finds.
        "auto" lets the planner choose the number too, among those that divide the ranks; omit micro_batches then. Each
        pipeline gets its own part of a batch, as from `loader`.
    loss: returns from output and labels the sum over the samples of a micro-batch; or an atoll.pipeline.Loss if
        elements are not samples. Default: the loss of a language model on the next token, ignoring labels of -100.
    items: how to divide a model that is not known: names of modules that are called one after the other, or
        atoll.pipeline.Parts.
    autocast: torch.bfloat16 computes in it where PyTorch supports it; parameters and gradients keep their type.
    recompute: whether blocks are recomputed for their gradients instead of keeping activations, for all stages or for
        each. None: as the planner finds, or not.
    boundaries: "int8", "fp8_e4m3" or "fp8_e5m2" sends activations and their gradients between stages of different
        islands as packed blocks (docs/fewer-bytes.md): a quarter of float32's bytes, with a loss.
    gradients: the same for gradients of parameters that ranks of several islands hold, with error feedback, which
        checkpoints do not include.
    initial: a function that gives a module's own parameters (recurse=False) their initial values, instead of the
        model's own rule.

    Raises ValueError or TypeError on every rank if arguments of any rank are invalid, do not fit the model or each
    other, or differ between ranks, and if nothing fits the devices' memory."""

    def __init__(
        self, model: nn.Module | Callable[[], nn.Module], example: torch.Tensor | tuple[torch.Tensor, torch.Tensor], *,
        micro_batches: int | Sequence[int] | None = None, plan: PlanLike = "auto", schedule: str = "1f1b",
        replicas: int | str = 1, seed: int = 0, loss: Loss | Callable[..., torch.Tensor] | None = None,
        items: Sequence[str] | Parts | None = None, autocast: torch.dtype | None = None,
        recompute: bool | Sequence[bool] | None = None, boundaries: str | None = None, gradients: str | None = None,
        initial: Draw | None = None,
        device: torch.device | str | None = None, settings: Settings | None = None,
    ) -> None:  # fmt: skip
        if not dist.is_initialized():
            raise RuntimeError(
                'a pipeline needs a process group: call torch.distributed.init_process_group("atoll") before '
                "atoll.pipeline.Pipeline, and start the program with atoll run or torchrun"
            )
        group = dist.distributed_c10d._get_default_group()
        self.device = this_device() if device is None else torch.device(device)
        self.rank = dist.get_rank(group)
        self._exchange = Exchange(group, self.device)

        def asked() -> tuple[tuple[Wanted, Known], dict[str, Any]]:
            counts = micro_batches if isinstance(micro_batches, int | None) else list(micro_batches)
            wanted = Wanted(
                model, _example(example, loss is None), plan, schedule, counts, replicas, recompute, autocast, items,
                loss_of(loss), initial, seed, settings or Settings(), Packing(boundaries, gradients),
            )  # fmt: skip
            wanted.packing.check(islands_of(group), self.rank)
            known, facts = know(wanted, self.device, self._exchange.ranks)
            return (wanted, known), facts

        wanted, known = self._exchange.agree("atoll.pipeline.Pipeline", asked, SAME_ARGUMENTS)
        found = given_plan(wanted, known, self.device, self._exchange)
        self.plan: Plan
        """The assignment of items to ranks; `plan.answer` is the planner's answer."""
        self.profile: dict[str, Any] | None
        """All ranks' measurements, as a request of `atoll plan layers`; None if the plan was given and not measured."""
        self.plan, self.profile = found or find_plan(wanted, known, self.device, self._exchange)
        if found is None and self.rank == 0:
            warn_of_one_kind(self.plan.answer)
        self._steps: deque[tuple[Moment, Moment]] = deque(maxlen=20)  # the begin and end of the last steps
        self.place = self.plan.place(self.rank)
        """The number of this rank's pipeline, and of its part of the batch."""
        self._pipe = self.plan.pipes[self.place]
        self._parts, self._kind, self._loss = known.parts, known.kind, wanted.loss
        self._build(wanted, known)

    def _build(self, wanted: Wanted, known: Known) -> None:
        whole, parts = known.whole, known.parts
        holders = holders_of(whole, parts, self.plan)
        self._groups = Groups(self.plan, holders, self.rank)
        self._ties = ties_of(whole)
        skeleton = copy.deepcopy(whole)  # stays without data
        mine = {number: stage for number, stage in enumerate(self._pipe.stages) if stage.rank == self.rank}
        modules = parts.modules(number for stage in mine.values() for number in stage.numbers)
        held = list(dict.fromkeys([*modules, *parts.everywhere]))

        def filled() -> tuple[list[BoundaryCodec | None], dict[str, Any]]:
            fill(whole, held, known.source, wanted.seed, wanted.initial, self.device)
            islands = islands_of(self._exchange.group)
            codecs = [wanted.packing.codecs(pipe, parts, known.between, islands) for pipe in self.plan.pipes]
            return [*codecs[self.place], None], {}

        codecs = self._exchange.agree("atoll.pipeline.Pipeline", filled, SAME_ARGUMENTS)
        prune(whole, held)
        self.model = whole
        """The whole model, in which the modules that other ranks hold are missing."""
        stages = {}
        for number, stage in mine.items():
            computing = Computing(stage.recompute, wanted.autocast)
            sends = None if stage.last == len(parts.items) else known.between[stage.last - 1].dtype
            stages[number] = StageModule(
                whole, parts, stage.numbers, computing, self.device, sends, codecs[number], codecs[number + 1]
            )
        self._autocast = Computing(autocast=wanted.autocast)
        self._runner = Runner(stages, self._pipe, self._kind, self._groups.pipeline, self.device,
                              lambda inputs: passes(skeleton, parts, inputs), codecs[:-1])  # fmt: skip
        self._named = first_named(whole, modules, self._ties)
        # The first pipeline counts for all, because other cuts or devices change the last bits of a sum.
        counts = {name: min(set(ranks) & set(self.plan.pipes[0].ranks)) for name, ranks in holders.items()}
        self._counted = [each for name, each in self._named.items() if counts[name] == self.rank]
        self._reducer = Reducer(self._named, holders, self._groups.copies, wanted.packing.gradients)
        know_weights(whole, Weights(self._groups.share))  # none: step itself divides by the elements of all pipelines

    def step(self, inputs: torch.Tensor, labels: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        """Returns on every rank the mean loss over all elements of the step in all pipelines, and replaces the
        gradients of parameters by those of that loss. All ranks of a pipeline must pass the same part of the batch,
        with `attention_mask` and `position_ids` if the model takes them."""
        begin = now(self.device)
        for parameter in self._named.values():
            parameter.grad = None
        loss = self._run(inputs, labels, given, self._runner.train)
        self._reducer.reduce()
        self._steps.append((begin, now(self.device)))
        return loss

    def evaluate(self, inputs: torch.Tensor, labels: torch.Tensor, **given: torch.Tensor) -> torch.Tensor:
        """Returns the same loss without gradients. Dropout depends on `train` and `eval`."""
        return self._run(inputs, labels, given, self._runner.evaluate)

    def _run(
        self, inputs: torch.Tensor, labels: torch.Tensor, given: Mapping[str, torch.Tensor],
        run: Callable[..., torch.Tensor],
    ) -> torch.Tensor:  # fmt: skip
        self._check(inputs, labels, given)
        rows = {
            name: value.expand(len(inputs), *value.shape[1:]).to(self.device) for name, value in given.items()
            if value is not None
        }  # fmt: skip
        inputs, labels = inputs.to(self.device), labels.to(self.device)
        total = self._elements(labels)
        divisor = total.clamp(min=1)

        def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            with self._autocast.context(self.device):
                return self._loss.total(output, target) / divisor

        own = run(inputs, labels, rows, loss)
        sends_elements = self.rank == self.plan.pipes[0].stages[-1].rank  # to all others
        told = torch.stack([own, total if sends_elements else torch.zeros_like(total)])
        dist.all_reduce(told)
        return torch.where(told[1] > 0, told[0], torch.nan)

    def _check(self, inputs: torch.Tensor, labels: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        self._runner.check_batch(len(inputs))
        if len(labels) != len(inputs):
            raise ValueError(f"{len(inputs)} inputs and {len(labels)} labels: pass labels for each sample")
        for name, value in given.items():
            if name not in self._parts.given:
                known = ", ".join(sorted(self._parts.given)) or "nothing"
                raise ValueError(f"step: unknown argument {name!r}: besides inputs and labels this model takes {known}")
            if value is not None and len(value) not in (1, len(inputs)):
                raise ValueError(f"{name} has {len(value)} rows for {len(inputs)} samples: pass a row for each, or one")

    def _elements(self, labels: torch.Tensor) -> torch.Tensor:
        """Returns the number of elements in the step of all pipelines, known on ranks that compute the loss."""
        total = torch.as_tensor(self._loss.elements(labels), dtype=torch.float64, device=self.device).clone()
        if self._runner.has_last and self._groups.ends is not None:
            total = total.reshape(1)
            dist.all_reduce(total, group=self._groups.ends)
            total = total[0]
        return total

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Does torch.nn.utils.clip_grad_norm_ for the whole model: scales the gradients to a norm of at most
        `max_norm`, and returns on every rank the norm of all gradients before."""
        if not norm_type > 0:
            raise ValueError(f"norm_type={norm_type}: must be a number above 0, or infinity")
        norm = total_norm(self._counted, norm_type, self._exchange.group, self.device)
        # The variant that PyTorch would choose varies in the last bits between device types.
        nn.utils.clip_grads_with_norm_(self._named.values(), max_norm, norm, foreach=False)
        return norm

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters that this rank holds, for optimizers."""
        return iter(self._named.values())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields this rank's parameters with their names in the whole model; the first name if there are several."""
        return iter(self._named.items())

    def train(self, mode: bool = True) -> "Pipeline":
        self.model.train(mode)
        return self

    def eval(self) -> "Pipeline":
        return self.train(False)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Returns this rank's part of the whole model's state_dict, with all names of shared tensors."""
        state: dict[str, torch.Tensor] = dict(self.model.state_dict())
        for names in self._ties:
            if names[0] in self._named:
                state |= dict.fromkeys(names, self._named[names[0]].detach())
        return state

    def save(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None, **extra: Any) -> None:
        """Writes the state of the whole model and of the optimizer in torch.distributed.checkpoint's format. `extra`
        are JSON values that are equal on all ranks, such as a loader's state or the step. Collective."""

        def own() -> tuple[dict[str, Any], dict[str, Any]]:
            state = {} if optimizer is None else checkpoints.optimizer_state(optimizer, self._names())
            return state, {"extra": sorted(extra)}

        of_optimizer = self._exchange.agree("atoll.pipeline.Pipeline.save", own, SAME_ARGUMENTS)
        checkpoints.save(Path(folder), self.state_dict(), of_optimizer, extra)

    def load(self, folder: str | Path, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
        """Loads what `save` wrote, with any plan and number of ranks, and returns the saved extra. Collective. Raises
        ValueError for a checkpoint of another model, or without the requested optimizer."""
        state = self.state_dict()

        def checked() -> tuple[None, dict[str, Any]]:
            checkpoints.check_model(Path(folder), state)
            return None, {"optimizer given": optimizer is not None}

        self._exchange.agree("atoll.pipeline.Pipeline.load", checked, SAME_ARGUMENTS)
        extra = checkpoints.load_model(Path(folder), state)
        if optimizer is not None:
            checkpoints.load_optimizer(Path(folder), optimizer, self._names())
        return extra

    def _names(self) -> dict[nn.Parameter, str]:
        return {parameter: name for name, parameter in self._named.items()}

    def loader(self, dataset: Any, global_batch: int, **options: Any) -> DataLoader:
        """Returns an atoll.DataLoader that gives each pipeline its part of `global_batch` samples, the same on all its
        ranks. `options` are the loader's. A smaller last step of an epoch is dropped, because micro-batches have one
        size. Collective. Raises ValueError if pipelines have different numbers of ranks."""

        def checked() -> tuple[None, dict[str, Any]]:
            self.plan.check_loader(global_batch)
            for name in ("model", "policy", "shares", "group", "max_batch", "micro_batch", "elements"):
                if name in options:
                    raise ValueError(f"{name} cannot be given: the plan assigns the samples of a pipeline; remove it")
            if not options.get("drop_last", True):
                raise ValueError(
                    "drop_last=False cannot be given: micro-batches have one size, so a smaller last step is left out; "
                    "remove it"
                )
            return None, {"global_batch": global_batch, "options": sorted(options)}

        self._exchange.agree("atoll.pipeline.Pipeline.loader", checked, SAME_ARGUMENTS)
        options.setdefault("settings", LoaderSettings(update_interval=0, measure=False))
        options.setdefault("drop_last", True)
        return DataLoader(dataset, global_batch, model=self.model, policy="fixed", shares=self.plan.shares, **options)

    def save_profile(self, path: str | Path) -> None:
        """Writes all ranks' measurements of items, devices and links, on rank 0; other ranks do nothing. `atoll plan
        layers PATH` plans from it, `--plan` prices a plan made by hand, and `atoll simulate PATH --layers` simulates
        either. Raises ValueError if the plan was given and nothing was measured."""
        if self.profile is None:
            raise ValueError(
                "save_profile has nothing to write: the plan was given without measuring; make the pipeline with "
                "plan='auto', or set a memory limit (Settings.memory_bytes)"
            )
        if self.rank == 0:
            Path(path).write_text(json.dumps(self.profile, indent=1) + "\n", encoding="utf-8")

    def close(self) -> None:
        """Ends the connections of packed gradients, after the last step. All ranks must call it."""
        self._reducer.close()

    def __str__(self) -> str:
        """The stages, the predicted time of a step and its bound, and the measured time of the last steps."""
        measured = [seconds_between(begin, end) for begin, end in self._steps if has_passed(end)]
        return "\n".join([self.plan.table(self._parts), *verdict(self.plan.answer, measured)])


def _example(example: torch.Tensor | tuple[torch.Tensor, torch.Tensor], is_language: bool) -> Example:
    if isinstance(example, torch.Tensor):
        return Example(example, example if is_language else None)
    if not isinstance(example, Sequence) or [isinstance(each, torch.Tensor) for each in example] != [True, True]:
        raise TypeError(
            f"example is a {type(example).__name__}: pass a tensor, the inputs of a step, or two: inputs and labels"
        )
    inputs, labels = example
    return Example(inputs, labels)
