# SPDX-License-Identifier: Apache-2.0
"""The world that `init` makes: a communicator of its own, and which rank of it this is."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar, cast

from mpi4py import MPI

from .._core import checks, communicator, launch, settings
from .._core.attendance import attending
from .._core.departure import Departures
from .._core.survivors import among_the_living
from ..errors import StateError
from .calls import Calls
from .process_sets import ProcessSet, global_process_set


@dataclass
class World:
    """The communicator, and this rank's place on its node and across the nodes."""

    comm: MPI.Intracomm
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    calls: Calls
    departures: Departures
    on_failure: str
    optimizers: list[Any] = field(default_factory=list)  # that are open, as they were made
    sets: list[ProcessSet] = field(default_factory=list)  # that are usable, beside the global one
    sets_made: int = 0


_world: World | None = None

F = TypeVar("F", bound=Callable[..., Any])


def _progress() -> str:
    choices = list(communicator.PROGRESS)
    return settings.choice("progress", None, "PARTIALCOLL_PROGRESS", "agent", choices)


def _check_threads(comm: MPI.Intracomm) -> None:
    """What is made on the communicator later would refuse it as well; say so now, on all ranks."""
    short = _progress() != "manual" and MPI.Query_thread() < MPI.THREAD_MULTIPLE
    ranks = [rank for rank, lacks in enumerate(comm.allgather(short)) if lacks]
    if ranks:
        raise StateError(
            "init: the agent needs MPI_THREAD_MULTIPLE, and MPI was initialized with less on "
            f"rank {', '.join(map(str, ranks))}; initialize it with MPI_THREAD_MULTIPLE or ask for "
            "manual progress (PARTIALCOLL_PROGRESS=manual)"
        )


def _check_comm(comm: Any) -> MPI.Intracomm:
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise StateError("init: expected MPI to be initialized and not finalized")
    if comm is None:
        comm = MPI.COMM_WORLD
    if isinstance(comm, Iterable) and not isinstance(comm, MPI.Comm):
        raise TypeError(
            "comm: expected an mpi4py communicator, got a list of ranks; make one of them with "
            "MPI.COMM_WORLD.Split"
        )
    communicator.address(comm)
    checked: MPI.Intracomm = comm
    return checked


