# SPDX-License-Identifier: Apache-2.0
"""The persistent allreduce: its arguments, rounds, growth, and what it tells of itself."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from .._core import buffers, checks, pure, settings, waiting
from .._core.attendance import Members, attending, name_ranks
from .._core.buffers import Array, Buffer, add_up, addresses, has_identity
from .._core.communicator import address, failure_code, progress_code
from .._core.device import DeviceBuffer, as_any_buffers, on_device, one_device
from .._core.failures import alone, is_rank_failure, told
from .._core.ffi import answer, answer_record, answer_text, check, core, ffi, lib, raise_error
from .._core.mpi import MPI
from .._core.object import CoreObject
from .._core.slots import HandleBuffers, Record, SendSlots, Slots
from ..errors import MismatchError, StateError
from ..policy import Full, Policy, as_policy
from ..round import Result, Round

T = TypeVar("T")
_ANY = 2**64 - 1
_DOMAINS = {pure.lib.PCOLL_DOMAIN_NODE: "node", pure.lib.PCOLL_DOMAIN_RANK: "rank"}


@dataclass(frozen=True)
class Stats:
    """Counts since the handle was made, of this rank.

    ``calls`` deposits; ``rounds`` complete, ``delivered`` to the application, ``lost`` to it;
    deposits that ``arrived`` at their round, were ``stored`` for the next one, were
    ``dropped`` (late="drop"); rounds that ``included`` this rank's data;
    ``activations_dropped`` (duplicates and late ones: harmless), ``activations_early`` (kept
    for the next round); rounds ``redone`` since a rank had died in them.
    """

    calls: int
    rounds: int
    delivered: int
    lost: int
    arrived: int
    stored: int
    dropped: int
    included: int
    activations_dropped: int
    activations_early: int
    redone: int


class ScheduleView:
    """The DAG of operations that this rank executes in a round; for looking at. A handle makes it
    (`AllreduceHandle.schedule`); `core` finds the handle's part in the core."""

    def __init__(self, core: Callable[[], Any]) -> None:
        self._core = core

    def to_dot(self) -> str:
        """The schedule in Graphviz DOT."""
        return answer_text(lib.pcoll_handle_schedule, self._core(), b"dot")

    def to_goal(self, *, ns_per_byte: float = 0.0) -> str:
        """The schedule in GOAL, for simulators of LogGOPSim's family: the block of this rank. A
        byte that is copied or reduced takes `ns_per_byte` nanoseconds.

        A whole file, where `comm` is the handle's communicator (collective)::

            f"num_ranks {comm.size}\\n" + "".join(comm.allgather(h.schedule.to_goal()))

        GOAL knows no gates of k of n predecessors: it describes a round that begins when all
        ranks have arrived. Local.
        """
        return answer_text(lib.pcoll_handle_goal, self._core(), ns_per_byte)

    def __str__(self) -> str:
        return answer_text(lib.pcoll_handle_schedule, self._core(), b"text")


_DELIVER = pure.codes("DELIVER", "one", "all")
_LATE = pure.codes("LATE", "carry", "latest", "drop")


