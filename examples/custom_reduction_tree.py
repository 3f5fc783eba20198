# SPDX-License-Identifier: Apache-2.0
"""A reduction along a tree of your own choice: any root, any number of children.

Each rank waits for its children, adds their data to its own, and sends the sum to its
parent. MPI chooses such a tree for you. Here you see it, and can adapt it to your machine.

mpiexec -n 4 python examples/custom_reduction_tree.py
"""

import numpy as np
from mpi4py import MPI

import partialcoll as pc


def family(rank, size, root, arity):
    """Return parent and children of a rank in a tree in which every rank has up to `arity`
    children.

    Places in the tree are counted from the root, level by level: the children of place p are the
    places arity*p + 1 ... arity*p + arity. The root's rank is at place 0.
    """
    place = (rank - root) % size
    parent = None if place == 0 else ((place - 1) // arity + root) % size
    below = range(arity * place + 1, min(arity * place + arity + 1, size))
    return parent, [(child + root) % size for child in below]


def reduction_tree(comm, data, root, arity):
    """Return a committed schedule that leaves the sum of all `data` in the root's `data`.

    The partial sums are built in place: afterwards `data` contains them on every rank.
    """
    parent, children = family(comm.rank, comm.size, root, arity)
    s = pc.Schedule(comm)
    added = []
    for child in children:
        into = np.empty_like(data)  # each child has its own buffer: they arrive in any order
        received = s.recv(into, child, label=f"from child {child}")
        # Add one after the other, so that the sum has the same bits in every run. Without `added`
        # they would be added in the order of arrival.
        add = s.reduce(into, data, op=MPI.SUM, label=f"add child {child}")
        added = [s.after(add, [received, *added])]
    if parent is not None:
        s.after(s.send(data, parent, label="to parent"), added)
    return s.commit()


comm = MPI.COMM_WORLD
rng = np.random.default_rng(comm.rank)
mine, data, expected = np.empty(1000), np.empty(1000), np.empty(1000)

for root, arity in ((0, 2), (comm.size - 1, 3), (comm.size // 2, 1)):
    with reduction_tree(comm, data, root, arity) as tree:
        if comm.rank == root:
            print(f"root {root}, {arity} children each; at the root:\n{tree}", flush=True)
        for _ in range(3):  # the schedule is built once and run as often as needed
            mine[:] = rng.integers(0, 100, 1000)
            data[:] = mine
            tree.Start()
            tree.Wait()
            comm.Reduce(mine, expected, root=root)
            assert comm.rank != root or np.array_equal(data, expected)
        # The same tree for a simulator, to try it with other latencies and sizes:
        text = tree.to_goal(all_ranks=True, ns_per_byte=0.1)
        if comm.rank == root:
            sends = text.count(": send ")
            print(f"equal to comm.Reduce; {sends} messages in GOAL\n", flush=True)
            assert sends == comm.size - 1
