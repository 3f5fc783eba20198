# SPDX-License-Identifier: Apache-2.0
"""Ranks free in different orders, or leave it to MPI_Finalize. None waits forever."""

import pytest

MAKE = """
def handle():
    return pc.Allreduce_init(comm, np.ones(3), quorum="full")

def schedule():
    s = pc.Schedule(comm)
    s.recv(np.zeros(2), (comm.rank - 1) % comm.size)
    s.send(np.ones(2), (comm.rank + 1) % comm.size)
    s.commit()
    return s

def run(things, times):
    for _ in range(times):
        for thing in things:
            thing.Start()
        for thing in things:
            thing.Wait()

"""

NESTED = """
with {0}() as a, {1}() as b:
    run([a], 2)
    run([b], 5)
    if comm.rank == comm.size - 1:
        raise SystemExit(0)
"""

ORDERS = """
things = [handle(), schedule(), handle(), schedule()]
for n, thing in enumerate(things):
    run([thing], 2 * n + 1)
for i in ((0, 2, 1, 3), (0,), (0, 2, 1))[comm.rank]:
    things[i].Free()
    say("freed", i)
"""

FREED_COMMUNICATOR = """
first, second = comm.Dup(), comm.Dup()
things = [pc.Allreduce_init(c, np.ones(3), quorum="full") for c in (first, second)]
run(things, 2)
first.Free()
if comm.rank == 0:
    things[0].Free()
    say("freed")
"""

# The end of these communicators has a step that waits for the other ranks.
BUFFERS = """
pairs = [(c, pc.GossipBuffer(c, like=np.ones(3))) for c in (comm.Dup(), comm.Dup(), comm.Dup())]
"""
FREED_COMMUNICATORS = """
for c, _ in pairs:
    c.Free()
if comm.rank == 0:
    pairs[{0}][1].Free()
    say("freed")
"""
FREED_BUFFERS = """
for c, buffer in pairs[:2]:
    buffer.Free()
pairs[0][0].Free()
if comm.rank == 0:
    pairs[1][0].Free()
    pairs[2][1].Free()
    say("freed")
"""


@pytest.mark.parametrize("one", ("handle", "schedule"))
@pytest.mark.parametrize("two", ("handle", "schedule"))
def test_nested(run, one, two):
    """A rank exits inside the block, so MPI_Finalize closes what the others free there."""
    done = run(MAKE + NESTED.format(one, two), 3)
    assert done.returncode == 0, done.stdout + done.stderr


def test_orders(run):
    """Objects are freed in another order than created. One rank frees only the first one and leaves
    the rest to MPI_Finalize."""
    done = run(MAKE + ORDERS, 3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("freed") == 8


def test_handle_of_a_freed_communicator(run):
    """One rank frees the communicator. The other leaves it and a handle of another one to
    MPI_Finalize."""
    done = run(MAKE + FREED_COMMUNICATOR, 2)
    assert (done.returncode, done.stdout.strip()) == (0, "freed"), done.stdout + done.stderr


@pytest.mark.parametrize(
    "script", (FREED_COMMUNICATORS.format(0), FREED_COMMUNICATORS.format(2), FREED_BUFFERS)
)
def test_communicators_of_buffers(run, script):
    """One rank frees a buffer or a communicator. The other leaves all the rest to MPI_Finalize."""
    done = run(BUFFERS + script, 2)
    assert (done.returncode, done.stdout.strip()) == (0, "freed"), done.stdout + done.stderr
