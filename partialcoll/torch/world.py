# SPDX-License-Identifier: Apache-2.0
"""The world that `init` makes: a communicator of its own, which rank of it this is, sets of its
ranks, and processes in place of ranks that have died."""

from __future__ import annotations

import atexit
import gc
import sys
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional, cast

import torch

from .. import elastic, newcomer
from .._core import checks, communicator, launch, settings
from .._core.attendance import attending
from .._core.failures import Departures, all_say, among_the_living, goes_on, living, told_by
from .._core.mpi import MPI, check_rank
from .._core.settings import logger
from ..collectives.agreement import sides
from ..errors import RankFailedError, StateError
from . import rendezvous
from .calls import Calls

__all__ = ["ProcessSet", "add_process_set", "ccl_built", "check_extension", "comm", "cross_rank"]
__all__ += ["cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built"]
__all__ += ["gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size"]
__all__ += ["mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank"]
__all__ += ["remove_process_set", "rocm_built", "shutdown", "size"]

# Process sets


class ProcessSet:
    """Ranks of the world with calls of their own. `init` or `add_process_set` makes it usable.

    `ranks`: numbers in the world; as an attribute in ascending order, and a rank's number within
    the set is its place there. Sets may overlap. `process_set_id`: 0 of the global one; None before
    it is usable, and when it has been removed.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        if not isinstance(ranks, Iterable):
            raise TypeError(
                f"ranks: expected numbers of ranks, got {type(ranks).__name__}; of a communicator "
                "all ranks can be told with comm.allgather"
            )
        self.ranks = sorted(ranks)
        if any(isinstance(one, bool) or not isinstance(one, int) for one in self.ranks):
            raise ValueError(f"ranks: expected numbers of ranks, got {self.ranks}")
        self.process_set_id: int | None = None
        self._calls: Calls | None = None  # None: this rank is not in it

    def __deepcopy__(self, memo: Any = None) -> ProcessSet:
        """There is one of these ranks: a copy of a module that has it means the same one."""
        return self

    __copy__ = __deepcopy__

    def __reduce__(self) -> Any:
        """By its ranks: what is loaded has to be added to its world. The global one by its name."""
        return "global_process_set" if self is global_process_set else (ProcessSet, (self.ranks,))

    def size(self) -> int | None:
        """The number of its ranks; None if it is not usable. Local."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's number within it; None if it is not in it. Local."""
        return None if self._calls is None else self._calls.comm.rank

    def included(self) -> bool | None:
        """Return whether this process is in the set; None if the set is not usable. Local."""
        return None if self.process_set_id is None else self._calls is not None

    def _free(self) -> None:
        calls, self.process_set_id, self._calls = self._calls, None, None
        if calls is not None:
            calls.free()

    def __repr__(self) -> str:
        return f"ProcessSet({self.ranks})"


OptionalSet = Optional[ProcessSet]
"""The set of ranks that make a call; None: all ranks."""

global_process_set = ProcessSet([])
"""All ranks of the world, after `init`."""


# Newcomers


MOST_TRIES = 3  # in a row, after which there are still too few

Told = tuple[bool, int, int]  # lived, ranks, tries

# The communicator of the last world with joining ranks; at most one. Programs may form it again.
_everybody: list[MPI.Intracomm] = []