@dataclass
class Arguments:
    """The arguments of `Allreduce_init` on this rank, checked, and in the core's form."""

    sendbuf: Any
    recvbuf: Any
    op: Any
    quorum: Policy | str = "full"
    deliver: str = "one"
    history: int = 8
    late: str | None = None
    missed: str = "sum"
    progress: str | None = None
    algorithm: str | None = None
    domain: str | None = None
    seed: int = 0
    name: str | None = None
    like: Any = None
    on_failure: str = "raise"

    def __post_init__(self) -> None:
        # With "all" a call may deliver several rounds: they are added up in a buffer.
        self.received = self.recvbuf is not None or self.deliver != "one"
        self._take_buffers(self.sendbuf, self.recvbuf)
        codes = self._take_ops()
        self.described = buffers.describe(self.recv, self.ops, codes)
        self.policy = as_policy(self.quorum)
        self._set_options(sums=all(code == lib.PCOLL_SUM for code in codes))

    def _take_buffers(self, sendbuf: Any, recvbuf: Any) -> None:
        in_place = sendbuf is MPI.IN_PLACE
        self.outlined: list[DeviceBuffer] = []  # by `like`, on a device
        self.send: list[Buffer] | None = None
        if not in_place and sendbuf is not None:
            self.send = as_any_buffers("sendbuf", sendbuf, writable=False)
        if self.like is not None and not (sendbuf is None and recvbuf is None):
            raise ValueError("like: expected sendbuf=None and recvbuf=None with it, got a buffer")
        if recvbuf is not None:
            self.recv = as_any_buffers("recvbuf", recvbuf, writable=True)
            if in_place:
                buffers.check_apart("recvbuf", self.recv)
                self.send = self.recv
            elif self.send is not None:
                buffers.check_match(self.send, self.recv)
        elif in_place:
            raise ValueError("recvbuf: expected a buffer with sendbuf=MPI.IN_PLACE, got None")
        else:
            examples = self.send
            if examples is None:
                if self.like is None:
                    raise ValueError(
                        "recvbuf: expected a buffer, or one to go by in like=, got None with "
                        "sendbuf=None"
                    )
                examples = as_any_buffers("like", self.like, writable=False, used=False)
                self.outlined = on_device(examples)
            self.recv = [one.like(memory=self.received) for one in examples]
        given = sendbuf if self.send is not None and not in_place else recvbuf
        self.single = not buffers.is_list(self.like if given is None else given)

    def _take_ops(self) -> list[int]:
        count, op = len(self.recv), self.op
        if not isinstance(op, (list, tuple)):
            op = [MPI.SUM if op is None else op] * count
        elif len(op) != count:
            raise ValueError(
                f"op: expected one, or one for each of the {count} buffers, got {len(op)}"
            )
        self.ops = list(op)
        codes = [buffers.op_code(one) for one in self.ops]
        for one, code, buffer in zip(self.ops, codes, self.recv):
            buffers.check_op(one, code, buffer)
        self.device = one_device([*(self.send or []), *self.recv, *self.outlined])
        if self.device is not None and not self.outlined and self.send is None:
            raise ValueError("sendbuf: expected an array, as recvbuf is on a device, got None")
        self.sums = [buffers.can_add(code, buffer) for code, buffer in zip(codes, self.recv)]
        return codes

    def _set_options(self, sums: bool) -> None:
        options = self.options = ffi.new("pcoll_options *")
        checks.one_of("late", self.late, (None, *_LATE))
        late = self.late or ("carry" if sums else "latest")
        if late == "carry" and not sums:
            raise ValueError(
                'late: "carry" adds deposits up, so it needs op=MPI.SUM; use "latest" or "drop"'
            )
        checks.one_of("missed", self.missed, ("sum", "latest"))
        check(lib.pcoll_policy_parse(str(self.policy).encode(), ffi.addressof(options, "policy")))
        options.deliver = checks.code("deliver", self.deliver, _DELIVER)
        options.late = _LATE[late]
        options.history = checks.integer(
            "history", self.history, 1, 2**20, what="a number of rounds"
        )
        algorithm = settings.choice(
            "algorithm", self.algorithm, "PARTIALCOLL_ALGORITHM", "auto", settings.ALGORITHMS
        )
        options.algorithm = settings.ALGORITHMS.index(algorithm)
        source, text = settings.given("domain", self.domain, "PARTIALCOLL_DOMAIN", "node")
        checks.text(source, text, what="a text such as 'node'")
        places = (ffi.addressof(options, name) for name in ("domain", "domain_ranks"))
        if lib.pcoll_domain_parse(text.encode(), *places):
            raise ValueError(core.last_error().replace("domain", source, 1))
        options.progress = progress_code(self.progress)
        options.owned_send = self.send is None or self.device is not None
        options.device = 0 if self.device is None else self.device + 1
        options.on_failure = failure_code(self.on_failure)
        options.seed = checks.integer("seed", self.seed) % 2**64
        if self.name is not None:
            text = checks.instance("name", self.name, str, "a text or None")
            digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
            options.name = int.from_bytes(digest, "little")

    @property
    def for_core(self) -> tuple[Any, int, Any]:
        return self.described, len(self.recv), self.options

    def memory(self, ranks: int) -> int:
        """Bytes that a handle with these arguments holds on this rank."""
        return int(answer("uint64_t", lib.pcoll_memory_estimate, ranks, *self.for_core))


# Members of handles that continue when ranks die: which deaths and which new ranks the program has
# been told of, and the numbers that new ranks take.


