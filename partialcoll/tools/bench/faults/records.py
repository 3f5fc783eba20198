# SPDX-License-Identifier: Apache-2.0
"""What a rank writes down, in a file that outlives it: one record after the other, each by one
write, so that a kill leaves whole ones."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# kind, time (CLOCK_MONOTONIC, ns), number, three words, size of what follows in float64.
_HEAD = struct.Struct("=cqqQQQI")
MOST_RANKS = 64  # of which a word says who they are, a bit each

DEPOSIT, ROUND, LOST, OUTAGE, GROWN, END = b"D", b"R", b"L", b"O", b"G", b"E"

# What the application of a rank is doing, one byte in a file of its own.
STATES = ("starting", "computing", "in Start", "in Wait", "in join", "in Free", "growing")


class Life(NamedTuple):
    """A process: the rank that it is, and how many have been it before."""

    rank: int
    number: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}" + (f", life {self.number}" if self.number else "")

    def path(self, folder: str | Path, kind: str) -> Path:
        """Of its file: log, state or pid."""
        return Path(folder) / f"{kind}-{self.rank}-{self.number}"


def lives(folder: Path, kind: str, rank: int) -> list[Life]:
    """Those that there have been, with a file of this kind."""
    found: list[Life] = []
    while (life := Life(rank, len(found))).path(folder, kind).exists():
        found.append(life)
    return found


@dataclass
class Record:
    """DEPOSIT: number is the call. ROUND: number is its index, words are the mask, those who have
    failed, and a hash of the result; values are how many deposits of each rank are in it, and the
    sum of the numbers of their calls. LOST: the first word is how many rounds before that number
    the rank will never be given. OUTAGE: number counts them, words are when it was met here
    and when all went on. GROWN: others have come, or (the first record) this one has; number is the
    round after that, words are when it began, and who has come. END: nothing is left to do."""

    kind: bytes
    time: int
    number: int
    words: tuple[int, int, int] = (0, 0, 0)
    values: tuple[float, ...] = ()


class Log:
    """Of one process."""

    def __init__(self, folder: str, life: Life) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(life.path(folder, "log"), flags, 0o600)
        self._state = os.open(life.path(folder, "state"), os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, record: Record) -> None:
        """Append it."""
        head = _HEAD.pack(
            record.kind, record.time, record.number, *record.words, len(record.values)
        )
        os.write(self._file, head + struct.pack(f"={len(record.values)}d", *record.values))

    def state(self, name: str) -> None:
        """From now on."""
        os.pwrite(self._state, bytes([STATES.index(name)]), 0)


def read(path: Path) -> Iterator[Record]:
    """All records of a process; none if it has not begun."""
    data = path.read_bytes() if path.exists() else b""
    at = 0
    while at < len(data):
        kind, time, number, *words, count = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        values = struct.unpack_from(f"={count}d", data, at)
        at += 8 * count
        yield Record(kind, time, number, (words[0], words[1], words[2]), values)


def state_of(folder: Path, life: Life) -> str:
    """What its application was doing when it was last heard of."""
    path = life.path(folder, "state")
    code = path.read_bytes() if path.exists() else b""
    return STATES[code[0]] if code else STATES[0]
