# SPDX-License-Identifier: Apache-2.0
"""Do the ranks apply the same update? Each says in every round what it would do.

A buffer of int64, one row for each rank, rides in the round of the gradients: (1, 1 if there is a
gradient, first, version, hash). The version is the number of rounds that the rank has seen when it
makes its deposit; first is the version at which the handle's round 0 begins, the same on all ranks
unless they have loaded checkpoints of different steps. The hash is of the optimizer's
hyperparameters, at some versions of the parameters as well. Rows of one version must agree, those
of earlier rounds included. What is concluded depends on rounds alone, never on what this rank knows
besides, so all ranks find a difference in the same round. A row to which a late deposit was added
says nothing (its first entry is above 1).
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable

import numpy as np
from mpi4py import MPI

from .._core.buffers import Array
from ..errors import MismatchError

_REMEMBERED = 64  # versions

Groups = tuple[tuple[tuple[str, Any], ...], ...]  # names and values of each group


def _list(ranks: set[int]) -> str:
    return ", ".join(map(str, sorted(ranks)))


class Fingerprints:
    """What this rank says, and what it makes of the others' rows. Of hyperparameters, and
    every so many versions of a hash of the parameters; without them, of versions alone."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        groups: Callable[[], Groups] = tuple,
        parameters: Callable[[], bytes] = bytes,
        every: int = 1,
    ) -> None:
        self._rank, self._ranks, self._every = comm.rank, comm.size, every
        self._groups, self._parameters = groups, parameters
        self._given: Groups | None = None
        self._hash = b""
        # Of rounds: version -> hash -> ranks that said so.
        self._said: dict[int, dict[int, set[int]]] = {}

    def outline(self) -> Array:
        """What the buffer looks like."""
        return np.zeros((self._ranks, 5), np.int64)

    def write(self, buffer: Array, first: int, version: int, gradient: bool) -> None:
        """This rank's row, zeros elsewhere. `gradient`: does it deposit one?"""
        buffer[:] = 0
        buffer[self._rank] = (1, gradient, first, version, self._hash_at(version))

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
        """What was said before: training begins at another version."""
        self._said.clear()

    @staticmethod
    def gradients(rows: Array) -> int:
        """How many are in the round of these rows."""
        return int(rows[:, 1].sum())

    def check(self, rows: Array, index: int) -> None:
        """The rows of round `index`. Raises MismatchError, on every rank that sees the round."""
        begun: dict[int, set[int]] = {}
        for rank, (count, _, first, version, value) in enumerate(rows.tolist()):
            if count != 1:
                continue
            begun.setdefault(first, set()).add(rank)
            values = self._said.setdefault(version, {})
            values.setdefault(value, set()).add(rank)
            if len(values) > 1:
                raise MismatchError(self._complaint(version, values, index))
        if len(begun) > 1:
            sides = (f"{first + index} on ranks {_list(ranks)}" for first, ranks in begun.items())
            raise MismatchError(
                f"the ranks take this round for different ones: {', '.join(sides)}; load "
                "checkpoints of the same step on all of them, or broadcast_optimizer_state"
            )
        while len(self._said) > _REMEMBERED:
            del self._said[next(iter(self._said))]

    def _complaint(self, version: int, values: dict[int, set[int]], index: int) -> str:
        sides = " and ".join("ranks " + _list(ranks) for ranks in values.values())
        what = "the optimizer's hyperparameters"
        if version % self._every == 0:
            what += " or the parameters"
        return (
            f"round {index}: {what} after {version} rounds differ between {sides}; here they are "
            f"{self._describe()}. Begin with broadcast_parameters and broadcast_optimizer_state, "
            "and let what changes the update be a function of the round: opt.attach(scheduler), "
            "clip_norm=, on_round="
        )

    def _describe(self) -> str:
        return "; ".join(", ".join(f"{k}={v}" for k, v in group) for group in self._given or ())
