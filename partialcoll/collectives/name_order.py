# SPDX-License-Identifier: Apache-2.0
"""The order in which calls that are matched by their names are carried out: no I/O. See
`partialcoll.torch`'s names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Union

Name = Union[str, int]
JOINED, ENDED = 0, 1  # the library's own


class Order:
    """Rank 0's: what the ranks have told, and what has its place. Without I/O."""

    def __init__(self, ranks: int) -> None:
        self._nobody = [0] * ranks
        self._told: dict[Name, list[int]] = {}  # how often by each rank, without a place

    def tell(self, rank: int, name: Name) -> list[Name]:
        """A rank has made a call; what has its place now, in this order."""
        self._told.setdefault(name, self._nobody.copy())[rank] += 1
        concerned = sorted(self._told, key=lambda one: one == JOINED) if name == JOINED else [name]
        return [one for one in concerned for _ in self._place(one)]

    def _place(self, name: Name) -> Iterator[None]:
        while name in self._told and not self.missing(name):
            left = [max(0, count - 1) for count in self._told.pop(name)]
            if any(left):  # a rank may repeat what it has been refused
                self._told[name] = left
            yield

    def missing(self, name: Name) -> list[int]:
        """The ranks for which it waits."""
        told = self._told.get(name, self._nobody)
        joined = self._told.get(JOINED, self._nobody) if isinstance(name, str) else self._nobody
        return [rank for rank, both in enumerate(zip(told, joined)) if not any(both)]
