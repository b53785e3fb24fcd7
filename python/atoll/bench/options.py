# SPDX-License-Identifier: Apache-2.0
"""What one run measures; passed to the ranks as JSON."""

import json
from dataclasses import asdict, dataclass, field


@dataclass
class Options:
    operation: str
    sizes: list[int]
    dtype: str = "float32"
    reduction: str = "sum"
    ranks: int = 2
    devices: list[str] = field(default_factory=list)  # by rank; empty: ATOLL_DEVICE
    layout: str = ""  # one letter per rank: its island
    backend: str = "atoll"
    against: str = ""  # another backend, measured in turn with the first
    iterations: int = 0  # calls per block; 0: as many as fit into a block's time
    warmup: int = 5
    rounds: int = 9  # blocks of each backend
    json_path: str = ""
    expect_link: str = ""  # shm or tcp; empty: what suits where the ranks are
    force_busy: bool = False
    fault: bool = False  # corrupt a result, to prove that the check works

    @property
    def backends(self) -> list[str]:
        return [self.backend, *([self.against] if self.against else [])]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Options":
        return cls(**json.loads(text))
