# SPDX-License-Identifier: Apache-2.0
"""Values: every dtype and op against closed forms and against MPI, all kinds of buffers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import partialcoll as pc
from partialcoll.collectives import allreduce

pytestmark = pytest.mark.mpi

DTYPES = (np.float32, np.float64, np.int32, np.int64)
OPS = (MPI.SUM, MPI.PROD, MPI.MIN, MPI.MAX)
together = settings(derandomize=True, database=None, deadline=None, max_examples=25)


@pytest.mark.parametrize("op", OPS, ids=("SUM", "PROD", "MIN", "MAX"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_mpi(comm, dtype, op):
    for count in (0, 1, 2, 7, 1009, 70000):
        send = ((np.arange(count) * 7 + comm.rank * 3) % 5 + 1).astype(dtype)
        recv, expected = np.zeros_like(send), np.zeros_like(send)
        with pc.Allreduce_init(comm, send, recv, op=op, quorum="full") as h:
            for _ in range(3):
                h.Start()
                h.Wait()
        comm.Allreduce(send, expected, op=op)
        np.testing.assert_array_equal(recv, expected)


def test_integers_wrap(comm):
    send = np.array([2**31 - 1], np.int32)
    recv = np.zeros_like(send)
    with pc.Allreduce_init(comm, send, recv, quorum="full") as h:
        h.Start()
        h.Wait()
    expected = np.array([(2**31 - 1) * comm.size], np.int64).astype(np.int32)
    assert recv[0] == expected[0]


@together
@given(
    count=st.integers(0, 300),
    op=st.sampled_from(range(4)),
    dtype=st.sampled_from(range(4)),
    quorum=st.sampled_from(("solo", "majority", "full")),
    parts=st.integers(1, 3),
)
def test_drawn(count, op, dtype, quorum, parts):
    """The result of any kind of handle is the reduction over the mask."""
    comm = MPI.COMM_WORLD
    functions = (np.sum, np.prod, np.min, np.max)
    table = [
        np.array([(np.arange(count) + r * 3 + p) % 4 + 1 for r in range(comm.size)], DTYPES[dtype])
        for p in range(parts)
    ]
    send = [t[comm.rank].copy() for t in table]
    recv = [np.zeros_like(s) for s in send]
    late = "drop"
    with pc.Allreduce_init(comm, send, recv, op=OPS[op], quorum=quorum, late=late) as h:
        for _ in range(2):
            h.Start()
            r = h.Wait()
            for p in range(parts):
                expected = functions[op](table[p][r.mask], axis=0).astype(DTYPES[dtype])
                np.testing.assert_array_equal(recv[p], expected)


def test_several_buffers_in_one_round(comm):
    send = [np.full(3, comm.rank + 1.0), np.full(5, comm.rank, np.int32), np.zeros(0, np.float32)]
    recv = [np.zeros_like(s) for s in send]
    ops = [MPI.SUM, MPI.MAX, MPI.MIN]
    with pc.Allreduce_init(comm, send, recv, op=ops, quorum="full", late="latest") as h:
        h.Start()
        r = h.Wait()
    assert recv[0][0] == comm.size * (comm.size + 1) / 2
    assert list(recv[1]) == [comm.size - 1] * 5
    assert len(r.results) == 1 and len(r.results[0].buffers) == 3


def test_in_place(comm):
    for quorum in ("full", "solo"):
        buffer = np.full(6, comm.rank + 1.0)
        with pc.Allreduce_init(comm, MPI.IN_PLACE, buffer, quorum=quorum, late="drop") as h:
            h.Start()
            r = h.Wait()
        assert buffer[0] == (np.flatnonzero(r.mask) + 1).sum()


def test_library_owned_buffers(comm):
    recv = np.zeros((2, 3))
    h = pc.Allreduce_init(comm, None, recv, quorum="full")
    addresses = set()
    for t in range(8):
        send = h.send_buffer
        assert send.shape == (2, 3) and send.dtype == np.float64
        addresses.add(send.ctypes.data)
        send[:] = comm.rank + t
        h.Start()
        h.Wait()
        assert (recv == sum(r + t for r in range(comm.size))).all()
    assert len(addresses) > 1
    h.Free()


def test_library_owned_buffers_carry(comm):
    """Deposits written in place are carried like any others: nothing is lost."""
    h = pc.Allreduce_init(comm, None, np.zeros(2), quorum="solo")
    total, rounds = 0.0, []
    for t in range(40):
        h.send_buffer[:] = t + comm.rank
        total += t + comm.rank
        h.Start()
        rounds.append(h.Wait().results[0].buffers[0][0])
    h.join(on_round=lambda r: rounds.append(h.recv_buffer[0]))
    assert sum(rounds) == comm.allreduce(total)
    h.Free()


def test_received_buffer_made_by_the_library(comm):
    h = pc.Allreduce_init(comm, np.ones(3, np.float32), quorum="full")
    h.Start()
    h.Wait()
    assert list(h.recv_buffer) == [comm.size] * 3
    assert not h.result.flags.writeable and h.result[0] == comm.size
    assert h.last_round.active == comm.size
    h.Free()


def test_buffer_forms(comm):
    """[array, count], [array, datatype], array.array and bytes-like buffers work as in mpi4py."""
    import array

    recv = np.zeros(3)
    data = np.full(5, 1.0)
    forms = ([data, 3], [data, 3, MPI.DOUBLE], [data[:3], MPI.DOUBLE], array.array("d", [1, 1, 1]))
    for form in forms:
        recv[:] = 0
        with pc.Allreduce_init(comm, form, recv, quorum="full") as h:
            h.Start()
            h.Wait()
        assert list(recv) == [comm.size] * 3


def test_drop_in(comm):
    """One function call uses one handle for each place and name, freed with the communicator."""
    send, recv, other = np.full(4, comm.rank + 1.0), np.zeros(4), np.zeros(4)
    expected = comm.size * (comm.size + 1) / 2
    for t in range(10):
        first = pc.Allreduce(comm, send, recv, quorum="full")
        second = pc.Allreduce(comm, send, other, quorum="full")
        assert first.index == second.index == t
        assert recv[0] == other[0] == expected
    a = pc.Allreduce(comm, send, recv, quorum="full", name="a")
    b = pc.Allreduce(comm, send, recv, quorum="full", name="b")
    assert a.index == b.index == 0
    moved = np.zeros(4)
    for t in range(3):
        r = pc.Allreduce(comm, MPI.IN_PLACE, send.copy() if t else moved, quorum="full")
        assert r.index == t


def test_partial_drop_in(comm):
    send, recv = np.full(4, 1.0), np.zeros(4)
    for _ in range(20):
        r = pc.Allreduce(comm, send, recv, quorum="majority", late="drop")
        assert recv[0] == r.active


def test_waitany_and_test(comm):
    sends = [np.ones(1), np.ones(1)]
    handles = [pc.Allreduce_init(comm, s, quorum="full") for s in sends]
    handles[1].Start()
    position, r = pc.Waitany(handles, timeout=60)
    assert position == 1 and r.index == 0
    pc.Startall(handles)
    done = {pc.Waitany(handles, timeout=60)[0], pc.Waitany(handles, timeout=60)[0]}
    assert done == {0, 1}
    with pytest.raises(pc.StateError):
        pc.Waitany(handles)
    handles[0].Start()
    while (r := handles[0].Test()) is None:
        pass
    assert r.index == 1
    for h in handles:
        h.Free()


def test_identity_of_an_empty_round(comm):
    """A round without contributions holds the op's identity."""
    for op, identity in ((MPI.SUM, 0.0), (MPI.PROD, 1.0), (MPI.MIN, np.inf), (MPI.MAX, -np.inf)):
        h = pc.Allreduce_init(comm, np.ones(2), np.zeros(2), op=op, quorum="full")
        r = h.join()
        assert r.active == 0 and list(h.recv_buffer) == [identity] * 2
        h.Free()


