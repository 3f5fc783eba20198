# SPDX-License-Identifier: Apache-2.0
"""Check that the ranks apply the same update: each rank states in every round what it would do.

A buffer of int64, one row for each rank, rides in the round of the gradients. A row is

    1, 1 if there is a gradient, 2 * first + 1, version, hash, checksum, text.

The version is the number of rounds that the rank has seen when it makes its deposit; first is the
version at which the handle's round 0 begins, the same on all ranks unless they have loaded
checkpoints of different steps. The hash is of the optimizer's hyperparameters, and the text has
their names and values for the error message, as far as they fit. The checksum is of the parameters
at some versions, otherwise 0. Rows of one version must agree, those of earlier rounds included.
The conclusion depends on rounds alone, never on what this rank knows besides, so all ranks raise
the same error in the same round, and need no further exchange for its message.

Deposits that are late are added up, and their rows with them. So a rank says something only when
its previous statement has come with a round; otherwise its row is 1, 1 or 0, and zeros. Whatever is
added to it, a row then has one whole statement, or none. A checksum of the parameters that falls
due while the rank has to be silent is its next statement, under the version that it is of.

Further rows hold counts, one for each parameter: of the deposits in the round that have a gradient
of it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Callable

import numpy as np

from .._core.attendance import name_ranks
from .._core.buffers import Array
from .._core.mpi import MPI
from ..errors import MismatchError
from .agreement import sides

_COLUMNS = 6  # of a row, before the text
_LEAST, _MOST, _ALL = 64, 512, 8192  # bytes of a text; of all texts together, about
_REMEMBERED = 64  # versions, besides those that a rank may lag behind
_PACKED = b"\0"  # before a text that is compressed
_UNPACKED = 65536  # bytes of it that are read at most
_LINES, _LONGEST = 5, 60  # hyperparameters of an error message, characters of a value

Groups = tuple[tuple[tuple[str, Any], ...], ...]  # names and values of each group


class Fingerprints:
    """The statements of this rank, and the comparison with the other ranks' rows: hyperparameters,
    and after every `every` versions a checksum of the parameters (an int64 that is not 0); without
    these only versions. counted: the number of parameters whose gradients are counted."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        groups: Callable[[], Groups] = tuple,
        parameters: Callable[[], int] = int,
        every: int = 1,
        counted: int = 0,
    ) -> None:
        self._counted = counted
        self._rank, self._ranks, self._every = comm.rank, comm.size, every
        self._groups, self._parameters = groups, parameters
        self._given: Groups | None = None
        self._room = min(_MOST, max(_LEAST, _ALL // comm.size // 8 * 8))
        self._width = _COLUMNS + self._room // 8
        self._hash, self._text = 0, np.zeros(self._room // 8, np.int64)
        self._due: Array | None = None  # a statement with a checksum of parameters
        self.under_way = False  # is a statement of this rank in no round yet?
        self._remembered = _REMEMBERED
        # Statements: version -> (hash, checksum) -> the ranks that made it, and its text.
        self._said: dict[int, dict[tuple[int, int], tuple[set[int], bytes]]] = {}
        self._begun: dict[int, int] = {}  # rank -> `first` in its last statement

    def outline(self) -> Array:
        """Return an array with the buffer's shape and dtype."""
        return np.zeros((self._ranks - (-self._counted // self._width), self._width), np.int64)

    def remember(self, history: int) -> None:  # ranks lag, and so say something, so much later
        self._remembered = _REMEMBERED + 2 * history

    def write(
        self, buffer: Array, first: int, version: int, gradient: bool, used: Sequence[bool] = ()
    ) -> None:
        """Write this rank's row, zeros elsewhere. `gradient`: does it deposit one? `used`: of which
        parameters, where that is counted."""
        buffer[:] = 0
        if gradient and used:
            buffer[self._ranks :].reshape(-1)[: self._counted] = used
        row = buffer[self._rank]
        row[:2] = 1, gradient
        if version % self._every == 0:
            self._due = self._statement(first, version)
        if not self.under_way:
            row[2:] = self._statement(first, version) if self._due is None else self._due
            self._due, self.under_way = None, True

    def arrived(self, rows: Array) -> int:
        """Return the number of deposits of this rank in the round of these rows."""
        count, _, said = rows[self._rank, :3].tolist()
        self.under_way &= not said
        return int(count)

    def _statement(self, first: int, version: int) -> Array:
        """Return what this rank's row has after the first two columns."""
        given = self._groups()
        if given != self._given:
            self._given = given
            text = _describe(given)
            self._hash = (
                int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 2
            )
            if len(text) > self._room and len(packed := _PACKED + zlib.compress(text)) < self._room:
                text = packed
            self._text = np.frombuffer(text[: self._room].ljust(self._room, b"\0"), np.int64)
        checksum = self._parameters() if version % self._every == 0 else 0
        said = np.array((2 * first + 1, version, self._hash, checksum), np.int64)
        return np.concatenate((said, self._text))

    def forget(self) -> None:
        """Forget the statements on versions: training restarts at another version."""
        self._said.clear()
        self._due = None

    def joined(self) -> None:
        """Prepare for a new first version: no rank has a deposit under way."""
        self.under_way = False
        self._begun.clear()

    def check(self, rows: Array, index: int, failed: Iterable[int] = ()) -> tuple[int, list[bool]]:
        """Return the number of gradients in the round `index` of these rows, and for each parameter
        that is counted whether there is one of it; the same on all ranks. `failed`: ranks that had
        died before. Raises MismatchError, on every rank that sees the round."""
        for rank in failed:
            self._begun.pop(rank, None)
        differing: list[int] = []  # versions
        for rank, row in enumerate(rows[: self._ranks, :_COLUMNS].tolist()):
            _, _, said, version, *value = row
            if not said:
                continue
            self._begun[rank] = said >> 1
            values = self._said.setdefault(version, {})
            if tuple(value) not in values:
                values[tuple(value)] = set(), rows[rank, _COLUMNS:].tobytes()
                differing += [version] * (len(values) > 1)
            values[tuple(value)][0].add(rank)
        if differing:
            raise MismatchError(self._complaint(differing[0], index))
        if len(set(self._begun.values())) > 1:
            begun = sides(sorted(self._begun.items()))
            texts = (f"{first + index} on {name_ranks(ranks)}" for first, ranks in begun.items())
            raise MismatchError(
                f"the ranks take this round for different ones: {', '.join(texts)}; load "
                "checkpoints of the same step on all of them, or broadcast_optimizer_state"
            )
        while len(self._said) > self._remembered:
            del self._said[next(iter(self._said))]
        counts = rows[self._ranks :].reshape(-1)[: self._counted].tolist()
        return int(rows[: self._ranks, 1].sum()), list(map(bool, counts))

    def _complaint(self, version: int, index: int) -> str:
        said = self._said[version]
        hashes = {value for value, _ in said}
        what = "the optimizer's hyperparameters" if len(hashes) > 1 else "the parameters"
        parties = " and ".join(name_ranks(sorted(ranks)) for ranks, _ in said.values())
        complaint = f"round {index}: {what} after {version} rounds differ between {parties}"
        if len(hashes) == 1:
            return f"{complaint}. {_SAME_PARAMETERS if version else _FIRST_PARAMETERS}"
        values = {rank: _read(text) for ranks, text in said.values() for rank in ranks}
        lines = _differences(values) or ["the values do not fit in this message"]
        if len(lines) > _LINES:
            lines[_LINES:] = [f"and {len(lines) - _LINES} more"]
        return f"{complaint}: {'; '.join(lines)}. {_SAME_UPDATES if version else _FIRST_UPDATES}"


# Advice for messages: by the kind of difference, and whether it exists since the beginning.
_FIRST_UPDATES = (
    "Give the optimizers the same values on all ranks, or call "
    "broadcast_optimizer_state(optimizer) before the first step"
)
_SAME_UPDATES = (
    "Whatever changes them must be a function of the round, the same on all ranks: "
    "opt.attach(scheduler), or on_round=; a scheduler that follows a loss needs its average over "
    "the ranks"
)
_FIRST_PARAMETERS = "Call broadcast_parameters(model.state_dict()) before the first step"
_SAME_PARAMETERS = (
    "Something besides step() has changed them on some ranks: clip with clip_norm=, change "
    "parameters in on_round=, and begin anew with broadcast_parameters"
)


def _describe(groups: Groups) -> bytes:
    """Return a line for each hyperparameter of each group, the learning rates first."""
    lines = []
    for i, group in enumerate(groups):
        where = f" of group {i}" if len(groups) > 1 else ""
        lines += [(name != "lr", f"{name}{where}={value!r}\n") for name, value in sorted(group)]
    return "".join(line for _, line in sorted(lines, key=lambda line: line[0])).encode()


def _read(text: bytes) -> tuple[dict[str, str], bool]:
    if text.startswith(_PACKED):
        try:
            text = zlib.decompressobj().decompress(text[1:], _UNPACKED)
        except zlib.error:
            return {}, False
    *lines, rest = text.rstrip(b"\0").decode(errors="replace").split("\n")
    return dict(line.partition("=")[::2] for line in lines), not rest


def _differences(said: dict[int, tuple[dict[str, str], bool]]) -> list[str]:
    found = []
    for name in dict.fromkeys(name for values, _ in said.values() for name in values):
        known = [
            (rank, values.get(name, "missing"))
            for rank, (values, whole) in sorted(said.items())
            if whole or name in values
        ]
        by_value = sides(known)
        if len(by_value) > 1:
            cut = {v: v if len(v) <= _LONGEST else f"{v[: _LONGEST - 1]}…" for v in by_value}
            texts = (f"{cut[value]} on {name_ranks(ranks)}" for value, ranks in by_value.items())
            found.append(f"{name} is {' and '.join(texts)}")
    return found
