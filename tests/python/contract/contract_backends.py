# SPDX-License-Identifier: Apache-2.0
"""The backends that the contract is asked of, and what each is known to lack."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lack:
    """What a backend says to a case instead of doing it: `said` is a pattern for "Type: text", "AssertionError" where
    the values are wrong. None: a try would hang, end the process, or come out in one way or the other."""

    reason: str
    said: str | None
    alone: bool = True  # a group of one rank lacks it too


@dataclass(frozen=True)
class Under:
    """One group of processes. A letter per rank: equal letters are one island; ranks of lower-case letters compute on
    simulated devices."""

    backend: str
    layout: str
    lacks: dict[str, dict[str, Lack]] = field(default_factory=dict, hash=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.backend} {self.layout}"


# By property, and by pattern of the case.
GLOO: dict[str, dict[str, Lack]] = {}

ATOLL: dict[str, dict[str, Lack]] = {}

EVERYWHERE = [
    Under("atoll", "A", ATOLL),
    Under("atoll", "AAA", ATOLL),
    Under("atoll", "ABA", ATOLL),
    Under("atoll", "aa", ATOLL),
    Under("atoll", "aBa", ATOLL),
    Under("gloo", "A", GLOO),
    Under("gloo", "AAA", GLOO),
]
