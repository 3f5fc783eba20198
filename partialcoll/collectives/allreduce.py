# SPDX-License-Identifier: Apache-2.0
"""Making handles, the calls on several of them, and the drop-in: a call in place of
``comm.Allreduce``, its handles cached on the communicator."""

from __future__ import annotations

import hashlib
import os
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, cast

import numpy as np

from .._core import checks, waiting
from .._core.attendance import attending
from .._core.buffers import Array, check_match
from .._core.communicator import address
from .._core.device import as_any_buffers
from .._core.ffi import ffi, lib
from .._core.mpi import MPI
from .._core.settings import logger
from ..errors import StateError
from ..policy import Full, Policy, as_policy
from ..round import Round
from .handle import AllreduceHandle, Arguments


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
        memory, which saves a copy: `AllreduceHandle.result` (with deliver="all" the library makes
        receive buffers).
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
        How communication progresses while the application computes: by a thread that sleeps, not
        at all, or by a thread that polls. Default: PARTIALCOLL_PROGRESS or "agent".
    algorithm : "auto", "recdbl", "rabenseifner", "ring" or "native"
        How the data is reduced, see docs/algorithms.md. Default: PARTIALCOLL_ALGORITHM or "auto".
    domain : "node", "rank", "auto", "node:K" or "auto:K"
        Which ranks reduce in shared memory, so that only one of them talks to others: those of
        a node (of at most K each), an error where its memory cannot be had; none, messages
        only; those of a node where that is possible. Default: PARTIALCOLL_DOMAIN or "node".
    seed : int
        Of the draws; the same on all ranks.
    name : str
        For messages; must agree between ranks.
    like : buffer or list of buffers
        The shapes and dtypes, with sendbuf=None and recvbuf=None. Then nothing is copied: write to
        `send_buffer`, read from `result`.
    on_failure : "raise" or "continue"
        When a rank dies: `RankFailedError` from every call; or the others go on without it, with no
        round and no deposit of theirs lost. "continue" needs an MPI that does, see docs/faults.md.
    on_membership : callable
        With "continue": called as ``on_membership(handle, failed, joined)`` with the ranks (lists
        of int) that have died, or come, since it was last called, from the call that returns the
        first round without them, or from the `AllreduceHandle.grow` that takes them in.
    join : bool
        Take the number of a rank that has died, in the handle of others of `comm`: they call
        `AllreduceHandle.grow` meanwhile.

    MismatchError on every rank if the arguments differ between ranks (but for `on_failure`: ranks
    that differ in it wait for each other). TypeError or ValueError if this rank's arguments are
    wrong (the others get MismatchError). StateError for progress="agent" where an agent is needed,
    for messages or timers, and MPI was initialized below MPI_THREAD_MULTIPLE.

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


# A full allreduce whose buffers go one by one, with MPI-4's meaning of `Pready`.


