# SPDX-License-Identifier: Apache-2.0
"""Explains a training's speed in sentences, with advice where there is any."""

from collections.abc import Iterator

from atoll.report.parts import BAD, GOOD, PLAIN, Sentence, number, percent, seconds_text
from atoll.report.records import Training
from atoll.report.steps import Summary
from atoll.watching.record import DRIFT, LEAVE_OUT, NEW_PLAN, REPLICA_DRIFT

NEAR = 1.05  # times the bound that count as reaching it
WORTH = 0.05  # of a step that deserves a sentence
_PLAIN_POLICIES = ("equal", "random", "fixed")


def verdict(training: Training, of: Summary) -> list[Sentence]:
    return [
        _pace(training, of), *_distance(of), *_waiting(training, of), *_loading(of), *_exchange(of), *_events(training),
        *_noted(of),
    ]  # fmt: skip


def _pace(training: Training, of: Summary) -> Sentence:
    last = of.windows[-1]
    ranks = f"{len(of.devices)} rank{'s' if len(of.devices) > 1 else ''} ({_devices(of)})"
    return Sentence(
        f"{last.step:,} steps on {ranks}: a step of {last.samples} samples takes {seconds_text(of.wall)}, which is "
        f"{number(of.samples_per_second)} samples per second."
    )


def _devices(of: Summary) -> str:
    kinds = [device.partition(":")[0] for device in of.devices]
    return ", ".join(f"{kinds.count(kind)} on {kind}" for kind in dict.fromkeys(kinds))


def _distance(of: Summary) -> Iterator[Sentence]:
    if of.bound is None or of.distance is None:
        yield Sentence(
            "The distance of a step from the best division is unknown: devices were not measured before the training "
            "(policy equal, random or fixed, Settings(measure=False), or no model was given)."
        )
        return
    what = f"the bound ({seconds_text(of.bound)}), the shortest step that any division of the batch has"
    if of.distance < 1:
        yield Sentence(
            f"A step takes {percent(1 - of.distance)} less than {what}: devices are faster than measured.", GOOD
        )
    elif of.distance <= NEAR:
        yield Sentence(f"A step is {percent(of.distance - 1)} above {what}: another division would not help.", GOOD)
    else:
        yield Sentence(f"A step is {percent(of.distance - 1)} above {what}. Most of that is {_most_lost(of)}.", BAD)


def _most_lost(of: Summary) -> str:
    """Returns the largest cause of a step's distance from its bound."""
    slowest = max(of.ranks, key=lambda rank: of.parts[rank].load + of.parts[rank].compute)
    parts = of.parts[slowest]
    imbalance = sum(each.wait for each in of.parts) / len(of.parts)
    lost = {
        "waiting for data": parts.load,
        "communication that computing does not hide": parts.exchange,
        "unequal times of ranks": imbalance,
        "time outside forward, backward and loading (the optimizer, logging)": parts.rest,
    }
    name = max(lost, key=lambda each: lost[each])
    return f"{name}: {seconds_text(lost[name])} of a step"


def _waiting(training: Training, of: Summary) -> Iterator[Sentence]:
    if len(of.devices) < 2:
        return
    waits = sorted(of.ranks, key=lambda rank: -of.parts[rank].wait)
    most = waits[0]
    share = of.share(of.parts[most].wait)
    if share < WORTH:
        yield Sentence("No rank waits longer than 5 % of a step for a slower one: the work is well balanced.", GOOD)
        return
    slowest = max(of.ranks, key=lambda rank: of.parts[rank].load + of.parts[rank].compute)
    others = sum(of.share(of.parts[rank].wait) >= WORTH for rank in of.ranks) - 1
    also = f", and so do {others} more for a part of it" if others > 1 else ", and so does one more" if others else ""
    policy = training.record.about.get("policy")
    kind = BAD
    loads = of.parts[slowest].load > of.parts[most].load + of.parts[most].wait / 2
    if loads:
        way_out = (
            f"{of.name(slowest)} waits for its data in the meantime: give its loader more workers (num_workers=...)"
        )
    elif policy in _PLAIN_POLICIES:
        way_out = f'shares do not follow speeds with policy="{policy}": use policy="minmax"'
    else:
        way_out = "the next plan adjusts the shares, unless max_batch, quantum or memory limit them"
    if of.distance is not None and of.distance <= NEAR and not loads:
        kind, way_out = PLAIN, "as devices were measured, no division of the batch is faster"
    yield Sentence(
        f"{_first_up(of.name(most))} waits {percent(share)} of each step for {of.name(slowest)}, which takes longest"
        f"{also}: {way_out}.",
        kind,
    )


def _loading(of: Summary) -> Iterator[Sentence]:
    for rank in sorted(of.ranks, key=lambda rank: -of.parts[rank].load)[:1]:
        share = of.share(of.parts[rank].load)
        if share >= WORTH:
            yield Sentence(
                f"{_first_up(of.name(rank))} waits {percent(share)} of each step for its data: more workers "
                f"(num_workers=...), or cheaper transforms.",
                BAD,
            )


def _exchange(of: Summary) -> Iterator[Sentence]:
    shown = [of.share(parts.exchange) for parts in of.parts]
    most = max(shown)
    if most >= WORTH:
        yield Sentence(
            f"Communication that computing does not hide takes {percent(most)} of a step: a larger global batch, or "
            f"fewer bytes (atoll.training.compress_gradients), reduces it.",
            BAD,
        )
    for name, values in (("Waits for other islands", of.bridge), ("Copies between device and host", of.staging)):
        if values and of.share(max(values)) >= WORTH:
            rank = max(of.ranks, key=lambda each: values[each])
            yield Sentence(
                f"{name} take up to {seconds_text(values[rank])} in a step (rank {rank}); the part that overlaps with "
                f"computing costs nothing."
            )


def _events(training: Training) -> Iterator[Sentence]:
    plans = [event for event in training.events if event.kind == NEW_PLAN]
    if plans:
        last = plans[-1]
        yield Sentence(
            f"Plans changed {len(plans)} time{'s' if len(plans) > 1 else ''}, the last time at step {last.step:,}: "
            f"{last.text.partition(': ')[2]}."
        )
    for kind, level in ((LEAVE_OUT, BAD), (DRIFT, PLAIN), (REPLICA_DRIFT, BAD)):
        told = [event for event in training.events if event.kind == kind]
        if told and (kind != LEAVE_OUT or told[-1].ranks):
            more = f" ({len(told)} times)" if len(told) > 1 else ""
            yield Sentence(f"Step {told[-1].step:,}: {told[-1].text}{more}.", level)


def _noted(of: Summary) -> Iterator[Sentence]:
    for name in of.windows[-1].noted:
        values = [value for window in of.windows if (value := window.noted.get(name)) is not None]
        if len(values) > 1:
            yield Sentence(f"The noted value {name} went from {number(values[0])} to {number(values[-1])}.")


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