def _place(comm: MPI.Intracomm) -> tuple[int, int, int, int]:
    """local_rank, local_size, cross_rank, cross_size."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank)
    across = comm.Split(node.rank, key=comm.rank)
    place = (node.rank, node.size, across.rank, across.size)
    across.Free()
    node.Free()
    return place


def init(
    comm: MPI.Intracomm | None = None, process_sets: Any = None, *, on_failure: str = "raise"
) -> None:
    """Make the world: all ranks that train together. Collective.

    A second call does nothing. At the end of a program nothing need be called; `shutdown` is
    for programs that go on. Where MPI goes on when ranks die, the world is of those who live: after
    a death `shutdown` and `init` make it anew.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed; ``MPI.COMM_WORLD`` by default. Ranks that train apart from others: Split it.
    process_sets : list of ProcessSet, or of lists of ranks
        To `add_process_set` at once, the same on all ranks.
    on_failure : "raise" or "continue"
        When a rank dies: RankFailedError from all calls of this module, on all others; or
        allreduces, broadcasts, barriers and calls about objects go on among those who live, who
        keep `rank` and `size`, and others are refused (docs/faults.md).

    Raises
    ------
    StateError
        MPI runs below MPI_THREAD_MULTIPLE (on all ranks, naming those that do), is not
        initialized, or an earlier call was for another group of ranks.
    Error
        P jobs of one rank each were started in place of one of P ranks.
    """
    global _world
    if _world is not None:
        _check_same(_world, comm)
        return
    checks.one_of("on_failure", on_failure, ("raise", "continue"))
    comm = _check_comm(comm)
    launch.check_launcher()
    with attending("partialcoll.torch.init", comm):
        _world = among_the_living(comm, lambda own: _make(own, on_failure))
    own = _world.comm
    settings.configure_logging(own.rank)
    global_process_set.ranks = list(range(own.size))
    global_process_set.attach(0, own.rank, own, _world.calls)
    for one in process_sets or ():
        add_process_set(one)


def _make(own: MPI.Intracomm, on_failure: str) -> World:
    _check_threads(own)
    calls = Calls(own, on_failure)
    return World(own, *_place(own), calls, Departures(own), on_failure)


def form_anew() -> None:
    """The world is of those who live, whose optimizers go on. Collective."""
    global _world
    before = world()
    _world = None
    try:
        init(before.comm, on_failure=before.on_failure)
        assert _world is not None
        _world.optimizers = before.optimizers
    finally:
        _free(before)


def _check_same(present: World, comm: MPI.Intracomm | None) -> None:
    if comm is None:
        return
    kinds = (MPI.IDENT, MPI.CONGRUENT)
    if MPI.Comm.Compare(present.comm, _check_comm(comm)) not in kinds:
        raise StateError(
            f"init: called before for {present.comm.size} ranks, now for others ({comm.size}); "
            "call shutdown() in between"
        )


def world() -> World:
    """What `init` has made; StateError before it, and when MPI has ended."""
    communicator.check_running("partialcoll.torch")
    if _world is None:
        raise StateError("partialcoll.torch is not initialized: call init() first")
    return _world


def attended(function: F) -> F:
    """A collective function of this world: if a rank does not come to it, a warning says which."""

    @functools.wraps(function)
    def attend(*arguments: Any, **named: Any) -> Any:
        with attending(f"partialcoll.torch.{function.__name__}", world().comm):
            return function(*arguments, **named)

    return cast("F", attend)


def forget(optimizer: Any) -> None:
    """It is being closed. Local."""
    if _world is not None:
        _world.optimizers = [other for other in _world.optimizers if other is not optimizer]


def is_initialized() -> bool:
    """Between `init` and `shutdown`? Local."""
    return _world is not None


def shutdown() -> None:
    """Free what `init` and the calls after it have made. Collective.

    A second call does nothing. Optimizers have handles of their own and free them themselves. At
    the end of a program it is not needed: MPI's end frees everything.
    """
    global _world
    ending = _world
    if ending is not None and not MPI.Is_finalized():
        with attending("partialcoll.torch.shutdown", ending.comm):
            _free(ending)
        global_process_set.invalidate()
    _world = None


def _free(ending: World) -> None:
    ending.calls.free()
    for one in ending.sets:
        _free_set(one)
    ending.departures.free()
    ending.comm.Free()


def _free_set(one: ProcessSet) -> None:
    calls, comm = one.invalidate()
    if calls is not None and comm is not None:
        calls.free()
        comm.Free()


@attended
def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set of ranks usable, which is returned. Collective over all ranks of the world, also
    those that are not in it.

    Parameters
    ----------
    process_set : ProcessSet or iterable of int
        The set, or its ranks' numbers in the world.

    Raises
    ------
    ValueError
        Ranks that are not there or come twice; a set of the same ranks is there already.
    MismatchError
        On all ranks, if they give different ones.
    """
    here = world()
    try:
        one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        one.check(here.comm.size, [global_process_set, *here.sets])
    except Exception as error:
        here.calls.refuse(error)
    here.calls.agree(f"add_process_set of ranks {one.ranks}")
    own = here.comm.rank
    comm: Any = here.comm.Split(0 if own in one.ranks else MPI.UNDEFINED, own)
    here.sets_made += 1
    calls = Calls(comm, here.on_failure) if own in one.ranks else None
    one.attach(here.sets_made, own, comm if own in one.ranks else None, calls)
    here.sets.append(one)
    return one


@attended
def remove_process_set(process_set: ProcessSet) -> bool:
    """Free what the set `process_set` has held; calls under way are brought to their end.
    Collective over all ranks of the world. False, and nothing happens, of one that is not usable,
    and of the global one."""
    here = world()
    if process_set not in here.sets:
        return False
    here.calls.agree(f"remove_process_set of ranks {process_set.ranks}")
    here.sets.remove(process_set)
    _free_set(process_set)
    return True


def calls_of(process_set: ProcessSet | None) -> Calls:
    """Those of a set; None: of all ranks. ValueError if this rank cannot make any there."""
    here = world()
    if process_set is None:
        return here.calls
    if not isinstance(process_set, ProcessSet):
        name = type(process_set).__name__
        here.calls.refuse(TypeError(f"process_set: expected a ProcessSet or None, got {name}"))
    return process_set.calls


def comm() -> MPI.Intracomm:
    """The communicator that `init` has made; not for traffic of your own while collectives of
    this module are under way. Local."""
    return world().comm


def rank() -> int:
    """This process's number, 0 to `size` - 1. Local."""
    return world().comm.rank


def size() -> int:
    """The number of ranks. Local."""
    return world().comm.size


def local_rank() -> int:
    """This process's number among those of its node. Local."""
    return world().local_rank


def local_size() -> int:
    """The number of ranks on this node. Local."""
    return world().local_size


def cross_rank() -> int:
    """This node's number among those that have a rank with this `local_rank`. Local."""
    return world().cross_rank


def cross_size() -> int:
    """The number of nodes that have a rank with this `local_rank`. Local."""
    return world().cross_size
