# SPDX-License-Identifier: Apache-2.0
"""A rank that is missing in a call that creates or frees an object is named, with the call."""

import logging
import time

import numpy as np
import pytest
from mpi4py import MPI
from word import await_word, sending_word

import partialcoll as pc
from partialcoll._core import attendance
from partialcoll._core.attendance import name_ranks

LATE_S, STALL_S = 0.8, 0.25
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
    """Return a function for the warnings that this rank has logged."""
    monkeypatch.setenv("PARTIALCOLL_STALL_WARN", str(STALL_S))
    caplog.set_level(logging.WARNING, "partialcoll")
    return lambda: [record.getMessage() for record in caplog.records]


def needs_two(comm):
    if comm.size == 1:
        pytest.skip("one rank waits for no other")


@pytest.mark.parametrize(
    ("name", "missing"), [*((name, "last") for name in MAKERS), ("Allreduce_init", "first")]
)
def test_missing_in_a_call_that_makes(comm, warned, name, missing):
    needs_two(comm)
    absent = 0 if missing == "first" else comm.size - 1
    speaker = 1 if missing == "first" else 0
    said = f"in {name}: rank {absent} has not called it"
    if comm.rank == absent:
        await_word(comm, speaker)
    with sending_word(comm, [absent] if comm.rank == speaker else [], said):
        made = MAKERS[name](comm)
    if comm.rank != speaker:  # one rank reports for all
        assert not [text for text in warned() if text.endswith(said)]
    if made is not None:
        made.Free()


def test_missing_in_free(comm, warned):
    needs_two(comm)
    h = pc.Allreduce_init(comm, np.ones(2), np.empty(2), quorum="full", name="weights")
    absent = comm.size - 1
    if comm.rank == absent:
        await_word(comm, 0)
    said = f"in AllreduceHandle.Free of 'weights': rank {absent} has not called it"
    with sending_word(comm, [absent] if comm.rank == 0 else [], said):
        h.Free()


def test_freed_in_another_order(comm, warned):
    """Each rank learns where the others are."""
    needs_two(comm)
    names = ["a", "b"] if comm.rank == 0 else ["b", "a"]
    made = {
        n: pc.Allreduce_init(comm, np.ones(2), np.empty(2), quorum="full", name=n) for n in "ab"
    }
    others = f"{name_ranks(range(1, comm.size))} {'is' if comm.size == 2 else 'are'}"
    said = {
        0: f"Free of 'a': {others} in AllreduceHandle.Free of 'b'",
        1: "Free of 'b': rank 0 is in AllreduceHandle.Free of 'a'",
    }.get(comm.rank, "")
    learned = False
    while not learned:  # all wait until each has been notified
        with pytest.raises(TimeoutError):
            made[names[0]].Free(timeout=LATE_S)
        learned = comm.allreduce(not said or any(said in text for text in warned()), MPI.LAND)
    for name in "ab":
        made[name].Free()


def test_several_missing_and_one_elsewhere(comm, warned):
    if comm.size < 4:
        pytest.skip("needs four ranks")
    other = comm.Split(comm.rank == 1)
    if comm.rank == 1:
        await_word(comm, 0)
    elif comm.rank > 1:
        with attendance.attending("something else", comm):
            await_word(comm, 0)
    said = f"rank 1 has not called it; {name_ranks(range(2, comm.size))} are in something else"
    with sending_word(comm, [*range(1, comm.size)] if comm.rank == 0 else [], said):
        a_handle(comm).Free()
    other.Free()


def test_nothing_is_said_before_it_is_due(comm, warned, caplog):
    """No warning if ranks come in time, or exactly at the time of the warning."""
    for _ in range(3):
        comm.Barrier()
        a_handle(comm).Free()
    assert all(record.args[0] >= STALL_S for record in caplog.records), warned()


def test_notes_are_taken_back(comm, warned):
    needs_two(comm)
    if comm.rank == comm.size - 1:
        time.sleep(LATE_S / 2)
    a_handle(comm).Free()
    thread = attendance._thread
    if thread is not None:  # it ends when no note is left
        thread.join()
    comm.Barrier()
    assert all(attendance._read(rank) == [] for rank in range(MPI.COMM_WORLD.size))


def test_a_communicator_that_is_gone(warned):
    """An object of a freed communicator is freed without it."""
    gone = MPI.COMM_WORLD.Dup()
    h = a_handle(gone)
    gone.Free()
    h.Free()


def test_a_note_that_does_not_fit():
    call = ("ü" * 2000, "abc")
    assert attendance._decode(attendance._encode([call]))
    assert len(attendance._encode([call])) < MPI.MAX_PORT_NAME