@dataclass
class Replacing:
    """Replacement of dead ranks, with ``init(respawn=True)``.

    Joining ranks run the same program. Survivors start them at a commit, and wait for them, or
    continue and check at each commit whether they are ready. Then all form a world together and
    make their optimizers there, survivors with their own state; joining ranks get the state from
    rank 0, a survivor. A rank may die in each step of this: each step (an agreement, or a round
    that survives deaths) informs all live ranks or none, and they continue without the dead rank.
    """

    ranks: int  # the intended number
    tries: int = 0  # since the last death, after which there were still too few
    lived: bool = True  # this process has the state that training continues from
    overlap: bool = False  # training continues while joining ranks load
    spawned: elastic.Spawned | None = None  # the joining ranks that load

    def wants(self, size: int) -> bool:
        """Return whether there are too few ranks and more are to be started."""
        return size < self.ranks and self.tries < MOST_TRIES

    def formed(self, size: int, known: Iterable[Told]) -> Replacing:
        """Return the replacement state for a world of `size` ranks, from the facts `known` to them.
        StateError, on all, if no rank that had a state survived."""
        rows = [row for row in known if row[0]]
        if not rows:
            raise StateError("init: all who had the state of the training have died; begin anew")
        _, ranks, tries = rows[0]
        found = Replacing(ranks, tries + 1 if size < ranks else 0, self.lived, self.overlap)
        if found.tries == MOST_TRIES:
            logger.warning(
                "%d of %d ranks are there after %d tries to replace those that have died: training "
                "goes on with them",
                *(size, ranks, MOST_TRIES),
            )
        return found

    def due(self, comm: MPI.Intracomm) -> bool:
        """Return whether to form a world with joining ranks now. Collective."""
        if not self.wants(comm.size):
            return False
        if not self.overlap:
            return True
        if self.spawned is not None:
            return all_say(comm, self.spawned.over())
        here = living(comm)
        self.spawned = _spawn(here, self)
        here.Free()
        if self.spawned is not None:
            atexit.register(self.spawned.dismiss)
        return False

    def dismiss(self) -> None:
        """Dismiss the joining ranks that are still loading. Local, on all."""
        if self.spawned is not None:
            self.spawned.dismiss()
        self.spawned = None


def _begin_respawn(overlap: bool) -> tuple[MPI.Intracomm, Replacing]:
    """Return the communicator of the new world; in a joining rank collective with the survivors."""
    lived, parents = True, MPI.Comm.Get_parent()
    if not _everybody and parents != MPI.COMM_NULL:
        # The others wait from here on, and the first optimizer has torch load half of itself.
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        try:
            _everybody.append(elastic.merge_with_parents(parents))
        except RankFailedError as error:
            logger.warning("this process ends: %s", error)
            sys.exit(0)
        lived = False
    comm = _everybody[0] if _everybody else MPI.COMM_WORLD
    return comm, Replacing(comm.size, lived=lived, overlap=overlap)


def _spawn(here: MPI.Intracomm, replacing: Replacing) -> elastic.Spawned | None:
    """Start the missing number of joining ranks; None if they cannot be started. Collective."""
    try:
        return elastic.Spawned(here, newcomer.command(), replacing.ranks - here.size)
    except (StateError, MPI.Exception) as error:
        logger.warning("those who have died are not replaced: %s", error)
        replacing.tries = MOST_TRIES
        return None


def _take_in(comm: MPI.Intracomm, replacing: Replacing) -> MPI.Intracomm | None:
    """Join live and new ranks; None if no rank joined. Collective over live ranks of `comm`."""
    here = living(comm)
    try:
        spawned = replacing.spawned or _spawn(here, replacing)
        replacing.spawned = None
        if spawned is None:
            return None
        merged = spawned.merge(here)
    except RankFailedError as error:
        logger.info("nobody was replaced: %s", error)
        return None
    finally:
        here.Free()
    _everybody[:] = [merged]
    return merged


