# SPDX-License-Identifier: Apache-2.0
"""Faults of an MPI's windows that are known are said before the first use ends the process."""

import subprocess

# What Open MPI 4 says of itself and of a window of its component rdma.
SAYS = r"""
#include <mpi.h>
#include <string.h>

static int made;

int MPI_Win_allocate(MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, void *memory,
                     MPI_Win *win)
{
    made = 1;
    return PMPI_Win_allocate(size, unit, info, comm, memory, win);
}

int MPI_Get_library_version(char *text, int *length)
{
    if (!made)
        return PMPI_Get_library_version(text, length);
    strcpy(text, "Open MPI v4.1.4, package: another");
    *length = (int)strlen(text);
    return MPI_SUCCESS;
}

int MPI_Win_get_name(MPI_Win win, char *name, int *length)
{
    (void)win;
    strcpy(name, "rdma window 3");
    *length = (int)strlen(name);
    return MPI_SUCCESS;
}
"""

SCRIPT = """
    for make in (
        lambda: pc.GossipBuffer(comm, like=np.zeros(3)),
        lambda: pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.zeros(3)),
    ):
        try:
            make()
        except pc.Error as error:
            say("no:", error)
    alone = pc.GossipBuffer(MPI.COMM_SELF, like=np.zeros(3))
    alone.Free()
    h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")  # takes no window
    h.Start()
    say("ranks:", h.Wait().active)
    h.Free()
"""


def test_compare_and_swap_of_open_mpi_4(run, tmp_path):
    from support.c_users import mpicc

    source, library = tmp_path / "says.c", tmp_path / "libsays.so"
    source.write_text(SAYS)
    subprocess.run([mpicc(), "-shared", "-fPIC", source, "-o", library], check=True)
    done = run(SCRIPT, ranks=2, before="", env={"LD_PRELOAD": str(library)})
    assert done.returncode == 0, done.stderr
    refused = [line for line in done.stdout.splitlines() if line.startswith("no:")]
    assert len(refused) == 4
    for line in refused:
        assert "Open MPI v4.1.4" in line and "OMPI_MCA_osc=sm" in line
    assert done.stdout.count("ranks: 2") == 2
