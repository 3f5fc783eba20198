# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Error(RuntimeError):
    """Base of the errors that are partialcoll's own, but for `AbiError`, an ImportError."""


class CollectiveError(Error):
    """A call failed on all ranks, or because of another one: torch's `HorovodInternalError`."""


class MismatchError(CollectiveError):
    """The ranks disagree about an argument; raised on all of them, naming it and the ranks."""


class StateError(Error):
    """The right call at the wrong moment: a freed handle, a second start, a second thread."""


class RankFailedError(CollectiveError):
    """Ranks have died, and the MPI has told of it: what was made with them can only be freed.
    `ranks` (a tuple of int) has their numbers in the communicator that it was made on, as far as
    they were known then; empty if MPI did not say. `message` says what could not go on."""

    def __init__(self, ranks: Sequence[int], message: str = "") -> None:
        self.ranks = tuple(ranks)
        who = ", ".join(map(str, self.ranks))
        one = "rank" if len(self.ranks) == 1 else "ranks"
        have = "has" if len(self.ranks) == 1 else "have"
        known = f"{one} {who} {have} died" if self.ranks else "a rank has died"
        super().__init__(message if message.startswith(known) else f"{known}: {message}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.ranks, str(self)))


class AbiError(ImportError):
    """The compiled core does not fit the MPI that mpi4py has loaded; it says how to fix it."""


class DecodeError(Error):
    """A payload does not decode: it is truncated, damaged, of another format, or the key is too
    far. `blocks` (a tuple of int) has the blocks of 1024 elements that failed; it is empty if the
    whole payload was refused. `message` says what is wrong with them, and how to encode instead."""

    def __init__(self, message: str, blocks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.blocks = tuple(blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.blocks))