# The world


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
    replacing: Replacing | None = None  # the dead; None: they are not
    wrapped: list[weakref.ref[Any]] = field(default_factory=list)  # open optimizers, as made
    sets: list[ProcessSet] = field(default_factory=list)  # that are usable, beside the global one
    sets_made: int = 0

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that are open and in use, in the order in which they were made."""
        found = [one() for one in self.wrapped]
        return [one for one in found if one is not None]


_world: World | None = None


class _NotInitialized(StateError, ValueError):
    """A call before `init`: Horovod raises ValueError."""


def _check_threads(comm: MPI.Intracomm) -> None:
    """Refuse a thread level that later objects on the communicator would refuse, on all ranks."""
    choices = list(communicator.PROGRESS)
    progress = settings.choice("progress", None, "PARTIALCOLL_PROGRESS", "agent", choices)
    short = progress != "manual" and MPI.Query_thread() < MPI.THREAD_MULTIPLE
    everybody = [short] * comm.size if goes_on() else comm.allgather(short)
    ranks = [rank for rank, lacks in enumerate(everybody) if lacks]
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
    return cast("MPI.Intracomm", comm)


def _place(rank: int, names: dict[int, str]) -> tuple[int, int, int, int]:
    """local_rank, local_size, cross_rank, cross_size; from the ranks' nodes."""
    nodes = sides(names.items())
    here = nodes[names[rank]]
    number = here.index(rank)
    across = sorted(node[number] for node in nodes.values() if number < len(node))
    return number, len(here), across.index(rank), len(across)


def init(
    comm: MPI.Intracomm | None = None,
    process_sets: Any = None,
    *,
    on_failure: str = "raise",
    respawn: bool | str = False,
) -> None:
    """Make the world: all ranks that train together. Collective.

    A second call does nothing. A program that ends need not call anything; `shutdown` is for
    programs that continue. If MPI survives deaths, the world has the live ranks: after a death
    `shutdown` and `init` make a new one.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Dup'ed; ``MPI.COMM_WORLD`` by default. Ranks that train apart from others: Split it.
    process_sets : list of ProcessSet, or of lists of ranks
        To `add_process_set` at once, the same on all ranks. "dynamic", as Horovod has it: none
        yet; they may always be added later.
    on_failure : "raise" or "continue"
        When a rank dies: all calls of this module raise RankFailedError, on all other ranks; or
        allreduces, broadcasts, barriers and calls about objects continue among the live ranks,
        which keep `rank` and `size`, and other calls are refused (docs/faults.md).
    respawn : bool or "overlap"
        With "continue": processes that run the same program take the places of those that have
        died, at the next `elastic.State.commit`, which waits for them; "overlap": training goes on
        with fewer ranks while they load, and a later commit takes them in. Not together with
        `comm` and process sets.

    StateError if this process is a child of a rank (a DataLoader worker, a process pool), if MPI is
    not initialized or runs below MPI_THREAD_MULTIPLE (on all ranks, naming those that do), if an
    earlier call was for another group of ranks, and, on joining ranks, if all ranks with the state
    of the training have died. MismatchError, on all ranks, if `respawn` differs. Error if P
    jobs of one rank each were started in place of one of P ranks.
    """
    global _world
    check_rank("init")
    launch.check_before_mpi()
    if _world is not None:
        same = (MPI.IDENT, MPI.CONGRUENT)
        if comm is not None and MPI.Comm.Compare(_world.comm, _check_comm(comm)) not in same:
            raise StateError(
                f"init: called before for {_world.comm.size} ranks, now for others ({comm.size}); "
                "call shutdown() in between"
            )
        return
    checks.one_of("on_failure", on_failure, ("raise", "continue"))
    sets = process_sets or ()
    if isinstance(sets, str):
        if sets.lower() != "dynamic":
            raise ValueError(f"process_sets: expected a list of sets or 'dynamic', got {sets!r}")
        sets = ()
    if isinstance(respawn, str):
        checks.one_of("respawn", respawn, (False, True, "overlap"))
    else:
        checks.flag("respawn", respawn)
    if respawn and on_failure != "continue":
        raise ValueError(f"respawn: expected on_failure='continue' with it, got {on_failure!r}")
    if respawn and (comm is not None or sets):
        raise ValueError(
            "comm, process_sets: expected none of them with respawn=True; newcomers could not be "
            "given their places there"
        )
    checked, replacing = _check_comm(comm), None
    launch.check_launcher()
    rendezvous.set_environment()
    if respawn:
        checked, replacing = _begin_respawn(respawn == "overlap")
    _form(checked, on_failure, replacing)
    for one in sets:
        add_process_set(one)


