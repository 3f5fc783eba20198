# SPDX-License-Identifier: Apache-2.0
"""Schedules of one's own, run by the engine that runs everything else."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .._core import buffers, checks, communicator, settings, waiting
from .._core.attendance import attending
from .._core.buffers import Buffer
from .._core.device import DeviceBuffer, as_any_buffer, refuse_stream
from .._core.ffi import answer_text, check, ffi, lib, raise_error
from .._core.mirror import Shadows
from .._core.mpi import MPI
from .._core.object import CoreObject


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a `Schedule`: what `Schedule.after` takes. ``index`` counts the operations
    of the ``schedule`` from 0, ``kind`` is the name of the method that made it."""

    index: int
    kind: str
    schedule: Schedule = field(repr=False)


# A schedule that is not freed may still communicate when MPI ends, which is after Python has
# taken its objects apart. So its buffers have one more reference from the commit until it is freed.
_hold, _release = ctypes.pythonapi.Py_IncRef, ctypes.pythonapi.Py_DecRef


class Schedule(CoreObject):
    """A DAG of operations that this rank runs, as often as wanted.

    Every rank writes its own part down, then all `commit` (collective). A run begins with
    `Start` and is over, on this rank, when every operation is done.

    `comm` (mpi4py.MPI.Intracomm) is dup'ed once, at the commit, so nothing on it meets the
    schedule's messages. It must live until then. `progress`: as of `Allreduce_init`. `on_failure`:
    "raise", so that when a rank dies every run that waits, and every later call, raises
    RankFailedError, and the schedule can only be freed. There is no "continue": what is to come in
    the place of the dead rank's messages only you know.

    Buffers are used in place, where they are: C-contiguous arrays of any dtype of the library.
    From `Start` to `Wait` they belong to the schedule. Those on a CUDA device are copied at both
    (docs/gpu.md). One thread at a time may use a schedule.
    In a ``with`` statement the end frees it; leaving by an exception before the commit makes the
    others' commits fail, so that nobody waits. `Free` is collective once the schedule is committed.
    It completes a run that this rank has started, and answers one that only others have started
    with empty messages.

    Making one is local. The semantics are in docs/schedules.md.
    """

    _noun, _kind = "schedule", "schedule"
    _begins_to_free = True

    def __init__(
        self, comm: MPI.Intracomm, *, progress: str | None = None, on_failure: str = "raise"
    ) -> None:
        if communicator.failure_code(on_failure) != lib.PCOLL_FAILURE_RAISE:
            raise ValueError(
                'on_failure: expected "raise", got "continue": what is to come in the place of a '
                "dead rank's messages nobody knows but you; write a new schedule for those who "
                "are left"
            )
        self._buffers_used: list[Buffer] = []
        self._shadows: Shadows | None = None  # once a buffer is on a device
        self._operations = 0
        self._committed = self._running = False
        self._refused = False  # by all ranks, since the last change
        self._comm = comm
        address = self._enter(comm)
        self._progress = communicator.progress_code(progress)
        check(lib.pcoll_schedule_create(address, self._pointer))

    def _take(
        self, argument: str, given: Any, writable: bool, read: bool = True, used: bool = True
    ) -> tuple[Buffer, Any]:
        """Return a buffer and its address on the host. used: what lies there is sent, or comes."""
        buffer = as_any_buffer(argument, given, writable)
        if buffer.datatype is not None:
            raise TypeError(
                f"{argument}: expected elements that the library knows, got the datatype "
                f"{buffer.name}"
            )
        if isinstance(buffer, DeviceBuffer):
            self._shadows = self._shadows or Shadows()
            place = self._shadows.of(buffer, read and used, writable and used)
            buffer = Buffer(place, buffer.dtype, buffer.count, None, given)
        return buffer, ffi.cast("void *", buffer.array.ctypes.data)

    def _shape(self, buffer: Buffer, op: int = 0) -> Any:
        return ffi.new("pcoll_buffer *", {"count": buffer.count, "dtype": buffer.dtype, "op": op})

    def _add(
        self, kind: str, label: str | None, *arguments: Any, keep: Iterable[Buffer]
    ) -> Operation:
        if label is not None:
            checks.instance("label", label, str, "a text")
        text = ffi.NULL if label is None else ffi.new("char[]", label.encode(errors="replace"))
        index = self._answer("int32_t", kind, *arguments, text)
        self._buffers_used.extend(keep)
        self._operations += 1
        self._refused = False
        return Operation(int(index), kind, self)

    def _peer(self, argument: str, rank: Any) -> int:
        value = checks.integer(argument, rank, what="a rank")
        if value != MPI.PROC_NULL and not 0 <= value < self._size:
            anybody = " (MPI.ANY_SOURCE: messages are matched at the commit)"
            raise ValueError(
                f"{argument}: expected a rank from 0 to {self._size - 1} or MPI.PROC_NULL, "
                f"got {value}{anybody if value == MPI.ANY_SOURCE else ''}"
            )
        return value

    def send(self, buf: Any, dest: int, *, tag: int = 0, label: str | None = None) -> Operation:
        """Send a buffer, `buf`, to rank `dest` (`MPI.PROC_NULL`: nothing is sent). Local.

        Messages from one rank to another with the same `tag` (0 to 2^31 - 1) match in the order in
        which they were written down: the n-th `send` here meets the n-th `recv` there, whenever
        they are carried out. Done when the buffer may be written to again. `label`: a name for
        messages and pictures, as of every operation. TypeError or ValueError of a buffer, rank or
        tag that will not do.
        """
        peer, number = self._peer("dest", dest), checks.integer("tag", tag, 0, 2**31 - 1)
        buffer, memory = self._take("buf", buf, writable=False, used=peer != MPI.PROC_NULL)
        return self._add("send", label, memory, self._shape(buffer), peer, number, keep=[buffer])

    def recv(self, buf: Any, source: int, *, tag: int = 0, label: str | None = None) -> Operation:
        """Receive into a buffer, `buf`, from rank `source`, as many elements of the same dtype as
        are sent; from `MPI.PROC_NULL` no message arrives, and the buffer is not changed. Matching
        of messages, `tag` and `label`: see `send`. Local."""
        peer, number = self._peer("source", source), checks.integer("tag", tag, 0, 2**31 - 1)
        used = peer != MPI.PROC_NULL
        buffer, memory = self._take("buf", buf, writable=True, read=False, used=used)
        return self._add("recv", label, memory, self._shape(buffer), peer, number, keep=[buffer])

    def _two(self, buf: Any, into: Any) -> tuple[Buffer, Buffer, Any, Any]:
        source, a = self._take("buf", buf, writable=False)
        target, b = self._take("into", into, writable=True)
        buffers.check_same("into", target, "buf", source)
        return source, target, a, b

    def reduce(self, buf: Any, into: Any, *, op: Any = None, label: str | None = None) -> Operation:
        """``into = buf op into``, element by element, `buf` on the left (as MPI's Reduce_local).
        Local.

        Same dtype and size; the same memory or memory apart. `op` is a predefined one that is
        defined for the dtype, MPI.SUM by default; float16 and bfloat16 are added as float32 and
        rounded each time. `label`: see `send`.
        """
        op = MPI.SUM if op is None else op
        code = buffers.op_code(op)
        source, target, a, b = self._two(buf, into)
        if code == lib.PCOLL_MPI_OP:
            raise TypeError(f"op: expected a predefined op such as MPI.SUM, got {checks.shown(op)}")
        buffers.check_op(op, code, source)
        return self._add("reduce", label, a, b, self._shape(source, code), keep=[source, target])

    def copy(self, buf: Any, into: Any, *, label: str | None = None) -> Operation:
        """``into = buf``. Arguments as of `reduce`. Local."""
        source, target, a, b = self._two(buf, into)
        return self._add("copy", label, a, b, self._shape(source), keep=[source, target])

    def nop(self, *, label: str | None = None) -> Operation:
        """Do nothing: a point for others to come after. Local. `label`: see `send`."""
        return self._add("nop", label, keep=[])

    def timer(self, seconds: float, *, label: str | None = None) -> Operation:
        """Add an operation that completes `seconds` (0 to 1e6) after its gate has opened; with
        ``progress="manual"`` only while this rank waits. Local. `label`: see `send`."""
        limit = checks.number("seconds", seconds, 0, 1e6)
        return self._add("timer", label, limit, keep=[])

    def _own(self, argument: str, op: Any) -> int:
        operation = checks.instance(argument, op, Operation, "an operation of this schedule")
        if operation.schedule is not self:
            raise ValueError(
                f"{argument}: expected an operation of this schedule, got {op!r} of another"
            )
        return operation.index

    def after(
        self, op: Operation, predecessors: Operation | Iterable[Operation], k: int | None = None
    ) -> Operation:
        """Let an operation wait for others; return it. Local.

        `op` begins when its gate opens, once in a run. Without predecessors it begins with the run.
        `predecessors`, one operation or several, join those of earlier calls; naming one twice
        counts once. The gate opens with the `k`-th of all its predecessors that is done; None: what
        an earlier call said, else all of them. The last k given counts. The others of a k-of-n gate
        are still carried out: the run ends when all are done.
        """
        target = self._own("op", op)
        if isinstance(predecessors, Operation):
            predecessors = [predecessors]
        try:
            indices = [self._own(f"predecessors[{i}]", p) for i, p in enumerate(predecessors)]
        except TypeError:
            if isinstance(predecessors, Iterable):
                raise
            raise TypeError(
                f"predecessors: expected an operation or several, got {checks.shown(predecessors)}"
            ) from None
        count = 0 if k is None else checks.integer("k", k, 1, 2**31 - 1)
        self._call("after", target, indices, len(indices), count)
        self._refused = False
        return op

    def commit(self) -> Schedule:
        """Check the schedule and compare it with those of the other ranks; return it. Collective.

        ValueError if this rank's part is wrong: operations that wait for each other in a cycle, a k
        larger than the number of predecessors, two operations that may use the same memory at the
        same time; the other ranks get MismatchError. MismatchError on every rank if sends and
        receives do not match in number, size or dtype (both sides are named). StateError if it is
        committed already, and for progress="agent" with an MPI initialized below
        MPI_THREAD_MULTIPLE. After an error it can be corrected and committed again.
        """
        with attending("Schedule.commit", self._members):
            code = lib.pcoll_schedule_commit(self._core(), self._progress)
        if code:
            self._refused = True
            raise_error(code)
        self._committed = True
        _hold(ctypes.py_object(self._buffers_used))
        return self

    # Runs

    def _check_stream(self, stream: Any) -> None:
        if self._shadows is None:
            refuse_stream(stream)

    def Start(self, stream: Any = None) -> None:
        """Begin a run. Local. StateError if the last one was not waited for. Buffers on a device
        are copied to the host before, after what `stream` (of cupy or torch, or the number of a
        CUstream; None: the current one) was given so far; waits for that."""
        self._check_stream(stream)
        core = self._core()
        if self._shadows is not None and self._committed and not self._running:
            self._shadows.pull(stream)
        check(lib.pcoll_schedule_start(core))
        self._running = True

    def _land(self, stream: Any) -> None:
        if self._shadows is not None and self._running:
            self._shadows.push(stream)
        self._running = False

    def Wait(self, timeout: float | None = None, stream: Any = None) -> None:
        """Wait, without burning a core, until every operation of the run is done on this rank.
        TimeoutError after `timeout` seconds (None: never); the run can be waited for again. What
        `stream` (as of `Start`) is given from now on comes after the results are on the device.

        After PARTIALCOLL_STALL_WARN seconds (10 by default) a warning of the logger "partialcoll"
        says which operations wait for which ranks.
        """
        checks.time_limit("timeout", timeout)
        self._check_stream(stream)
        done = waiting.wait(
            lambda us: int(lib.pcoll_schedule_wait(self._core(), us)), timeout, self._report_stall
        )
        if not done:
            raise TimeoutError(f"the run was not over after {timeout} s; wait again")
        self._land(stream)

    def Test(self, stream: Any = None) -> bool:
        """Return whether the run is complete, after `Wait` if so. Never blocks; communicates."""
        self._check_stream(stream)
        code = lib.pcoll_schedule_wait(self._core(), 0)
        if code == lib.PCOLL_EAGAIN:
            return False
        check(code)
        self._land(stream)
        return True

    def _report_stall(self, waited: float) -> None:
        text = ffi.new("char[]", 2048)
        if not self._is_freed() and not lib.pcoll_schedule_pending(self._core(), text, 2048):
            message = ffi.string(text).decode(errors="replace")
            settings.logger.warning("waiting for %.1f s in %s", waited, message)

    @property
    def runs(self) -> int:
        """Number of runs that are over on this rank."""
        return int(self._answer("uint64_t", "runs"))

    def _after_free(self) -> None:
        if self._committed:
            _release(ctypes.py_object(self._buffers_used))
        self._buffers_used = []
        if self._shadows is not None:
            self._shadows.free()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is not None and not self._committed and not self._is_freed():
            if not self._refused:
                lib.pcoll_schedule_give_up(self._pointer[0])
            self.Free()
        super().__exit__(kind, value, traceback)

    def _leak(self) -> None:
        if self._committed:
            super()._leak()
        else:
            lib.pcoll_schedule_free(self._pointer, 0)

    def to_dot(self) -> str:
        """Return this rank's part in Graphviz DOT, before or after the commit. Local."""
        return answer_text(lib.pcoll_schedule_text, self._core(), b"dot")

    def to_goal(self, *, all_ranks: bool = False, ns_per_byte: float = 0.0) -> str:
        """Return the schedule in GOAL, for simulators of LogGOPSim's family: the block of this rank
        (local), or with `all_ranks` the whole file, on every rank (collective, on the communicator
        that the schedule was made with). A byte that is copied or reduced takes `ns_per_byte`
        nanoseconds. A timer becomes a computation; gates of k of n, which GOAL does not have, wait
        for all, and a comment says so. Source: Hoefler, Siebert, Lumsdaine, ICPP 2009."""
        block = answer_text(lib.pcoll_schedule_goal, self._core(), ns_per_byte)
        if not all_ranks:
            return block
        return f"num_ranks {self._size}\n" + "".join(self._comm.allgather(block))

    def __str__(self) -> str:
        return answer_text(lib.pcoll_schedule_text, self._core(), b"text")

    def __repr__(self) -> str:
        state = "committed" if self._committed else "not committed"
        state = "freed" if self._is_freed() else state
        return f"<schedule of {self._operations} operations on {self._size} ranks, {state}>"
