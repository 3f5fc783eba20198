# SPDX-License-Identifier: Apache-2.0
"""Ranks that MPI itself has ended are recognized by its output, and are dead like any other."""

import os
import sys

import pytest

from partialcoll.tools.bench.faults import killing

SAID = """[node:{pid}] *** Process received signal ***
[node:{pid}] Signal: Segmentation fault (11)
[node:{pid}] Failing at address: 0x450
[node:{pid}] [ 0] /lib/libc.so.6(+0x3c050)[0x7f7a1865a050]
[node:{pid}] [ 1] /mpi/libmpi.so.40({function}+0x3f)[0x7f7a188745df]
[node:{pid}] [ 2] /mpi/libmpi.so.40(ompi_comm_set_rank_failed+0x4c)[0x7f7a188720ec]
[node:{pid}] *** End of error message ***
"""
RANKS = """
import os, sys
folder, said = sys.argv[1:]
for rank in range(2):
    for kind in ("log", "state"):
        open(f"{folder}/{kind}-{rank}-0", "w").close()
    with open(f"{folder}/pid-{rank}-0", "w") as file:
        file.write(str(1000 + rank))
print(said)
"""


def said(pid, function="ompi_comm_revoke_local"):
    return SAID.format(pid=pid, function=function)


def test_printed_failures():
    both = said(17) + "something else\n" + said(4) + said(5, "pcoll_handle_start")
    assert killing.ended_by_mpi(both) == {17, 4}
    assert killing.ended_by_mpi("ompi_comm_revoke_local") == set()


class Job(killing.KilledJob):
    def start(self):
        return [sys.executable, "-c", RANKS, str(self.folder), self.text], dict(os.environ)


@pytest.mark.parametrize("function, ended", [("ompi_comm_revoke_local", 1), ("main", 0)])
def test_a_job(function, ended):
    job = Job(2, "solo", "node", "1", 0)
    job.text = said(1001, function)
    tally = killing.Tally()
    tally.run(job)
    job.forget()
    assert job.ended_by_mpi == ended
    assert len(tally.all_of("hangs")) == 2 - ended  # no rank reached its end
    assert tally.row("solo", "node", 2)["ended_by_mpi"] == ended