def _form(comm: MPI.Intracomm, on_failure: str, replacing: Replacing | None) -> World:
    """Form the world of the live ranks of `comm`. Collective over them."""
    global _world
    with attending("partialcoll.torch.init", comm):
        _world = among_the_living(comm, lambda own: _make(own, on_failure, replacing))
    own = _world.comm
    settings.configure_logging(own.rank)
    global_process_set.ranks = list(range(own.size))
    global_process_set.process_set_id, global_process_set._calls = 0, _world.calls
    return _world


def _make(own: MPI.Intracomm, on_failure: str, replacing: Replacing | None) -> World:
    """Make the world. If ranks may die, it avoids MPI's collectives, which may never return."""
    _check_threads(own)
    calls = Calls(own, on_failure)
    how = replacing and ("overlap" if replacing.overlap else True)
    told: Any = replacing and (replacing.lived, replacing.ranks, replacing.tries)
    said = own.rank, MPI.Get_processor_name(), told
    known = calls.allgather(said, f"init(respawn={how or False!r})")
    if replacing is not None:
        replacing = replacing.formed(own.size, [row for _, _, row in known])
    place = _place(own.rank, {rank: name for rank, name, _ in known})
    return World(own, *place, calls, Departures(own), on_failure, replacing)


def form_anew(replace: bool = False, died: bool = False) -> None:
    """Form the world again, of the live ranks, whose optimizers continue; with `replace`, if dead
    ranks are to be replaced, also of joining ranks, with which the optimizers meet again.
    Collective. died: ranks have died since the last time. After an error there is no world."""
    global _world
    before, wider = world(), None
    if before.replacing is not None:
        if died:
            # A world is formed without them first, which counts as a try.
            before.replacing.tries = -before.replacing.overlap
        if replace and not (died and before.replacing.overlap):
            wider = _take_in(before.comm, before.replacing)
        before.replacing.dismiss()
    _world = None
    try:
        _form(wider or before.comm, before.on_failure, before.replacing)
        world().wrapped = before.wrapped
        for one in before.optimizers if wider else ():
            one._meet_anew()
    except BaseException:
        _world = None
        raise
    _free(before)


def world() -> World:
    """Return the world that `init` has made; StateError before it, and when MPI has ended."""
    if _world is None:
        check_rank("partialcoll.torch")
        raise _NotInitialized("partialcoll.torch is not initialized: call init() first")
    communicator.check_running("partialcoll.torch")
    return _world


def forget_dropped() -> None:
    """Collect the optimizers that the program has dropped, so that they are not in the world."""
    # In a thread: the exception of a signal handler (Ctrl-C) would be lost in a finalizer.
    thread = threading.Thread(target=gc.collect, name="partialcoll-collect", daemon=True)
    thread.start()
    thread.join()


def replacing() -> Replacing | None:
    """Return how the dead are replaced; None: they are not. Local."""
    return None if _world is None else _world.replacing


def forget(optimizer: Any) -> None:
    if _world is not None:
        _world.wrapped = [one for one in _world.wrapped if one() not in (None, optimizer)]


def is_initialized() -> bool:
    """Return whether `init` was called, and `shutdown` not yet. Local."""
    return _world is not None


def shutdown() -> None:
    """Free what `init` and the calls after it have made. Collective.

    A second call does nothing. Optimizers have handles of their own and free them themselves. At
    the end of a program it is not needed: MPI's end frees everything.
    """
    global _world
    ending = _world
    if ending is not None and not MPI.Is_finalized():
        if ending.replacing is not None:
            ending.replacing.dismiss()
        _free(ending)
        global_process_set.process_set_id = global_process_set._calls = None
    _world = None


