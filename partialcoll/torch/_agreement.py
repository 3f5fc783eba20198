# SPDX-License-Identifier: Apache-2.0
"""Do all ranks make the same call? Found out in a round of a few bytes, before anything hangs.

Each rank deposits a row that says what it is about to do: a digest, and a text for people. All
ranks see all rows, so all know at once whether they agree, and if not, who wants what: nobody has
to be asked, and nobody has to wait for those who disagree.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Callable

import numpy as np
from mpi4py import MPI

from .._buffers import Array
from .._handle import AllreduceHandle
from ..allreduce import Allreduce_init

# What a handle has to know of the data: dtype, number of elements, reduction; None: no data.
Key = tuple[str, int, str]

_DIGEST = 8  # bytes
_LEAST, _MOST, _ALL = 96, 256, 16384  # bytes of a row; of all rows together, about


@dataclass(frozen=True)
class Intent:
    """What a rank is about to do: `text` is for people, and equal on all ranks that agree;
    `key` is the data's; `refused` that the rank's own arguments are wrong."""

    text: str
    key: Key | None = None
    refused: bool = False

    def encode(self, rank: int, room: int) -> bytes:
        """For the others. A rank that refuses agrees with nobody. A long text is cut; the digest
        tells it from others that begin alike."""
        key = "" if self.key is None else ",".join(map(str, self.key))
        facts = f"{'!' * self.refused}{key}|".encode()
        text = self.text.encode()
        said = repr((self.text, self.key, rank if self.refused else None)).encode()
        digest = hashlib.blake2b(said, digest_size=_DIGEST)
        left = room - _DIGEST - len(facts)
        if len(text) > left:
            end = f"… ({digest.hexdigest()[:8]})".encode()
            text = text[: left - len(end)].decode(errors="ignore").encode() + end
        return digest.digest() + facts + text

    @staticmethod
    def decode(row: bytes) -> Intent:
        """What a rank has encoded."""
        facts, _, text = row[_DIGEST:].rstrip(b"\0").decode(errors="replace").partition("|")
        key = facts.lstrip("!").split(",")
        known = (key[0], int(key[1]), key[2]) if len(key) == 3 else None
        return Intent(text, known, facts.startswith("!"))


class Agreement:
    """A small full allreduce in which ranks compare their intents. Made collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str) -> None:
        self._rank = comm.rank
        self._room = min(_MOST, max(_LEAST, _ALL // comm.size))
        self._handle: AllreduceHandle = Allreduce_init(
            comm,
            None,
            None,
            MPI.BOR,
            like=np.zeros((comm.size, self._room), np.uint8),
            quorum="full",
            name=name,
        )

    def announce(self, intent: Intent) -> None:
        """Say what this rank will do; `settle` tells whether the others do the same. Local."""
        row = intent.encode(self._rank, self._room)
        rows: Array = self._handle.send_buffer
        rows[:] = 0
        rows[self._rank, : len(row)] = np.frombuffer(row, np.uint8)
        self._handle.Start()

    def arrived(self) -> bool:
        """Have all ranks announced something? Local, never blocks. Once True, `settle`."""
        return self._handle.Test() is not None

    def missing(self) -> str:
        """Who has not announced anything, in one sentence; nothing if that cannot be told."""
        return self._handle._missing()

    def while_waiting(self, check: Callable[[], bool]) -> None:
        """Let `settle` call this now and then; what it raises ends the wait, which can be taken
        up again."""
        self._handle._while_waiting = check

    def settle(self, waited: bool = False) -> list[Intent]:
        """Wait until all ranks have announced something. Empty if it is the same everywhere,
        else, on every rank alike, what each of them has announced. waited: `arrived` was True.
        """
        if not waited:
            self._handle.Wait()
        rows: Array = self._handle.result
        if (rows == rows[0]).all():
            return []
        return [Intent.decode(row.tobytes()) for row in rows]

    def free(self) -> None:
        """Collective."""
        self._handle.Free()


def complaint(heard: list[Intent]) -> str:
    """Who announced what, for the error that all ranks raise."""
    sides: dict[str, list[int]] = {}
    for rank, intent in enumerate(heard):
        text = f"{intent.text} (refused)" if intent.refused else intent.text
        sides.setdefault(text, []).append(rank)
    said = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {text}"
        for text, ranks in sides.items()
    )
    return f"the ranks differ in what they call: {said}"
