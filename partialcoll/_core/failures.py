# SPDX-License-Identifier: Apache-2.0
"""Calls of MPI from Python where ranks may die: whose death ended a call, how the survivors
exchange messages, and the communicators of the ranks that are left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Callable, TypeVar

from ..errors import MismatchError, RankFailedError
from . import finalize, waiting
from .communicator import address
from .ffi import check, ffi, lib
from .mpi import MPI

T = TypeVar("T")


def alone(call: Callable[[], T], hold: bool = False) -> T:
    """Call MPI while no thread of the library's core is in it, where ranks may die: Open MPI's
    agreement must not overlap other MPI calls. hold: it may take long."""
    lib.pcoll_mpi_enter(hold)
    try:
        return call()
    finally:
        lib.pcoll_mpi_leave(hold)


# Open MPI's classes since 5.0 (ULFM), of errors about dead ranks; mpi4py has them, or not. The
# library's core reports deaths itself.
_NAMES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


def is_rank_failure(error: BaseException | None) -> bool:
    if not isinstance(error, MPI.Exception):
        return False
    classes = {getattr(MPI, name, MPI.UNDEFINED) for name in _NAMES} - {MPI.UNDEFINED}
    return error.Get_error_class() in classes


def failed_ranks(comm: MPI.Intracomm) -> list[int]:
    """Return the dead ranks that MPI knows of now, by their numbers in the communicator. Local."""
    try:
        failed = comm.Get_failed()
    except (MPI.Exception, AttributeError, NotImplementedError):
        return []
    everybody = comm.Get_group()
    ranks = sorted(map(int, failed.Translate_ranks(None, everybody))) if failed.size else []
    everybody.Free()
    failed.Free()
    return ranks


_LIMIT_S = 3.0


def told(error: BaseException, comm: MPI.Intracomm) -> RankFailedError:
    """Return MPI's error about dead ranks of the communicator as the library's. Another rank may
    have been told before this one, and what that one has revoked is heard of first: so MPI is given
    some time to know who has died."""
    end = time.monotonic() + _LIMIT_S

    def known() -> bool:
        return bool(failed_ranks(comm)) or time.monotonic() > end

    waiting.until(known, lambda: alone(MPI.COMM_SELF.Iprobe))
    return RankFailedError(failed_ranks(comm), str(error))


@contextlib.contextmanager
def told_by(comm: MPI.Intracomm) -> Iterator[None]:
    """Turn MPI's errors about dead ranks of the communicator into RankFailedError."""
    try:
        yield
    except Exception as error:
        if not is_rank_failure(error):
            raise
        raise told(error, comm) from error


def goes_on() -> bool:
    return bool(lib.pcoll_tells_of_failures())


