# SPDX-License-Identifier: Apache-2.0
"""Compare the calls of all ranks in a round of a few bytes, before data moves.

Each rank deposits a row that describes its next call: a digest, and a text for messages. All ranks
see all rows. So all know in the same round whether they agree, and if not, which rank calls what;
no further message is needed, and no rank waits for one that makes another call.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Protocol, TypeVar

import numpy as np

from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.mpi import MPI
from ..errors import MismatchError
from .allreduce import Allreduce_init
from .handle import AllreduceHandle

T = TypeVar("T")
# The key of a handle: dtype, number of elements, reduction.
Key = tuple[str, int, str]

JOINED, OPEN = "-", "+"  # roles

_DIGEST = 8  # bytes
_LEAST, _MOST, _ALL = 96, 256, 16384  # bytes of a row; of all rows together, about


class Intent(NamedTuple):
    """The next call of a rank.

    Attributes
    ----------
    text : str
        For messages; the same on all ranks that agree.
    key : Key or None
        The handle on which the rank may have started its data already; None: it has not.
    apart : bool
        Whether this handle is private to the channel, not shared by all channels.
    refused : bool
        Whether the rank's own arguments are wrong.
    role : str
        JOINED: the rank takes part in the calls of others and contributes nothing. OPEN: ranks that
        have joined may be missing from this call.
    """

    text: str
    key: Key | None = None
    apart: bool = False
    refused: bool = False
    role: str = ""

    def digest(self, rank: int) -> bytes:
        """Return a digest that is equal for equal intents. A rank that refuses agrees with no other
        rank."""
        who = rank if self.refused else None
        said = repr((self.text, self.key, self.apart, self.role, who)).encode()
        return hashlib.blake2b(said, digest_size=_DIGEST).digest()

    def encode(self, rank: int, room: int) -> bytes:
        """Return the row for the other ranks. A long text is cut; the digest distinguishes it from
        other texts that begin alike."""
        key = "" if self.key is None else ",".join(map(str, self.key))
        facts = f"{'!' * self.refused}{'~' * self.apart}{self.role}{key}|".encode()
        text = self.text.encode()
        digest = self.digest(rank)
        left = room - _DIGEST - len(facts)
        if len(text) > left:
            end = f"… ({digest.hex()[:8]})".encode()
            text = text[: left - len(end)].decode(errors="ignore").encode() + end
        return digest + facts + text

    @staticmethod
    def decode(row: bytes) -> Intent:
        """Return the intent that a rank has encoded."""
        facts, _, text = row[_DIGEST:].rstrip(b"\0").decode(errors="replace").partition("|")
        key = facts.lstrip(f"!~{JOINED}{OPEN}").split(",")
        known = (key[0], int(key[1]), key[2]) if len(key) == 3 else None
        role = next((one for one in (JOINED, OPEN) if one in facts), "")
        return Intent(text, known, "~" in facts, facts.startswith("!"), role)


@functools.lru_cache(maxsize=256)
def _row(intent: Intent, rank: int, room: int) -> Array:
    """Return the encoded row. Cached, because programs repeat their calls."""
    row = np.zeros(room, np.uint8)
    said = intent.encode(rank, room)
    row[: len(said)] = np.frombuffer(said, np.uint8)
    return row


class Agreement:
    """A small full allreduce in which ranks compare their intents. Created collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str, on_failure: str = "raise") -> None:
        self._rank = comm.rank
        self.failed: list[int] = []  # with on_failure="continue": ranks dead before the last round
        self._room = min(_MOST, max(_LEAST, _ALL // comm.size))
        self._handle: AllreduceHandle = Allreduce_init(
            comm,
            None,
            None,
            MPI.BOR,
            like=np.zeros((comm.size, self._room), np.uint8),
            quorum="full",
            name=name,
            on_failure=on_failure,
        )
        self._goes_on = on_failure == "continue"
        self._rooms: dict[int, Array] = {}  # views of the send slots, by address

    def announce(self, intent: Intent) -> None:
        """Announce the next call of this rank; `settle` compares it with those of the others.
        Local."""
        rows = self._rooms.get(place := self._handle._send_place())
        if rows is None:
            rows = self._rooms[place] = self._handle.send_buffer
        rows[:] = 0
        rows[self._rank] = _row(intent, self._rank, self._room)
        self._handle.Start()

    def arrived(self) -> bool:
        """Return whether all ranks have announced a call. Local, never blocks. Once it is True,
        call `settle`."""
        return self._handle.Test() is not None

    def missing(self) -> str:
        """Return a sentence that names the ranks without an announcement; empty if unknown."""
        number, _, who = self._handle._missing().partition(": ")
        return who or number

    def while_waiting(self, check: Callable[[], bool], report: Callable[[float], None]) -> None:
        """Let `settle` call check now and then. An exception of check ends the wait, which can be
        resumed. report: called with the seconds waited, to name the missing ranks."""
        self._handle._while_waiting = check
        self._handle._report_stall = report  # type: ignore[assignment]

    def settle(self, waited: bool = False) -> dict[int, Intent]:
        """Wait until all ranks have announced a call. Return an empty dictionary if they are equal;
        otherwise, on all ranks, the intent of each live rank. waited: `arrived` was True."""
        if not waited:
            self._handle.Wait()
        rows: Array = self._handle.result
        ranks = np.arange(len(rows))
        last = self._handle.last_round
        if self._goes_on and last is not None and last.failed.any():
            self.failed = np.flatnonzero(last.failed).tolist()
            ranks = np.flatnonzero(~last.failed)
            rows = rows[ranks]
        said = rows.tobytes()
        if said == said[: self._room] * len(rows):
            return {}
        return {int(rank): Intent.decode(row.tobytes()) for rank, row in zip(ranks, rows)}

    def free(self) -> None:
        """Free the handle. Collective."""
        self._handle.Free()


def sides(said: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """Return the ranks by what they say."""
    found: dict[T, list[int]] = {}
    for rank, one in said:
        found.setdefault(one, []).append(rank)
    return found


def ranks_by_text(found: dict[str, list[int]]) -> str:
    """Return which ranks said what, for messages."""
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in found.items())


def first_difference(everybody: Iterable[Sequence[T]], missing: T) -> dict[T, list[int]]:
    """Return the first entry in which the ranks' lists differ, with the ranks by value; empty if
    there is none. missing: stands for an entry that a rank does not have."""
    for row in itertools.zip_longest(*everybody, fillvalue=missing):
        if len(set(row)) > 1:
            return sides(enumerate(row))
    return {}


def complaint(heard: dict[int, Intent]) -> str:
    """Return the text of the error that all ranks raise: which rank announced what."""
    said = {rank: one.text + " (refused)" * one.refused for rank, one in heard.items()}
    return f"the ranks differ in what they call: {ranks_by_text(sides(said.items()))}"


# All ranks together


class Gathers(Protocol):
    """A communicator, or an object that gathers in another way: if ranks may die, one whose calls
    return after a death."""

    @property
    def allgather(self) -> Callable[[Any], list[Any]]:
        """Return the values of all ranks on every rank. Collective."""


def together(comm: Gathers, check: Callable[[], T]) -> T:
    """Call check() on every rank; if it raises on one rank, all ranks raise. Collective."""
    error: Exception | None = None
    found: Any = None
    try:
        found = check()
    except Exception as caught:
        error = caught
    bad = [(rank, text) for rank, text in enumerate(comm.allgather(_text(error))) if text]
    if error is not None:
        raise error
    if bad:
        raise MismatchError(f"rank {bad[0][0]} was refused: {bad[0][1]}")
    result: T = found
    return result


def _text(error: Exception | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else ""


def check_agreement(comm: Any, said: Iterable[tuple[str, str]], on_failure: str = "raise") -> None:
    """Check that all ranks have the same (name, text) pairs in the same order. Collective.

    Raises MismatchError on all ranks, with the first name that differs, and the ranks. `comm`: see
    `Gathers`; with on_failure="continue" a communicator with live objects, and the live ranks
    compare.
    """
    own = list(said)
    if on_failure == "continue":
        agreement = Agreement(comm, "check_agreement", on_failure)
        agreement.announce(Intent("; ".join(f"{name!r}: {text}" for name, text in own)))
        heard = agreement.settle()
        agreement.free()
        if heard:
            raise MismatchError(complaint(heard))
        return
    digest = hashlib.blake2b(repr(own).encode()).digest()
    if len(set(comm.allgather(digest))) == 1:
        return
    differing = first_difference(comm.allgather(own), ("", ""))
    words = [
        (f"{name!r}: {text}" if name or text else "nothing more") + f" on {name_ranks(ranks)}"
        for (name, text), ranks in differing.items()
    ]
    raise MismatchError(f"the ranks differ: {'; '.join(words)}")
