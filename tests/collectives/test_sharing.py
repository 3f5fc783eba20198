# SPDX-License-Identifier: Apache-2.0
"""Memory that the ranks of a node share, under failures."""

import contextlib
import os
import time
import uuid
from pathlib import Path

import pytest

# Every rank of a node in one domain, whatever the environment of this run.
NODE = {"PARTIALCOLL_DOMAIN": "node"}

STOPPED = """
        import logging, signal

        pids = comm.allgather(os.getpid())
        stopper = []

        def add(a, b, dtype):
            if stopper:
                os.kill(os.getpid(), stopper.pop())
            y = np.frombuffer(b, np.float64)
            y += np.frombuffer(a, np.float64)

        class GoOn(logging.Handler):
            def emit(self, record):
                say("warned:", record.getMessage())
                if "rank 1 is in the middle" in record.getMessage():
                    os.kill(pids[1], signal.SIGCONT)

        op = MPI.Op.Create(add, commute=True)
        n = int(sys.argv[1])
        x, y = np.full(n, comm.rank + 1.0), np.zeros(n)
        full = pc.Allreduce_init(comm, x, y, op=op, quorum="full")
        solo = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="solo", history=50)
        assert full.domain == solo.domain == "node"
        if comm.rank == 0:
            logging.getLogger("partialcoll").addHandler(GoOn())
        stopped = False
        while not stopped:  # the others may have added everything before rank 1 arrived
            over = None
            if comm.rank == 1:  # the last rank closes the round, and stops in its first addition
                stopper[:] = [signal.SIGSTOP]
                comm.Barrier()
                full.Start()
            else:
                full.Start()
                comm.Barrier()
                while over is None and state(pids[1]) != "T":
                    time.sleep(0.001)
                    over = full.Test()
            if comm.rank == 0 and over is None:
                for _ in range(20):  # the other handle continues without rank 1
                    solo.Start()
                    assert solo.Wait().active >= 1
                assert full.Test() is None
                say("other rounds:", solo.last_round.index)
            if over is None:
                full.Wait()
            assert (y == comm.size * (comm.size + 1) / 2).all(), y
            stopped = comm.bcast(not stopper, root=1)
        for _ in range(5):
            full.Start()
            full.Wait()
            assert (y == comm.size * (comm.size + 1) / 2).all(), y
        while comm.rank and solo.stats.delivered < 20:
            solo.Start()
            solo.Wait()
        say("done")
        full.Free()
        solo.Free()
        op.Free()
"""


def check_stopped(run, count):
    done = run(
        STOPPED,
        ranks=3,
        arguments=[str(count)],
        env={**NODE, "PARTIALCOLL_STALL_WARN": "0.5"},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 is in the middle of the reduction" in done.stdout, done.stdout
    assert "other rounds: 19" in done.stdout and done.stdout.count("done") == 3


def test_a_stopped_rank_is_named(run):
    """SIGSTOP in the middle of a reduction: the round waits and names the rank, nothing is
    corrupted, and other handles continue."""
    check_stopped(run, 100)


def test_a_stopped_rank_with_a_chunk_is_named(run):
    """The same where several ranks reduce chunks of one round."""
    check_stopped(run, 300_000)


LIMITED = """
        import resource
        pc.Allreduce_init(comm, np.ones(1)).Free()  # what a communicator needs
        which = {"size": resource.RLIMIT_FSIZE, "files": resource.RLIMIT_NOFILE}[sys.argv[2]]
        before = resource.getrlimit(which)
        if comm.rank == int(sys.argv[1]):
            few = {"size": 1 << 16, "files": 3}[sys.argv[2]]
            resource.setrlimit(which, (few, before[1]))
        x, y = np.ones(100_000), np.zeros(100_000)
        try:
            pc.Allreduce_init(comm, x, y, domain="node")
        except MemoryError as error:
            say("refused:", error)
        for domain in ("auto", "rank"):
            with pc.Allreduce_init(comm, x, y, quorum="full", domain=domain) as h:
                h.Start()
                assert h.Wait().active == comm.size and (y == comm.size).all()
                assert h.domain == "rank", h.domain
        resource.setrlimit(which, before)
        with pc.Allreduce_init(comm, x, y, quorum="full", domain="auto") as h:
            assert h.domain == "node", h.domain
        say("done")
"""


@pytest.mark.parametrize(
    "rank, what, why",
    [
        ("0", "size", "bytes of shared memory on this node: File too large"),
        ("0", "files", "bytes of shared memory on this node: Too many open files"),
        ("2", "files", "Too many open files"),
    ],
)
def test_memory_that_cannot_be_had(run, rank, what, why):
    """Missing memory or descriptors, on the creating or on an opening rank, raise an error with the
    size on every rank; or messages are used if that was requested."""
    done = run(LIMITED, ranks=3, arguments=[rank, what], env=NODE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused:") == 3 and done.stdout.count("done") == 3
    assert why in done.stdout, done.stdout


def test_more_than_the_machine_has(run):
    done = run(
        """
        like = np.broadcast_to(np.float32(0), (2**33,))
        try:
            pc.Allreduce_init(comm, None, None, like=like, domain="node")
        except MemoryError as error:
            say("refused:", error)
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1))
        h.Start()
        h.Wait()
        h.Free()
        """,
        ranks=2,
        env=NODE,
    )
    assert done.returncode == 0, done.stderr
    assert "are left" in done.stdout and 'take domain="rank"' in done.stdout


def environment(process):
    with contextlib.suppress(OSError):  # the process has ended
        return (process / "environ").read_bytes()
    return b""


def test_nothing_is_left_of_a_crash(run):
    """After a kill during rounds no file and no process, which would hold memory, is left, and the
    next job is not disturbed."""
    before = set(os.listdir("/dev/shm"))
    job = uuid.uuid4().hex.encode()
    done = run(
        """
        x, y = np.ones(50_000), np.zeros(50_000)
        h = pc.Allreduce_init(comm, x, y, quorum="solo", deliver="all")
        for t in range(100):
            h.Start()
            h.Wait()
            if t == 20 and comm.rank == 1:
                os.kill(os.getpid(), 9)
        """,
        ranks=3,
        env={**NODE, "PARTIALCOLL_TEST_JOB": job.decode()},
    )
    assert done.returncode != 0
    # The launcher may return before the last rank has ended; a process that holds memory never
    # ends.
    end = time.monotonic() + 60
    while any(job in environment(p) for p in Path("/proc").glob("[0-9]*")):
        assert time.monotonic() < end, "processes are left"
        time.sleep(0.01)
    new = [Path("/dev/shm", name) for name in set(os.listdir("/dev/shm")) - before]
    # A folder belongs to another job of Open MPI that runs at the same time.
    assert not [path for path in new if "partialcoll" in path.name and path.is_file()]
    done = run(
        """
        x, y = np.ones(50_000), np.zeros(50_000)
        with pc.Allreduce_init(comm, x, y, quorum="full") as h:
            h.Start()
            assert h.Wait().active == comm.size and (y == comm.size).all()
        say("done")
        """,
        ranks=3,
        env=NODE,
    )
    assert done.stdout.count("done") == 3, done.stderr