class Partitioned:
    """The part of a handle's interface that `Replicated` needs. Collective.

    Each buffer has its own handle, so its reduction begins as soon as all ranks have called
    `Pready` for it, in any order. All handles are full, and every rank starts each of them once in
    a step. So round t of all handles has the same ranks, and the last handle describes it. A call
    that was interrupted is resumed: the handles know what they have started and received.

    send : sequence of arrays or tensors
        What the buffers look like; with `recv` the send buffers themselves. Sums.
    recv : sequence of arrays or tensors, or None
        Where the sums go; None: they stay in the library's memory, and so are deposits there.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        send: Sequence[Any],
        recv: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        self._parts: list[AllreduceHandle] = []
        self.last_round: Round | None = None
        try:
            for i, one in enumerate(send):
                there = (None, None) if recv is None else (one, recv[i])
                like = one if recv is None else None
                self._parts.append(Allreduce_init(comm, *there, like=like, **options))
        except BaseException:  # on all ranks
            self.Free()
            raise

    @property
    def send_buffer(self) -> list[Array]:
        """Arrays for the next deposit. A buffer's address changes when it is sent."""
        return [part.send_buffer for part in self._parts]

    def _send_place(self) -> tuple[int, ...]:
        return tuple(part._send_place() for part in self._parts)

    def Pready(self, buffer: int) -> None:
        """This buffer is filled, and goes. Local."""
        self._parts[buffer].Start()

    def Start(self) -> None:
        """Start the buffers that have not gone yet. Local."""
        for part in self._parts:
            if not part._started:
                part.Start()

    def Wait(self) -> Round:
        """Wait for the sums of all buffers."""
        for part in self._parts:
            if part._started:
                part.Wait()
        return self._whole()

    def _whole(self) -> Round:
        """Return the last round, with the results of all buffers, as long as these are good."""
        rounds = [part.last_round for part in self._parts]

        def look(_: int) -> list[Array]:
            return [array for rnd in rounds if rnd for array in rnd.results[0].buffers]

        assert rounds[-1] is not None
        self.last_round = Round(rounds[-1].results[0].with_buffers(look))
        return self.last_round

    def join(self, on_round: Callable[[Round], None]) -> Round:
        """Contribute nothing until all ranks have joined. Collective."""
        index = 0 if self.last_round is None else self.last_round.index + 1
        for part in self._parts:
            last = part.last_round
            if last is None or last.index < index or not last.joined:
                part._begin_join()
        while True:
            for part in self._parts:
                if part.last_round is None or part.last_round.index < index:
                    part._next_joined()
            whole = self._whole()
            index += 1
            on_round(whole)
            if whole.joined:
                return whole

    @property
    def _started(self) -> bool:
        return self._parts[-1]._started

    def Free(self) -> None:
        """Collective; idempotent."""
        for part in self._parts:
            part.Free()


# The drop-in.

_KEPT = 64  # handles of a communicator
_REMEMBERED = 16  # receive buffers of a place


@dataclass
class _Kept:
    """A handle that a communicator keeps.

    used : the number of its last call: the same on all ranks, which make the same calls in the
        same order. The handle that was used least recently is freed first.
    received : the receive buffers of calls that could be mixed, oldest first.
    arguments, state : of the last call. The same once more, which is what loops do, needs no
        check of its arguments: most of the time of a call goes there.
    """

    site: str
    handle: AllreduceHandle
    used: int = 0
    received: deque[Any] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    arguments: tuple[Any, ...] = ()
    state: tuple[Any, ...] = ()

    def fits(self, send: Any, recv: Any, arguments: tuple[Any, ...]) -> bool:
        """Return whether the handle has these buffers, and they and the arguments are as before."""
        try:
            return (
                arguments == self.arguments
                and self.handle._serves(send, recv)
                and bool(self.state)
                and self.state == _state(send, recv)
            )
        except (TypeError, ValueError):  # what cannot be compared: an array in place of an option
            return False


def _state(send: Any, recv: Any) -> tuple[Any, ...]:
    """Return what arrays may have changed: memory, sizes, dtypes. Empty if one cannot be used."""
    try:
        own = ffi.from_buffer(recv, require_writable=True), recv.nbytes, recv.dtype
        return (
            own if send is MPI.IN_PLACE else (*own, ffi.from_buffer(send), send.nbytes, send.dtype)
        )
    except (BufferError, TypeError, ValueError):
        return ()


@dataclass
class _Cache:
    """The cache of a communicator: handles by signature, and the last handle of each call site."""

    handles: dict[Any, _Kept] = field(default_factory=dict)
    repeats: dict[Any, _Kept] = field(default_factory=dict)
    calls: int = 0


def _free_cached(comm: MPI.Comm, keyval: int, cache: _Cache) -> None:
    for kept in cache.handles.values():
        kept.handle.Free()


_keyval: int | None = None  # made at the first call


