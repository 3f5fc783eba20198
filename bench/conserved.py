# SPDX-License-Identifier: Apache-2.0
"""Does gossip conserve the sum, and does it mix, while one rank collects rarely?

Run on some ranks: mpiexec -n 4 python bench/conserved.py [--averagings 100000]. Every rank averages
with random others without pause; rank 0 collects once in 50. Prints, for each dtype, the relative
change of the sum (what lies uncollected included) and how much the consensus distance has shrunk.
"""

import argparse

import numpy as np
from mpi4py import MPI

import partialcoll as pc


def consensus(comm: MPI.Intracomm, x: np.ndarray) -> float:
    """sqrt of the mean over ranks of the squared distance to the mean model."""
    wide = x.astype(np.float64)
    mean = comm.allreduce(wide) / comm.size
    return float(np.sqrt(comm.allreduce(float(((wide - mean) ** 2).sum())) / comm.size))


def run(comm: MPI.Intracomm, dtype: str, averagings: int, count: int, topology: str) -> str:
    """One dtype; a line of the table."""
    rng = np.random.default_rng(comm.rank)
    x = rng.normal(size=count).astype(dtype)
    before, first = comm.allreduce(x.astype(np.float64)), consensus(comm, x)
    with pc.GossipBuffer(comm, like=x, topology=topology) as g:
        peers = g.topology.neighbours(comm.rank)
        g.publish(x)
        comm.Barrier()
        every, done, tries, end = 50 if comm.rank == 0 else 1, 0, 0, None
        while end is None or not end.Test():  # who has done its part still collects
            if tries % every == 0:
                g.collect(x)
                g.publish(x)
            if done < averagings // comm.size:
                done += g.average(x, peers[rng.integers(len(peers))])
            elif end is None:
                end = comm.Ibarrier()
            tries += 1
        after = comm.allreduce(x.astype(np.float64) + g.pending())
        comm.Barrier()
        g.collect(x)
        last, skipped = consensus(comm, x), comm.allreduce(g.stats.skipped)
        made = comm.allreduce(g.stats.averages)
    change = np.linalg.norm(after - before) / np.linalg.norm(before)
    return (
        f"{dtype:8} {comm.size:5} {made:10} {skipped:9} {change:15.2e} {first:10.3g} -> {last:.3g}"
    )


def main() -> None:
    """All dtypes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--averagings", type=int, default=100_000)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--topology", default="ring")
    options = parser.parse_args()
    comm = MPI.COMM_WORLD
    if comm.rank == 0:
        print("dtype    ranks averagings   skipped change of sum   consensus distance")
    for dtype in ("float64", "float32", "float16"):
        line = run(comm, dtype, options.averagings, options.count, options.topology)
        if comm.rank == 0:
            print(line, flush=True)


if __name__ == "__main__":
    main()
