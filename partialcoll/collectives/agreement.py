# SPDX-License-Identifier: Apache-2.0
"""Compare the calls of all ranks in the round that carries their data.

Each rank says what it calls: a text, of which the core compares a digest, and the form of its
data, which it compares, too (partialcoll.h: pcoll_handle_describe). Ranks that agree have the
result in the same round. If ranks differ, all of them know it from this round, none has a result,
and a second round tells each rank the texts of all. So no rank waits for one that makes another
call.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, TypeVar, cast

import numpy as np

from .._core import buffers, waiting
from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.ffi import ffi, lib, raise_error
from .._core.mpi import MPI
from ..errors import MismatchError
from ..round import Result
from .handle import AllreduceHandle, Arguments

T = TypeVar("T")
# The form of the data of a call: dtype by numpy's name, number of elements, MPI's op by its name.
Form = tuple[str, int, str]

JOINED, OPEN = "-", "+"  # roles

CAPACITY = 1 << 16  # bytes that a round of a comparison can reduce

_DIGEST = 8  # bytes
_LEAST, _MOST, _ALL = 96, 256, 16384  # bytes of a text; of all texts together, about
_TEXTS = 1  # the number of a round that tells texts; other numbers are digests


class Intent(NamedTuple):
    """The next call of a rank. `text`: for messages; the same on all ranks that agree. `refused`:
    whether the rank's own arguments are wrong. `role`: JOINED, the rank takes part in the calls of
    others and contributes nothing; OPEN, ranks that have joined may be missing from this call."""

    text: str
    refused: bool = False
    role: str = ""

    def digest(self, rank: int) -> bytes:
        """Return a digest, equal for equal intents. A rank that refuses agrees with no other."""
        who = rank if self.refused else None
        said = repr((self.text, self.role, who)).encode()
        return hashlib.blake2b(said, digest_size=_DIGEST).digest()

    def encode(self, rank: int, room: int) -> bytes:
        """Return the row for the other ranks. A long text is cut and ends with digits of it."""
        facts = f"{'!' * self.refused}{self.role}|".encode()
        text = self.text.encode()
        left = room - len(facts)
        if len(text) > left:
            end = f"… ({self.digest(rank).hex()[:8]})".encode()
            text = text[: left - len(end)].decode(errors="ignore").encode() + end
        return facts + text

    @staticmethod
    def decode(row: bytes) -> Intent:
        facts, _, text = row.rstrip(b"\0").decode(errors="replace").partition("|")
        role = next((one for one in (JOINED, OPEN) if one in facts), "")
        return Intent(text, facts.startswith("!"), role)


@functools.lru_cache(maxsize=256)
def _number(intent: Intent, rank: int) -> int:
    """Return the number that the core compares. Cached, because programs repeat their calls."""
    return int.from_bytes(intent.digest(rank), "little") | 2  # neither 0 nor _TEXTS


@functools.lru_cache(maxsize=256)
def _form(dtype: str, count: int, op: str) -> Any:
    code = buffers.dtype_code("dtype", np.dtype(dtype))
    described = {"count": count, "dtype": code, "op": buffers.op_code(getattr(MPI, op))}
    return ffi.new("pcoll_buffer *", described)


_NOTHING: Form = ("uint8", 0, "BOR")


class Agreement:
    """A full allreduce in which ranks compare their intents, with data of up to `capacity` bytes.
    Created collectively. One call after the other: `start`, then `settle`; if it returns False,
    `start_texts`, `settle` and `texts`."""

    def __init__(self, comm: MPI.Intracomm, name: str, on_failure: str = "raise") -> None:
        self._rank, self._ranks = comm.rank, comm.size
        self._room = min(_MOST, max(_LEAST, _ALL // comm.size))
        self.capacity = max(CAPACITY, self._room * comm.size)
        self._options = {"name": name, "on_failure": on_failure}
        self._handle = AllreduceHandle(comm, self._arguments)
        self._pointer, self._record = self._handle._pointer, self._handle._record
        self._place = ffi.new("void **")
        self._result = ffi.new("void const **")
        self._views: dict[tuple[Any, str], Array] = {}  # of slots and results
        self._started = 0  # rounds

    def _arguments(self) -> Arguments:
        like = np.zeros(self.capacity, np.uint8)
        how: Any = {"history": 1, "algorithm": "recdbl", "like": like, **self._options}
        arguments = Arguments(None, None, MPI.BOR, **how)
        arguments.options.described = 1
        return arguments

    def room(self, dtype: str) -> Array:
        """Return the memory for the data of the next call."""
        code = lib.pcoll_handle_send_slot(self._pointer[0], 0, self._place)
        if code:
            raise_error(code)
        place = self._place[0]
        view = self._views.get((place, dtype))
        return self._view(place, dtype) if view is None else view

    def result(self, dtype: str) -> Array:
        """Return the memory with the result of the last call, until the next one starts."""
        code = lib.pcoll_handle_result(self._pointer[0], 0, self._result)
        if code:
            raise_error(code)
        place = self._result[0]
        view = self._views.get((place, dtype))
        return self._view(place, dtype) if view is None else view

    def _view(self, place: Any, dtype: str) -> Array:
        memory = np.frombuffer(ffi.buffer(place, self.capacity), np.uint8)
        view = self._views[place, dtype] = memory.view(dtype)
        return view

    def start(self, intent: Intent | None, form: Form = _NOTHING) -> None:
        """Start a call. form: of the data in `room`. intent: None: to tell texts. Local."""
        core = self._pointer[0]
        number = _TEXTS if intent is None else _number(intent, self._rank)
        code = lib.pcoll_handle_describe(core, _form(*form), number)
        code = code or lib.pcoll_handle_start(core, ffi.NULL)
        if code == lib.PCOLL_EAGAIN:  # in a replay
            self._handle._insist(lambda core: int(lib.pcoll_handle_start(core, ffi.NULL)))
        elif code:
            raise_error(code)
        self._started += 1

    def settle(self, wait: bool = True) -> bool | None:
        """Complete a call; return whether all ranks agree. None: the call is not complete, and
        wait=False. An interrupted wait can be resumed."""
        us = waiting.SLICE_US if wait else 0
        code = lib.pcoll_handle_take(self._pointer[0], us, ffi.NULL, *self._record.out)
        if code and not self._is_complete(code):
            if code != lib.PCOLL_EAGAIN:
                raise_error(code)
            if not wait:
                return None
            self._handle._wait_in_slices(self._step, None)
        return not self._record.round.differ

    def _is_complete(self, code: int) -> bool:
        """Return whether the round is complete although the core returned an error: the ranks
        differ in it, or an interrupted wait has already taken it."""
        taken = code == lib.PCOLL_ESTATE and self._handle._counts()[1] == self._started
        return bool(taken or code == lib.PCOLL_EMISMATCH)

    def _step(self, us: int) -> int:
        code = lib.pcoll_handle_take(self._handle._core(), us, ffi.NULL, *self._record.out)
        return 0 if self._is_complete(code) else int(code)

    def missing(self) -> str:
        """Return a sentence that names the ranks without a call; empty if unknown."""
        number, _, who = self._handle._missing().partition(": ")
        return who or number

    def while_waiting(self, check: Callable[[], bool], report: Callable[[float], None]) -> None:
        """Let `settle` call check now and then. An exception of check ends the wait, which can be
        resumed. report: called with the seconds waited, to name the missing ranks."""
        self._handle._while_waiting = check
        self._handle._report_stall = report  # type: ignore[assignment]

    def describe(self) -> bytes:
        return bytes(self._record.view[:])

    def failed(self) -> int:
        return int(self._record.round.failed)

    def start_texts(self, intent: Intent) -> None:
        """After a call in which the ranks differ: tell the others what this rank calls. Local."""
        rows = self.room("uint8")[: self._ranks * self._room].reshape(self._ranks, self._room)
        rows[:] = 0
        said = intent.encode(self._rank, self._room)
        rows[self._rank, : len(said)] = np.frombuffer(said, np.uint8)
        self.start(None, ("uint8", rows.size, "BOR"))

    def texts(self) -> dict[int, Intent]:
        """Return the intent of each live rank, after `start_texts` and `settle`."""
        rows = self.result("uint8")[: self._ranks * self._room].reshape(self._ranks, self._room)
        live = np.flatnonzero(~Result(self.describe(), self._ranks, []).failed)
        return {int(rank): Intent.decode(rows[rank].tobytes()) for rank in live}

    def free(self) -> None:
        """Free the handle. Collective."""
        self._views.clear()
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


# A communicator, or an object with an `allgather` that returns after a death, if ranks may die.
Gathers = Any


def together(comm: Gathers, check: Callable[[], T]) -> T:
    """Call check() on every rank; if it raises on one rank, all ranks raise. Collective."""
    error: Exception | None = None
    found: Any = None
    try:
        found = check()
    except Exception as caught:
        error = caught
    said = f"{type(error).__name__}: {error}" if error is not None else ""
    bad = [(rank, text) for rank, text in enumerate(comm.allgather(said)) if text]
    if error is not None:
        raise error
    if bad:
        raise MismatchError(f"rank {bad[0][0]} was refused: {bad[0][1]}")
    return cast("T", found)


def check_agreement(comm: Any, said: Iterable[tuple[str, str]], on_failure: str = "raise") -> None:
    """Check that all ranks have the same (name, text) pairs in the same order; else MismatchError
    on all, with the first name that differs, and the ranks. Collective. `comm`: see `Gathers`; with
    on_failure="continue" a communicator with live objects, whose live ranks compare."""
    own = list(said)
    if on_failure == "continue":
        agreement = Agreement(comm, "check_agreement", on_failure)
        intent = Intent("; ".join(f"{name!r}: {text}" for name, text in own))
        agreement.start(intent)
        heard = None
        if not agreement.settle():
            agreement.start_texts(intent)
            agreement.settle()
            heard = agreement.texts()
        agreement.free()
        if heard is not None:
            raise MismatchError(complaint(heard))
        return
    digest = hashlib.blake2b(repr(own).encode()).digest()
    if len(set(comm.allgather(digest))) > 1:
        differing = first_difference(comm.allgather(own), ("", ""))
        words = [
            (f"{name!r}: {text}" if name or text else "nothing more") + f" on {name_ranks(ranks)}"
            for (name, text), ranks in differing.items()
        ]
        raise MismatchError(f"the ranks differ: {'; '.join(words)}")
