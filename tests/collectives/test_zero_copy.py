# SPDX-License-Identifier: Apache-2.0
"""Deposits are written where they are sent from, and results read where they were reduced."""

import gc

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi

DTYPES = ("f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
OPS = {"?": (MPI.LAND, MPI.LOR, MPI.LXOR), "c": (MPI.SUM, MPI.PROD)}
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)


def one_round(h):
    h.Start()
    return h.Wait(timeout=60)


def is_refused(array):
    """Check that the array cannot be written or made writable."""
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
    return True


@pytest.mark.parametrize("deliver", ("one", "all"))
def test_like_in_another_order(comm, deliver):
    """Buffers created by the library are in C order, whatever the order of `like`."""
    values = np.arange(6.0).reshape(2, 3)
    for like in (np.asfortranarray(values), np.zeros((3, 2)).T, np.zeros((4, 6))[::2, ::2]):
        h = pc.Allreduce_init(comm, None, None, like=like, quorum="full", deliver=deliver)
        for _ in range(2):
            h.send_buffer[...] = values
            rnd = one_round(h)
            assert (h.result == comm.size * values).all()
            assert (rnd.results[0].buffers[0] == comm.size * values).all()
        h.Free()


def test_neither_way(comm):
    """Many rounds of one shape: slots alternate, values are right, and `like` is not written."""
    like = np.zeros((2, 3), np.float32)
    h = pc.Allreduce_init(comm, None, None, like=like, quorum="full", history=2)
    sent, read = set(), set()
    for t in range(8):
        send = h.send_buffer
        assert send.shape == (2, 3) and send.dtype == np.float32
        sent.add(send.ctypes.data)
        send[:] = comm.rank + t
        rnd = one_round(h)
        result = h.result
        read.add(result.ctypes.data)
        assert result.shape == (2, 3) and result.dtype == np.float32 and is_refused(result)
        assert (result == sum(r + t for r in range(comm.size))).all()
        for other in (h.recv_buffer, rnd.results[0].buffers[0], np.asarray(rnd.results[0])):
            assert other.ctypes.data == result.ctypes.data  # views without a copy
    assert len(sent) > 1 and 1 < len(read) <= 3  # the number of stored results plus one
    assert not like.any()
    h.Free()


def test_results_alone(comm):
    """The user's send buffers with results of the library; several buffers."""
    send = [np.full(3, comm.rank + 1.0), np.full((2, 2), comm.rank, np.int32), np.zeros(0)]
    ops = [MPI.SUM, MPI.MAX, MPI.MIN]
    with pc.Allreduce_init(comm, send, None, op=ops, quorum="full", late="latest") as h:
        rnd = one_round(h)
        for results in (h.result, h.recv_buffer, rnd.results[0].buffers):
            assert [r.shape for r in results] == [(3,), (2, 2), (0,)]
            assert (results[0] == comm.size * (comm.size + 1) / 2).all()
            assert (results[1] == comm.size - 1).all()


def test_results_of_the_user(comm):
    """With a receive buffer the result is a view of it, also before the first round."""
    recv = np.full(3, 7.0)
    with pc.Allreduce_init(comm, np.ones(3), recv, quorum="full") as h:
        assert list(h.result) == [7] * 3 and h.result.base is recv
        rnd = one_round(h)
        assert list(recv) == [comm.size] * 3 and rnd.results[0].buffers[0] is recv
        assert not h.result.flags.writeable and h.recv_buffer is recv
        h.Start()
        assert list(h.result) == [comm.size] * 3
        h.Wait()


@pytest.mark.parametrize("code", DTYPES)
def test_as_with_a_buffer(comm, code):
    """Every dtype and op gives the same bits as with a receive buffer, including half types."""
    dtype = np.dtype(code)
    values = np.random.default_rng(comm.rank).integers(0, 2 if code == "?" else 5, 1009)
    send = (values / 3 if dtype.kind in "fc" else values).astype(dtype)
    for op in OPS.get(dtype.kind if dtype.kind == "c" else code, (MPI.SUM, MPI.PROD, MPI.MAX)):
        recv = np.zeros_like(send)
        with (
            pc.Allreduce_init(comm, send, recv, op=op, quorum="full") as copied,
            pc.Allreduce_init(comm, None, None, like=send, op=op, quorum="full") as h,
        ):
            for _ in range(2):
                one_round(copied)
                h.send_buffer[:] = send
                one_round(h)
                assert h.result.dtype == dtype and h.result.tobytes() == recv.tobytes()
                assert not h.result.flags.writeable