def test_torch_tensors(comm):
    torch = pytest.importorskip("torch")
    send, recv = torch.ones(4), torch.zeros(4)
    with pc.Allreduce_init(comm, send, recv, quorum="full") as h:
        h.Start()
        h.Wait()
    assert recv.tolist() == [comm.size] * 4
    del torch


def test_drop_in_again(comm):
    """One place is used with the same, other, larger and in-place buffers, other ops and
    quorums."""
    x, y, z = np.full(3, 1.0), np.zeros(3), np.zeros(3)

    def sum_of(send, recv, op=MPI.SUM, quorum="full"):
        pc.Allreduce(comm, send, recv, op, quorum=quorum)
        return recv.tolist()

    p = comm.size
    for _ in range(3):
        assert sum_of(x, y) == [p] * 3
    x[:] = 2
    assert sum_of(x, y) == [2 * p] * 3
    assert sum_of(x, z) == [2 * p] * 3
    assert sum_of(x, y, MPI.MAX) == [2] * 3
    assert sum_of(x, z, quorum="quorum:1.0") == [2 * p] * 3
    assert sum_of(x, y) == [2 * p] * 3
    assert sum_of(MPI.IN_PLACE, y) == [2 * p * p] * 3
    assert sum_of(x, y) == [2 * p] * 3
    x.resize(5, refcheck=False)
    y.resize(5, refcheck=False)
    assert sum_of(x, y) == [2 * p] * 3 + [0] * 2
    with pytest.raises(ValueError, match="elements"):
        sum_of(x, z)
    assert sum_of(x, y) == [2 * p] * 3 + [0] * 2


