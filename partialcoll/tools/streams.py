# SPDX-License-Identifier: Apache-2.0
"""What a job says, on our standard streams, and what comes on ours, to its rank 0.

Launchers take both through their own hands, each in its way: none passes the end of standard input
on, Open MPI's keeps in memory what is not taken at once and no longer does anything else then, and
both may drop the last words of ranks that end together. So ranks on this host have FIFOs for it, in
the folder of their job, unless the launcher has been told what to do with output.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Callable

_INPUT = "input"
_OUTPUTS = {"output": 1, "errors": 2}
_PIECE = 1 << 16
_TAIL = 4096


class Output:
    """Passed on by a thread for each source. broken: called by one when that is not possible; what
    comes after it is read and dropped.

    Attributes
    ----------
    failure : OSError or None
        Why it was not possible.
    silenced : bool
        Nothing more is passed on.
    """

    def __init__(self, broken: Callable[[], None]) -> None:
        self.failure: OSError | None = None
        self.silenced = False
        self._broken = broken
        self._tails: dict[int, bytes] = {}
        self._threads: list[threading.Thread] = []
        self._last, *self._more = os.pipe()  # ends with `finish`

    def open(self, folder: Path) -> None:
        """FIFOs for the ranks."""
        for name, to in _OUTPUTS.items():
            os.mkfifo(folder / name)
            self.add(os.open(folder / name, os.O_RDWR), to)  # so it never ends: ranks come and go

    def add(self, source: int, to: int) -> None:
        """All that comes from there."""
        self._tails[source] = b""
        self._threads.append(threading.Thread(target=self._pass_on, args=(source, to), daemon=True))
        self._threads[-1].start()

    def finish(self) -> None:
        """Nobody writes any more: what is there is the rest."""
        while self._more:
            os.close(self._more.pop())

    def join(self) -> None:
        """Wait until the rest has been passed on, however long nobody takes it."""
        for thread in self._threads:
            thread.join()

    def done(self) -> bool:
        """Has it?"""
        return not any(thread.is_alive() for thread in self._threads)

    def tail(self) -> bytes:
        """The end of what each source had."""
        return b"".join(self._tails.values())

    def _pass_on(self, source: int, to: int) -> None:
        while source in select.select([source, self._last], [], [])[0]:
            piece = os.read(source, _PIECE)
            if not piece:
                return
            if self.silenced:
                continue
            self._tails[source] = (self._tails[source] + piece)[-_TAIL:]
            try:
                write(to, piece)
            except OSError as error:
                self.failure, self.silenced = self.failure or error, True
                self._broken()


def write(to: int, piece: bytes) -> None:
    """All of it, also where somebody else has made that non-blocking."""
    while piece:
        try:
            piece = piece[os.write(to, piece) :]
        except BlockingIOError:
            select.select([], [to], [])


_RANK = "${PMI_RANK-$OMPI_COMM_WORLD_RANK}"
_SCRIPT = f"""[ "{_RANK}" = 0 ] && [ -p "$1/{_INPUT}" ] && exec < "$1/{_INPUT}" || exec < /dev/null
[ -p "$1/errors" ] && exec > "$1/output" 2> "$1/errors"
shift
exec "$@"
"""


def with_streams(program: Iterable[str], folder: Path) -> list[str]:
    """The words that a rank runs: the program, with the FIFOs that are there."""
    return ["/bin/sh", "-c", _SCRIPT, "sh", str(folder), *program]


def feed(folder: Path) -> None:
    """Pass on what comes on standard input, until it ends or nobody takes it."""
    os.mkfifo(folder / _INPUT)
    threading.Thread(target=_feed, args=(folder / _INPUT,), daemon=True).start()


def _feed(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as to:
        while select.select([0], [], []) and (piece := os.read(0, _PIECE)):
            write(to.fileno(), piece)
