# SPDX-License-Identifier: Apache-2.0
"""Making handles, and the calls on several of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _buffers, _launch, _ops, _settings, _waiting
from ._buffers import Buffer
from ._comm import PROGRESS
from ._comm import address as address_of
from ._errors import StateError
from ._ffi import check, ffi, lib
from ._handle import ALGORITHMS, AllreduceHandle
from ._round import Round
from .policy import Policy, as_policy, fill

_DELIVER = {"one": lib.PCOLL_DELIVER_ONE, "all": lib.PCOLL_DELIVER_ALL}
_LATE = {
    "carry": lib.PCOLL_LATE_CARRY,
    "latest": lib.PCOLL_LATE_LATEST,
    "drop": lib.PCOLL_LATE_DROP,
}


def _code(argument: str, value: Any, codes: dict[str, int]) -> int:
    if value not in codes:
        expected = ", ".join(repr(word) for word in codes)
        raise ValueError(f"{argument}: expected one of {expected}, got {value!r}")
    return codes[value]


def _set_domain(options: Any, domain: str | None) -> None:
    source, text = _settings.given("domain", domain, "PARTIALCOLL_DOMAIN", "node")
    if not isinstance(text, str):
        raise TypeError(f"{source}: expected a text such as 'node', got {type(text).__name__}")
    most = ffi.addressof(options, "domain_ranks")
    if lib.pcoll_domain_parse(text.encode(), ffi.addressof(options, "domain"), most):
        message = ffi.string(lib.pcoll_last_error()).decode(errors="replace")
        raise ValueError(message.replace("domain", source, 1))


def _as_ops(op: Any, count: int) -> list[Any]:
    if not isinstance(op, (list, tuple)):
        return [op] * count
    if len(op) != count:
        raise ValueError(f"op: expected one, or one for each of the {count} buffers, got {len(op)}")
    return list(op)


class _Arguments:
    """The checked arguments of one handle on this rank, in the core's form."""

    def __init__(
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: Any,
        quorum: Policy | str,
        deliver: str,
        history: int,
        late: str | None,
        missed: str,
        progress: str | None,
        algorithm: str | None,
        domain: str | None,
        seed: int,
        name: str | None,
        like: Any,
    ) -> None:
        # With "all" a call may deliver several rounds: they are added up in a buffer.
        self.received = recvbuf is not None or deliver != "one"
        self._take_buffers(sendbuf, recvbuf, like)
        self.ops = _as_ops(op, len(self.recv))
        codes = [_ops.op_code(one) for one in self.ops]
        for one, code, buffer in zip(self.ops, codes, self.recv):
            _ops.check_op(one, code, buffer)
        sums = all(code == lib.PCOLL_SUM for code in codes)
        self.sums = [_ops.can_add(code, buffer) for code, buffer in zip(codes, self.recv)]
        self.buffers = _buffers.describe(self.recv, self.ops, codes)
        self.policy = as_policy(quorum)
        if late is None:
            late = "carry" if sums else "latest"
        if late == "carry" and not sums:
            raise ValueError(
                'late: "carry" adds deposits up, so it needs op=MPI.SUM; use "latest" or "drop"'
            )
        if missed not in ("sum", "latest"):
            raise ValueError(f"missed: expected 'sum' or 'latest', got {missed!r}")
        if isinstance(history, bool) or not isinstance(history, (int, np.integer)):
            raise TypeError(f"history: expected a number of rounds, got {type(history).__name__}")
        if not 1 <= history <= 2**20:
            raise ValueError(f"history: expected 1 to {2**20} rounds, got {history}")
        algorithm = _settings.choice(
            "algorithm", algorithm, "PARTIALCOLL_ALGORITHM", "auto", ALGORITHMS
        )
        progress = _settings.choice(
            "progress", progress, "PARTIALCOLL_PROGRESS", "agent", list(PROGRESS)
        )
        self.deliver = deliver
        self.missed = missed
        self.options = ffi.new("pcoll_options *")
        fill(self.policy, self.options.policy)
        _set_domain(self.options, domain)
        self.options.deliver = _code("deliver", deliver, _DELIVER)
        self.options.algorithm = ALGORITHMS.index(algorithm)
        self.options.late = _code("late", late, _LATE)
        self.options.progress = PROGRESS[progress]
        self.options.owned_send = self.send is None
        self.options.history = history
        self.options.seed = int(seed) % 2**64
        self.options.name = _hash(name)

    def _take_buffers(self, sendbuf: Any, recvbuf: Any, like: Any) -> None:
        in_place = sendbuf is MPI.IN_PLACE
        self.send: list[Buffer] | None = None
        if not in_place and sendbuf is not None:
            self.send = _buffers.as_buffers("sendbuf", sendbuf, writable=False)
        if like is not None and not (sendbuf is None and recvbuf is None):
            raise ValueError("like: expected sendbuf=None and recvbuf=None with it, got a buffer")
        if recvbuf is not None:
            self.recv = _buffers.as_buffers("recvbuf", recvbuf, writable=True)
            self._check_received(in_place)
        elif in_place:
            raise ValueError("recvbuf: expected a buffer with sendbuf=MPI.IN_PLACE, got None")
        else:
            self.recv = self._unreceived(like)
        given = sendbuf if self.send is not None and not in_place else recvbuf
        self.single = not _buffers.is_list(like if given is None else given)

    def _check_received(self, in_place: bool) -> None:
        if in_place:
            _buffers.check_apart("recvbuf", self.recv)
            self.send = self.recv
        elif self.send is not None:
            _buffers.check_match(self.send, self.recv)

    def _unreceived(self, like: Any) -> list[Buffer]:
        """No receive buffers are given: what results look like, and room for them if needed."""
        buffers = self.send
        if buffers is None:
            if like is None:
                raise ValueError(
                    "recvbuf: expected a buffer, or one to go by in like=, got None with "
                    "sendbuf=None"
                )
            buffers = _buffers.as_buffers("like", like, writable=False, used=False)
        return [buffer.like() if self.received else buffer.outline() for buffer in buffers]

    def memory(self, ranks: int) -> int:
        """Bytes that a handle with these arguments holds on this rank."""
        total = ffi.new("uint64_t *")
        check(lib.pcoll_memory_estimate(ranks, self.buffers, len(self.recv), self.options, total))
        return int(total[0])