def test_bfloat16(comm):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    send = (np.arange(64) / 7 * (1 + comm.rank / 256)).astype(ml_dtypes.bfloat16)
    send[5] = np.nan
    recv = np.zeros_like(send)
    with (
        pc.Allreduce_init(comm, send, recv, quorum="full") as copied,
        pc.Allreduce_init(comm, send, quorum="full") as h,
    ):
        one_round(copied)
        one_round(h)
        finite = np.arange(64) != 5
        assert h.result.dtype == send.dtype
        assert h.result[finite].tobytes() == recv[finite].tobytes()
        assert np.isnan(h.result[5]) and np.isnan(recv[5])


def test_elements_of_mpi(comm):
    """Pairs, and a user op on a derived datatype, appear as bytes."""
    pairs = np.zeros(3, PAIR)
    pairs["value"], pairs["index"] = comm.rank, comm.rank
    spec = [pairs, 3, MPI.DOUBLE_INT]
    with pc.Allreduce_init(comm, None, None, MPI.MAXLOC, like=spec, quorum="full") as h:
        h.send_buffer[:] = pairs
        one_round(h)
        assert h.result.dtype == PAIR and list(h.result["index"]) == [comm.size - 1] * 3

    def add(a, b, datatype):
        total = np.frombuffer(b)
        total += np.frombuffer(a)

    op, triple = MPI.Op.Create(add, commute=True), MPI.DOUBLE.Create_contiguous(3).Commit()
    with pc.Allreduce_init(comm, [np.ones(6), 2, triple], op=op, quorum="full") as h:
        one_round(h)
        assert list(h.result) == [comm.size] * 6
    op.Free()
    triple.Free()


IDENTITIES = [
    (MPI.SUM, "f8", 0),
    (MPI.PROD, "c8", 1),
    (MPI.PROD, "f2", 1),
    (MPI.MIN, "f4", np.inf),
    (MPI.MAX, "f2", -np.inf),
    (MPI.MIN, "i2", 2**15 - 1),
    (MPI.MAX, "i8", -(2**63)),
    (MPI.MIN, "u8", 2**64 - 1),
    (MPI.MAX, "u1", 0),
    (MPI.LAND, "?", True),
    (MPI.LAND, "i4", 1),
    (MPI.LOR, "?", False),
    (MPI.LXOR, "u2", 0),
    (MPI.BAND, "u4", 2**32 - 1),
    (MPI.BAND, "i1", -1),
    (MPI.BOR, "i4", 0),
    (MPI.BXOR, "u8", 0),
]


@pytest.mark.parametrize(("op", "code", "identity"), IDENTITIES)
def test_no_contribution(comm, op, code, identity):
    """The result of such a round is the op's identity, as in a receive buffer."""
    like = np.ones(2, code)
    recv = np.full(2, 1, code)
    h = pc.Allreduce_init(comm, None, None, op, like=like, quorum="full")
    with pc.Allreduce_init(comm, None, recv, op, quorum="full") as copied:
        copied.join()
    rnd = h.join()
    assert rnd.active == 0 and h.result.dtype == like.dtype
    assert list(h.result) == [identity] * 2 == list(recv)
    assert not h.result.flags.writeable
    h.send_buffer[:] = 1  # and it continues
    one_round(h)
    assert h.last_round.active == comm.size
    h.Free()


def test_no_contribution_and_no_identity(comm):
    with pc.Allreduce_init(
        comm, [np.ones(2, PAIR), 2, MPI.DOUBLE_INT], op=MPI.MAXLOC, quorum="full"
    ) as h:
        one_round(h)
        assert h.join().active == 0
        assert list(h.result) == list(np.zeros(2, PAIR))


