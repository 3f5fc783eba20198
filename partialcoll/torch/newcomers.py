# SPDX-License-Identifier: Apache-2.0
"""Newcomers: processes in place of ranks that have died, in a world of ``init(respawn=True)``.

They run the same program. Survivors start them at a commit, and wait for them, or go on and look at
each commit if they have come; then all form a world together and make their optimizers there,
survivors with what they have, and newcomers get the state from rank 0, which is a survivor. In each
step of this somebody may die: the steps are such that all who live are told, or none is
(agreements, and rounds that go on), and then they go on without it.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .. import elastic, newcomer
from .._core.mpi import MPI
from .._core.settings import logger
from .._core.survivors import all_say, living
from ..errors import RankFailedError, StateError

MOST_TRIES = 3  # in a row, after which there are still too few

Told = tuple[bool, int, int]  # lived, ranks, tries

# What the last world was formed over that had newcomers; at most one. Programs may form it anew.
_everybody: list[MPI.Intracomm] = []


@dataclass
class Replacing:
    """That the dead are replaced.

    Attributes
    ----------
    ranks : int
        So many are there to be.
    tries : int
        After so many, since the last death, there were still too few.
    lived : bool
        This process has the state that training goes on from.
    overlap : bool
        Training goes on while they load what they need.
    spawned : elastic.Spawned or None
        Those who do.
    """

    ranks: int
    tries: int = 0
    lived: bool = True
    overlap: bool = False
    spawned: elastic.Spawned | None = None

    def wants(self, size: int) -> bool:
        """Are there too few, and are more to be started?"""
        return size < self.ranks and self.tries < MOST_TRIES

    def formed(self, size: int, known: Iterable[Told]) -> Replacing:
        """In a world of this size, whose ranks know so much. StateError, on all, if nobody has
        lived to have a state."""
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
        """Is a world to be formed with newcomers? Collective."""
        if not self.wants(comm.size):
            return False
        if not self.overlap:
            return True
        if self.spawned is not None:
            return all_say(comm, self.spawned.over())
        here = living(comm)
        self.spawned = spawn(here, self)
        here.Free()
        if self.spawned is not None:
            atexit.register(self.spawned.dismiss)
        return False

    def begin_anew(self) -> None:
        """Somebody has died. Local, on all."""
        self.tries = -self.overlap  # a world is formed without them first, which counts as a try

    def dismiss(self) -> None:
        """Those who load what they need are not wanted any more. Local, on all."""
        if self.spawned is not None:
            self.spawned.dismiss()
        self.spawned = None

    def told(self) -> Told:
        """What others are told of it."""
        return self.lived, self.ranks, self.tries


def check(comm: Any, process_sets: Any, on_failure: str) -> None:
    """What `init` cannot have beside it."""
    if on_failure != "continue":
        raise ValueError(f"respawn: expected on_failure='continue' with it, got {on_failure!r}")
    if comm is not None or process_sets:
        raise ValueError(
            "comm, process_sets: expected none of them with respawn=True; newcomers could not be "
            "given their places there"
        )


def begin(overlap: bool) -> tuple[MPI.Intracomm, Replacing]:
    """Where `init` forms the world. Collective over survivors and newcomers in the latter."""
    if _everybody:
        return _everybody[0], Replacing(_everybody[0].size, overlap=overlap)
    parents = MPI.Comm.Get_parent()
    if parents == MPI.COMM_NULL:
        return MPI.COMM_WORLD, Replacing(MPI.COMM_WORLD.size, overlap=overlap)
    # The others wait from here on, and the first optimizer has torch load half of itself.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    try:
        _everybody.append(elastic.merge_with_parents(parents))
    except RankFailedError as error:
        logger.warning("this process ends: %s", error)
        sys.exit(0)
    return _everybody[0], Replacing(_everybody[0].size, lived=False, overlap=overlap)


def spawn(here: MPI.Intracomm, replacing: Replacing) -> elastic.Spawned | None:
    """Newcomers, as many as are missing, unless they cannot be started. Collective."""
    try:
        return elastic.Spawned(here, newcomer.command(), replacing.ranks - here.size)
    except (StateError, MPI.Exception) as error:
        logger.warning("those who have died are not replaced: %s", error)
        replacing.tries = MOST_TRIES
        return None


def take_in(comm: MPI.Intracomm, replacing: Replacing) -> MPI.Intracomm | None:
    """A communicator of those of `comm` who live, and of newcomers. None: none came. Collective
    over those who live."""
    here = living(comm)
    try:
        spawned = replacing.spawned or spawn(here, replacing)
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