def living(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the live ranks, in order. Collective. Only where the job goes on."""
    found = MPI.Intracomm()
    all_say(comm, True)  # sleeps while it waits, unlike the next call
    check(lib.pcoll_shrink(address(comm), ffi.cast("void *", MPI._addressof(found))))
    found.Set_errhandler(MPI.ERRORS_RETURN)
    return found


def duplicate(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a communicator of the same ranks. Collective. Raises RankFailedError on all ranks if
    one has died: MPI's own duplication may never return then."""
    if not goes_on():
        return comm.Dup()
    found = living(comm)
    if found.size < comm.size:
        found.Free()
        raise RankFailedError(failed_ranks(comm), "it was to be in a communicator")
    return found


def all_say(comm: MPI.Intracomm, yes: bool) -> bool:
    """Return, on all live ranks, whether all say yes. Collective. Only where the job goes on."""
    said = lib.PCOLL_OK if yes else lib.PCOLL_EFAILED
    return not lib.pcoll_all_have(address(comm), said)


def all_have(comm: MPI.Intracomm, error: BaseException | None) -> None:
    """Raise RankFailedError on all live ranks if one of them has got an error. Collective. Does
    nothing where the job does not continue."""
    if goes_on() and not all_say(comm, error is None) and error is None:
        raise RankFailedError(failed_ranks(comm), "another rank has been told of a death")


def among_the_living(comm: MPI.Intracomm, make: Callable[[MPI.Intracomm], T]) -> T:
    """Return make(duplicate), where the duplicate has the live ranks of the communicator; repeat it
    if one dies meanwhile. Collective over the live ranks."""
    if not goes_on():
        return make(comm.Dup())
    while True:
        own = living(comm)
        made: T | None = None
        try:
            with told_by(own):
                made = make(own)
        except RankFailedError:
            own.Revoke()  # ranks that wait for this one get an error
        except Exception:
            lib.pcoll_all_have(address(own), lib.PCOLL_EINVAL)
            own.Free()
            raise
        have = lib.PCOLL_EFAILED if made is None else lib.PCOLL_OK
        code = lib.pcoll_all_have(address(own), have)
        if code != lib.PCOLL_EFAILED:
            check(code)
            assert made is not None
            return made


class Peers:
    """The ranks of `comm`, a communicator of the caller's own. `dead`: those whose death this
    process has acknowledged.

    Where ranks may die, every MPI call that sends, receives, probes or tests needs two precautions.
    It must not overlap an agreement of the library's core (see `alone`). And it fails not only if
    its own peer has died: receives and probes from any source fail until this process has
    acknowledged on this communicator every death.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.dead: set[int] = set()
        self._comm, self._goes_on = comm, goes_on()

    def call(self, call: Callable[[], T], otherwise: T) -> T:
        """Return what `call`, a short MPI call on the communicator, returns. If it fails because
        ranks have died, acknowledge their deaths and return `otherwise`."""
        if not self._goes_on:
            return call()
        try:
            return alone(call)
        except MPI.Exception as error:
            if not is_rank_failure(error):
                raise
            alone(self._comm.Ack_failed)
            self.dead.update(alone(lambda: failed_ranks(self._comm)))
            return otherwise


_LONGEST = 1000  # bytes of a text: MPI completes such a short send before it is received


class Departed(MismatchError):
    """A rank's program has ended."""


class Departures:
    """Tells the other ranks of a finalize that this rank's program has been ended by an exception
    (or sys.exit with an error). Collective to make and to free.

    At the end of the interpreter, when MPI still runs, it sends the error's text to all of them.
    They look for such a message whenever they begin something or wait (`waiting.look`), and raise
    then: a program that catches its own error and goes on has told nobody.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = duplicate(comm)
        self._peers = Peers(self._comm)
        self._said = ""  # of the rank that was heard first
        self._sent: list[MPI.Request | None] = []
        finalize.watch_program()
        finalize.at_end(self._tell)
        waiting.watch(self._look)

    def _tell(self) -> None:
        waiting.no_watch(self._look)
        failure = finalize.program_failure()
        if failure is None or MPI.Is_finalized():
            return
        text = failure.encode(errors="replace")[:_LONGEST]
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                send = partial(self._comm.Isend, [text, MPI.BYTE], rank)
                self._sent.append(self._peers.call(send, None))

    def _look(self) -> None:
        """Raise Departed from the first message of a rank on. A dead rank sends none."""
        if not self._said and not MPI.Is_finalized():
            self._said = self._peers.call(self._receive, "")
        if self._said:
            raise Departed(self._said)

    def _receive(self) -> str:
        status = MPI.Status()
        message = self._comm.Improbe(status=status)
        if message is None:
            return ""
        text = bytearray(status.Get_count(MPI.BYTE))
        message.Recv([text, MPI.BYTE])
        said = text.decode(errors="replace")
        return f"the program of rank {status.Get_source()} has ended: {said}"

    def ignore(self) -> None:
        """Wait for the others no more, who may wait for this rank. Local, idempotent."""
        waiting.no_watch(self._look)

    def free(self) -> None:
        finalize.not_at_end(self._tell)
        self.ignore()
        self._comm.Free()
