# SPDX-License-Identifier: Apache-2.0
"""Do all ranks make the same call? Found out in a round of a few bytes, before anything hangs.

Each rank deposits a row that says what it is about to do: a digest, and a text for people. All
ranks see all rows, so all know at once whether they agree, and if not, who wants what: nobody has
to be asked, and nobody has to wait for those who disagree.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Sequence
from typing import Callable, NamedTuple

import numpy as np
from mpi4py import MPI

from ..._core.buffers import Array
from ...collectives.allreduce import Allreduce_init
from ...collectives.handle import AllreduceHandle

# What a handle has to know of the data: dtype, number of elements, reduction.
Key = tuple[str, int, str]

_DIGEST = 8  # bytes
_LEAST, _MOST, _ALL = 96, 256, 16384  # bytes of a row; of all rows together, about


class Intent(NamedTuple):
    """What a rank is about to do.

    Attributes
    ----------
    text : str
        For people; the same on all ranks that agree.
    key : Key or None
        Of the handle on which the rank may have started its data already; None: it has not.
    apart : bool
        This handle is the channel's own, not the one that all channels share.
    refused : bool
        The rank's own arguments are wrong.
    """

    text: str
    key: Key | None = None
    apart: bool = False
    refused: bool = False

    def encode(self, rank: int, room: int) -> bytes:
        """For the others. A rank that refuses agrees with nobody. A long text is cut; the digest
        tells it from others that begin alike."""
        key = "" if self.key is None else ",".join(map(str, self.key))
        facts = f"{'!' * self.refused}{'~' * self.apart}{key}|".encode()
        text = self.text.encode()
        said = repr((self.text, self.key, self.apart, rank if self.refused else None)).encode()
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
        key = facts.lstrip("!~").split(",")
        known = (key[0], int(key[1]), key[2]) if len(key) == 3 else None
        return Intent(text, known, "~" in facts, facts.startswith("!"))


@functools.lru_cache(maxsize=256)
def _row(intent: Intent, rank: int, room: int) -> Array:
    """Programs say the same things again and again."""
    row = np.zeros(room, np.uint8)
    said = intent.encode(rank, room)
    row[: len(said)] = np.frombuffer(said, np.uint8)
    return row


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
        self._rooms: dict[int, Array] = {}  # the few places of deposits, by address

    def announce(self, intent: Intent) -> None:
        """Say what this rank will do; `settle` tells whether the others do the same. Local."""
        rows = self._rooms.get(place := self._handle._send_place())
        if rows is None:
            rows = self._rooms[place] = self._handle.send_buffer
        rows[:] = 0
        rows[self._rank] = _row(intent, self._rank, self._room)
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
        said = rows.tobytes()
        if said == said[: self._room] * len(rows):
            return []
        return [Intent.decode(row.tobytes()) for row in rows]

    def free(self) -> None:
        """Collective."""
        self._handle.Free()


def name_ranks(ranks: Sequence[int]) -> str:
    """For messages."""
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def ranks_by_text(said: Iterable[tuple[int, str]]) -> str:
    """Which ranks said what, for messages."""
    sides: dict[str, list[int]] = {}
    for rank, text in said:
        sides.setdefault(text, []).append(rank)
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in sides.items())


def complaint(heard: list[Intent]) -> str:
    """Who announced what, for the error that all ranks raise."""
    said = [f"{one.text} (refused)" if one.refused else one.text for one in heard]
    return f"the ranks differ in what they call: {ranks_by_text(enumerate(said))}"