class Membership:
    """The dead and new ranks of which the program has been told, the communicator of the live
    ranks, and the arguments with which those of new ranks are compared."""

    def __init__(
        self,
        handle: Any,
        comm: MPI.Intracomm,
        told: Callable[..., object] | None,
        arguments: Arguments,
    ) -> None:
        self.arguments, self._comm = arguments, comm
        # Number of ranks that had died before the last delivered round, and number of which the
        # program knows (`known`): callers compare the two after each round.
        self.dead = handle._record.failed
        self._told: Callable[..., object] | None = None
        self._known: set[int] = set()
        self.look(handle)
        self._told = told

    def look(self, handle: Any, joined: list[int] | None = None) -> None:
        """Tell the program of dead ranks that it does not know yet, and of new ones. Call it when
        `handle` has delivered a round with other dead ranks than before, or has grown."""
        failed = {int(rank) for rank in np.flatnonzero(handle.failed)}
        new = sorted((failed | set(joined or ())) - self._known)
        self._known, self.known = failed, len(failed)
        if self._told is not None and (new or joined is not None):
            self._told(handle, new, joined or [])

    def grown(self, handle: Any, comm: MPI.Intracomm, joined: list[int]) -> None:
        """Note that `handle` is on this communicator now, with these new ranks."""
        self._comm = comm
        self.look(handle, joined)

    def comm(self, handle: Any) -> MPI.Intracomm:
        comm = MPI.Intracomm()
        place = ffi.cast("void *", MPI._addressof(comm))
        code = lib.pcoll_handle_comm(handle._core(), place)
        if code == lib.PCOLL_EEMPTY:
            return self._comm
        check(code)
        return comm


_NEW, _SURVIVOR = 0, 1
_FINE, _REFUSED, _LACKS = range(3)
_PATIENCE_S = 1.0  # a missing rank may be dead; then all ranks know it soon
_AGAIN_S = 0.01


class Place(NamedTuple):
    """The result of `meet`: the numbers in the handle by rank of the communicator, the number of
    ranks of the handle, and the numbers of the new ranks."""

    numbers: list[int]
    ranks: int
    joined: list[int]


def meet(comm: MPI.Intracomm, handle: Any, check: Callable[[], T]) -> tuple[Place, T]:
    """Exchange the members of a growth; return the place and what `check` returns. handle: None on
    a new rank. Collective. All ranks raise if `check` raises on one."""
    try:
        return _meet(comm, handle, check)
    except Exception as error:
        died = is_rank_failure(error)
        if died:
            comm.Revoke()  # other ranks may wait for this one
        lib.pcoll_growth_refuse(address(comm))
        if died:
            raise told(error, comm) from error
        raise


def _meet(comm: MPI.Intracomm, handle: Any, check: Callable[[], T]) -> tuple[Place, T]:
    known = (_NEW, -1, 0) if handle is None else (_SURVIVOR, handle.rank, handle.size)
    try:
        given = check()
    except Exception:
        _exchange(comm, (*known, _REFUSED))
        raise
    rows = _exchange(comm, (*known, _FINE))
    refused = [rank for rank, row in enumerate(rows) if row[3] == _REFUSED]
    if refused:
        raise MismatchError(
            f"{name_ranks(refused)} of comm cannot take part in this growth, and said there why"
        )
    place = _place(rows)
    limit = time.monotonic() + _PATIENCE_S
    while True:
        missing: set[int] = set()  # live ranks that are not in comm, as far as this rank knows
        if handle is not None:
            living = {int(rank) for rank in np.flatnonzero(~handle.failed)}
            missing = living - (set(place.numbers) - set(place.joined))
        late = time.monotonic() > limit
        rows = _exchange(comm, (_LACKS if missing else _FINE, min(missing, default=-1), late, 0))
        lacking = [row for row in rows if row[0] == _LACKS]
        if not lacking:
            return place, given
        if any(row[2] for row in rows):
            raise ValueError(
                f"comm: expected all ranks of the handle that live, rank {lacking[0][1]} is not in "
                "it"
            )
        time.sleep(_AGAIN_S)


def _exchange(comm: MPI.Intracomm, row: tuple[int, ...]) -> list[tuple[int, ...]]:
    own, rows = np.array(row, np.int64), np.zeros((comm.size, len(row)), np.int64)
    request = comm.Iallgather(own, rows)
    waiting.until(lambda: alone(request.Test), waiting.look)
    return [tuple(map(int, each)) for each in rows]


def _place(rows: Sequence[tuple[int, ...]]) -> Place:
    taken = [row[1] for row in rows if row[0] == _SURVIVOR]
    sizes = {row[2] for row in rows if row[0] == _SURVIVOR}
    if not taken:
        raise ValueError("join: expected a comm with ranks whose handle grows, there is none in it")
    if len(sizes) > 1 or len(set(taken)) < len(taken):
        raise MismatchError("grow: the ranks of comm have different handles")
    ranks = sizes.pop()
    free = iter(sorted(set(range(ranks)) - set(taken)))
    numbers = [row[1] if row[0] == _SURVIVOR else next(free, -1) for row in rows]
    if -1 in numbers:
        raise ValueError(
            f"comm: {len(rows) - len(taken)} ranks are to join, and only {ranks - len(taken)} of "
            f"{ranks} have died"
        )
    return Place(numbers, ranks, sorted(set(numbers) - set(taken)))