def test_join_and_conservation(comm):
    """Rounds are read in place while the others finish. Nothing is lost."""
    h = pc.Allreduce_init(comm, None, None, like=np.zeros(2), quorum="solo")
    total, seen = 0.0, 0.0

    def note(rnd):
        nonlocal seen
        assert rnd.results[0].buffers[0][0] == h.result[0]
        seen += h.result[0]

    for t in range(5 + 10 * comm.rank):
        h.send_buffer[:] = t + comm.rank
        total += t + comm.rank
        h.Start()
        note(h.Wait())
    h.join(on_round=note)
    assert seen == comm.allreduce(total)
    h.Free()


def test_deliver_all(comm):
    """Several rounds may be delivered at once, so the library allocates receive buffers."""
    h = pc.Allreduce_init(
        comm, None, None, like=[np.zeros(2), np.zeros(3, np.float16)], quorum="full", deliver="all"
    )
    for buffer in h.send_buffer:
        buffer[:] = 1
    for rnd in h.until(5):
        assert h.recv_buffer[0].base is None  # its own memory, always the same
        assert [list(b) for b in rnd.results[-1].buffers] == [list(r) for r in h.recv_buffer]
        assert not h.result[0].flags.writeable
        assert list(h.result[0]) == [comm.size] * 2 and list(h.result[1]) == [comm.size] * 3
        assert len(rnd.results) == 1
        for buffer in h.send_buffer:
            buffer[:] = 1
    h.Free()


def test_there_is_no_result(comm):
    """Not before the first round, during a call, for an older round, or after leave."""
    h = pc.Allreduce_init(comm, np.ones(2), quorum="full")
    for look in (lambda: h.result, lambda: h.recv_buffer):
        with pytest.raises(pc.StateError, match="none before the first Wait"):
            look()
    first, second = one_round(h), one_round(h)
    with pytest.raises(pc.StateError, match="round 0 went back"):
        first.results[0].buffers  # noqa: B018
    assert first.index == 0 and first.active == comm.size and list(first.mask) == [1] * comm.size
    assert list(second.results[0].buffers[0]) == [comm.size] * 2
    h.Start()
    for look in (lambda: h.result, lambda: h.recv_buffer):
        with pytest.raises(pc.StateError, match="between Start and Wait"):
            look()
    third = h.Wait()
    assert list(h.result) == [comm.size] * 2
    h.leave()
    with pytest.raises(pc.StateError, match="leave"):
        h.result  # noqa: B018
    with pytest.raises(pc.StateError, match="round 2 went back"):
        third.results[0].buffers  # noqa: B018
    h.Free()


def test_freed(comm):
    h = pc.Allreduce_init(comm, np.ones(2), quorum="full")
    rnd = one_round(h)
    h.Free()
    for look in (lambda: h.result, lambda: rnd.results[0].buffers):
        with pytest.raises(pc.StateError, match="freed"):
            look()


def test_a_shape_is_enough(comm):
    """Only the shape of `like` is used: strided and read-only arrays work; size costs nothing."""
    strided = np.zeros((4, 6), np.int32)[:, ::2]
    fixed = np.broadcast_to(np.float64(0), (5,))
    with pc.Allreduce_init(comm, None, None, like=[strided, fixed], quorum="full") as h:
        for buffer in h.send_buffer:
            buffer[:] = comm.rank
        one_round(h)
        assert [r.shape for r in h.result] == [(4, 3), (5,)]
        assert all((r == sum(range(comm.size))).all() for r in h.result)
    huge = np.broadcast_to(np.float32(0), (2**36,))
    with pytest.raises((MemoryError, ValueError, pc.MismatchError)):
        pc.Allreduce_init(comm, None, None, like=huge, quorum="full")


