# SPDX-License-Identifier: Apache-2.0
"""Processes in place of those that have died.

>>> comm = elastic.joined()            # None in a process that was started ordinarily
>>> if comm is None:
...     comm = MPI.COMM_WORLD
...     handle = pc.Allreduce_init(comm, x, y, on_failure="continue")
... else:
...     handle = pc.Allreduce_init(comm, x, y, on_failure="continue", join=True)
>>> # … and when a rank has died, on all that are left:
>>> handle.grow(elastic.respawn(handle.comm, [sys.executable, __file__], to=handle.size))
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ._core import checks, waiting
from ._core.attendance import attending
from ._core.communicator import address
from ._core.failures import all_say, alone, failed_ranks, goes_on
from ._core.ffi import check, lib
from ._core.mpi import MPI
from ._core.settings import base_timeout
from .errors import RankFailedError, StateError

_joined: list[MPI.Intracomm] = []  # at most one: a process is spawned once
_kept: list[Any] = []  # messages that MPI may still access
_greeted: list[bool] = []  # not empty: the ranks that started this process were notified
_PATIENCE = 6  # times the timeout: how long to wait for the first message of a process


def respawn(comm: MPI.Intracomm, command: Sequence[str], *, to: int) -> MPI.Intracomm:
    """Spawn the missing processes, so that there are `to` processes together. Collective. Return a
    communicator of all, the ranks of `comm` first, in their order; new processes get it from
    `joined`. The caller owns it and may free it. If there are enough already, it is a duplicate.

    `comm` (mpi4py.MPI.Intracomm) has live ranks only: `AllreduceHandle.comm`, or the result of
    ``comm.Shrink()``. `command` (a list of str): program and arguments, the same on all
    ranks; rank 0's is used. `to`: an int, at least the size of `comm`.

    Raises MPI's errors, on all ranks; RankFailedError if a rank of `comm` has died meanwhile, or a
    new process before it joined; StateError if no process that mpiexec started is alive. If a
    command ends before it has initialized MPI, all wait forever; if it dies after that and before
    it imports this module, they wait for six times ``PARTIALCOLL_TIMEOUT``. A new process ends by
    itself after the same time if a rank of `comm` had died before the process could learn of it.
    """
    address(comm)
    to = checks.integer("to", to, comm.size)
    words = checks.several("command", command, what="a list of texts")
    if isinstance(command, str) or not words:
        raise TypeError(f"command: expected a list of texts, got {checks.shown(command)}")
    with attending("respawn", comm):
        _check_alive(comm)
        if to == comm.size:
            return comm.Dup()
        merged = Spawned(comm, command, to - comm.size).merge(comm)
        _check_alive(merged)
        return merged


class Spawned:
    """Joining processes that have been started, and call `merge_with_parents` at any later time.
    Collective over the ranks that start them."""

    def __init__(self, comm: MPI.Intracomm, command: Sequence[str], count: int) -> None:
        # Open MPI's launcher forgets the job that it was started for when all of that have ended;
        # what is to be spawned then never comes.
        if goes_on() and all_say(comm, MPI.Comm.Get_parent() != MPI.COMM_NULL):
            raise StateError(
                "respawn: none of the processes that mpiexec has started lives, and it starts no "
                "others then; keep one of them alive"
            )
        self._size, self._ended = comm.size, False
        start = partial(comm.Spawn, command[0], list(command[1:]), maxprocs=count)
        self._between = alone(start, hold=True)
        self._between.Set_errhandler(MPI.ERRORS_RETURN)
        self._greetings, self._arrivals = _Words(self._between), _Words(self._between)
        self._limit = time.monotonic() + _PATIENCE * base_timeout()

    def over(self) -> bool:
        """Have all of them come, or will they not? Local."""
        if not self._greetings.over():
            return time.monotonic() > self._limit
        return not all(self._greetings.said()) or self._arrivals.over()

    def merge(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """Return a communicator of `comm`, whose ranks have started them, and of them, when all
        have come. Collective; raises as `respawn`, but a rank that dies at the end is in it."""
        waiting.until(self.over, waiting.look)
        self._ended = True
        come = all(self._greetings.said()) and all(self._arrivals.said())
        come = come and comm.size == self._size
        if goes_on():
            come = all_say(comm, come) and not lib.pcoll_growth_check(address(comm))
        told = _tell(self._between, come)
        if not come:
            raise RankFailedError(failed_ranks(comm), "it was to take others in, or to come itself")
        _await(told)
        return _merge(self._between, high=False)

    def dismiss(self) -> None:
        """Tell the processes that have not joined yet to end. Local, on all."""
        if not self._ended and not MPI.Is_finalized():
            _tell(self._between, False)
        self._ended = True


def merge_with_parents(between: MPI.Intercomm) -> MPI.Intracomm:
    """Return the communicator of all, in a joining process. RankFailedError if a process has died
    meanwhile: then other processes are started in place of all that were joining."""
    _greet()
    _tell(between, True)
    words = _Words(between)
    waiting.until(words.over, waiting.look)
    if not any(words.said()):
        raise RankFailedError((), "those who have started this process go on without it")
    return _merge(between, high=True)


def _greet() -> None:
    """Notify the ranks that started this joining process, as soon as possible: Open MPI reports the
    death of a process that mpiexec has not started only to ranks that have received a message from
    it."""
    if _greeted or not MPI.Is_initialized() or MPI.Is_finalized():
        return
    between, seconds = MPI.Comm.Get_parent(), _PATIENCE * base_timeout()

    def give_up() -> None:  # this process would stay for ever, and its job with it
        why = f"nothing is heard of those who have started it, for {seconds:g} s; they have died"
        os.write(2, f"partialcoll: this process ends: {why}\n".encode())
        os._exit(1)

    if between != MPI.COMM_NULL:
        _greeted.append(True)
        between.Set_errhandler(MPI.ERRORS_RETURN)
        # Open MPI's first message to a process that has died does not return, or does not end.
        limit = threading.Timer(seconds, give_up)
        limit.daemon = True
        limit.start()
        try:
            _await(_tell(between, True))
        finally:
            limit.cancel()


def _tell(between: MPI.Intercomm, word: bool) -> list[Any]:
    """Send to all on the other side; return requests that are over when it has been heard."""
    sent = []
    for rank in range(between.remote_size):
        with contextlib.suppress(MPI.Exception):  # it has died
            sent.append(between.Issend(np.array([word], np.intc), rank))
    _kept.append(sent)
    return sent


def _await(requests: list[Any]) -> None:
    waited = list(requests)
    waiting.until(lambda: _over(waited), waiting.look)


def _over(requests: list[Any]) -> bool:
    """Have all of them ended, well or badly? Those that have are taken out."""
    requests[:] = [request for request in requests if not _ended(request)]
    return not requests


def _ended(request: Any) -> bool:
    try:
        return bool(alone(request.Test))
    except MPI.Exception:
        return True


class _Words:
    def __init__(self, between: MPI.Intercomm) -> None:
        self._words = np.zeros((between.remote_size, 1), np.intc)
        self._missing = []
        for rank, word in enumerate(self._words):
            with contextlib.suppress(MPI.Exception):
                self._missing.append(between.Irecv(word, rank))
        _kept.append((self._words, list(self._missing)))

    def over(self) -> bool:
        return _over(self._missing)

    def said(self) -> list[bool]:
        """False of one that has died, or has told nothing."""
        return [bool(word) for word in self._words[:, 0]]


def _merge(between: MPI.Intercomm, high: bool) -> MPI.Intracomm:
    """Merge. No rank may die during it; it takes a millisecond once all have called it."""
    merged = alone(lambda: between.Merge(high=high), hold=True)
    if not high:  # else MPI frees it itself
        between.Free()
    return merged


def joined() -> MPI.Intracomm | None:
    """Return the communicator of all in a process that `respawn` has started (always the same one,
    the spawning ranks first); None in any other process. The first call is collective."""
    if not _joined:
        parent = MPI.Comm.Get_parent()
        if parent == MPI.COMM_NULL:
            return None
        merged = merge_with_parents(parent)
        _check_alive(merged)
        _joined.append(merged)
    return _joined[0]


def _check_alive(comm: MPI.Intracomm) -> None:
    check(lib.pcoll_growth_check(address(comm)))


if "mpi4py.MPI" in sys.modules:
    _greet()
