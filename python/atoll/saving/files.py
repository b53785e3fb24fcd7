# SPDX-License-Identifier: Apache-2.0
"""One checkpoint is one file: a header with version, step, size and digest, followed by the output of torch.save. A
file is written whole or not at all, and damage is detected."""

import contextlib
import hashlib
import os
import re
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

VERSION = 1
_MAGIC = b"ATOLLCKP"
_HEADER = struct.Struct("<8sIQQ32s")  # magic, version, step, bytes after the header, SHA-256 of step and bytes
_NAME = re.compile(r"step-(\d{12})\.saved")


class UnreadableError(Exception):
    """The file is truncated, damaged or not a checkpoint; an older one may be usable."""


class NewerVersionError(ValueError):
    """The file is intact, but was written by a newer Atoll that this one cannot read."""


class _Digested:
    """Writes to `file` and computes the digest. The first error is kept and later writes are dropped, because the
    caller is C++ code through which an exception must not propagate."""

    def __init__(self, file: BinaryIO, step: int) -> None:
        self._file, self.digest = file, _begin_digest(step)
        self.written = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                self._file.write(view)
            except OSError as error:
                self.error = error
            self.digest.update(view)
            self.written += len(view)
        return len(view)

    def flush(self) -> None:
        pass


def write(folder: Path, step: int, state: Any) -> None:
    """Writes one checkpoint. Raises OSError and leaves the folder as it was, provided that the process survives."""
    final = path_of(folder, step)
    part = folder / f".{final.name}.{secrets.token_hex(4)}.part"
    try:
        with part.open("xb") as file:
            file.write(bytes(_HEADER.size))
            digested = _Digested(file, step)
            torch.save(state, digested)  # type: ignore[arg-type] # needs no more than write() and flush()
            if digested.error:
                raise digested.error
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, VERSION, step, digested.written, digested.digest.digest()))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, final)
        _sync_folder(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def steps_in(folder: Path) -> list[int]:
    """Returns the steps that the folder has files of, newest first; files may be damaged. A missing folder has none."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted((int(found.group(1)) for name in names if (found := _NAME.fullmatch(name))), reverse=True)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:012d}.saved"


def check(file: Path, step: int) -> None:
    """Checks the header only. Raises UnreadableError or NewerVersionError."""
    with _opened(file) as stream:
        _read_header(stream, file, step)


def read(file: Path, step: int) -> bytes:
    """Returns the bytes for torch.load. Raises UnreadableError or NewerVersionError."""
    with _opened(file) as stream:
        expected = _read_header(stream, file, step)
        data = stream.read()
    digest = _begin_digest(step)
    digest.update(data)
    if digest.digest() != expected:
        raise UnreadableError(f"{file} is damaged: its bytes differ from those that were written")
    return data


def remove_older(folder: Path, step: int, keep: int) -> None:
    """Removes the checkpoints up to `step` except the newest `keep`. Later ones are damaged and will be overwritten."""
    for step in [found for found in steps_in(folder) if found <= step][keep:]:
        with contextlib.suppress(OSError):
            path_of(folder, step).unlink()


def remove_unfinished(folder: Path) -> None:
    """Removes files that a killed process left unfinished. No process may be writing."""
    for part in folder.glob(".step-*.part"):
        with contextlib.suppress(OSError):
            part.unlink()


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    try:
        with file.open("rb") as stream:
            yield stream
    except OSError as error:
        raise UnreadableError(f"{file} cannot be read: {error.strerror}") from None


def _read_header(stream: BinaryIO, file: Path, step: int) -> bytes:
    """Reads the header and returns the digest."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise UnreadableError(f"{file} is truncated, or is not a checkpoint of atoll.Checkpointer")
    _, version, of_step, size, digest = _HEADER.unpack(header)
    if version > VERSION:
        raise NewerVersionError(
            f"{file} has version {version}, but this Atoll reads version {VERSION}: resume with the Atoll that saved "
            "it, or use another folder"
        )
    found = os.fstat(stream.fileno()).st_size - _HEADER.size
    if found != size or of_step != step:
        raise UnreadableError(
            f"{file} is truncated: step {of_step} was saved with {size} bytes, {found} bytes are left"
        )
    return bytes(digest)


def _begin_digest(step: int) -> Any:
    return hashlib.sha256(struct.pack("<Q", step))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