def test_pready(comm):
    """Buffers become ready one after the other, in any order. The last one starts the call."""
    send = [np.zeros(3), np.zeros(2, np.int32), np.zeros(1)]
    with pc.Allreduce_init(comm, send, quorum="full") as h:
        for t in range(3):
            for i in ((0, 1, 2), (2, 0, 1), (1, 2, 0))[t]:
                with pytest.raises(pc.StateError):
                    h.Wait()
                send[i][:] = 10 * t + i
                h.Pready(i)
            for i in (0, 1, 2):
                with pytest.raises(pc.StateError, match="ready already"):
                    h.Pready(i)
            h.Wait()
            for i, recv in enumerate(h.recv_buffer):
                assert list(recv) == [(10 * t + i) * comm.size] * send[i].size
        h.Pready(1)
        with pytest.raises(pc.StateError, match="ready already"):
            h.Pready(1)
        for wrong, error in ((3, IndexError), (-1, IndexError), ("0", TypeError)):
            with pytest.raises(error, match="buffer"):
                h.Pready(wrong)
        h.Start()  # all buffers
        h.Wait()
    with pytest.raises(pc.StateError):
        h.Pready(0)
    with (
        pc.Allreduce_init(comm, send, quorum="solo") as h,
        pytest.raises(pc.StateError, match='quorum="full"'),
    ):
        h.Pready(0)


def test_drop_in_looks_again(comm):
    """The same array objects may change dtype, memory or writability, and so may the list of
    ops."""
    a, b = np.full(4, comm.rank + 1.0), np.zeros(4)

    def reduce(op=MPI.SUM):
        pc.Allreduce(comm, a, b, op, quorum="full")
        return b.tolist()

    total = sum(range(1, comm.size + 1))
    assert reduce() == [total] * 4 and reduce() == [total] * 4
    a.dtype = b.dtype = np.int64
    a[:] = 3
    assert reduce() == [3 * comm.size] * 4
    a.resize(4000, refcheck=False)
    a.resize(4, refcheck=False)
    a[:] = 5
    assert reduce() == [5 * comm.size] * 4
    ops = [MPI.SUM]
    assert reduce(ops) == [5 * comm.size] * 4
    ops[0] = MPI.MAX
    assert reduce(ops) == [5] * 4
    b.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        reduce()
    b.flags.writeable = True
    assert reduce() == [5 * comm.size] * 4


def test_a_function_that_is_called_for_two_sums(comm):
    """A late deposit of one sum is not added to the other one."""

    def helper(x, out):
        pc.Allreduce(comm, x, out, quorum="solo")

    ones, many = np.ones(3), np.full(3, 1000.0)
    one, other = np.empty(3), np.empty(3)
    for step in range(6):
        late = step == 1 and comm.rank > 0  # the handles exist, and the rounds are complete
        if late:
            comm.Barrier()
        helper(many, other)
        helper(ones, one)
        if step == 1 and not late:
            comm.Barrier()
        assert (one < 1000).all(), "two sums are mixed"


def test_one_place_for_two_sums_is_refused(comm):
    outs = np.zeros((2, 3))
    with pytest.raises(ValueError, match="take turns with several buffers"):
        for step in range(3):
            pc.Allreduce(comm, np.ones(3), outs[step % 2], quorum="solo")
    for step in range(4):
        pc.Allreduce(comm, np.ones(3), outs[step % 2], quorum="solo", name="one sum, two buffers")
        pc.Allreduce(comm, np.ones(3), outs[step % 2], quorum="solo", late="drop")
        pc.Allreduce(comm, np.ones(3), outs[step % 2], quorum="full")


def test_handles_of_the_drop_in_are_bounded(comm, caplog):
    """The least recently used handle is freed first, on all ranks. Lost deposits are reported."""
    cache = allreduce._cache_of(comm)
    kept = np.zeros(1)
    first, out = np.ones(1), np.zeros(1)
    pc.Allreduce(comm, first, out, quorum="solo", name="first")
    if comm.rank:
        comm.Barrier()
    pc.Allreduce(comm, first, out, quorum="solo", name="first")
    if not comm.rank:
        comm.Barrier()  # its round is complete, so the others' deposits are late
    for size in range(1, allreduce._KEPT + 20):
        recv = np.zeros(size)
        pc.Allreduce(comm, np.ones(size), recv, quorum="full", name="many")
        assert (recv == comm.size).all()
        pc.Allreduce(comm, np.ones(1), kept, quorum="full", name="kept")
        assert kept[0] == comm.size and len(cache.handles) <= allreduce._KEPT
    sites = {one.site for one in cache.handles.values()}
    assert "first" not in sites and "kept" in sites
    said = "contributions of" in caplog.text and "'first'" in caplog.text
    assert said == (comm.rank == 0 and comm.size > 1), caplog.text
    pc.Allreduce(comm, np.ones(1), kept, quorum="full", name="kept")
    assert kept[0] == comm.size


def test_drop_in_from_twins(comm):
    """Two places with equal source lines each send their own buffer."""
    source = "def step(c, a, b): pc.Allreduce(c, a, b, quorum='full'); return b[0]"
    steps = []
    for _ in range(2):
        scope = {"pc": pc, "__name__": "twin"}
        exec(compile(source, "twin.py", "exec"), scope)
        steps.append(scope["step"])
    one, two, out = np.ones(2), np.full(2, 100.0), np.zeros(2)
    for _ in range(3):
        assert steps[0](comm, one, out) == comm.size
        assert steps[1](comm, two, out) == 100 * comm.size
