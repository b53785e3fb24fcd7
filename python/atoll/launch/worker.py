# SPDX-License-Identifier: Apache-2.0
"""The program that torch elastic starts for each local rank. It becomes the command of the rank's island, with its
environment.

Run by path as `python -I -S worker.py START_FILE LOCAL_RANK ARGUMENT...`, so it may import only the standard library.
The process keeps its id, so signals and exit codes are the command's own. It ends with its launcher."""

import ctypes
import json
import os
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_START = 127


def _end_with(launcher: int, death_signal: int) -> None:
    """Makes the kernel send `death_signal` to this process when the launcher's main thread ends, also after exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal)
    if os.getppid() != launcher:
        sys.exit("atoll run: the launcher ended before this rank had started")


def main() -> None:
    file, local_rank, *arguments = sys.argv[1:]
    with open(file, encoding="utf-8") as stream:
        start = json.load(stream)
    rank = start["ranks"][int(local_rank)]
    _end_with(start["launcher"], rank["death_signal"])
    os.environ.update(rank["environment"])
    command = [*rank["command"], *arguments]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"atoll run: local rank {local_rank}: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main()
