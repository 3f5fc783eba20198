# SPDX-License-Identifier: Apache-2.0
"""The order in which calls that are matched by their names are carried out: no I/O. See
`partialcoll.torch`'s names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Union

Name = Union[str, int]
Place = tuple[Name, bool]  # of a name; have all ranks told the same of it?
JOINED, ENDED = 0, 1  # the library's own


class Order:
    """Rank 0's: what the ranks have told, and what has its place."""

    def __init__(self, ranks: int) -> None:
        self._ranks = range(ranks)
        self._told: dict[Name, list[deque[bytes]]] = {}  # by each rank, without a place

    def tell(self, rank: int, name: Name, digest: bytes = b"") -> list[Place]:
        """A rank has made a call, of which this tells what it is; what has its place now, in this
        order."""
        self._told.setdefault(name, [deque() for _ in self._ranks])[rank].append(digest)
        concerned = sorted(self._told, key=lambda one: one == JOINED) if name == JOINED else [name]
        return [place for one in concerned for place in self._places(one)]

    def _places(self, name: Name) -> Iterator[Place]:
        while name in self._told and not self.missing(name):
            told = self._told[name]
            said = [one.popleft() for one in told if one]
            if not any(told):  # a rank may repeat what it has been refused
                del self._told[name]
            yield name, len(said) == len(told) and len(set(said)) == 1

    def missing(self, name: Name) -> list[int]:
        """The ranks for which it waits."""
        there = [self._told.get(name), self._told.get(JOINED) if isinstance(name, str) else None]
        return [rank for rank in self._ranks if not any(told and told[rank] for told in there)]