def _free(ending: World) -> None:
    ending.calls.free()
    for one in ending.sets:
        one._free()
    ending.departures.free()
    ending.comm.Free()


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set of ranks usable; return it. Collective over the world, members or not.

    `process_set`: the set, or its ranks' numbers in the world. ValueError for ranks that are not
    there or come twice, and for a second set of the same ranks; MismatchError, on all ranks, if
    they give different ones.
    """
    here = world()
    with here.calls.checking():
        if here.replacing is not None:
            raise StateError("add_process_set: not after init(respawn=True): worlds change")
        one = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        ranks = here.comm.size
        if one.process_set_id is not None:
            raise ValueError(f"process_set: {one} is usable already")
        if not one.ranks or sorted({*one.ranks} & {*range(ranks)}) != one.ranks:
            raise ValueError(
                f"process_set: expected different ranks from 0 to {ranks - 1}, got {one.ranks}"
            )
        if any(other.ranks == one.ranks for other in (global_process_set, *here.sets)):
            raise ValueError(f"process_set: there is one of ranks {one.ranks} already")
    here.calls.agree(f"add_process_set of ranks {one.ranks}")
    own = here.comm.rank
    with told_by(here.comm):
        comm: Any = here.comm.Split(0 if own in one.ranks else MPI.UNDEFINED, own)
    here.sets_made += 1
    if own in one.ranks:
        one._calls = Calls(comm, here.on_failure)  # which has a duplicate
        comm.Free()
    one.process_set_id = here.sets_made
    here.sets.append(one)
    return one


def remove_process_set(process_set: ProcessSet) -> bool:
    """Free what the set `process_set` has held; calls under way are brought to their end.
    Collective over all ranks of the world; MismatchError, on all, if they give different ones.
    False, and nothing happens, of one that is not usable, and of the global one."""
    here = world()
    usable = any(process_set is one for one in here.sets)
    whose = f"ranks {process_set.ranks}" if usable else "no set that can be removed"
    here.calls.agree(f"remove_process_set of {whose}")
    if not usable:
        return False
    here.sets.remove(process_set)
    process_set._free()
    return True


def calls_of(process_set: ProcessSet | None, name: Any = None) -> Calls:
    """Return the calls of a set; None: those of all ranks. ValueError if this rank cannot make any
    there. `name`: of an asynchronous call, under which the others wait."""
    here = world()
    if process_set is None:
        return here.calls
    try:
        checks.instance("process_set", process_set, ProcessSet, "a ProcessSet or None")
        if process_set.process_set_id is None:
            raise ValueError(f"process_set: {process_set} is not usable; use add_process_set()")
    except (TypeError, ValueError) as error:
        here.calls.refuse(error, name, by_name=True)
    if process_set._calls is None:  # no rank waits for this one
        raise ValueError(f"process_set: rank {rank()} is not in {process_set}")
    return process_set._calls


def check_root(root_rank: Any, process_set: OptionalSet) -> int:
    """Return the number within the set of the rank with this number in the world."""
    root = checks.rank("root_rank", root_rank, size())
    if process_set is None:
        return root
    if root not in process_set.ranks:
        raise ValueError(f"root_rank: expected one of {process_set}, got {root}")
    return process_set.ranks.index(root)


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


# Horovod's questions about how it was built: here everything goes by MPI, and by the host


def mpi_built() -> bool:
    """True. Local."""
    return True


def mpi_threads_supported() -> bool:
    """Return whether several threads may call MPI. Local."""
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def is_homogeneous() -> bool:
    """Have all nodes as many ranks? Collective, unlike Horovod's."""
    return len(set(comm().allgather(local_size()))) == 1


def _never() -> bool:
    """False: it is not what carries the data. Local."""
    return False


mpi_enabled = mpi_built
gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _never


def check_extension(*ignored: object) -> None:
    """Horovod's question whether its core was compiled: who has imported this has it. Horovod's
    arguments are `ignored`. Local."""
