# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed, on MPI.

>>> import partialcoll.torch
>>> torch.distributed.init_process_group("partialcoll")  # under mpiexec, with no other setup

A group takes torch's calls and begins them. What they are: plans.py; the order in which they are
carried out, waiting and time limits: ops/queue.py; the data: ops/handles.py, ops/transfer.py; send
and recv: messages.py; how groups are made: backend.py, and how the ranks meet: rendezvous.py.
"""

from __future__ import annotations

import functools
import inspect
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Callable, NamedTuple

import torch
import torch.distributed as dist

from .._core import waiting
from .._core.attendance import attending
from .._core.failures import Departures
from .._core.mpi import MPI
from ..errors import StateError
from .messages import Messages
from .ops import futures, wire
from .ops.call import Call, GroupTimeout, Work, untraced
from .ops.queue import Queue
from .plans import Plan, Plans, one_of

NAME = "partialcoll"

# Without the signatures of torch's own methods, which are overloaded and change.
_Base: Any = dist.ProcessGroup

retired: dict[str, ProcessGroup] = {}  # destroyed, and not freed yet


WINDOW = 3  # operations of the program that are compared ahead


class Depth(NamedTuple):
    """One of them."""

    comm: MPI.Intracomm
    plans: Plans
    queue: Queue


class Depths:
    """Those of one group. Made collectively.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Of the group's ranks, whose collectives are for this only.
    name : str
        Of the group, for messages.
    on_failure : str
        Of its queues.
    """

    def __init__(self, comm: MPI.Intracomm, name: str, on_failure: str) -> None:
        self._comm, self._name, self._on_failure = comm, name, on_failure
        self._all: list[Depth] = []
        self._lock = threading.Lock()  # of that list, for who makes one
        self._broken: BaseException | None = None
        self._stopping = False
        self.lines = futures.Lines()
        self._make(name, WINDOW)
        self._make(f"{name}, in a callback", 1)

    def _make(self, name: str, window: int) -> None:
        comm, remedy = self._comm.Dup(), "destroy_process_group() and make it anew"
        how: Any = {"owner": "torch.distributed", "remedy": remedy, "on_failure": self._on_failure}
        plans = Plans(comm, self._on_failure == "continue")
        self._all.append(Depth(comm, plans, Queue(comm, name, window, **how)))

    def here(self, timeout: float) -> Depth:
        """For a call of the calling thread. GroupTimeout if it has to be made and not all ranks
        come to that."""
        depth = futures.depth()
        if depth >= len(self._all):
            with self._lock:
                while depth >= len(self._all):
                    self._open(timeout)
        return self._all[depth]

    def _open(self, timeout: float) -> None:
        name = f"{self._name}, {len(self._all)} callbacks deep"
        if self._broken is not None:
            raise StateError(f"{name} has ended with an error: {self._broken}")
        try:
            with attending(f"a call in {name}", self._comm):
                self._gather(name, timeout)
        except Exception as error:
            self._broken = error
            raise
        self._make(name, 1)

    def _gather(self, name: str, timeout: float) -> None:
        """Until all ranks have come."""
        deadline = time.monotonic() + timeout

        def patient() -> None:
            if self._stopping:
                raise StateError(f"{name} was destroyed before its first call")
            if time.monotonic() >= deadline:
                raise GroupTimeout(
                    f"the first call in {name} was not over after its timeout of {timeout:g} s: "
                    "not all ranks have made one"
                )

        waiting.until(self._comm.Ibarrier().Test, patient)

    def halt(self) -> None:
        """What is under way fails, in callbacks as well."""
        self._stopping = True
        for depth in self._all:
            depth.queue.halt()

    def join(self) -> None:
        """Wait for the threads, which may be in callbacks; after `halt` of all that they may wait
        for."""
        for depth in self._all:
            depth.queue.join()

    @property
    def broken(self) -> bool:
        """Has a call failed on this rank, so that the ranks are no longer together?"""
        return self._broken is not None or any(depth.queue.broken for depth in self._all)

    def free(self) -> None:
        """Collective."""
        for depth in self._all:
            depth.queue.free()
            depth.comm.Free()


def _tensors_in(given: Any) -> Iterator[torch.Tensor]:
    """Those in lists of lists of them."""
    for one in given if isinstance(given, (list, tuple)) else ():
        if isinstance(one, torch.Tensor):
            yield one
        else:
            yield from _tensors_in(one)


def _operation(plan: Callable[..., Plan], options: Callable[[], Any] | None = None) -> Any:
    """A collective of torch's, made of the plan for it. The last argument is its options, which
    torch may leave out: then they are what `options` makes."""
    others = len(inspect.signature(plan).parameters) - 2

    @functools.wraps(plan)
    def begin(self: ProcessGroup, *given: Any, opts: Any = None) -> Work:
        opts = given[others] if len(given) > others else opts
        if opts is None and options is not None:
            opts = options()
        return self._begin(plan, given[:others], opts)

    return untraced(begin)


class ProcessGroup(_Base):
    """One group of ranks. Made by `init_process_group` and `new_group`.

    The collectives are those of `torch.distributed`, which calls them here; all ranks make them in
    the same order. Ranks that differ in what they call get MismatchError, all of them, and may go
    on. An operation that takes longer than the group's time limit raises GroupTimeout, which is a
    TimeoutError, and ends the group. tells: its ranks hear of it when an exception ends the program
    of one of them.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        comm: MPI.Intracomm,
        timeout: timedelta,
        on_failure: str,
        tells: bool,
    ) -> None:
        super().__init__(comm.rank, comm.size)
        self._name, self._description, self._identity = name, "undefined", identity
        self._timeout = timeout.total_seconds()
        self._comm = comm  # its messages are send and recv
        self._depths = Depths(comm, f"group {name}", on_failure)
        self._messages = Messages(comm, on_failure)
        self._departures = Departures(comm) if tells else None
        self._coalescing: dict[int, list[Work]] = {}  # by thread
        self._sequence = 0

    # What torch asks a group for

    def getBackendName(self) -> str:
        return NAME

    @property
    def _device_types(self) -> list[torch.device]:
        """Those of tensors that it takes. Objects go by the first."""
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: torch.device) -> ProcessGroup:
        return self

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def set_timeout(self, timeout: timedelta) -> None:
        """For operations that begin later."""
        self._timeout = timeout.total_seconds()

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def __repr__(self) -> str:
        return f"<partialcoll process group {self._name}, rank {self.rank()} of {self.size()}>"

    # Beginning and ending operations

    def _begin(self, plan: Callable[..., Plan], given: Sequence[Any], options: Any) -> Work:
        """The next operation of this group. If the arguments are wrong, the others hear of it."""
        asked: timedelta | None = getattr(options, "timeout", None)
        endless = asked is None or asked <= timedelta(0)
        limit = self._timeout if asked is None or endless else asked.total_seconds()
        background = getattr(options, "asyncOp", True)
        _, plans, queue = self._depths.here(limit)
        try:
            text, move, filled = plan(plans, *given, options)
            call = Call(text, move, filled, timeout=limit, read=list(_tensors_in(given)))
        except Exception as error:
            queue.refuse(error, limit, background=True)
        call.lines = self._depths.lines
        self._sequence += 1
        work = queue.submit(call, background)
        self._coalescing.get(threading.get_ident(), []).append(work)
        return work

    def _start_coalescing(self, device: Any) -> None:
        self._coalescing[threading.get_ident()] = []

    def _end_coalescing(self, device: Any) -> Work | None:
        """The last operation stands for all, since they end in their order."""
        works = self._coalescing.pop(threading.get_ident(), [])
        return works[-1] if works else None

    def shutdown(self) -> None:
        """Local: nothing that is under way goes on. Its memory is freed when a new world begins,
        or MPI ends. Others may still wait for this rank, and hear why if an error ends it."""
        if self._departures is not None:
            self._departures.ignore()
        for one in (self._depths, self._messages):
            one.halt()
        for one in (self._depths, self._messages):
            one.join()
        retired[self._identity] = self

    abort = shutdown

    def free(self) -> None:
        """Free what the group has held. Collective, after `shutdown`."""
        self._depths.free()
        if self._departures is not None:
            self._departures.free()
        self._comm.Free()

    @property
    def usable(self) -> bool:
        """Are its ranks still together, as far as this one knows?"""
        return not self._depths.broken

    # Collectives

    allreduce = _operation(Plans.allreduce, dist.AllreduceOptions)
    allreduce_coalesced = _operation(Plans.allreduce_coalesced, dist.AllreduceCoalescedOptions)
    reduce = _operation(Plans.reduce, dist.ReduceOptions)
    reduce_scatter = _operation(Plans.reduce_scatter, dist.ReduceScatterOptions)
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = _operation(
        Plans.reduce_scatter_single_coalesced, dist.ReduceScatterOptions
    )
    broadcast = _operation(Plans.broadcast, dist.BroadcastOptions)
    allgather = _operation(Plans.allgather)
    allgather_coalesced = _operation(Plans.allgather_coalesced)
    all_gather_single_coalesced = allgather_into_tensor_coalesced = _operation(
        Plans.all_gather_single_coalesced
    )
    gather = _operation(Plans.gather, dist.GatherOptions)
    scatter = _operation(Plans.scatter, dist.ScatterOptions)
    alltoall = _operation(Plans.alltoall)
    all_to_all_single = alltoall_base = _operation(Plans.all_to_all_single)
    barrier = _operation(Plans.barrier)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        work: Work = self.reduce_scatter_single_coalesced([output], [input], opts)
        return work

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        work: Work = self.all_gather_single_coalesced([output], [input], opts)
        return work

    _reduce_scatter_base, _allgather_base = reduce_scatter_single, all_gather_single

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier with a time limit of its own. GroupTimeout names those who are missing, all of
        them, with any value of `wait_all_ranks`."""
        opts = dist.BarrierOptions()
        opts.asyncOp = False
        if timeout is not None:
            opts.timeout = timeout
        self.barrier(opts).wait()

    # Messages

    def _check_peer(self, argument: str, peer: int) -> int:
        if not 0 <= peer < self.size():
            raise ValueError(f"{argument}: expected 0 to {self.size() - 1}, got {peer}")
        return peer

    @untraced
    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        tensor = one_of(tensors)
        wire.check_tensor(tensor, written=False, reduced=False)
        return self._messages.send(tensor, self._check_peer("dst", dst), tag, self._timeout)

    @untraced
    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        return self._receive(tensors, self._check_peer("src", src), tag)

    @untraced
    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._receive(tensors, None, tag)

    def _receive(self, tensors: Any, source: int | None, tag: int) -> Work:
        tensor = one_of(tensors)
        wire.check_tensor(tensor, written=True, reduced=False)
        return self._messages.recv(tensor, source, tag, self._timeout)
