# SPDX-License-Identifier: Apache-2.0
"""A rank that does not come to a call that makes or frees something is named, with the call."""

import logging
import time

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core import attendance

LATE_S = 0.8
pytestmark = pytest.mark.mpi


def a_handle(comm):
    return pc.Allreduce_init(comm, np.ones(2), np.empty(2), quorum="full")


def a_schedule(comm):
    made = pc.Schedule(comm)
    made.commit()
    return made


def a_group(comm):
    return pc.GroupAllreduce_init(comm, np.ones(4), np.empty(4), grid=(comm.size,))


def first_allreduce(comm):
    pc.Allreduce(comm, np.ones(2), np.empty(2), quorum="full", name="gradients")


MAKERS = {
    "Allreduce_init": a_handle,
    "Allreduce": first_allreduce,
    "GossipBuffer": lambda comm: pc.GossipBuffer(comm, like=np.ones(4)),
    "GroupAllreduce_init": a_group,
    "StateExchange": pc.StateExchange,
    "Schedule.commit": a_schedule,
}


@pytest.fixture
def warned(caplog, monkeypatch):
    """What this rank has been warned of."""
    monkeypatch.setenv("PARTIALCOLL_STALL_WARN", "0.25")
    caplog.set_level(logging.WARNING, "partialcoll")
    return lambda: [record.getMessage() for record in caplog.records]


def needs_two(comm):
    if comm.size == 1:
        pytest.skip("one rank waits for nobody")


@pytest.mark.parametrize(
    ("name", "missing"), [*((name, "last") for name in MAKERS), ("Allreduce_init", "first")]
)
def test_missing_in_a_call_that_makes(comm, warned, name, missing):
    needs_two(comm)
    absent = 0 if missing == "first" else comm.size - 1
    speaker = 1 if missing == "first" else 0
    if comm.rank == absent:
        time.sleep(LATE_S)
    made = MAKERS[name](comm)
    if comm.rank == speaker:
        assert any(f"in {name}: rank {absent} has not called it" in text for text in warned())
    elif comm.rank != absent:  # one speaks for all
        assert not [text for text in warned() if f"in {name}:" in text]
    if made is not None:
        made.Free()


def test_missing_in_free(comm, warned):
    needs_two(comm)
    h = pc.Allreduce_init(comm, np.ones(2), np.empty(2), quorum="full", name="weights")
    if comm.rank == comm.size - 1:
        time.sleep(LATE_S)
    h.Free()
    if comm.rank == 0:
        said = f"in AllreduceHandle.Free of 'weights': rank {comm.size - 1} has not called it"
        assert any(said in text for text in warned())


def test_freed_in_another_order(comm, warned):
    """Each rank learns where the others are."""
    needs_two(comm)
    names = ["a", "b"] if comm.rank == 0 else ["b", "a"]
    made = {
        n: pc.Allreduce_init(comm, np.ones(2), np.empty(2), quorum="full", name=n) for n in "ab"
    }
    with pytest.raises(TimeoutError):
        made[names[0]].Free(timeout=LATE_S)
    ranks = ", ".join(map(str, range(1, comm.size)))
    others = "rank 1 is" if comm.size == 2 else f"ranks {ranks} are"
    if comm.rank == 0:
        where = "in AllreduceHandle.Free of 'b'"
        assert any(f"Free of 'a': {others} {where}" in text for text in warned())
    if comm.rank == 1:
        where = "in AllreduceHandle.Free of 'a'"
        assert any(f"Free of 'b': rank 0 is {where}" in text for text in warned())
    for name in "ab":
        made[name].Free()


def test_several_missing_and_one_elsewhere(comm, warned):
    if comm.size < 4:
        pytest.skip("needs four ranks")
    other = comm.Split(comm.rank == 1)
    if comm.rank == 1:
        time.sleep(LATE_S)
    elif comm.rank > 1:
        with attendance.attending("something else", comm):
            time.sleep(LATE_S)
    a_handle(comm).Free()
    if comm.rank == 0:
        ranks = ", ".join(map(str, range(2, comm.size)))
        said = f"rank 1 has not called it; ranks {ranks} are in something else"
        assert any(said in text for text in warned())
    other.Free()


def test_nothing_is_said_of_ranks_that_come_in_time(comm, warned):
    for _ in range(3):
        comm.Barrier()
        a_handle(comm).Free()
    assert warned() == []


def test_notes_are_taken_back(comm, warned):
    needs_two(comm)
    if comm.rank == comm.size - 1:
        time.sleep(LATE_S / 2)
    a_handle(comm).Free()
    time.sleep(0.3)
    comm.Barrier()
    assert all(attendance._read(rank) == [] for rank in range(MPI.COMM_WORLD.size))


def test_a_communicator_that_is_gone(warned):
    """What was made on it is freed without it."""
    gone = MPI.COMM_WORLD.Dup()
    h = a_handle(gone)
    gone.Free()
    h.Free()


def test_a_note_that_does_not_fit():
    call = attendance.Call("ü" * 2000, "abc")
    assert attendance._decode(attendance._encode([call]))
    assert len(attendance._encode([call])) < MPI.MAX_PORT_NAME
