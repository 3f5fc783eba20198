# SPDX-License-Identifier: Apache-2.0
"""The drop-in: a call in place of ``comm.Allreduce``, its handles cached on the communicator."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from .._core import communicator
from .._core.attendance import attending
from .._core.buffers import check_match
from .._core.device import as_any_buffers
from .._core.ffi import ffi
from .._core.mpi import MPI
from ..policy import Policy, as_policy
from ..round import Round
from .allreduce import Allreduce_init, memory_estimate
from .handle import AllreduceHandle


@dataclass
class _Repeat:
    """The last call from a place in the program. The same once more, which is what loops do,
    needs no look at its arguments: most of the time of a call goes there."""

    send: Any
    recv: Any
    arguments: tuple[Any, ...]
    state: tuple[Any, ...]
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
    """What a communicator keeps: handles by their signature, the last call of each place."""

    handles: dict[Any, AllreduceHandle] = field(default_factory=dict)
    repeats: dict[Any, _Repeat] = field(default_factory=dict)
    sites: set[str] = field(default_factory=set)


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


def _place(depth: int) -> tuple[Any, int]:
    """Where the caller stands: for this process."""
    frame = sys._getframe(depth)
    return frame.f_code, frame.f_lasti


def _call_site(depth: int) -> str:
    """Where the caller stands: the same on all ranks that run the same file."""
    frame = sys._getframe(depth)
    code = frame.f_code
    module = frame.f_globals.get("__name__")
    file = os.path.basename(code.co_filename)
    positions = list(code.co_positions()) if hasattr(code, "co_positions") else []  # Python 3.11
    column = positions[frame.f_lasti // 2][2] if positions else None
    return f"{module}:{file}:{frame.f_lineno}:{column}:{code.co_name}:{frame.f_lasti}"


def _find(
    cache: _Cache, site: str, send: Any, recv: Any, op: Any, quorum: Any, options: dict[str, Any]
) -> AllreduceHandle | None:
    """The handle of a place, set to these buffers. None: there is none yet; if the arguments are
    wrong, its making reports that to all ranks. Later the others do not listen: raises."""
    in_place, given = send is MPI.IN_PLACE, (send, recv)
    try:
        recv = as_any_buffers("recvbuf", recv, writable=True)
        send = recv if in_place else as_any_buffers("sendbuf", send, writable=False)
        if not in_place:
            check_match(send, recv)
        handle = cache.handles.get(_signature(site, recv, op, quorum, in_place, options))
    except (TypeError, ValueError):
        if site in cache.sites:
            memory_estimate(MPI.COMM_SELF, *given, op, quorum=quorum, **options)  # says it better
            raise
        return None
    if handle is not None:
        if handle._started:  # a call was interrupted while it waited
            handle.Wait()
        handle._set_buffers(send, recv)
    return handle


def _signature(
    site: str, recv: Any, op: Any, quorum: Any, in_place: bool, options: dict[str, Any]
) -> tuple[Any, ...]:
    shape = tuple(buffer.key for buffer in recv)
    # Who is told of deaths is no part of it: a function may be another one each time.
    more = tuple(sorted(one for one in options.items() if one[0] != "on_membership"))
    return (site, shape, str(as_policy(quorum)), _op_key(op), in_place, more)


def _make(
    comm: Any, cache: _Cache, site: str, send: Any, recv: Any, op: Any, quorum: Any, options: Any
) -> AllreduceHandle:
    communicator.address(comm)  # a TypeError, unless it is one
    with attending("Allreduce", comm):
        handle = Allreduce_init(comm, send, recv, op=op, quorum=quorum, **options, name=site)
    buffers = as_any_buffers("recvbuf", recv, writable=True)
    signature = _signature(site, buffers, op, quorum, send is MPI.IN_PLACE, options)
    cache.handles[signature] = handle
    cache.sites.add(site)
    return handle


def Allreduce(
    comm: MPI.Intracomm,
    sendbuf: Any,
    recvbuf: Any,
    op: Any = None,
    *,
    quorum: Policy | str = "majority",
    name: str | None = None,
    **options: Any,
) -> Round:
    """Partial allreduce in place of ``comm.Allreduce(sendbuf, recvbuf, op)``.

    The first call from a place in the program makes a persistent handle (collective), which
    is cached on the communicator by `name` (default: the place of the call), the buffers'
    sizes and dtypes, op and options; later calls from there use it. Two sums in one loop stand
    in two places, so they never share a handle; where one place serves several, give
    each a name. The handles are freed with the communicator.

    Parameters, and what else `options` may be, are those of `Allreduce_init`, but for `recvbuf`,
    which is a buffer; returns the `Round`.
    """
    usable = isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL
    cache = _cache_of(comm) if usable else _Cache()
    op = MPI.SUM if op is None else op
    place = name if name is not None else _place(2)
    arguments = (op, quorum, options)
    repeat = cache.repeats.get(place)
    if repeat is None or not repeat.fits(sendbuf, recvbuf, arguments):
        site = name if name is not None else _call_site(2)
        handle = _find(cache, site, sendbuf, recvbuf, op, quorum, options)
        if handle is None:
            handle = _make(comm, cache, site, sendbuf, recvbuf, op, quorum, options)
        cache.repeats.pop(place, None)
        if _is_plain(sendbuf, recvbuf, op):
            state = _state(sendbuf, recvbuf)
            if not any(one is None for one in state):
                cache.repeats[place] = _Repeat(sendbuf, recvbuf, arguments, state, handle)
    else:
        handle = repeat.handle
        if handle._started:
            handle.Wait()
    handle.Start()
    return handle.Wait()