def test_memory(comm):
    """Only the slots have the size of the data."""
    options = dict(like=np.zeros(1000), history=3, domain="rank")
    with pc.Allreduce_init(comm, None, None, **options) as h:
        assert h.memory == pc.memory_estimate(comm, None, None, **options)
        assert h.memory >= (4 + 3 + 1) * 8000


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    (
        (dict(sendbuf=np.ones(2), like=np.ones(2)), ValueError, "like: expected sendbuf=None"),
        (dict(sendbuf=None, recvbuf=np.ones(2), like=np.ones(2)), ValueError, "like"),
        (dict(sendbuf=MPI.IN_PLACE, like=np.ones(2)), ValueError, "like"),
        (dict(sendbuf=None), ValueError, "recvbuf: expected a buffer, or one to go by in like="),
        (dict(sendbuf=None, like=[]), ValueError, "like: expected at least one"),
        (dict(sendbuf=None, like=3), TypeError, "like"),
        (dict(sendbuf=None, like=(2, 3)), TypeError, "like"),
        (dict(sendbuf=None, like=np.ones(2, "M8[s]")), TypeError, "like: .*datetime64"),
        (dict(sendbuf=None, like=[np.ones(2), "x"]), TypeError, r"like"),
        (dict(sendbuf=MPI.IN_PLACE), ValueError, "IN_PLACE"),
    ),
)
def test_refused(comm, arguments, error, text):
    with pytest.raises(error, match=text):
        pc.Allreduce_init(comm, **arguments)


def test_a_send_buffer_kept_over_the_loop_is_refused(comm):
    """The second Start reports what is wrong with data written into an old buffer."""
    with pc.Allreduce_init(comm, None, None, like=np.zeros(4), quorum="full") as h:
        kept = h.send_buffer
        kept[:] = 1
        h.Start()
        h.Wait()
        kept[:] = 2
        with pytest.raises(pc.StateError, match="send_buffer was not taken since the last Start"):
            h.Start()
        h.send_buffer[:] = 2  # after the correction the handle continues
        h.Start()
        h.Wait()
        assert (h.result == 2 * comm.size).all()
        with pytest.raises(pc.StateError, match="was not taken"):
            h.Start()


def test_send_buffers_of_users_need_not_be_taken(comm):
    x, out = np.ones(4), np.empty(4)
    with pc.Allreduce_init(comm, x, out, quorum="full") as h:
        for step in range(3):
            x[:] = step
            h.Start()
            h.Wait()
            assert (out == step * comm.size).all()


@pytest.mark.parametrize("count", [3, 1 << 18])
def test_views_outlive_the_handle(comm, count):
    """Views stay readable without a signal. Their memory is freed with the last view."""
    h = pc.Allreduce_init(comm, None, None, like=np.zeros(count), quorum="full")
    h.send_buffer[:] = 1
    h.Start()
    h.Wait()
    result, sent = h.result[1:], h.send_buffer[::2]
    h.Free()
    assert np.isfinite(result).all()
    sent[:] = 5
    del sent
    assert np.isfinite(result).all()
    del result
    with pytest.raises(pc.StateError):
        _ = h.send_buffer
    with pytest.raises(pc.StateError):
        _ = h.result


def test_views_outlive_mpi(run):
    script = """
    h = pc.Allreduce_init(comm, None, None, like=np.zeros(1 << 16), quorum="full")
    h.send_buffer[:] = 1
    h.Start()
    h.Wait()
    result, sent = h.result, h.send_buffer
    MPI.Finalize()
    sent[:] = result
    say("sum", sent.sum())
    """
    done = run(script, ranks=2)
    assert done.returncode == 0 and done.stdout.count("sum ") == 2, done.stderr


def test_memory_of_views_is_given_back(comm):
    """Handles come and go, and their views are kept for a while."""

    def mapped():
        with open("/proc/self/maps") as maps:
            return sum("partialcoll-domain" in line for line in maps)

    gc.collect()  # remains of earlier tests
    kept, before = [], mapped()
    for _ in range(4):
        h = pc.Allreduce_init(comm, None, None, like=np.zeros(1 << 12), quorum="full")
        kept.append(h.send_buffer)
        shared = comm.size > 1 and h.domain != "rank"
        h.Free()
    if shared:
        assert mapped() == before + 4
    kept.clear()
    assert mapped() == before
