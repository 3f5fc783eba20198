# SPDX-License-Identifier: Apache-2.0
"""From a peer source to averagings: who begins how many of them, and when one is settled.

An averaging has two ranks, of which one begins it. Where all choose, each begins half of those
that it takes part in. Where only some do (a source with ``active``, as `pairing.Bipartite`) these
begin all of theirs. Where two free ranks find each other (a source with ``poll`` and ``leave``, as
`pairing.Available`) the averaging settles one of each, whoever begins it, and a rank that finds
nobody keeps its turn.
"""

from __future__ import annotations

from typing import Any

from .exchange import Exchange, PeerSource


class Partners:
    """A peer source, as the processes use it, for one rank of `size`.

    Attributes
    ----------
    meet : bool
        Do free ranks find each other? An averaging that is settled with nobody to begin it with
        has then been begun by the other.
    """

    def __init__(self, source: PeerSource, size: int) -> None:
        if not callable(getattr(source, "next_peer", None)):
            raise TypeError(
                f"peers: expected something with next_peer(), got {type(source).__name__}"
            )
        self._source: Any = source
        self._size = size
        self.meet = hasattr(source, "poll")

    def share(self) -> float:
        """Of the averagings that this rank takes part in: for how many it asks for a peer."""
        if self.meet:
            return 1.0
        active = getattr(self._source, "active", None)
        return 0.5 if active is None else float(active)

    def next(self) -> tuple[bool, int | None]:
        """Is one averaging of this rank settled, and with whom has this rank to begin it?"""
        if not self.meet:
            return True, self._checked(self._source.next_peer())
        outcome = self._source.poll()
        if isinstance(outcome, int):
            return True, self._checked(outcome)
        return outcome is not None, None

    def rest(self) -> bool:
        """Be free no longer; was this rank taken before that?"""
        return self.meet and self._source.leave() is not None

    def _checked(self, peer: Any) -> int | None:
        if peer is not None and not 0 <= peer < self._size:
            raise ValueError(f"peers: expected a rank from 0 to {self._size - 1}, got {peer!r}")
        return None if peer is None else int(peer)

    def bury(self, exchange: Exchange, peer: int) -> None:
        """As the function."""
        bury(self._source, exchange, peer)


def bury(source: Any, exchange: Exchange, peer: int) -> None:
    """A call about this peer has raised RankFailedError, which is being handled: do the others go
    on without it? Then no dead rank is chosen again, else it is raised."""
    if not exchange.failed[peer]:
        raise
    if hasattr(source, "topology"):
        source.topology = exchange.topology
