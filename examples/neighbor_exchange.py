# SPDX-License-Identifier: Apache-2.0
"""A halo exchange on a periodic 2-D grid of ranks: heat that spreads.

Each rank owns a tile with a border ("halo") one cell wide, which holds copies of its
neighbors' edges. In every step edges are sent, halos are received, and then each cell moves
towards the mean of its four neighbors. As soon as two of the four halos have arrived, a gate of
2 of 4 lets the tile report its progress to rank 0, long before the slowest neighbor.

mpiexec -n 4 python examples/neighbor_exchange.py
"""

import numpy as np
from mpi4py import MPI

import partialcoll as pc

SIDE, STEPS = 8, 50

comm = MPI.COMM_WORLD
rows, columns = MPI.Compute_dims(comm.size, 2)
row, column = divmod(comm.rank, columns)


def rank_at(r, c):
    return (r % rows) * columns + c % columns


up, down = rank_at(row - 1, column), rank_at(row + 1, column)
left, right = rank_at(row, column - 1), rank_at(row, column + 1)

# Buffers are used in place and must be contiguous, so edges and halos of a column have their own
# memory. Index 0: towards up; 1: down; 2: left; 3: right.
edges, halos = np.zeros((4, SIDE)), np.zeros((4, SIDE))
neighbors = (up, down, left, right)
opposite = (1, 0, 3, 2)

# Rank 0 learns from each rank that its first two halos are in.
flag = np.full(1, comm.rank, dtype=np.int64)
reports = np.full(comm.size, -1, dtype=np.int64)

s = pc.Schedule(comm)
received = []
for side, neighbor in enumerate(neighbors):
    # The rank above receives from below what this rank sends upwards. On a small grid the same rank
    # can be the neighbor on two sides: the tag says which edge it is.
    s.send(edges[side], neighbor, tag=side, label=f"border {side}")
    received.append(s.recv(halos[side], neighbor, tag=opposite[side], label=f"halo {side}"))
early = s.after(s.nop(label="two halos are in"), received, k=2)
s.after(s.send(flag, 0, tag=4, label="report"), early)
if comm.rank == 0:
    for rank in range(comm.size):
        s.recv(reports[rank : rank + 1], rank, tag=4, label=f"report of {rank}")
s.commit()


def step(tile):
    """Make one step of the heat equation, with this rank's neighbors."""
    edges[:] = tile[0], tile[-1], tile[:, 0], tile[:, -1]
    s.Start()
    wide = np.zeros((SIDE + 2, SIDE + 2))
    wide[1:-1, 1:-1] = tile  # work without halos is done while the messages are in flight
    s.Wait()
    wide[0, 1:-1], wide[-1, 1:-1], wide[1:-1, 0], wide[1:-1, -1] = halos
    around = (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
    return (tile + around) / 2


def all_at_once(grid):
    """Make the same step on the whole grid, for comparison."""
    around = sum(np.roll(grid, shift, axis) for shift in (1, -1) for axis in (0, 1)) / 4
    return (grid + around) / 2


grid = np.random.default_rng(1).random((rows * SIDE, columns * SIDE))
mine = np.s_[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]
tile, heat = grid[mine].copy(), grid.sum()
for _ in range(STEPS):
    tile = step(tile)
    grid = all_at_once(grid)

assert np.allclose(tile, grid[mine], rtol=1e-12, atol=0)
if comm.rank == 0:
    assert np.array_equal(reports, np.arange(comm.size))
    print(s)
    spread = grid.max() - grid.min()
    print(f"{rows} x {columns} ranks, {STEPS} steps: {spread:.4f} between hot and cold,")
    print(f"heat kept to {abs(grid.sum() - heat) / heat:.0e}, tiles equal to a single grid")
s.Free()
