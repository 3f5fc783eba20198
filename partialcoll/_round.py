# SPDX-License-Identifier: Apache-2.0
"""What a call returns: which rounds, who was in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ._buffers import Array


class Result:
    """One delivered round.

    Attributes
    ----------
    index : int
        Number of the round, from 0, the same on all ranks.
    active : int
        Ranks that contributed fresh data.
    stored : int
        Of them, those whose deposit was made before the round, not for it.
    initiator : int
        Lowest rank whose own arrival started the round; -1 if there was none.
    mask : numpy.ndarray of bool, shape (ranks,)
        Which ranks contributed.
    stored_mask : numpy.ndarray of bool, shape (ranks,)
        Which of them from storage only.
    below_quorum : bool
        The round completed by its deadline with fewer ranks than its policy asks for.
    buffers : list of numpy.ndarray
        The reduced values. Where a call delivered one round only, these are the receive
        buffers themselves, which the next call overwrites.
    """

    __slots__ = (
        "_ranks",
        "_words",
        "active",
        "below_quorum",
        "buffers",
        "index",
        "initiator",
        "stored",
    )

    def __init__(self, c_round: Any, words: bytes, ranks: int, buffers: list[Array]) -> None:
        self.index: int = c_round.index
        self.active: int = c_round.active
        self.stored: int = c_round.stored
        self.initiator: int = c_round.initiator
        self.below_quorum = bool(c_round.below_quorum)
        self.buffers = buffers
        self._words = words
        self._ranks = ranks

    def _bits(self, which: int) -> npt.NDArray[np.bool_]:
        half = len(self._words) // 2
        raw = np.frombuffer(self._words, np.uint8, half, which * half)
        return np.unpackbits(raw, count=self._ranks, bitorder="little").astype(bool)

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Which ranks contributed fresh data: bool, shape (ranks,)."""
        return self._bits(0)

    @property
    def stored_mask(self) -> npt.NDArray[np.bool_]:
        """Which of them contributed a deposit from before the round: bool, shape (ranks,)."""
        return self._bits(1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """The first buffer, so that numpy functions take a result as it is."""
        array = np.asarray(self.buffers[0], dtype=dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        return f"Result(index={self.index}, active={self.active}, stored={self.stored})"


class Round:
    """What `Wait` returns: the last round delivered, and what was delivered with it.

    Attributes
    ----------
    index, active, stored, initiator, mask, below_quorum
        Of the last round delivered, see `Result`.
    results : list of Result
        The delivered rounds, oldest first; with ``deliver="one"`` exactly one.
    included : bool
        Was the deposit of this call in a delivered round?
    lag : int
        Rounds that are complete on this rank and have not been delivered yet.
    lost : int
        Rounds that this call skipped because they were older than ``history``.
    """

    __slots__ = ("included", "joined", "lag", "lost", "results")

    def __init__(
        self, results: list[Result], *, included: bool, lag: int, lost: int, joined: bool = False
    ) -> None:
        self.results = results
        self.included = included
        self.lag = lag
        self.lost = lost
        self.joined = joined

    @property
    def index(self) -> int:
        """Number of the last round delivered, from 0, the same on all ranks."""
        return self.results[-1].index

    @property
    def active(self) -> int:
        """Ranks that contributed fresh data to the last round delivered."""
        return self.results[-1].active

    @property
    def stored(self) -> int:
        """Of the active ranks, those with a deposit from before the round."""
        return self.results[-1].stored

    @property
    def initiator(self) -> int:
        """Lowest rank whose arrival started the last round delivered; -1 without one."""
        return self.results[-1].initiator

    @property
    def below_quorum(self) -> bool:
        """The last round delivered completed by its deadline, below its quorum."""
        return self.results[-1].below_quorum

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        """Which ranks contributed to the last round delivered: bool, shape (ranks,)."""
        return self.results[-1].mask

    def __repr__(self) -> str:
        return (
            f"Round(index={self.index}, active={self.active}, stored={self.stored}, "
            f"included={self.included}, lag={self.lag}, lost={self.lost}, "
            f"rounds={len(self.results)})"
        )
