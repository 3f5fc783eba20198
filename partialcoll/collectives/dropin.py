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
class _Repeat:
    """The last call from a place in the program. The same once more, which is what loops do,
    needs no look at its arguments: most of the time of a call goes there."""

    send: Any
    recv: Any
    arguments: tuple[Any, ...]
    state: tuple[Any, ...]
    signature: tuple[Any, ...]
    handle: AllreduceHandle

    def fits(self, send: Any, recv: Any, arguments: tuple[Any, ...]) -> bool:
        """Are these the same buffers, as they were, the same arguments, and has nobody else set
        the handle to other buffers?"""
        return (
            send is self.send
            and recv is self.recv
            and _are_equal(arguments, self.arguments)
            and self.handle._serves(send, recv)
            and self.state == _state(send, recv)
        )


def _are_equal(arguments: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """What cannot be compared, an array in the place of an option, is looked at once more."""
    try:
        return arguments == others
    except (TypeError, ValueError):
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


def _is_plain(send: Any, recv: Any, op: Any) -> bool:
    arrays = type(recv) is np.ndarray and (send is MPI.IN_PLACE or type(send) is np.ndarray)
    return arrays and isinstance(op, MPI.Op)


@dataclass
class _Cache:
    """What a communicator keeps: handles by their signature, the last call of each place.

    used : the number of the last call of each signature: the same on all ranks, which make the
        same calls in the same order. The handle that was used least recently is freed first.
    received : the receive buffers of each signature whose calls could be mixed, oldest first.
    """

    handles: dict[Any, AllreduceHandle] = field(default_factory=dict)
    repeats: dict[Any, _Repeat] = field(default_factory=dict)
    sites: set[str] = field(default_factory=set)
    calls: int = 0
    used: dict[Any, int] = field(default_factory=dict)
    received: dict[Any, deque[Any]] = field(default_factory=dict)

    def count(self, signature: tuple[Any, ...]) -> None:
        """Note that this handle is used."""
        self.calls += 1
        self.used[signature] = self.calls

    def take_oldest(self) -> AllreduceHandle:
        """Return the handle that was used least recently, which is kept no longer."""
        oldest = min(self.handles, key=lambda signature: self.used.get(signature, 0))
        handle = self.handles.pop(oldest)
        self.used.pop(oldest, None)
        self.received.pop(oldest, None)
        kept = self.repeats.items()
        self.repeats = {place: one for place, one in kept if one.handle is not handle}
        self.sites = {signature[0] for signature in self.handles}
        return handle


def _free_cached(comm: MPI.Comm, keyval: int, cache: _Cache) -> None:
    for handle in cache.handles.values():
        handle.Free()


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


def _call_site(depth: int) -> str:
    """Return the place of a call, the same text on all ranks that run the same file."""
    return _describe(sys._getframe(depth))


def _call_path(depth: int) -> str:
    """Return a digest of the places of the calls that lead to that place."""
    digest = hashlib.blake2b(digest_size=8)
    frame: Any = sys._getframe(depth)
    while frame is not None:
        digest.update(_describe(frame).encode())
        frame = frame.f_back
    return digest.hexdigest()


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
    cache: _Cache, site: str, send: Any, recv: Any, op: Any, quorum: Any, options: dict[str, Any]
) -> tuple[Any, AllreduceHandle | None]:
    """Return the signature of a call and its handle, set to these buffers. None: there is no
    handle yet; if the arguments are wrong, its making reports that to all ranks. Later the others
    do not listen: raises."""
    in_place, given = send is MPI.IN_PLACE, (send, recv)
    try:
        recv = as_any_buffers("recvbuf", recv, writable=True)
        send = recv if in_place else as_any_buffers("sendbuf", send, writable=False)
        if not in_place:
            check_match(send, recv)
        signature = _signature(site, recv, op, quorum, in_place, options)
        handle = cache.handles.get(signature)
    except (TypeError, ValueError):
        if site in cache.sites:
            memory_estimate(MPI.COMM_SELF, *given, op, quorum=quorum, **options)  # says it better
            raise
        return None, None
    if handle is not None:
        if handle._started:  # a call was interrupted while it waited
            handle.Wait()
        handle._set_buffers(send, recv)
    return signature, handle


def _signature(
    site: str, recv: Any, op: Any, quorum: Any, in_place: bool, options: dict[str, Any]
) -> tuple[Any, ...]:
    shape = tuple(buffer.key for buffer in recv)
    # Who is told of deaths is no part of it: a function may be another one each time.
    more = tuple(sorted(one for one in options.items() if one[0] != "on_membership"))
    return (site, shape, str(as_policy(quorum)), _op_key(op), in_place, more)


def _make(
    comm: Any,
    cache: _Cache,
    name: str,
    site: str,
    send: Any,
    recv: Any,
    op: Any,
    quorum: Any,
    options: Any,
) -> tuple[Any, AllreduceHandle]:
    communicator.address(comm)  # a TypeError, unless it is one
    with attending("Allreduce", comm):
        if len(cache.handles) >= _KEPT:
            _free_oldest(cache)
        handle = Allreduce_init(comm, send, recv, op=op, quorum=quorum, **options, name=name)
    buffers = as_any_buffers("recvbuf", recv, writable=True)
    signature = _signature(site, buffers, op, quorum, send is MPI.IN_PLACE, options)
    cache.handles[signature] = handle
    cache.sites.add(site)
    return signature, handle


def _free_oldest(cache: _Cache) -> None:
    """Free the handle that was used least recently. Collective. What is late for it comes in a
    last round, which no call returns: a warning says so."""
    handle, late = cache.take_oldest(), 0

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


def _check_buffer(cache: _Cache, signature: Any, recv: Any) -> None:
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
    seen = cache.received.setdefault(signature, deque(maxlen=_REMEMBERED))
    known = [one for one in seen if one[0]() is owner and one[1] == place]
    if known and known[0] is not seen[-1]:
        raise ValueError(
            "recvbuf: calls from this place take turns with several buffers, and with this quorum "
            "what is late for one sum would be added to another one; give each sum a name=, or one "
            "name to all calls if the buffers are of one sum"
        )
    if not known:
        seen.append((reference, place))


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
    if repeat is None or not repeat.fits(sendbuf, recvbuf, arguments):
        shown = site = name if name is not None else _call_site(2)
        if mixes:
            site = f"{shown} {_call_path(2)}"
        signature, handle = _find(cache, site, sendbuf, recvbuf, op, quorum, options)
        if handle is None:
            call = (sendbuf, recvbuf, op, quorum, options)
            signature, handle = _make(comm, cache, shown, site, *call)
        if mixes:
            _check_buffer(cache, signature, recvbuf)
        cache.repeats.pop(place, None)
        if _is_plain(sendbuf, recvbuf, op):
            state = _state(sendbuf, recvbuf)
            if not any(one is None for one in state):
                cache.repeats[place] = _Repeat(
                    sendbuf, recvbuf, arguments, state, signature, handle
                )
    else:
        handle, signature = repeat.handle, repeat.signature
        if handle._started:
            handle.Wait()
    cache.count(signature)
    handle.Start()
    return handle.Wait()
