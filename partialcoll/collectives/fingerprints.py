# SPDX-License-Identifier: Apache-2.0
"""Do the ranks apply the same update? Each says in every round what it would do.

A buffer of int64, one row for each rank, rides in the round of the gradients: (1, 1 if there is a
gradient, 2 * first + 1, version, hash). The version is the number of rounds that the rank has seen
when it makes its deposit; first is the version at which the handle's round 0 begins, the same on
all ranks unless they have loaded checkpoints of different steps. The hash is of the optimizer's
hyperparameters, at some versions of the parameters as well. Rows of one version must agree, those
of earlier rounds included. What is concluded depends on rounds alone, never on what this rank knows
besides, so all ranks find a difference in the same round.

Deposits that are late are added up, and their rows with them. So a rank says something only when
what it has said before has come with a round; else its row is (1, 1 or 0, 0, 0, 0). Whatever is
added to it, a row then has one statement, whole, or none. A hash of the parameters that falls due
while the rank has to be silent is its next statement, under the version that it is of.

Further rows hold counts, one for each parameter: of the deposits in the round that have a gradient
of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np

from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.mpi import MPI
from ..errors import MismatchError
from .agreement import sides

_COLUMNS = 5
_REMEMBERED = 64  # versions, besides those that a rank may lag behind

Groups = tuple[tuple[tuple[str, Any], ...], ...]  # names and values of each group


class Fingerprints:
    """What this rank says, and what it makes of the others' rows. Of hyperparameters, and
    every so many versions of a hash of the parameters; without them, of versions alone. counted:
    the number of parameters whose gradients are counted."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        groups: Callable[[], Groups] = tuple,
        parameters: Callable[[], bytes] = bytes,
        every: int = 1,
        counted: int = 0,
    ) -> None:
        self._counted = counted
        self._rank, self._ranks, self._every = comm.rank, comm.size, every
        self._groups, self._parameters = groups, parameters
        self._given: Groups | None = None
        self._hash = b""
        self._due: tuple[int, int, int] | None = None  # a statement with a hash of parameters
        self._under_way = False  # is a statement of this rank in no round yet?
        self._remembered = _REMEMBERED
        # Of rounds: version -> hash -> ranks that said so.
        self._said: dict[int, dict[int, set[int]]] = {}
        self._begun: dict[int, int] = {}  # what each rank has said of first, last

    def outline(self) -> Array:
        """What the buffer looks like."""
        return np.zeros((self._ranks - (-self._counted // _COLUMNS), _COLUMNS), np.int64)

    def _counts(self, rows: Array) -> Array:
        counts: Array = rows[self._ranks :].reshape(-1)[: self._counted]
        return counts

    def count(self, rows: Array, used: Sequence[bool]) -> None:
        """Add to what `write` has written: of which parameters this deposit has a gradient."""
        self._counts(rows)[:] = used

    def used(self, rows: Array) -> list[bool]:
        """Return for each parameter whether the round of these rows has a gradient of it. The same
        on all ranks."""
        return list(map(bool, self._counts(rows).tolist()))

    def remember(self, history: int) -> None:
        """Ranks lag so many rounds at most, and say something so much later."""
        self._remembered = _REMEMBERED + 2 * history

    def write(self, buffer: Array, first: int, version: int, gradient: bool) -> None:
        """This rank's row, zeros elsewhere. `gradient`: does it deposit one?"""
        buffer[:] = 0
        row = buffer[self._rank]
        row[:2] = 1, gradient
        if version % self._every == 0:
            self._due = 2 * first + 1, version, self._hash_at(version)
        if not self._under_way:
            row[2:] = self._due or (2 * first + 1, version, self._hash_at(version))
            self._due, self._under_way = None, True

    def arrived(self, rows: Array) -> int:
        """How many deposits of this rank are in the round of these rows."""
        count, _, said, _, _ = rows[self._rank].tolist()
        self._under_way &= not said
        return int(count)

    def all_arrived(self) -> None:
        """All deposits of this rank are in some round."""
        self._under_way = False

    def _hash_at(self, version: int) -> int:
        given = self._groups()
        if given != self._given:
            self._given = given
            text = repr([sorted(group, key=lambda item: item[0]) for group in given])
            self._hash = hashlib.blake2b(text.encode(), digest_size=8).digest()
        said = self._hash
        if version % self._every == 0:
            said = hashlib.blake2b(said + self._parameters(), digest_size=8).digest()
        return int.from_bytes(said, "little") >> 2

    def forget(self) -> None:
        """What was said of versions: training begins at another one."""
        self._said.clear()
        self._due = None

    def joined(self) -> None:
        """No deposit is under way on any rank, and all may begin at another version now."""
        self._begun.clear()

    def gradients(self, rows: Array) -> int:
        """How many are in the round of these rows."""
        return int(rows[: self._ranks, 1].sum())

    def check(self, rows: Array, index: int, failed: Iterable[int] = ()) -> None:
        """The rows of round `index`, before which these ranks have died. Raises MismatchError, on
        every rank that sees the round."""
        for rank in failed:
            self._begun.pop(rank, None)
        for rank, (_, _, said, version, value) in enumerate(rows[: self._ranks].tolist()):
            if not said:
                continue
            self._begun[rank] = said >> 1
            values = self._said.setdefault(version, {})
            values.setdefault(value, set()).add(rank)
            if len(values) > 1:
                raise MismatchError(self._complaint(version, values, index))
        self._check_begun(index)
        while len(self._said) > self._remembered:
            del self._said[next(iter(self._said))]

    def _check_begun(self, index: int) -> None:
        begun = sides(sorted(self._begun.items()))
        if len(begun) > 1:
            texts = (f"{first + index} on {name_ranks(ranks)}" for first, ranks in begun.items())
            raise MismatchError(
                f"the ranks take this round for different ones: {', '.join(texts)}; load "
                "checkpoints of the same step on all of them, or broadcast_optimizer_state"
            )

    def _complaint(self, version: int, values: dict[int, set[int]], index: int) -> str:
        parties = " and ".join(name_ranks(sorted(ranks)) for ranks in values.values())
        what = "the optimizer's hyperparameters"
        if version % self._every == 0:
            what += " or the parameters"
        return (
            f"round {index}: {what} after {version} rounds differ between {parties}; here they are "
            f"{self._describe()}. Begin with broadcast_parameters and broadcast_optimizer_state, "
            "and let what changes the update be a function of the round: opt.attach(scheduler), "
            "clip_norm=, on_round="
        )

    def _describe(self) -> str:
        return "; ".join(", ".join(f"{k}={v}" for k, v in group) for group in self._given or ())
