# SPDX-License-Identifier: Apache-2.0
"""`--island` strings of jobs over several hosts: NAME:HOSTSxRANKS and the options of `atoll run`, and more."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from atoll.launch import LaunchError
from atoll.launch.islands import Island, parse_island

PORT = 29500
_SIZE = re.compile(r"([A-Za-z0-9._@/-]{1,64}):([1-9][0-9]{0,4})x([1-9][0-9]{0,3})")
_NUMBER = re.compile(r"[1-9][0-9]{0,4}")
_SELECT = re.compile(r"[A-Za-z0-9./_-]+:[A-Za-z0-9._-]+")
_WORD = re.compile(r"[A-Za-z0-9._,-]+")


@dataclass(frozen=True)
class Hosts:
    """Equal hosts that hold one island."""

    island: Island
    hosts: int
    ranks: int  # on each
    processors: int  # on each
    partition: str = ""  # Slurm's
    select: dict[str, str] = field(default_factory=dict)  # labels of Kubernetes nodes

    @property
    def accelerator(self) -> str:
        """ "cuda", "rocm", ...; empty for processors and the simulated device."""
        kind = (self.island.device or "cpu").partition(":")[0]
        return "" if kind in ("cpu", "sim") else kind

    def text(self, container: bool) -> str:
        """Returns the value of `atoll run --island` on each of these hosts."""
        parts = [f"{self.island.name}:{self.ranks}"]
        options = {"device": self.island.device, "python": self.island.python}
        if container:
            options["container"] = self.island.container
        parts += [f"{name}={value}" for name, value in options.items() if value]
        parts += [f"env={name}={value}" for name, value in self.island.environment.items()]
        return ",".join(part.replace(",", ",,") for part in parts)


def parse_hosts(text: str) -> Hosts:
    """Returns the hosts that `NAME:HOSTSxRANKS[,OPTION]...` describes. Two commas stand for one inside a value."""

    def reject(problem: str) -> LaunchError:
        return LaunchError(f"--island {text!r}: {problem}")

    parts = [part.replace("\0", ",") for part in text.replace(",,", "\0").split(",")]
    size = _SIZE.fullmatch(parts[0])
    if not size:
        raise reject("write NAME:HOSTSxRANKS, such as fast:2x8 for two hosts with eight ranks each")
    own: dict[str, str] = {}
    select: dict[str, str] = {}
    rest = [f"{size[1]}:{size[3]}"]
    known = {"cpus": (_NUMBER, "a number"), "partition": (_WORD, "a name"), "select": (_SELECT, "LABEL:VALUE")}
    for part in parts[1:]:
        key, _, value = part.partition("=")
        if key not in known:
            rest.append(part)
            continue
        pattern, what = known[key]
        if not pattern.fullmatch(value):
            raise reject(f"{key}={value}: write {key}= and {what}")
        if key == "select":
            label, _, wanted = value.partition(":")
            select[label] = wanted
        elif key in own:
            raise reject(f"{key}= is given twice: remove one")
        else:
            own[key] = value
    try:
        island = parse_island(",".join(part.replace(",", ",,") for part in rest))
    except LaunchError as error:
        raise reject(str(error).partition("': ")[2] or str(error)) from None
    ranks = int(size[3])
    return Hosts(island, int(size[2]), ranks, int(own.get("cpus", ranks)), own.get("partition", ""), select)


def parse_all(texts: Sequence[str]) -> list[Hosts]:
    if not texts:
        raise LaunchError("--island is missing: write one for each kind of host, such as --island fast:2x8,device=cuda")
    found = [parse_hosts(text) for text in texts]
    names = [each.island.name for each in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise LaunchError(
            f"island {twice[0]!r} is given {names.count(twice[0])} times: give each island a different name"
        )
    return found


@dataclass(frozen=True)
class Job:
    """The job to run, and where the launchers meet."""

    islands: list[Hosts]
    script: list[str]
    name: str
    port: int = PORT  # of the first host

    @property
    def hosts(self) -> int:
        return sum(each.hosts for each in self.islands)

    def command(self, each: Hosts, node_rank: str, address: str, container: bool) -> str:
        """Returns one line for a shell. `node_rank` and `address` are inserted unquoted, for the shell to expand."""
        island = shlex.quote(each.text(container))
        options = f"--nnodes={self.hosts} --node-rank={node_rank} --master-addr={address} --master-port={self.port}"
        return f"atoll run {options} --island {island} {shlex.join(self.script)}"
