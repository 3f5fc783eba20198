# SPDX-License-Identifier: Apache-2.0
"""Do all ranks make the same call? Found out in a round of a few bytes, before anything hangs.

Each rank deposits a row that says what it is about to do: a digest, and a text for people. All
ranks see all rows, so all know at once whether they agree, and if not, who wants what: nobody has
to be asked, and nobody has to wait for those who disagree.
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
# What a handle has to know of the data: dtype, number of elements, reduction.
Key = tuple[str, int, str]

JOINED, OPEN = "-", "+"  # roles

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
    role : str
        JOINED: the rank takes part in what the others do, with nothing of its own. OPEN: such
        ranks may be missing from this.
    """

    text: str
    key: Key | None = None
    apart: bool = False
    refused: bool = False
    role: str = ""

    def digest(self, rank: int) -> bytes:
        """The same for what is the same. A rank that refuses agrees with nobody."""
        who = rank if self.refused else None
        said = repr((self.text, self.key, self.apart, self.role, who)).encode()
        return hashlib.blake2b(said, digest_size=_DIGEST).digest()

    def encode(self, rank: int, room: int) -> bytes:
        """For the others. A long text is cut; the digest tells it from others that begin alike."""
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
        """What a rank has encoded."""
        facts, _, text = row[_DIGEST:].rstrip(b"\0").decode(errors="replace").partition("|")
        key = facts.lstrip(f"!~{JOINED}{OPEN}").split(",")
        known = (key[0], int(key[1]), key[2]) if len(key) == 3 else None
        role = next((one for one in (JOINED, OPEN) if one in facts), "")
        return Intent(text, known, "~" in facts, facts.startswith("!"), role)


@functools.lru_cache(maxsize=256)
def _row(intent: Intent, rank: int, room: int) -> Array:
    """Programs say the same things again and again."""
    row = np.zeros(room, np.uint8)
    said = intent.encode(rank, room)
    row[: len(said)] = np.frombuffer(said, np.uint8)
    return row


class Agreement:
    """A small full allreduce in which ranks compare their intents. Made collectively."""

    def __init__(self, comm: MPI.Intracomm, name: str, on_failure: str = "raise") -> None:
        self._rank = comm.rank
        self.failed: list[int] = []  # with on_failure="continue": who had died before the last one
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
        number, _, who = self._handle._missing().partition(": ")
        return who or number

    def while_waiting(self, check: Callable[[], bool], report: Callable[[float], None]) -> None:
        """Let `settle` call check now and then; what it raises ends the wait, which can be taken
        up again. report: is to say who is missing, after so many seconds."""
        self._handle._while_waiting = check
        self._handle._report_stall = report  # type: ignore[assignment]

    def settle(self, waited: bool = False) -> dict[int, Intent]:
        """Wait until all ranks have announced something. Empty if it is the same everywhere,
        else, on every rank alike, what each of them that lives has announced. waited: `arrived` was
        True."""
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
        """Collective."""
        self._handle.Free()


def sides(said: Iterable[tuple[int, T]]) -> dict[T, list[int]]:
    """What is said, and by which ranks."""
    found: dict[T, list[int]] = {}
    for rank, one in said:
        found.setdefault(one, []).append(rank)
    return found


def ranks_by_text(found: dict[str, list[int]]) -> str:
    """Which ranks said what, for messages."""
    return "; ".join(f"{name_ranks(ranks)}: {text}" for text, ranks in found.items())


def first_difference(everybody: Iterable[Sequence[T]], missing: T) -> dict[T, list[int]]:
    """Of the ranks' lists, the first entry on which they differ, by ranks; nothing if there is
    none. missing: what stands for an entry that a rank has not."""
    for row in itertools.zip_longest(*everybody, fillvalue=missing):
        if len(set(row)) > 1:
            return sides(enumerate(row))
    return {}


def complaint(heard: dict[int, Intent]) -> str:
    """Who announced what, for the error that all ranks raise."""
    said = {rank: one.text + " (refused)" * one.refused for rank, one in heard.items()}
    return f"the ranks differ in what they call: {ranks_by_text(sides(said.items()))}"


# All ranks together


class Gathers(Protocol):
    """A communicator, or what gathers in another way: where ranks may die, one that comes back."""

    @property
    def allgather(self) -> Callable[[Any], list[Any]]:
        """Gives, on every rank, what all ranks give it. Collective."""


def together(comm: Gathers, check: Callable[[], T]) -> T:
    """check() on every rank; if it raises on one, all raise. Collective."""
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
    """The same (name, text) pairs, in the same order, on all ranks. Collective.

    Raises MismatchError everywhere, with the first name that differs, and the ranks. `comm` is one
    of `Gathers`; with on_failure="continue" a communicator on which something is already: on all
    that live.
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
