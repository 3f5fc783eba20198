# SPDX-License-Identifier: Apache-2.0
"""Groups of simulated ranks with dynamic keys, which find each other by declarations and counts:
one leaves while another one is late."""

import numpy as np
import pytest

from partialcoll.tools.sim.simulated import Events, group_reductions

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

RANKS, LATE, DELAY, WINDOW = 5, 2, 0.09, 0.4


def two_rounds(leaver):
    """Return each rank's group of the second round by index, and when the last round ended."""
    events = Events()
    handles = group_reductions(RANKS, "2x3", np.zeros(3), events, 1e-3, WINDOW)
    found, ends = {}, []

    def start(rank):
        handles[rank].Start()
        handles[rank].then(lambda: over(rank))

    def over(rank):
        done = handles[rank].last_round
        found.setdefault(rank, {})[done.index] = done.group
        ends.append(events.now)
        if done.index == 0:
            handles[rank].leave() if rank == leaver else start(rank)

    for rank in range(RANKS):
        events.after(DELAY * (rank == LATE), lambda rank=rank: start(rank))
    events.run(10)
    return found, max(ends)


@pytest.mark.parametrize("leaver", [None, 0, 1, 3, 4])
def test_the_others_wait_for_one_that_is_late(leaver):
    """The leaving rank has usually declared itself for the next round. It is not mistaken for the
    late rank, and no rank waits for it."""
    found, end = two_rounds(leaver)
    staying = set(range(RANKS)) - {leaver}
    groups = {rank: found[rank].get(1) for rank in staying}
    assert all(group is not None and rank in group for rank, group in groups.items()), found
    assert set(groups[LATE]) == {1, 2, 3} - {leaver}, groups
    assert end < DELAY + WINDOW / 2, "a rank has waited for the window's end"