def _cache_of(comm: MPI.Comm) -> _Cache:
    global _keyval
    if _keyval is None:
        _keyval = MPI.Comm.Create_keyval(delete_fn=_free_cached)
    cache: Any = comm.Get_attr(_keyval)
    if cache is None:
        cache = _Cache()
        comm.Set_attr(_keyval, cache)
    return cast("_Cache", cache)


def _op_key(op: Any) -> Any:
    if isinstance(op, (list, tuple)):
        return tuple(_op_key(one) for one in op)
    return op.handle if isinstance(op, MPI.Op) else repr(op)


def _can_mix(quorum: Any, options: dict[str, Any]) -> bool:
    """Return whether what is late for one call is added to the next one."""
    full = isinstance(quorum, (str, Policy)) and quorum in ("full", Full())
    late = options.get("late")  # not checked yet: it may be an array
    return not full and not (isinstance(late, str) and late == "drop")


def _frames(depth: int, path: bool) -> list[Any]:
    """Return the frame of a call; with `path`, also those that lead to it."""
    frame: Any = sys._getframe(depth)
    found = [frame]
    while path and (frame := frame.f_back) is not None:
        found.append(frame)
    return found


def _site(frames: list[Any]) -> tuple[str, str]:
    """Return the place of a call, the same text on all ranks that run the same file; and the same
    with a digest of the places of the calls that lead to it, if there are more frames."""
    texts = []
    for frame in frames:
        code, module = frame.f_code, frame.f_globals.get("__name__")
        file = os.path.basename(code.co_filename)
        texts.append(f"{module}:{file}:{frame.f_lineno}:{code.co_name}:{frame.f_lasti}")
    digest = hashlib.blake2b("".join(texts).encode(), digest_size=8).hexdigest()
    return texts[0], f"{texts[0]} {digest}" if len(texts) > 1 else texts[0]


def _find(
    comm: Any,
    cache: _Cache,
    site: tuple[str, str],
    buffers: tuple[Any, Any],
    op: Any,
    quorum: Any,
    options: dict[str, Any],
) -> _Kept:
    """Return the handle of a call, set to these buffers. If there is none yet, make it; if the
    arguments are wrong, its making reports that to all ranks. Later the others do not listen:
    raises. Collective if it makes one."""
    in_place = buffers[0] is MPI.IN_PLACE

    def checked() -> tuple[Any, Any, Any]:
        """Return the buffers, and the signature of the call."""
        recv = as_any_buffers("recvbuf", buffers[1], writable=True)
        send = recv if in_place else as_any_buffers("sendbuf", buffers[0], writable=False)
        if not in_place:
            check_match(send, recv)
        shape = tuple(buffer.key for buffer in recv)
        # Leave out on_membership: the caller may pass another function object in each call.
        more = tuple(sorted(one for one in options.items() if one[0] != "on_membership"))
        signature = (site[1], shape, str(as_policy(quorum)), _op_key(op), in_place, more)
        return send, recv, signature

    try:
        send, recv, signature = checked()
        kept = cache.handles.get(signature)
    except (TypeError, ValueError):
        if any(one.site == site[1] for one in cache.handles.values()):
            memory_estimate(MPI.COMM_SELF, *buffers, op, quorum=quorum, **options)  # says it better
            raise
        kept = None
    if kept is None:
        address(comm)  # a TypeError, unless it is one
        with attending("Allreduce", comm):
            if len(cache.handles) >= _KEPT:
                _free_oldest(cache)
            given = {**options, "quorum": quorum, "name": site[0]}
            handle = Allreduce_init(comm, *buffers, op, **given)
        kept = cache.handles[checked()[2]] = _Kept(site[1], handle)
        return kept
    if kept.handle._started:  # a call was interrupted while it waited
        kept.handle.Wait()
    kept.handle._set_buffers(send, recv)
    return kept