class AllreduceHandle(CoreObject):
    """A persistent partial allreduce. Created by `Allreduce_init`, which describes `comm` and
    `on_membership`. `check_arguments` validates the other arguments and may raise; then all ranks
    fail together.

    One thread at a time may use a handle; a second one gets StateError. A handle can be used
    in a ``with`` statement, whose end frees it (collective): rounds in progress are completed.

    Attributes: `policy`; `last_round`, what the last `Wait`, `Test` or `join` returned, or None;
    `memory`, the bytes that the handle holds on this rank, as of `memory_estimate`.
    """

    _noun, _kind, _maker = "allreduce handle", "handle", "Allreduce_init"
    _begins_to_free = True
    _membership: Membership | None = None  # with on_failure="continue"
    policy: Policy
    last_round: Round | None
    memory: int

    def __init__(
        self,
        comm: MPI.Intracomm,
        check_arguments: Callable[[], Arguments],
        on_membership: Callable[..., object] | None = None,
        join: bool = False,
    ) -> None:
        given: Any = None

        def arguments() -> Any:
            nonlocal given
            given = check_arguments()
            return given.for_core

        if join:
            given = self._join(comm, check_arguments)
        else:
            refused = ffi.new("pcoll_buffer[1]"), 1, ffi.new("pcoll_options *", {"invalid": 1})
            self._create(comm, lib.pcoll_allreduce_create, arguments, refused)
        # No more than 30 attributes: then instances share the keys of their dictionaries, and each
        # call touches a fifth of the memory.
        self._single = given.single
        self._copies = bool(given.options.device)
        self._one = given.deliver == "one"
        self._record = Record(self._size)
        self.last_round = None
        self._started = False
        self._filled: set[int] = set()  # buffers named by Pready for the call to come
        recv, ops = given.recv, given.ops
        self._ops = ops  # those of users must live as long as the handle
        # For each buffer: whether several results of one call are added, and whether a round
        # without contributions has a value.
        adds = [given.missed == "sum" and can_add for can_add in given.sums]
        self._several = list(zip(adds, map(has_identity, ops, recv)))
        self._slots = None if given.received else Slots(self._pointer, self._record, recv, ops)
        self._set_buffers(given.send, recv)
        self._sends = SendSlots(self._pointer, self._recv)
        self.policy = given.policy
        self.memory = given.memory(self._size)
        self._name = given.name
        if given.options.on_failure == lib.PCOLL_FAILURE_CONTINUE:
            self._membership = Membership(self, comm, on_membership, given)
        # Read the result of the round before this rank's first one.
        if join and self._deliver_next(_ANY, self._recv, self._recv_pointers) is not None:
            self.last_round = Round(self._describe())

    def _set_buffers(self, send: list[Buffer] | None, recv: list[Buffer]) -> None:
        self._owners = (send, recv)
        self._side = HandleBuffers(send, recv, several=not self._one)
        self._recv = [buffer.array for buffer in self._side.buffers]
        self._received, self._fetches = self._side.received, self._side.fetches
        delivered = self._slots is None and not self._fetches
        self._recv_pointers = addresses(self._recv) if delivered else ffi.NULL
        # The core functions of `Start` and `Wait`, bound to their arguments: after a long
        # computation the CPU caches are cold, so every line of Python on this path costs time.
        core, us = self._pointer[0], waiting.SLICE_US
        self._deposit = self._side.starting(core)
        self._begin = self._deposit_slot if self._side.sent is None else self._deposit
        self._end: Callable[[], int] = partial(lib.pcoll_handle_wait, core, us)
        if self._one:
            self._end = partial(
                lib.pcoll_handle_take, core, us, self._recv_pointers, *self._record.out
            )

    def _serves(self, send: Any, recv: Any) -> bool:
        """Return whether the handle uses exactly these two buffers."""
        own_send, own_recv = self._owners
        if len(own_recv) != 1 or own_recv[0].owner is not recv or own_send is None:
            return False
        return send is MPI.IN_PLACE if own_send is own_recv else own_send[0].owner is send

    # Rounds

    def Start(self, stream: Any = None) -> None:
        """Deposit the send buffers for the round that this call stands for. Local.

        The buffers may be changed when it returns. StateError if the last start has not been waited
        for, the rank has left, or the handle was freed; with ``sendbuf=None`` also if `send_buffer`
        has not been taken since the last start.

        With buffers on a device it returns at once. The copy follows the work that was submitted
        to `stream` (of cupy or torch, or the number of a CUstream; None: their current one), and
        this rank arrives when the copy is complete. Do not change the buffers before `Wait`
        returns.
        """
        begin = self._begin if stream is None else self._side.starting(self._core(), stream)
        code = begin()
        if code:
            if code != lib.PCOLL_EAGAIN:
                raise_error(code)
            self._insist(lambda core: begin())
        self._started = True
        if self._slots is not None:
            self._slots.index = None
        if self._filled:
            self._filled.clear()

    def Pready(self, buffer: int) -> None:
        """Buffer number `buffer` (from 0) is filled; with the last one, the call starts. Local.

        In place of `Start`, in any order, for a handle with several buffers and ``quorum="full"``:
        a call that counts as arrived must have all of its data. The buffers may be changed when
        the last one has been named. IndexError for one that does not exist; StateError if it has
        been named for this call, or the call has started.
        """
        if not isinstance(self.policy, Full):
            raise StateError(f'Pready: expected a handle with quorum="full", got {self.policy}')
        buffer = checks.integer("buffer", buffer)
        if not 0 <= buffer < len(self._recv):
            raise IndexError(f"buffer: expected 0 to {len(self._recv) - 1}, got {buffer}")
        self._core()
        if self._started or buffer in self._filled:
            raise StateError(f"Pready: buffer {buffer} of this call is ready already")
        if len(self._filled) + 1 == len(self._recv):
            self.Start()
        else:
            self._filled.add(buffer)

    def _start_from(self, send: list[Buffer]) -> None:
        """Start a handle that was made with ``like=`` on a device with these device buffers. The
        library owns them until `Wait` returns."""
        self._begin = HandleBuffers(send, []).starting(self._core())
        try:
            self.Start()
        finally:
            self._begin = self._refuse_stale

    def _deposit_slot(self) -> int:
        """Deposit from the library's send slot. `send_buffer` must be read before the next one."""
        code = self._deposit()
        if code in (lib.PCOLL_OK, lib.PCOLL_EAGAIN):
            self._begin = self._refuse_stale
        return code

    def _refuse_stale(self) -> NoReturn:
        self._core()
        raise StateError(
            "Start: send_buffer was not taken since the last Start; with sendbuf=None it is at "
            "another address each time, and a view kept from before is not what would be "
            "deposited: write to handle.send_buffer anew for every Start"
        )

    def _insist(self, step: Callable[[Any], int]) -> None:
        """Repeat `step` while it returns PCOLL_EAGAIN: in a replay, until this rank's turn."""
        self._wait_in_slices(lambda us: int(step(self._core())), None)

    def Wait(self, timeout: float | None = None, stream: Any = None) -> Round:
        """Wait until the round is complete; the receive buffers, or `result`, then hold it.

        TimeoutError after `timeout` seconds (None: never); the handle can be waited for again. With
        buffers on a device the receive buffers hold the result for work submitted to `stream` (of
        cupy or torch, or the number of a CUstream; None: the current one) from now on; the host
        does not wait for the copy.

        Waiting burns no core. After PARTIALCOLL_STALL_WARN seconds (10 by default) a warning
        of the logger "partialcoll" names the ranks that are missing.
        """
        if stream is not None:
            self._side.check_stream(stream)
        if timeout is None:
            code = self._end()
        else:
            checks.time_limit("timeout", timeout)
            code = self._step(0)
        if code and not self._is_over(code):
            self._wait_in_slices(self._step, timeout)
        return self._take(stream)

    def _is_over(self, code: int) -> bool:
        """Return whether the wait that returned this code is over; raise if it has failed. An
        interrupted `Wait` (a signal handler raised) may have taken the round from the core already.
        Its result is still there."""
        if code == lib.PCOLL_EAGAIN:
            return False
        if code == lib.PCOLL_ESTATE and self._one and self._started:
            seen = 0 if self.last_round is None else self.last_round.index + 1
            if self._counts()[1] > seen:
                return True
        check(code)
        return True

    def _complete(self, timeout: float | None) -> None:
        """Wait until the round is complete, and leave it there."""
        if not self._is_over(self._step_alone(0)):
            self._wait_in_slices(self._step_alone, timeout)

    def _step_alone(self, us: int) -> int:
        """Wait for at most `us` microseconds."""
        return int(lib.pcoll_handle_wait(self._core(), us))  # a signal handler may have freed it

    def _step(self, us: int) -> int:
        """The same; with deliver="one" deliver the result and finish, too."""
        if not self._one:
            return self._step_alone(us)
        return int(lib.pcoll_handle_take(self._core(), us, self._recv_pointers, *self._record.out))

    def _wait_in_slices(self, step: Callable[[int], int], timeout: float | None) -> None:
        if not waiting.wait(step, timeout, self._report_stall, self._while_waiting):
            raise TimeoutError(f"the round was not complete after {timeout} s; wait again")

    def _report_stall(self, waited: float) -> None:
        waiting.report_missing(self._pointer[0], waited)

    def Test(self, stream: Any = None) -> Round | None:
        """The round if complete, else None; `stream` as in `Wait`. Drives communication."""
        self._side.check_stream(stream)
        return self._take(stream) if self._is_over(self._step(0)) else None

    def _measure(self, rounds: int = 1) -> float:
        """Make `rounds` calls in C; return the microseconds of one, measured there."""
        given = self._core(), addresses(self._side.sent or []), self._recv_pointers, rounds
        us = ffi.new("double *")
        check(lib.pcoll_handle_measure(*given, us, *self._record.out))
        return float(us[0])

    def _describe(self) -> Result:
        """The round that the core has just delivered, to the receive buffers if there are any."""
        if self._slots is None:
            return Result(self._record.view[:], self._size, self._received)
        self._slots.index = self._record.round.index
        return Result(self._record.view[:], self._size, None, self._slots.of)

    def _deliver_next(self, last: int, recv: list[Array], pointers: Any) -> Result | None:
        code = lib.PCOLL_EAGAIN
        while code == lib.PCOLL_EAGAIN:  # in a replay, until it is this read's turn
            code = lib.pcoll_handle_deliver(self._core(), last, pointers, *self._record.out)
        if code == lib.PCOLL_EEMPTY:
            return None
        check(code)
        return Result(self._record.view[:], self._size, recv)

    def _take(self, stream: Any = None) -> Round:
        """Finish the call, and return its result."""
        if self._one:
            rnd = Round(self._describe())
            if self._fetches:
                self._side.fetch(self._core(), stream)
        else:
            self._side.settle()
            results, lost = self._take_all()
            self._side.fetch(self._core(), stream)
            rnd = Round(results[-1], results, lost)
            check(lib.pcoll_handle_finish(self._core()))
        self._started = False
        self.last_round = rnd
        members = self._membership
        if members is not None and members.dead[0] != members.known:
            members.look(self)
        return rnd

    def _take_all(self) -> tuple[list[Result], int]:
        """deliver="all": every unseen round that is complete now, up to the history."""
        complete, delivered = self._counts()
        if complete - delivered == 1:
            result = self._deliver_next(_ANY, self._recv, self._recv_pointers)
            assert result is not None
            return [result], self._record.round.lost
        results: list[Result] = []
        lost, last = 0, _ANY  # the oldest unseen round may be a newer one than was counted
        while True:
            copies = [np.zeros(r.shape, r.dtype) for r in self._recv]
            result = self._deliver_next(last, copies, addresses(copies))
            if result is None:
                break
            results.append(result)
            lost, last = lost + self._record.round.lost, complete - 1
        # The receive buffers: the sum of the delivered rounds, or the newest.
        for i, (adds, has_value) in enumerate(self._several):
            if adds:
                add_up(self._side.buffers[i], [result.buffers[i] for result in results])
            elif results[-1].active or has_value:
                np.copyto(self._recv[i], results[-1].buffers[i])
        return results, lost

    def until(self, rounds: int) -> Iterator[Round]:
        """Start and wait until this rank has seen `rounds` rounds; yields each `Round`.

        Fill the send buffers before the loop and at the end of its body. Use this to end a
        loop with ``deliver="all"``, where ranks make different numbers of calls: no rank then
        waits for a round in which the others do not take part.
        """
        checks.integer("rounds", rounds, 0)
        while self._counts()[1] < rounds:
            self.Start()
            yield self.Wait()

    def _counts(self) -> tuple[int, int]:
        """Rounds that are complete here, and those that have been delivered."""
        counts = ffi.new("uint64_t[2]")
        self._call("rounds", counts, counts + 1)
        return int(counts[0]), int(counts[1])

    def join(self, on_round: Callable[[Round], None] | None = None) -> Round:
        """Contribute nothing until all ranks have joined. Collective.

        For uneven amounts of data: a rank that has no more work joins, the others go on without it.
        When it returns, all ranks are at the same round, nothing is pending, and the handle can be
        started again. `on_round` is called with each `Round` that completes meanwhile, its result
        in the receive buffers or `result`. Returns the last of these rounds.
        """
        self._begin_join()
        while True:
            rnd = self._next_joined()
            if on_round is not None:
                on_round(rnd)
            members = self._membership
            if members is not None and members.dead[0] != members.known:
                members.look(self)
            if rnd.joined:
                return rnd

    def _begin_join(self) -> None:
        """Join, unless that was interrupted. Local; `_next_joined` returns the rounds then."""
        self._insist(lib.pcoll_handle_join)

    def _next_joined(self) -> Round:
        """Wait for the next round that this rank has joined; with the last one it has finished."""
        result = None
        while result is None:
            self._wait_in_slices(self._step_alone, None)
            self._side.settle()
            self._await_copy()
            result = self._deliver_next(_ANY, self._recv, self._recv_pointers)
        rnd = self.last_round = Round(self._describe())
        self._side.fetch(self._core(), None)
        if rnd.joined:
            check(lib.pcoll_handle_finish(self._core()))
        return rnd

    def leave(self) -> None:
        """Leave for good: the others no longer wait for this rank. Local.

        The last deposit takes part in the next round. Afterwards only call `Free`.
        """
        self._await_copy()
        self._insist(lib.pcoll_handle_leave)
        if self._slots is not None:  # no writer waits for the reader of this slot any more
            self._slots.index = None

    def _await_copy(self) -> None:
        """Wait for copies: then the deposit is made, and the last result may be overwritten."""
        if not self._copies:
            return
        if self._started:
            self._wait_in_slices(lambda us: int(lib.pcoll_handle_arrive(self._core(), us)), None)
        core = self._core()
        waiting.until(lambda: lib.pcoll_handle_arrive(core, 0) != lib.PCOLL_EAGAIN, waiting.look)

    def progress(self) -> None:
        """Drive communication once (for ``progress="manual"``). Local."""
        self._call("progress")

    # New ranks take the numbers of dead ones

    def grow(self, comm: MPI.Intracomm) -> None:
        """Let new ranks take the numbers of dead ones. Collective, between two rounds.

        `comm` (mpi4py.MPI.Intracomm) has all live ranks, and new ranks, which create the handle on
        it with the same arguments and ``join=True`` (`partialcoll.elastic.respawn` makes such a
        communicator). It is duplicated, and becomes `AllreduceHandle.comm`.

        New ranks take the lowest numbers of dead ranks, in their order in `comm`; live ranks keep
        theirs. No round and no deposit of a live rank is lost, and rounds continue to be counted. A
        new rank is at the same round, whose result it has. `on_membership` is called with the new
        numbers. With ``sendbuf=None`` read `send_buffer` again afterwards; its content is kept.
        Only this handle grows.

        StateError if it was made with ``on_failure="raise"``, or a call is in progress. On all
        ranks: ValueError if a live rank is not in `comm`, or more ranks join than have died;
        MismatchError if the arguments of a new rank differ; RankFailedError if a rank has died
        meanwhile. Then no new rank is a member, and the live ranks continue as before; after a
        death `comm` is revoked: grow again with another communicator.
        """
        place = address(comm)
        with attending("grow", comm):
            found, _ = meet(comm, self, lambda: check(lib.pcoll_handle_can_grow(self._core())))
            membership = self._membership
            assert membership is not None
            numbers = ffi.new("uint32_t[]", found.numbers)
            self._call("grow", place, numbers, *membership.arguments.for_core)
        self._members = Members.of(comm)
        if self._side.sent is None:
            self._begin = self._refuse_stale
        membership.grown(self, comm, found.joined)

    def _join(self, comm: MPI.Intracomm, check_arguments: Callable[[], Arguments]) -> Arguments:
        """Take the number of a rank that has died; the others `grow`."""

        def checked() -> Arguments:
            given = check_arguments()
            if given.options.on_failure != lib.PCOLL_FAILURE_CONTINUE:
                raise ValueError('join: expected on_failure="continue" with it')
            return given

        place = self._enter(comm)
        with attending("grow", self._members):
            found, given = meet(comm, None, checked)
            self._rank, self._size = found.numbers[comm.rank], found.ranks
            where = place, ffi.new("uint32_t[]", found.numbers), found.ranks
            check(lib.pcoll_allreduce_join(*where, *given.for_core, self._pointer))
        return given

    # The end

    def _begin_to_free(self) -> None:
        self._begin = self._end = self._refuse_ending
        self._sends.views.clear()
        self._await_copy()
        if self._slots is not None:
            self._slots.views.clear()
        self._side.free()
        super()._begin_to_free()

    def _name_of(self, method: str) -> str:
        return super()._name_of(method) + (f" of {self._name!r}" if self._name else "")

    def _refuse_ending(self) -> NoReturn:
        self._core()  # raises once it is over
        raise StateError(f"the {self._noun} is being freed: call Free() again")

    # Looking at it

    @property
    def send_buffer(self) -> Any:
        """The buffer for the next deposit: the user's buffer (or list of buffers); with
        ``sendbuf=None`` memory of the library, which needs no copy. Its address changes at every
        `Start`: read this property each time (else `Start` refuses) and fill all of it. Do not use
        views of it after the handle's end."""
        if self._side.sent is not None:
            return self._unwrap(self._side.sent)
        self._core()
        views = self._sends.next()
        self._begin = self._deposit_slot
        return self._unwrap(views)

    def _send_place(self) -> int:
        """Return the address of the next send slot, under which views of it can be cached; 0 if the
        send buffers are the user's."""
        if self._side.sent is not None:
            return 0
        place = self._sends.place()
        self._begin = self._deposit_slot
        return place

    def _pending(self) -> list[Array] | None:
        """Return the sum of this rank's deposits that are in no round that it has read, one array
        for each buffer, or None. Call it once before the first `Start`. Works after a failure."""
        sums = [np.empty(like.shape, like.dtype) for like in self._recv]
        code = lib.pcoll_handle_pending(self._pointer[0], addresses(sums))
        if code == lib.PCOLL_EEMPTY:
            return None
        check(code)
        return sums

    @property
    def recv_buffer(self) -> Any:
        """The receive buffer (or list of buffers). For bfloat16 an array of `ml_dtypes.bfloat16`
        where that package is installed, else of the bits as uint16. Without one of yours
        (``recvbuf=None``): what `result` is."""
        return self._unwrap(self._received) if self._slots is None else self.result

    @property
    def result(self) -> Any:
        """The last result (or list of results), read-only.

        With receive buffers of yours a view of them, which changes at the next `Wait`. With
        ``recvbuf=None`` and ``deliver="one"`` a view of the library's own memory, without a copy
        (but float16 and bfloat16 are converted from float32): good until the next `Start`, `leave`
        or `Free`. A round to which nobody contributed (`Round.active` is 0) holds the op's
        identity, zeros if the op has none. StateError before the first round, and during a call.
        """
        if self._slots is not None:
            return self._unwrap(self._slots.last())
        views = [r.view() if isinstance(r, np.ndarray) else r for r in self._received]
        for view in views:
            if isinstance(view, np.ndarray):
                view.flags.writeable = False
        return self._unwrap(views)

    def _unwrap(self, arrays: list[Any]) -> Any:
        return arrays[0] if self._single else arrays

    def _missing(self) -> str:
        """Return a sentence that names the ranks the current call waits for; "" if unknown."""
        return waiting.missing(self._core())

    @property
    def stats(self) -> Stats:
        """Counts of this rank so far."""
        return answer_record(Stats, "pcoll_stats", lib.pcoll_handle_stats, self._core())

    @property
    def algorithm(self) -> str:
        """How the data is reduced: "recdbl", "rabenseifner", "ring" or "native"."""
        return settings.ALGORITHMS[self._answer("int32_t", "algorithm")]

    def _placed(self) -> tuple[str, int]:
        domain, counts = ffi.new("int32_t *"), ffi.new("uint32_t[2]")
        self._call("domain", domain, counts, counts + 1)
        return _DOMAINS[domain[0]], int(counts[0])

    @property
    def domain(self) -> str:
        """ "node": ranks that share memory reduce there, and only one of them talks to others;
        "rank": messages only, which is also what "node" comes to where no two ranks share a
        node. The same on all ranks."""
        return self._placed()[0]

    @property
    def domains(self) -> int:
        """How many domains the ranks form: as many as there are ranks with "rank", with "node"
        as many as there are nodes, or more if their size is limited."""
        return self._placed()[1]

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """The ranks that have died, with ``on_failure="continue"``: bool, shape (ranks,)."""
        return self._set_of_ranks("failed", self._size)

    @property
    def comm(self) -> MPI.Intracomm:
        """A communicator of the live ranks, in their order, for the program's own messages:
        until a rank dies the one that the handle was made on, then one of the library (do not free
        it). Each death revokes it: read this property again. StateError without
        ``on_failure="continue"``."""
        if self._membership is None:
            raise StateError('comm: the handle was made with on_failure="raise"')
        return self._membership.comm(self)

    @property
    def schedule(self) -> ScheduleView:
        """The schedule that this rank executes in each round."""
        return ScheduleView(self._core)

    def __repr__(self) -> str:
        state = "freed" if self._is_freed() else f"{self._size} ranks"
        deliver = "one" if self._one else "all"
        return f"<partial allreduce, quorum={self.policy}, deliver={deliver!r}, {state}>"
