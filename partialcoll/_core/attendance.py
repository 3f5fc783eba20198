# SPDX-License-Identifier: Apache-2.0
"""Attendance: who has not come to a call that makes or frees something.

Such a call waits inside MPI, often before there is a communicator of this library on which a rank
could be asked anything. So a rank that has waited in one for a while leaves a note with MPI's name
service (MPI_Publish_name), which needs no communicator, and takes it back afterwards. When the
stall warning falls due it reads the others' notes: who has left none has not come, or only just. Of
the ranks that are there, the lowest one speaks for all.

One thread of the process does all this: the one that waits in the call cannot. `_stays` and
`_thread` belong to whoever holds `_changed`, the note to that thread alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import finalize, settings
from .failures import is_rank_failure, told
from .mpi import MPI

_IDLE_S = 1.0  # the thread ends when there has been nothing to look at for so long
_END_S = 2.0  # what MPI's end waits for it at most
_NOTED = 3  # calls in one note: MPI's names are short


class Members(NamedTuple):
    """The ranks of a communicator, which may be gone when they free what was made on it."""

    rank: int  # this one
    world: list[int]  # what they are in MPI.COMM_WORLD; MPI.UNDEFINED for those of another world

    @classmethod
    def of(cls, comm: MPI.Intracomm) -> Members:
        mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
        found = mine.Translate_ranks(None, world)
        mine.Free()
        world.Free()
        return cls(comm.rank, list(found))


Call = tuple[str, str]  # as a note has it: its name, and a digest of the ranks that make it


@dataclass(eq=False)
class _Stay:
    name: str
    members: Members
    begin: float
    warn_at: float

    def call(self) -> Call:
        ranks = np.array(self.members.world, np.int64).tobytes()
        return (self.name, hashlib.blake2b(ranks, digest_size=6).hexdigest())


_changed = threading.Condition()
_stays: list[_Stay] = []
_thread: threading.Thread | None = None
_local = threading.local()


@contextlib.contextmanager
def attending(name: str, who: MPI.Intracomm | Members) -> Iterator[None]:
    """``with attending("GossipBuffer", comm):`` all ranks of `comm` make this call; if one does
    not, a warning says which. The outermost one of a thread counts. Costs some microseconds."""
    try:
        if getattr(_local, "inside", False) or MPI.Is_finalized():
            yield
            return
        members = who if isinstance(who, Members) else Members.of(who)
        if len(members.world) == 1:
            yield
            return
        begin = time.monotonic()
        stay = _Stay(name, members, begin, begin + settings.stall_warning())
        _local.inside = True
        _begin(stay)
        try:
            yield
        finally:
            _local.inside = False
            with _changed:
                if stay in _stays:  # MPI has not ended
                    _stays.remove(stay)
                _changed.notify()
    except Exception as error:
        if isinstance(who, Members) or not is_rank_failure(error):
            raise
        raise told(error, who) from error


def _begin(stay: _Stay) -> None:
    global _thread
    with _changed:
        _stays.append(stay)
        if _thread is None:
            _thread = threading.Thread(target=_watch, name="partialcoll attendance", daemon=True)
            _thread.start()
        elif len(_stays) == 1:  # it was idle, or still sleeps for a call that is over
            _changed.notify()


def _end() -> None:
    with _changed:
        _stays.clear()
        thread = _thread
        _changed.notify()
    if thread is not None:
        thread.join(_END_S)


def _forget() -> None:
    global _thread, _changed  # in a forked child: the thread is the parent's
    _changed = threading.Condition()
    _stays.clear()
    _thread = None


finalize.at_end(_end, last=True)  # others make such calls at the end, too
os.register_at_fork(after_in_child=_forget)


def _watch() -> None:
    global _thread
    note = _Note()
    idle = time.monotonic()
    while True:
        with _changed:
            now = time.monotonic()
            noted = [s for s in _stays if now >= s.begin + _note_after()]
            due = [s for s in _stays if now >= s.warn_at]
            if not due and note.stays == noted:
                idle = now if _stays else idle
                if not _stays and now - idle >= _IDLE_S:
                    _thread = None
                    return
                times = [s.warn_at for s in _stays]
                times += [s.begin + _note_after() for s in _stays if s not in noted]
                _changed.wait(max(min(times, default=now + _IDLE_S) - now, 1e-3))
                continue
        if note.stays != noted:
            note.write(noted)
        for stay in due:
            absent: str | None = f"not all {len(stay.members.world)} ranks have called it"
            if note.can_be_read:
                absent = _absent(stay)
            waited = time.monotonic() - stay.begin
            if absent is not None:
                settings.logger.warning("waiting for %.1f s in %s: %s", waited, stay.name, absent)
            stay.warn_at = time.monotonic() + settings.stall_warning()


def _note_after() -> float:
    return min(1.0, settings.stall_warning() / 8)


def _absent(stay: _Stay) -> str | None:
    """Say who is missing; None if a lower rank will."""
    own = stay.call()
    missing: list[int] = []
    elsewhere: dict[str, list[int]] = {}
    for rank, world in enumerate(stay.members.world):
        if rank == stay.members.rank:
            continue
        calls = _read(world)
        if own in calls:
            if rank < stay.members.rank:
                return None
        elif calls:
            elsewhere.setdefault(" and ".join(name for name, _ in calls), []).append(rank)
        else:
            missing.append(rank)
    said = []
    if missing:
        said.append(f"{name_ranks(missing)} {'have' if missing[1:] else 'has'} not called it")
    for where, ranks in elsewhere.items():
        said.append(f"{name_ranks(ranks)} {'are' if ranks[1:] else 'is'} in {where}")
    return "; ".join(said) or "all ranks have called it, some of them on another communicator"


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in ascending order for messages: "rank 2", "ranks 0, 1, 4-9"."""
    places = itertools.count()
    runs = [[*run] for _, run in itertools.groupby(ranks, lambda rank: rank - next(places))]
    texts = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(texts)}"


class _Note:
    """The entry that this process has published with MPI's name service."""

    def __init__(self) -> None:
        self.stays: list[_Stay] = []  # the stays that the entry lists
        self._text = ""
        self.can_be_read = MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def write(self, stays: list[_Stay]) -> None:
        self.stays = stays
        if not self.can_be_read or MPI.Is_finalized():
            return
        service, before = _service(MPI.COMM_WORLD.rank), self._text
        self._text = _encode([stay.call() for stay in stays]) if stays else ""
        try:
            if before:
                MPI.Unpublish_name(service, before)
            if self._text:
                MPI.Publish_name(service, self._text)
        except MPI.Exception as error:
            settings.logger.debug("MPI's name service takes no notes: %s", error)
            self.can_be_read, self._text = False, ""


def _read(world_rank: int) -> list[Call]:
    if world_rank == MPI.UNDEFINED:
        return []
    try:
        return _decode(MPI.Lookup_name(_service(world_rank)))
    except MPI.Exception:  # there is none
        return []


def _service(world_rank: int) -> str:
    job = os.environ.get("PMIX_NAMESPACE") or os.environ.get("PMI_JOBID", "")
    return f"partialcoll-{job}-{world_rank}"


def _encode(calls: list[Call]) -> str:
    # Without blanks: MPICH ends a name at the first one.
    return urllib.parse.quote(json.dumps(calls[:_NOTED]), safe="")[: MPI.MAX_PORT_NAME - 1]


def _decode(text: str) -> list[Call]:
    try:
        return [(name, ranks) for name, ranks in json.loads(urllib.parse.unquote(text))]
    except (ValueError, TypeError):  # cut off
        return [("a call with a long name", "")]
