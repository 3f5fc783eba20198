# SPDX-License-Identifier: Apache-2.0
"""The drop-in: a call in place of ``comm.Allreduce``, its handles cached on the communicator."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from .._core import communicator
from .._core.attendance import attending
from .._core.buffers import check_match
from .._core.device import as_any_buffers
from .._core.ffi import ffi
from .._core.mpi import MPI
from .._core.settings import logger
from ..policy import Full, Policy, as_policy
from ..round import Round
from .allreduce import Allreduce_init, memory_estimate
from .handle import AllreduceHandle

_KEPT = 64  # handles of a communicator
_REMEMBERED = 16  # receive buffers of a place


@dataclass
class _Kept:
    """A handle that a communicator keeps.

    used : the number of its last call: the same on all ranks, which make the same calls in the
        same order. The handle that was used least recently is freed first.
    received : the receive buffers of calls that could be mixed, oldest first.
    """

    site: str
    handle: AllreduceHandle
    used: int = 0
    received: deque[Any] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass
class _Repeat:
    """The last call from a place in the program. The same once more, which is what loops do,
    needs no look at its arguments: most of the time of a call goes there."""

    send: Any
    recv: Any
    arguments: tuple[Any, ...]
    state: tuple[Any, ...]
    kept: _Kept

    def fits(self, send: Any, recv: Any, arguments: tuple[Any, ...]) -> bool:
        """Are these the same buffers, as they were, the same arguments, and has nobody else set
        the handle to other buffers?"""
        try:
            return (
                send is self.send
                and recv is self.recv
                and arguments == self.arguments
                and self.kept.handle._serves(send, recv)
                and self.state == _state(send, recv)
            )
        except (TypeError, ValueError):  # what cannot be compared: an array in place of an option
            return False


def _look(array: Any, writable: bool) -> tuple[Any, ...]:
    """What an array may have changed: its memory, its size, its dtype; None if it is no buffer
    that can be used."""
    try:
        return (ffi.from_buffer(array, require_writable=writable), array.nbytes, array.dtype)
    except (BufferError, TypeError, ValueError):
        return (None,)


def _state(send: Any, recv: Any) -> tuple[Any, ...]:
    own = _look(recv, True)
    return own if send is MPI.IN_PLACE else own + _look(send, False)


@dataclass
class _Cache:
    """What a communicator keeps: handles by their signature, the last call of each place."""

    handles: dict[Any, _Kept] = field(default_factory=dict)
    repeats: dict[Any, _Repeat] = field(default_factory=dict)
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


def _place(depth: int, path: bool) -> tuple[Any, ...]:
    """Return the place of a call in this process; with `path`, also of those that lead to it."""
    frame: Any = sys._getframe(depth)
    if not path:
        return frame.f_code, frame.f_lasti
    found = []
    while frame is not None:
        found += [frame.f_code, frame.f_lasti]
        frame = frame.f_back
    return tuple(found)


def _site(depth: int, path: bool) -> tuple[str, str]:
    """Return the place of a call, the same text on all ranks that run the same file; and, with
    `path`, the same with a digest of the places of the calls that lead to it."""
    frame: Any = sys._getframe(depth)
    shown, digest = _describe(frame), hashlib.blake2b(digest_size=8)
    while path and frame is not None:
        digest.update(_describe(frame).encode())
        frame = frame.f_back
    return shown, f"{shown} {digest.hexdigest()}" if path else shown


def _describe(frame: Any) -> str:
    module, code = str(frame.f_globals.get("__name__")), frame.f_code
    return _describe_place(module, code, code.co_filename, frame.f_lineno, frame.f_lasti)


@functools.lru_cache(maxsize=1024)
def _describe_place(module: str, code: Any, path: str, line: int, instruction: int) -> str:
    file = os.path.basename(path)
    positions = list(code.co_positions()) if hasattr(code, "co_positions") else []  # Python 3.11
    column = positions[instruction // 2][2] if positions else None
    return f"{module}:{file}:{line}:{column}:{code.co_name}:{instruction}"


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
        # Who is told of deaths is no part of it: a function may be another one each time.
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
        communicator.address(comm)  # a TypeError, unless it is one
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
    repeats = cache.repeats.items()
    cache.repeats = {place: one for place, one in repeats if one.kept is not kept}
    handle, late = kept.handle, 0

    def count(rnd: Round) -> None:
        nonlocal late
        late += rnd.active

    if handle._started:  # a call was interrupted while it waited
        handle.Wait()
    if not isinstance(handle.policy, Full):
        handle.join(on_round=count)
    if late and handle.rank == 0:
        logger.warning(
            "Allreduce keeps %d handles for a communicator; the one of %r has been freed, and "
            "contributions of %d ranks that were late for it are lost: take Allreduce_init",
            *(_KEPT, handle._name, late),
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

    The first call from a place in the program makes a persistent handle (collective), which
    is cached on the communicator by `name` (default: the place of the call), the buffers'
    sizes and dtypes, op and options; later calls from there use it. Where what is late for a call
    is added to the next one, the place includes the calls that lead to it: a function that calls
    this for several sums has a handle for each place that it is called from. Where calls from one
    place take turns with receive buffers, ValueError asks for a name. All ranks must come to the
    places in the same order. A communicator keeps 64 handles, and frees the one that was used
    least recently; the others are freed with it.

    Parameters, and what else `options` may be, are those of `Allreduce_init`, but for `recvbuf`,
    which is a buffer; returns the `Round`.
    """
    usable = isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL
    cache = _cache_of(comm) if usable else _Cache()
    op = MPI.SUM if op is None else op
    mixes = name is None and _can_mix(quorum, options)
    place = name if name is not None else _place(2, mixes)
    arguments = (op, quorum, options)
    repeat = cache.repeats.get(place)
    if repeat is not None and repeat.fits(sendbuf, recvbuf, arguments):
        kept = repeat.kept
        if kept.handle._started:
            kept.handle.Wait()
    else:
        site = (name, name) if name is not None else _site(2, mixes)
        kept = _find(comm, cache, site, (sendbuf, recvbuf), op, quorum, options)
        if mixes:
            _check_buffer(kept, recvbuf)
        cache.repeats.pop(place, None)
        arrays = all(one is MPI.IN_PLACE or type(one) is np.ndarray for one in (sendbuf, recvbuf))
        state = _state(sendbuf, recvbuf) if arrays and isinstance(op, MPI.Op) else (None,)
        if not any(one is None for one in state):
            cache.repeats[place] = _Repeat(sendbuf, recvbuf, arguments, state, kept)
    cache.calls = kept.used = cache.calls + 1
    kept.handle.Start()
    return kept.handle.Wait()
