# SPDX-License-Identifier: Apache-2.0
"""What a grouped allreduce tells: its rounds, its counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GroupRound:
    """What came of a round of a `GroupAllreduce`.

    Attributes
    ----------
    index : int
        Number of the round.
    axis : int
        It was along this axis.
    group : tuple of int
        The ranks that averaged together, ascending; empty if the round is void.
    position : int
        This rank's place among them.
    active : int
        How many of them contributed. The others had left, or their applications were late.
    exact : bool
        As many rounds as there are axes, this the last, were complete: with the results fed
        back, this is the average over all ranks.
    void : bool
        A member was lost in mid-round: everybody has its own input back.
    missed : int
        Rounds before this one that this rank took no part in, since the last that it did.
    shares : tuple of float
        The part of the data that each member has reduced; they sum to 1.
    """

    index: int
    axis: int
    group: tuple[int, ...]
    position: int
    active: int
    exact: bool
    void: bool
    missed: int
    shares: tuple[float, ...]


@dataclass(frozen=True)
class GroupStats:
    """What a `GroupAllreduce` has done on this rank since it was made.

    ``rounds``, ``void_rounds``: with a contribution of this rank. ``null_rounds``: those in which
    its agent reduced for the others without one. ``matched_ahead``: rounds whose group was known
    before ``Start``. ``suspected``: ranks that this one found to be silent. ``bytes_fetched``:
    from the memory of others. ``bandwidth``: measured, bytes per second; 0 if it was not.
    """

    rounds: int
    void_rounds: int
    null_rounds: int
    matched_ahead: int
    suspected: int
    bytes_fetched: int
    bandwidth: float
