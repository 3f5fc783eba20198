# SPDX-License-Identifier: Apache-2.0
"""Newcomers: processes in place of ranks that have died, in a world of ``init(respawn=True)``.

They run the same program. Survivors start them at a commit, then all form a world together and make
their optimizers there, survivors with what they have, and newcomers get the state from rank 0,
which is a survivor. In each step of this somebody may die: the steps are such that all who live
are told, or none is (agreements, and rounds that go on), and then they go on without it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from .. import elastic
from .._core.settings import logger
from .._core.survivors import living
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
    """

    ranks: int
    tries: int = 0
    lived: bool = True

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
        found = Replacing(ranks, tries + 1 if size < ranks else 0, self.lived)
        if found.tries == MOST_TRIES:
            logger.warning(
                "%d of %d ranks are there after %d tries to replace those that have died: training "
                "goes on with them",
                *(size, ranks, MOST_TRIES),
            )
        return found

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


def begin() -> tuple[MPI.Intracomm, Replacing]:
    """Where `init` forms the world. Collective over survivors and newcomers in the latter."""
    if _everybody:
        return _everybody[0], Replacing(_everybody[0].size)
    parents = MPI.Comm.Get_parent()
    if parents == MPI.COMM_NULL:
        return MPI.COMM_WORLD, Replacing(MPI.COMM_WORLD.size)
    try:
        _everybody.append(elastic.merge_with_parents(parents))
    except RankFailedError as error:
        logger.warning("this process ends, others are started in its place: %s", error)
        os._exit(1)  # MPI's end may not return once somebody has died
    return _everybody[0], Replacing(_everybody[0].size, lived=False)


def start(comm: MPI.Intracomm, replacing: Replacing) -> MPI.Intracomm | None:
    """A communicator of those of `comm` who live, and of newcomers. None: none came. Collective
    over those who live."""
    command = [sys.executable, *getattr(sys, "orig_argv", [sys.executable, *sys.argv])[1:]]
    here = living(comm)
    try:
        merged = elastic.spawn_and_merge(here, command, replacing.ranks - here.size)
    except RankFailedError as error:
        logger.info("nobody was replaced: %s", error)
        return None
    except (StateError, MPI.Exception) as error:
        logger.warning("those who have died are not replaced: %s", error)
        replacing.tries = MOST_TRIES
        return None
    finally:
        here.Free()
    _everybody[:] = [merged]
    return merged
