# SPDX-License-Identifier: Apache-2.0
"""Known faults of an MPI's windows are reported before the first use ends the process."""

import subprocess

# Returns Open MPI 4's version and its name of a window of the component rdma.
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


# Puts every rank on its own node. arm("Rget", 3) makes the third MPI_Rget from now on fail.
# under_way() counts the requests that MPI has begun and that have not been seen to complete.
FAILS = r"""
#include <mpi.h>
#include <string.h>

enum { MOST = 64 };
static MPI_Request begun[MOST];
static int count, calls_left;
static char faulty[32];

void arm(const char *name, int number)
{
    strncpy(faulty, name, sizeof faulty - 1);
    calls_left = number;
}

int under_way(void) { return count; }

static int fails(const char *name)
{
    return !strcmp(name, faulty) && calls_left > 0 && --calls_left == 0;
}

static int keep(int rc, MPI_Request *request)
{
    if (rc == MPI_SUCCESS && count < MOST)
        begun[count++] = *request;
    return rc;
}

static void forget(MPI_Request request)
{
    for (int i = 0; i < count; i++)
        if (begun[i] == request) {
            begun[i] = begun[--count];
            return;
        }
}

int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm *out)
{
    (void)type, (void)key, (void)info, (void)comm;
    return PMPI_Comm_dup(MPI_COMM_SELF, out);
}

int MPI_Rget(void *into, int n, MPI_Datatype type, int peer, MPI_Aint at, int m,
             MPI_Datatype theirs, MPI_Win win, MPI_Request *request)
{
    return fails("Rget") ? MPI_ERR_OTHER
                         : keep(PMPI_Rget(into, n, type, peer, at, m, theirs, win, request),
                                request);
}

int MPI_Rput(const void *from, int n, MPI_Datatype type, int peer, MPI_Aint at, int m,
             MPI_Datatype theirs, MPI_Win win, MPI_Request *request)
{
    return fails("Rput") ? MPI_ERR_OTHER
                         : keep(PMPI_Rput(from, n, type, peer, at, m, theirs, win, request),
                                request);
}

int MPI_Raccumulate(const void *from, int n, MPI_Datatype type, int peer, MPI_Aint at, int m,
                    MPI_Datatype theirs, MPI_Op op, MPI_Win win, MPI_Request *request)
{
    return fails("Raccumulate")
               ? MPI_ERR_OTHER
               : keep(PMPI_Raccumulate(from, n, type, peer, at, m, theirs, op, win, request),
                      request);
}

int MPI_Rget_accumulate(const void *from, int n, MPI_Datatype type, void *into, int k,
                        MPI_Datatype own, int peer, MPI_Aint at, int m, MPI_Datatype theirs,
                        MPI_Op op, MPI_Win win, MPI_Request *request)
{
    return fails("Rget_accumulate")
               ? MPI_ERR_OTHER
               : keep(PMPI_Rget_accumulate(from, n, type, into, k, own, peer, at, m, theirs, op,
                                           win, request),
                      request);
}

int MPI_Testall(int n, MPI_Request requests[], int *done, MPI_Status statuses[])
{
    if (fails("Testall"))
        return MPI_ERR_OTHER;
    MPI_Request before[MOST];
    for (int i = 0; i < n && i < MOST; i++)
        before[i] = requests[i];
    int rc = PMPI_Testall(n, requests, done, statuses);
    for (int i = 0; i < n && i < MOST && *done; i++)
        forget(before[i]);
    return rc;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    MPI_Request before = *request;
    int rc = PMPI_Test(request, done, status);
    if (*done)
        forget(before);
    return rc;
}
"""

FAULTS = """
    import ctypes
    rank = comm.rank
    stub = ctypes.CDLL(os.environ["LD_PRELOAD"])
    x = np.arange(3000.0, dtype=np.float32)
    coded, plain = (pc.GossipBuffer(comm, like=x, codec=codec) for codec in (pc.Lattice(8), None))
    for gossip in (coded, plain):
        gossip.publish(x)
    comm.Barrier()
    for call, fault, number in (
        (lambda: coded.read(1, key=x), b"Rget", 2),
        (lambda: coded.read(1, key=x), b"Rget", 3),
        (lambda: plain.read(1, key=x), b"Testall", 2),
        (lambda: coded.push(1, x, key=x), b"Rput", 2),
        (lambda: coded.push(1, x, key=x), b"Rput", 3),
        (lambda: plain.push(1, x), b"Rput", 2),
        (lambda: plain.average(x, 1), b"Rget_accumulate", 3),
        (lambda: plain.average(x, 1), b"Testall", 5),
    ) if rank == 0 else ():
        stub.arm(fault, number)
        try:
            call()
            say("went well:", fault, number)
        except MPI.Exception:
            say("under way:", stub.under_way())
    comm.Barrier()
    plain.Free()
    coded.Free()
"""


def test_a_failed_access_leaves_no_request(run, tmp_path):
    """MPI would write into freed buffers, or send freed data."""
    from support.c_users import mpicc

    source, library = tmp_path / "fails.c", tmp_path / "libfails.so"
    source.write_text(FAILS)
    subprocess.run([mpicc(), "-shared", "-fPIC", source, "-o", library], check=True)
    done = run(FAULTS, ranks=2, before="", env={"LD_PRELOAD": str(library)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["under way: 0"] * 8
