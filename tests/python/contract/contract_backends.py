# SPDX-License-Identifier: Apache-2.0
"""The backends that the contract is checked for, and what each is known to lack."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lack:
    """A case that a backend does not support: `said` is a pattern for its error as "Type: text", or "AssertionError"
    if the values are wrong. None: trying it would end the process, or the outcome varies."""

    reason: str
    said: str | None
    alone: bool = True  # a group of one rank lacks it, too


@dataclass(frozen=True)
class Under:
    """One group of processes. A letter per rank: equal letters are one island."""

    backend: str
    layout: str
    lacks: dict[str, dict[str, Lack]] = field(default_factory=dict, hash=False, compare=False)
    device: str = "cpu"
    not_asked: tuple[str, ...] = ()
    kept: tuple[str, ...] | None = None  # the properties that `make test` has; None means all

    @property
    def name(self) -> str:
        return f"{self.backend} {self.layout}{'' if self.device == 'cpu' else ' on ' + self.device}"


# By property and pattern of the case.
DTYPE = Lack("Gloo has no 16-bit integers, no 8-bit floats and no unsigned integers but uint8", "Invalid scalar type")
WHOLE_AVERAGES = Lack("Gloo has no averages of integers", "result type Float can't be cast")
GAPS = Lack("Gloo takes the memory of a tensor with gaps for one without", "AssertionError", alone=False)
UNEVEN = Lack(
    "Gloo gathers and exchanges tensors of one size only, but for all_to_all_single", "invalid tensor size", False
)
EITHER = Lack(DTYPE.reason, "Invalid scalar type|invalid tensor size")
REDUCED_DTYPES = {"* int16": DTYPE, "* float8*": DTYPE, "AVG *int*": WHOLE_AVERAGES}
MOVED_DTYPES = dict.fromkeys(("int16", "float8*", "uint16", "uint32", "uint64"), DTYPE)
UNNOTICED = Lack(
    "Gloo does not notice ranks that call with other dtypes or reductions", "AssertionError: no exception", alone=False
)
WAITS = Lack("Gloo waits for its limit where ranks call different things", "AssertionError: raised after [3-9]", False)

GLOO: dict[str, dict[str, Lack]] = {
    "all_reduce": REDUCED_DTYPES,
    "all_reduce_premultiplied": {"*": Lack("Gloo has no PREMUL_SUM", "Cannot use ReduceOp.PREMUL_SUM with Gloo")},
    "all_reduce_layouts": {"with gaps *": GAPS},
    "all_reduce_of_extremes": {"int16": DTYPE},
    "reduce": REDUCED_DTYPES,
    "reduce_leaves_other_tensors": {
        "*": Lack("Gloo's reduce uses the tensors of all ranks for its own work", "AssertionError", alone=False)
    },
    "reduce_scatter": REDUCED_DTYPES,
    "reduce_scatter_forms": {"with gaps": GAPS},
    "broadcast": {**MOVED_DTYPES, "with gaps *": GAPS},
    "all_gather": {**MOVED_DTYPES, "uneven": UNEVEN},
    "all_gather_into_tensor": MOVED_DTYPES,
    "gather": {**MOVED_DTYPES, "complex*": Lack("Gloo's gather has no complex numbers", "Invalid scalar type")},
    "scatter": MOVED_DTYPES,
    "all_to_all": {
        **{f"splits {name}": DTYPE for name in MOVED_DTYPES},
        **{f"lists {name}": EITHER for name in MOVED_DTYPES},
        "lists *": UNEVEN,
    },
    "message_forms": {"with gaps": Lack("Gloo sends no tensor with gaps", "has to be contiguous", alone=False)},
    "order_of_issue": {
        "one tensor": Lack("Gloo does operations at once, so two under way cannot share a tensor", None, alone=False)
    },
    "mismatches": {
        "shape": Lack("Gloo ends the process of a rank that gets more bytes than it expects", None, alone=False),
        "dtype": UNNOTICED,
        "reduction": UNNOTICED,
        "operation": WAITS,
        "root": WAITS,
    },
    "ends_of_groups": {
        "use after destroy": Lack("Gloo takes calls of a destroyed group", "AssertionError: no exception"),
        "abort": Lack("Gloo's abort wakes no receive", "AssertionError: raised after [3-9]", False),
    },
}

ATOLL: dict[str, dict[str, Lack]] = {}

# Devices of one island communicate over their library, which Atoll leaves as it is.
ON_DEVICES: dict[str, dict[str, Lack]] = {
    "message_forms": {
        "tags": Lack("libraries of devices have no tags: messages arrive in the order of their sending", "for tag"),
        "any source": Lack("libraries of devices receive from no unnamed rank", None),
    },
    "works": {
        "waited for": Lack("a work on devices is waited for once its rest is in a stream, and completed later", None)
    },
}
ISLANDS_OF_DEVICES = {
    **ON_DEVICES,
    "order_of_issue": {
        "one tensor": Lack("between islands, a device's tensor is read when its operation is issued", None)
    },
}
# A wait for a work on devices ends once the rest is in a stream, so errors are raised when that stream is waited for.
NOT_ON_DEVICES = ("time_limits", "limits_of_waiting", "mismatches", "ends_of_groups")

EVERYWHERE = [
    Under("atoll", "A", ATOLL),
    Under("atoll", "AAA", ATOLL),
    Under("atoll", "ABA", ATOLL, kept=NOT_ON_DEVICES),
    Under("atoll", "AAA", ON_DEVICES, "sim", NOT_ON_DEVICES, kept=()),
    Under("atoll", "ABA", ISLANDS_OF_DEVICES, "sim", NOT_ON_DEVICES),
    Under("gloo", "A", GLOO),
    Under("gloo", "AAA", GLOO, kept=()),
]
