# SPDX-License-Identifier: Apache-2.0
"""The ranks of pipelines.py: devices of two kinds in two network namespaces, one set for each transport between them,
all running at once."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import staged
import uneven
from compare import spread
from contenders import Place, TorchRanks
from netns import STORE_PORT, ShapedLink, addresses
from pipelines_cases import BURST, COPIES, RAILS, Case
from results import say

FAST, SLOW, MIXED = "fast-fast", "slow-slow", "mixed"
GLOO, DCBS, MPDT, DIRECT = "global-gloo", "dcbs", "dcbs+mpdt", "device-direct"
TRANSPORTS = (GLOO, DCBS, MPDT, DIRECT)
HERE = "shared memory"  # all ranks in one namespace
_ONE_RAIL = (("ATOLL_IFACE", "bridge0"), ("GLOO_SOCKET_IFNAME", "bridge0"))
ENVIRONMENT = {
    HERE: _ONE_RAIL,
    GLOO: _ONE_RAIL,
    DCBS: _ONE_RAIL,
    MPDT: (("ATOLL_RAILS", ",".join(f"bridge{rail}" for rail in range(RAILS))), _ONE_RAIL[1]),
    # UCX by itself would use shared memory, because both sides are on one host, and would not use the link.
    DIRECT: (*_ONE_RAIL, ("ATOLL_TRANSPORT", "ucx"), ("UCX_TLS", "tcp"), ("UCX_NET_DEVICES", "bridge0")),
}
Document = dict[str, Any]


class Sets:
    """A context manager. `wanted`: the name of each set, its devices in order as "fast" and "slow", and its transport.
    A set over UCX that does not start is left out, and `missing` says why."""

    def __init__(self, rate: int, speeds: dict[str, float], wanted: Sequence[tuple[str, str, str]]) -> None:
        self._link = ShapedLink(rate, RAILS, BURST)
        self._speeds, self._wanted = speeds, wanted
        self._stack = ExitStack()
        self.ranks: dict[str, TorchRanks] = {}
        self.missing: dict[str, str] = {}

    def __enter__(self) -> "Sets":
        with ExitStack() as stack:
            stack.enter_context(self._link)
            for number, (name, kinds, transport) in enumerate(self._wanted):
                try:
                    self.ranks[name] = stack.enter_context(self._started(number, kinds.split(), transport))
                except RuntimeError as error:
                    if transport != DIRECT:
                        raise
                    self.missing[name] = str(error)
                    say(f"{name}: left out ({error})")
            self._stack = stack.pop_all()
        return self

    def _started(self, number: int, kinds: list[str], transport: str) -> TorchRanks:
        """Starts the ranks of a set, with the fast devices in the first namespace. Each set has a store of its own, on
        the side of its rank 0."""
        places = []
        for kind in kinds:
            environment = uneven.on_device(uneven.Device(kind, self._speeds[kind]))
            copies = (("ATOLL_SIM_BANDWIDTH", COPIES),)
            side = 0 if transport == HERE else _side(kind)
            places.append(Place(self._link.prefix(side), (*environment, *copies, *ENVIRONMENT[transport])))
        store = (addresses(0)[_side(kinds[0])], STORE_PORT + number)
        return TorchRanks(places, [staged.NAME if transport == GLOO else "atoll"], store)

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)


def _side(kind: str) -> int:
    return ("fast", "slow").index(kind)


@dataclass
class Contender:
    """One way to train on ranks that are running. Collects blocks of steps."""

    layout: str
    transport: str
    split: str
    ranks: TorchRanks
    case: Case
    plan: Document = field(default_factory=dict)
    request: Document | None = None
    blocks: list[Document] = field(default_factory=list)

    def make(self, name: str) -> "Contender":
        self.name = name
        answer = self.ranks.ask("pipeline_make", name=name, case=asdict(self.case))[0]
        self.plan, self.request = answer["plan"], answer["request"]
        return self

    def block(self, steps: int) -> Document:
        """Trains some steps. Seconds are those of the slowest rank."""
        answers = self.ranks.ask("pipeline_block", name=self.name, steps=steps)
        return {
            "seconds": [max(times) for times in zip(*(answer["seconds"] for answer in answers), strict=True)],
            "passes": [max(times) for times in zip(*(answer["passes"] for answer in answers), strict=True)],
            "losses": answers[0]["losses"],
            "tasks": [answer["tasks"] for answer in answers],
            "late": [answer["late"] for answer in answers],
        }

    def measure(self, steps: int) -> None:
        self.blocks.append(self.block(steps))

    def late(self) -> list[int]:
        """Returns the ranks whose modelled times this machine could not keep: more than one task in twenty was late."""
        tasks = [sum(each) for each in zip(*(block["tasks"] for block in self.blocks), strict=True)]
        late = [sum(each) for each in zip(*(block["late"] for block in self.blocks), strict=True)]
        return [rank for rank, (few, all_of) in enumerate(zip(late, tasks, strict=True)) if 20 * few > all_of]

    def row(self, tokens: int) -> Document:
        """Returns the row of a result. `tokens`: per step. Rates are of whole iterations, round by round; passes
        exclude the optimizer."""
        rates = [tokens * len(block["seconds"]) / sum(block["seconds"]) for block in self.blocks]
        passes = [sum(block["passes"]) / len(block["passes"]) for block in self.blocks]
        return {
            "layout": self.layout, "transport": self.transport, "split": self.split,
            "plan": {"pipes": self.plan["pipes"]}, "tokens_s": {**spread(rates), "rounds": rates},
            "passes_s": {**spread(passes), "rounds": passes}, "late": self.late(),
        }  # fmt: skip

    def losses(self) -> list[float]:
        return [loss for block in self.blocks for loss in block["losses"]]


def interleave(contenders: Sequence[Contender], rounds: int, steps: int) -> None:
    """Measures a block of each contender in turn, in reverse order in every other round."""
    for contender in contenders:
        contender.block(1)  # the first step creates buffers and opens links to neighbours
    for turn in range(rounds):
        for contender in contenders[::-1] if turn % 2 else contenders:
            contender.measure(steps)