def _free_oldest(cache: _Cache) -> None:
    """Free the handle that was used least recently. Collective. What is late for it comes in a
    last round, which no call returns: a warning says so."""
    kept = cache.handles.pop(min(cache.handles, key=lambda one: cache.handles[one].used))
    cache.repeats = {place: one for place, one in cache.repeats.items() if one is not kept}
    handle, late = kept.handle, [0]
    if handle._started:  # a call was interrupted while it waited
        handle.Wait()
    if not isinstance(handle.policy, Full):
        handle.join(on_round=lambda rnd: late.append(rnd.active))
    if sum(late) and handle.rank == 0:
        logger.warning(
            "Allreduce keeps %d handles for a communicator; the one of %r has been freed, and "
            "contributions of %d ranks that were late for it are lost: take Allreduce_init",
            *(_KEPT, handle._name, sum(late)),
        )
    handle.Free()


def _check_buffer(kept: _Kept, recv: Any) -> None:
    """Raise ValueError if calls of one handle take turns with receive buffers: those are several
    sums, and what is late for one of them would be added to another one."""
    owner = recv
    while isinstance(owner, np.ndarray) and isinstance(owner.base, np.ndarray):
        owner = owner.base
    try:
        reference = weakref.ref(owner)
    except TypeError:  # a list of buffers
        return
    place = recv.__array_interface__["data"][0] if isinstance(recv, np.ndarray) else 0
    known = [one for one in kept.received if one[0]() is owner and one[1] == place]
    if known and known[0] is not kept.received[-1]:
        raise ValueError(
            "recvbuf: calls from this place take turns with several buffers, and with this quorum "
            "what is late for one sum would be added to another one; give each sum a name=, or one "
            "name to all calls if the buffers are of one sum"
        )
    if not known:
        kept.received.append((reference, place))


def Allreduce(
    comm: MPI.Intracomm,
    sendbuf: Any,
    recvbuf: Any,
    op: Any = None,
    *,
    quorum: Policy | str = "full",
    name: str | None = None,
    **options: Any,
) -> Round:
    """Sum in place of ``comm.Allreduce(sendbuf, recvbuf, op)``: all ranks, or those of a `quorum`.

    The first call from a place in the program makes a persistent handle (collective), which the
    communicator keeps by `name` (default: the place of the call), the buffers' sizes and dtypes, op
    and options; later calls from there use it. Where what is late for a call is added to the next
    one, the place includes the calls that lead to it. Where calls from one place take turns with
    receive buffers, ValueError asks for a name. All ranks must come to the places in the same
    order. A communicator keeps 64 handles, and frees the one that was used least recently.

    Parameters, and what else `options` may be, are those of `Allreduce_init`, but for `recvbuf`,
    which is a buffer; returns the `Round`.
    """
    usable = isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL
    cache = _cache_of(comm) if usable else _Cache()
    op = MPI.SUM if op is None else op
    mixes, frames = name is None and _can_mix(quorum, options), []
    place: Any = name
    if name is None:
        frames = _frames(2, mixes)
        place = tuple((frame.f_code, frame.f_lasti) for frame in frames)
    arguments = (op, quorum, options)
    kept = cache.repeats.get(place)
    if kept is not None and kept.fits(sendbuf, recvbuf, arguments):
        if kept.handle._started:
            kept.handle.Wait()
    else:
        site = (name, name) if name is not None else _site(frames)
        kept = _find(comm, cache, site, (sendbuf, recvbuf), op, quorum, options)
        if mixes:
            _check_buffer(kept, recvbuf)
        arrays = all(one is MPI.IN_PLACE or type(one) is np.ndarray for one in (sendbuf, recvbuf))
        comparable = arrays and isinstance(op, MPI.Op)
        kept.arguments, kept.state = arguments, _state(sendbuf, recvbuf) if comparable else ()
        cache.repeats[place] = kept
    cache.calls = kept.used = cache.calls + 1
    kept.handle.Start()
    return kept.handle.Wait()
