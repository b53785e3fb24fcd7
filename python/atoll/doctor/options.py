# SPDX-License-Identifier: Apache-2.0
"""The options of one examination; passed to the ranks as JSON."""

import json
from dataclasses import asdict, dataclass


@dataclass
class Options:
    ranks: int = 2
    layout: str = ""  # one letter per rank: its island
    device: str = "auto"  # one device type for all ranks, or one per rank separated by commas
    timeout: float = 60.0  # seconds for each step
    json_path: str = ""  # "-": standard output, instead of the tables
    schedule: str = ""  # the operation whose schedule is shown
    bytes: int = 0
    dtype: str = "float32"
    steps_of: int = -1  # the rank whose steps are shown
    fault: str = ""  # corrupt the result of this operation on the last rank, to prove that the self-test works
    html_path: str = ""  # the page with the heat map

    def device_of(self, rank: int) -> str:
        names = self.device.split(",")
        return names[0] if len(names) == 1 else names[rank]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Options":
        return cls(**json.loads(text))