def _hash(name: str | None) -> int:
    if name is None:
        return 0
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _tell_the_others(address: Any) -> None:
    """This rank's arguments are wrong: take part in the comparison, so that the others
    learn of it instead of waiting."""
    options = ffi.new("pcoll_options *")
    options.invalid = 1
    buffers = ffi.new("pcoll_buffer[1]")
    handle = ffi.new("pcoll_handle **")
    lib.pcoll_allreduce_create(address, buffers, 1, options, handle)


def _create(comm: MPI.Intracomm, arguments: dict[str, Any]) -> AllreduceHandle:
    _launch.check_launcher()
    address = address_of(comm)
    _settings.configure_logging(comm.rank)
    try:
        a = _Arguments(**arguments)
    except Exception:
        _tell_the_others(address)
        raise
    core = ffi.new("pcoll_handle **")
    check(lib.pcoll_allreduce_create(address, a.buffers, len(a.recv), a.options, core))
    return AllreduceHandle(
        core[0],
        ranks=comm.size,
        send=a.send,
        recv=a.recv,
        received=a.received,
        single=a.single,
        policy=a.policy,
        deliver=a.deliver,
        missed=a.missed,
        sums=a.sums,
        ops=a.ops,
        memory=a.memory(comm.size),
    )


def Allreduce_init(
    comm: MPI.Intracomm,
    sendbuf: Any,
    recvbuf: Any = None,
    op: Any = MPI.SUM,
    *,
    quorum: Policy | str = "solo",
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
        one round. None: write deposits to `send_buffer`, which saves a copy.
    recvbuf : buffer, list of buffers or None
        Same dtypes and sizes as sendbuf, no common memory. None: results stay in the library's
        memory, which saves a copy; read them at `AllreduceHandle.result` (with deliver="all"
        the library makes receive buffers).
    op : mpi4py.MPI.Op or list of them
        One for all buffers or one for each. SUM, PROD, MIN, MAX for floats (float16 and
        bfloat16 accumulate in float32 and are rounded once); SUM, PROD for complex numbers;
        these, LAND, LOR, LXOR, BAND, BOR, BXOR for integers, which wrap around; LAND, LOR,
        LXOR for bool. What MPI defines for other datatypes (``op=MPI.MAXLOC`` with
        ``[array, count, MPI.DOUBLE_INT]``), and commutative ops of your own, also on derived
        datatypes without gaps. Do not free an op before the handle.
    quorum : policy or str
        When a round may complete: "solo", "majority", "quorum:6", "quorum:0.75", "first_of:2",
        "last_of:3", "full", with any of ",linger=50us,deadline=2s,max_staleness=8"; see
        `partialcoll.policy`.
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

    Raises
    ------
    MismatchError
        On every rank, if the arguments differ between ranks; says which and where.
    TypeError, ValueError
        This rank's arguments are wrong (the other ranks get MismatchError).
    StateError
        progress="agent" with an MPI initialised below MPI_THREAD_MULTIPLE.

    Source: Li et al., PPoPP 2020, section 4; the contract is in docs/semantics.md.
    """
    return _create(
        comm,
        {
            "sendbuf": sendbuf,
            "recvbuf": recvbuf,
            "op": op,
            "quorum": quorum,
            "deliver": deliver,
            "history": history,
            "late": late,
            "missed": missed,
            "progress": progress,
            "algorithm": algorithm,
            "domain": domain,
            "seed": seed,
            "name": name,
            "like": like,
        },
    )


def memory_estimate(
    comm: MPI.Intracomm, sendbuf: Any, recvbuf: Any = None, op: Any = MPI.SUM, **options: Any
) -> int:
    """Bytes that a handle with these arguments (those of `Allreduce_init`) will hold on this
    rank. Local."""
    address_of(comm)
    defaults = Allreduce_init.__kwdefaults__ or {}
    return _Arguments(sendbuf, recvbuf, op, **{**defaults, **options}).memory(comm.size)


# Several handles.


def Startall(handles: Sequence[AllreduceHandle]) -> None:
    """Start all handles, in this order. Local."""
    for handle in handles:
        handle.Start()


def Waitall(handles: Sequence[AllreduceHandle], timeout: float | None = None) -> list[Round]:
    """Wait for all handles; their rounds, in this order. TimeoutError after timeout seconds
    for any one of them."""
    return [handle.Wait(timeout) for handle in handles]


def Waitany(handles: Sequence[AllreduceHandle], timeout: float | None = None) -> tuple[int, Round]:
    """Wait until the round of any started handle is complete; its position and its round.

    Handles that are not started are passed over; StateError if none is.
    """
    _waiting.check_timeout(timeout)
    started = [h for h in handles if h._started]
    if not started:
        raise StateError("none of the handles is started")
    pointers = ffi.new("pcoll_handle *[]", [h._core() for h in started])
    index = ffi.new("int32_t *")
    done = _waiting.wait(
        lambda us: int(lib.pcoll_wait_any(pointers, len(started), us, index)),
        timeout,
        lambda waited: _waiting.report_missing(pointers[0], waited),
    )
    if not done:
        raise TimeoutError(f"no round was complete after {timeout} s; wait again")
    handle = started[index[0]]
    return list(handles).index(handle), handle.Wait()
