# SPDX-License-Identifier: Apache-2.0
"""Adasum: vectors of the ranks combined so that what they have in common counts once.

Two vectors a and b become a·(1 - <a,b>/2|a|²) + b·(1 - <a,b>/2|b|²): the sum of orthogonal ones,
the mean of equal ones. More are combined in pairs, the pairs again in pairs. Whole vectors travel,
by recursive doubling, and both ranks of a pair compute the same in float64, of which neither sums
nor products depend on the order of two: so all have the same bits. Ranks beyond a power of two
first hand theirs to a rank below it, which combines it with its own, and get the result from there
at the end.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .._core.buffers import Array
from .._core.mpi import MPI

Bounds = Sequence[tuple[int, int]]


def combine(a: Array, b: Array, bounds: Bounds) -> Array:
    """Return a new vector: each part of the two vectors, combined separately."""
    found = np.zeros_like(a)
    for begin, end in bounds:
        first, second = (one[begin:end].astype(np.float64) for one in (a, b))
        dot = np.multiply(first, second).sum()
        for part in (first, second):
            square = np.multiply(part, part).sum()
            if square > 0:
                part *= 1 - dot / square / 2
        found[begin:end] = first + second
    return found


def adasum(comm: MPI.Intracomm, vector: Array, bounds: Bounds) -> Iterator[MPI.Request]:
    """A flat vector of float32 or float64 becomes the combination of the ranks', each part of it by
    itself, in place. Yields what is to be waited for. Collective."""
    rank, heard = comm.rank, np.empty_like(vector)
    most = 1 << (comm.size.bit_length() - 1)  # the largest power of two among the ranks' number
    if rank >= most:
        yield comm.Isend(vector, rank - most)
        yield comm.Irecv(vector, rank - most)
        return
    if rank + most < comm.size:
        yield comm.Irecv(heard, rank + most)
        vector[...] = combine(vector, heard, bounds)
    distance = 1
    while distance < most:
        partner = rank ^ distance
        coming, going = comm.Irecv(heard, partner), comm.Isend(vector, partner)
        yield coming
        yield going
        vector[...] = combine(vector, heard, bounds)
        distance *= 2
    if rank + most < comm.size:
        yield comm.Isend(vector, rank + most)
