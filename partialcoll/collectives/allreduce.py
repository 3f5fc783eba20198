# SPDX-License-Identifier: Apache-2.0
"""Making handles, and the calls on several of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from .._core import checks, waiting
from .._core.communicator import address
from .._core.ffi import ffi, lib
from .._core.mpi import MPI
from ..errors import StateError
from ..policy import Policy
from ..round import Round
from .arguments import Arguments
from .handle import AllreduceHandle


def Allreduce_init(
    comm: MPI.Intracomm,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = None,
    *,
    quorum: Policy | str = "full",
    deliver: str = "one",
    history: int = 8,
    late: str | None = None,
    missed: str = "sum",
    progress: str | None = None,
    algorithm: str | None = None,
    domain: str | None = None,
    seed: int = 0,
    name: str | None = None,
    like: Any = None,
    on_failure: str = "raise",
    on_membership: Callable[..., object] | None = None,
    join: bool = False,
) -> AllreduceHandle:
    """Make a persistent partial allreduce. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed once, so nothing on it meets the handle's messages.
    sendbuf : buffer, list of buffers, MPI.IN_PLACE or None
        What mpi4py takes (`array` or `[array, count, datatype]`): C-contiguous numpy arrays,
        torch CPU tensors, of any shape, zero-dimensional and empty ones included. dtypes:
        float16, bfloat16 (of `ml_dtypes`, or a tensor's), float32, float64, complex64,
        complex128, int8 to int64, uint8 to uint64, bool; others, and structured ones, with an
        MPI datatype, whose elements `count` then counts. All buffers of a handle travel in
        one round. None: write deposits to `send_buffer`, which saves a copy. Or arrays on a CUDA
        device, of cupy, numba or torch, as recvbuf then has to be: see docs/gpu.md.
    recvbuf : buffer, list of buffers or None
        Same dtypes and sizes as sendbuf, no common memory. None: results stay in the library's
        memory, which saves a copy; read them at `AllreduceHandle.result` (with deliver="all"
        the library makes receive buffers).
    op : mpi4py.MPI.Op, list of them or None
        One for all buffers or one for each; None: MPI.SUM. SUM, PROD, MIN, MAX for floats
        (float16 and bfloat16 accumulate in float32 and are rounded once); SUM, PROD for complex;
        these, LAND, LOR, LXOR, BAND, BOR, BXOR for integers, which wrap around; LAND, LOR,
        LXOR for bool. What MPI defines for other datatypes (``op=MPI.MAXLOC`` with
        ``[array, count, MPI.DOUBLE_INT]``), and commutative ops of your own, also on derived
        datatypes without gaps. Do not free an op before the handle.
    quorum : policy or str
        When a round may complete: "full" (all ranks), "solo", "majority", "quorum:6",
        "quorum:0.75", "first_of:2", "last_of:3", with any of
        ",linger=50us,deadline=2s,max_staleness=8"; see `partialcoll.policy`.
    deliver : "one" or "all"
        "one": the t-th call returns round t. "all": a call returns every round that this rank
        has not seen; end such loops with `AllreduceHandle.until`.
    history : int
        Rounds whose results are kept, 1 to 2**20. With "one" no rank lags more than that.
    late : "carry", "latest" or "drop"
        What becomes of a deposit that misses its round: added to the next one (default for
        SUM), replaced by the next one (default for other ops), forgotten.
    missed : "sum" or "latest"
        With deliver="all", what the receive buffers hold if a call delivers several rounds:
        their sum (op SUM), or the newest.
    progress : "agent", "manual" or "spin"
        Who communicates while the application computes: a thread that sleeps, nobody, a
        thread that polls. Default: PARTIALCOLL_PROGRESS or "agent".
    algorithm : "auto", "recdbl", "rabenseifner", "ring" or "native"
        How the data is reduced, see docs/algorithms.md. "auto" chooses by the number of ranks
        and bytes. Default: PARTIALCOLL_ALGORITHM or "auto".
    domain : "node", "rank", "auto", "node:K" or "auto:K"
        Which ranks reduce in shared memory, so that only one of them talks to others: those of
        a node (of at most K each), an error where its memory cannot be had; none, messages
        only; those of a node where that is possible. algorithm="native" and replays use
        messages only. Default: PARTIALCOLL_DOMAIN or "node".
    seed : int
        Of the draws; the same on all ranks.
    name : str
        For messages; must agree between ranks.
    like : buffer or list of buffers
        With sendbuf=None and recvbuf=None: gives the shapes and dtypes, and is not used
        otherwise. Then nothing is copied: write to `send_buffer`, read from `result`.
    on_failure : "raise" or "continue"
        When a rank dies: `RankFailedError` from every call; or the others go on without it, as
        if it had left, with no round and no deposit of theirs lost. "continue" needs an MPI that
        goes on itself, see docs/faults.md.
    on_membership : callable
        With "continue": called as ``on_membership(handle, failed, joined)`` with the ranks (lists
        of int) that have died, or come, since it was last called, from the call that returns the
        first round without them, or from the `AllreduceHandle.grow` that takes them in.
    join : bool
        Take the number of a rank that has died, in the handle of others of `comm`: they call
        `AllreduceHandle.grow` meanwhile.

    Raises MismatchError on every rank if the arguments differ between ranks; says which and where.
    But for `on_failure`: ranks that differ in it wait for each other. TypeError or ValueError if
    this rank's arguments are wrong (the other ranks get MismatchError). StateError for
    progress="agent" with an MPI initialized below MPI_THREAD_MULTIPLE, where an agent is needed:
    for messages, and for timers.

    Source: Li et al., PPoPP 2020, section 4; the contract is in docs/semantics.md.
    """
    given = locals().copy()
    for other in ("comm", "on_membership", "join"):
        del given[other]

    def arguments() -> Arguments:
        if on_membership is not None and not callable(on_membership):
            shown = checks.shown(on_membership)
            raise TypeError(f"on_membership: expected a function, got {shown}")
        return Arguments(**given)

    return AllreduceHandle(comm, arguments, on_membership, join)


def memory_estimate(
    comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any = None, op: Any = None, **options: Any
) -> int:
    """Bytes that a handle with these arguments and `options` (those of `Allreduce_init`, which
    says what is wrong with them) will hold on this rank, as if all ranks were on one node. Where
    they are on several, those of ``domain="rank"`` come in addition, at most. Local."""
    address(comm)
    given = {k: v for k, v in options.items() if k not in ("on_membership", "join")}
    return Arguments(sendbuf, recvbuf, op, **given).memory(comm.size)


# Several handles.


def _several(handles: Any) -> list[AllreduceHandle]:
    found = checks.several("handles", handles, what="a list of handles")
    if not all(isinstance(handle, AllreduceHandle) for handle in found):
        raise TypeError(f"handles: expected a list of handles, got {checks.shown(handles)}")
    return found


def Startall(handles: Sequence[AllreduceHandle]) -> None:
    """Start all `handles`, in this order. Local."""
    for handle in _several(handles):
        handle.Start()


def Waitall(handles: Sequence[AllreduceHandle], timeout: float | None = None) -> list[Round]:
    """Wait for all `handles`; their rounds, in this order. TimeoutError after `timeout` seconds
    (None: never) for any one of them; then none has been waited for, and all can be again."""
    checks.time_limit("timeout", timeout)
    several = _several(handles)
    for handle in several:
        handle._complete(timeout)
    return [handle.Wait() for handle in several]


def Waitany(handles: Sequence[AllreduceHandle], timeout: float | None = None) -> tuple[int, Round]:
    """Wait until the round of any started one of the `handles` is complete; its position and its
    round. TimeoutError after `timeout` seconds (None: never).

    Handles that are not started are passed over; StateError if none is.
    """
    checks.time_limit("timeout", timeout)
    handles = _several(handles)
    started = [h for h in handles if h._started]
    if not started:
        raise StateError("none of the handles is started")
    pointers = ffi.new("pcoll_handle *[]", [h._core() for h in started])
    index = ffi.new("int32_t *")
    done = waiting.wait(
        lambda us: int(lib.pcoll_wait_any(pointers, len(started), us, index)),
        timeout,
        lambda waited: waiting.report_missing(pointers[0], waited),
    )
    if not done:
        raise TimeoutError(f"no round was complete after {timeout} s; wait again")
    handle = started[index[0]]
    return handles.index(handle), handle.Wait()
