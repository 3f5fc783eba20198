# SPDX-License-Identifier: Apache-2.0
"""Process sets, by Horovod's names: some ranks of the world, which make calls of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from .._core.mpi import MPI
from .calls import Calls


class ProcessSet:
    """Ranks of the world that reduce, gather, … among themselves. `init` or `add_process_set` makes
    it usable.

    Parameters
    ----------
    ranks : iterable of int
        Numbers in the world. Sets may overlap.

    Attributes
    ----------
    ranks : list of int
        In ascending order; a rank's number within the set is its place there.
    process_set_id : int or None
        0 of the global one; None before it is usable, and when it has been removed.
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
        self._own: int | None = None  # this rank's number in the world
        self._comm: MPI.Intracomm | None = None  # None: this rank is not in it
        self._calls: Calls | None = None

    def __deepcopy__(self, memo: Any) -> ProcessSet:
        """There is one of these ranks: a copy of a module that has it means the same one."""
        return self

    def __copy__(self) -> ProcessSet:
        return self

    def __reduce__(self) -> Any:
        """By its ranks: what is loaded has to be added to its world. The global one by its name."""
        return "global_process_set" if self is global_process_set else (ProcessSet, (self.ranks,))

    def check(self, ranks: int, others: Iterable[ProcessSet]) -> None:
        """ValueError unless it can be made in a world of so many `ranks`, beside the `others` that
        are there."""
        if self.process_set_id is not None:
            raise ValueError(f"process_set: {self} is usable already")
        expected = set(self.ranks) <= set(range(ranks)) and len(set(self.ranks)) == len(self.ranks)
        if not self.ranks or not expected:
            raise ValueError(
                f"process_set: expected different ranks from 0 to {ranks - 1}, got {self.ranks}"
            )
        for other in others:
            if other.ranks == self.ranks:
                raise ValueError(f"process_set: there is one of ranks {self.ranks} already")

    def attach(
        self, number: int, own: int, comm: MPI.Intracomm | None, calls: Calls | None
    ) -> None:
        """Make it usable; `add_process_set` does it. Local.

        Parameters
        ----------
        number : int
            Its `process_set_id`.
        own : int
            This rank's number in the world.
        comm : mpi4py.MPI.Intracomm or None
            Of its ranks; None: this rank is not in it.
        calls : Calls or None
            Who makes its calls; None: this rank is not in it.
        """
        self.process_set_id, self._own, self._comm, self._calls = number, own, comm, calls

    def invalidate(self) -> tuple[Calls | None, MPI.Intracomm | None]:
        """Not usable any more; what it had."""
        found = self._calls, self._comm
        self.process_set_id = self._own = self._calls = self._comm = None
        return found

    def size(self) -> int | None:
        """The number of its ranks; None if it is not usable. Local."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's number within it; None if it is not in it. Local."""
        return None if self._comm is None else self._comm.rank

    def included(self) -> bool | None:
        """Is this process in it? None if it is not usable. Local."""
        return None if self.process_set_id is None else self._comm is not None

    @property
    def calls(self) -> Calls:
        """Of its ranks. ValueError if this one cannot make any."""
        if self.process_set_id is None:
            raise ValueError(f"process_set: {self} is not usable: give it to add_process_set()")
        if self._calls is None:
            raise ValueError(f"process_set: rank {self._own} is not in {self}")
        return self._calls

    def root(self, root_rank: int) -> int:
        """The number within it of the rank whose number in the world is `root_rank`; ValueError if
        that is not in it."""
        if root_rank not in self.ranks:
            raise ValueError(f"root_rank: expected one of {self}, got {root_rank}")
        return self.ranks.index(root_rank)

    def __str__(self) -> str:
        return f"ProcessSet({self.ranks})"

    __repr__ = __str__


OptionalSet = Optional[ProcessSet]
"""Who makes a call; None: all ranks."""

global_process_set = ProcessSet([])
"""All ranks of the world, after `init`."""
