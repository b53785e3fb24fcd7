# SPDX-License-Identifier: Apache-2.0
"""Splits a stream of bytes into lines with their rank's prefix."""

MAX_LINE_BYTES = 1 << 20
REDRAW_S = 1.0


class Lines:
    """One stream. Every line is returned whole, after `prefix`, and ends with a newline; a line longer than 1 MiB is
    split. If a line is redrawn with carriage returns, as by progress bars, only its newest text is kept, and an
    unfinished line is shown at most once a second. A `prefix` of None passes all bytes on unchanged."""

    def __init__(self, prefix: bytes | None) -> None:
        self._prefix = prefix
        self._rest = b""
        self._redrawn_at = float("-inf")

    def feed(self, data: bytes, now_s: float) -> bytes:
        """Returns what to show after `data` has arrived; `now_s` is the time of any steady clock."""
        if self._prefix is None:
            return data
        *lines, rest = (self._rest + data).split(b"\n")
        shown = [self._line(line) for line in lines]
        while len(rest) > MAX_LINE_BYTES:
            shown.append(self._line(rest[:MAX_LINE_BYTES]))
            rest = rest[MAX_LINE_BYTES:]
        if b"\r" in rest[:-1]:
            rest = _newest(rest) + rest[len(rest.rstrip(b"\r")) :]
            if now_s - self._redrawn_at >= REDRAW_S:
                self._redrawn_at = now_s
                shown.append(self._line(rest))
        self._rest = rest
        return b"".join(shown)

    def end(self) -> bytes:
        """Returns the last line, if the stream ended within one."""
        rest, self._rest = self._rest, b""
        return self._line(rest) if rest else b""

    def _line(self, text: bytes) -> bytes:
        return (self._prefix or b"") + _newest(text) + b"\n"


def _newest(text: bytes) -> bytes:
    return text.rstrip(b"\r").rpartition(b"\r")[2]
