# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise the documented error on the documented ranks. No rank hangs, and the
communicator and other handles stay usable."""

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core.ffi import ffi, lib

pytestmark = pytest.mark.mpi

GOOD = np.ones(4)


def read_only():
    array = np.zeros(4)
    array.flags.writeable = False
    return array


SHARED = np.zeros(8)
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)


def of(dtype, op, **more):
    """Return the arguments of a handle on four elements of a dtype."""
    return dict(sendbuf=np.ones(4, dtype), recvbuf=np.zeros(4, dtype), op=op, **more)


def pairs(send_type, op=MPI.MAXLOC, recv_type=None):
    return dict(
        sendbuf=[np.zeros(4, PAIR), 4, send_type],
        recvbuf=[np.zeros(4, PAIR), 4, recv_type or send_type],
        op=op,
    )


def gap():
    """Return a datatype with 8 bytes of data every 16 bytes."""
    return MPI.DOUBLE.Create_resized(0, 16)


def shifted():
    """Return a datatype with 8 bytes of data after a gap of 8."""
    return MPI.DOUBLE.Create_hindexed([1], [8])


class Copies:
    """Converts to a new array each time."""

    def __array__(self, dtype=None, copy=None):
        return np.zeros(4)


OWN = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
ORDERED = MPI.Op.Create(lambda a, b, datatype: None, commute=False)
WRONG = {
    "dtype": (
        dict(sendbuf=np.ones(4, "M8[s]"), recvbuf=np.zeros(4, "M8[s]")),
        TypeError,
        "datetime64",
    ),
    "structured": (
        dict(sendbuf=np.zeros(4, PAIR), recvbuf=np.zeros(4, PAIR)),
        TypeError,
        "structured one needs a datatype",
    ),
    "objects": (
        dict(sendbuf=[np.zeros(4, object), MPI.DOUBLE_INT], recvbuf=np.zeros(4)),
        TypeError,
        "own form",
    ),
    "byte order": (
        dict(sendbuf=np.ones(4, ">f8"), recvbuf=np.zeros(4, ">f8")),
        TypeError,
        r"sendbuf: .* byte order, got >f8 .*astype",
    ),
    "object": (dict(sendbuf=object(), recvbuf=np.zeros(4)), TypeError, "sendbuf"),
    "none": (dict(sendbuf=None, recvbuf=None), ValueError, "recvbuf"),
    "shape": (dict(sendbuf=np.ones(4), recvbuf=np.zeros(5)), ValueError, "expected 4 elements"),
    "dtypes differ": (
        dict(sendbuf=np.ones(4), recvbuf=np.zeros(4, np.int64)),
        TypeError,
        "float64",
    ),
    "number": (dict(sendbuf=[GOOD, GOOD], recvbuf=np.zeros(4)), ValueError, "2 buffers"),
    "empty list": (dict(sendbuf=[], recvbuf=np.zeros(4)), ValueError, "at least one"),
    "read-only": (dict(sendbuf=GOOD, recvbuf=read_only()), ValueError, "read-only"),
    "no memory": (dict(sendbuf=GOOD, recvbuf=Copies()), TypeError, "recvbuf: .* written to"),
    "a scalar": (
        dict(sendbuf=np.full((), 3.0), recvbuf=np.float64(0)),
        TypeError,
        "recvbuf: expected an array whose memory can be written to, got float64",
    ),
    "a scalar and its count": (
        dict(sendbuf=np.full((), 3.0), recvbuf=[np.float64(0), 1]),
        TypeError,
        "recvbuf: .* written to",
    ),
    "overlap": (dict(sendbuf=SHARED[:4], recvbuf=SHARED[2:6]), ValueError, "overlaps"),
    "overlapping receives": (
        dict(sendbuf=[np.ones(4), np.ones(4)], recvbuf=[SHARED[:4], SHARED[2:6]]),
        ValueError,
        "apart",
    ),
    "strided": (dict(sendbuf=np.ones(8)[::2], recvbuf=np.zeros(4)), ValueError, "contiguous"),
    "fortran": (
        dict(sendbuf=np.asfortranarray(np.ones((2, 3))), recvbuf=np.zeros((2, 3))),
        ValueError,
        "contiguous",
    ),
    "count": (dict(sendbuf=[GOOD, 9], recvbuf=np.zeros(4)), ValueError, "count"),
    "datatype": (dict(sendbuf=[GOOD, MPI.INT], recvbuf=np.zeros(4)), TypeError, "datatype"),
    "quorum": (dict(quorum="half"), ValueError, "quorum"),
    "quorum type": (dict(quorum=3.5), TypeError, "quorum"),
    "float BXOR": (dict(op=MPI.BXOR), TypeError, "op: expected SUM, .* float64, got BXOR"),
    "float BAND": (of(np.float32, MPI.BAND), TypeError, "MIN or MAX for float32, got BAND"),
    "half LAND": (of(np.float16, MPI.LAND), TypeError, "MIN or MAX for float16, got LAND"),
    "complex MIN": (of(np.complex64, MPI.MIN), TypeError, "SUM or PROD for complex64, got MIN"),
    "bool SUM": (of(bool, MPI.SUM), TypeError, "LAND, LOR or LXOR for bool, got SUM"),
    "op null": (dict(op=MPI.OP_NULL), ValueError, "OP_NULL"),
    "op not commutative": (dict(op=ORDERED), ValueError, "commutative"),
    "ops, one not commutative": (
        dict(sendbuf=[GOOD, GOOD], recvbuf=[np.zeros(4), np.zeros(4)], op=[MPI.SUM, ORDERED]),
        ValueError,
        "buffer 1: .* commutative",
    ),
    "MAXLOC of numbers": (dict(op=MPI.MAXLOC), TypeError, "MAXLOC is not defined for float64"),
    "REPLACE": (dict(op=MPI.REPLACE), TypeError, "not defined"),
    "own op of halves": (of(np.float16, OWN), TypeError, "float16; give a datatype"),
    "own op, carried": (dict(op=OWN, late="carry"), ValueError, "carry"),
    "SUM of pairs": (pairs(MPI.DOUBLE_INT, MPI.SUM), ValueError, "MPI does not define"),
    "MAXLOC of a derived type": (
        pairs(MPI.DOUBLE.Create_contiguous(2)),
        ValueError,
        "op of your own",
    ),
    "REPLACE of a derived type": (
        pairs(MPI.DOUBLE.Create_contiguous(2), MPI.REPLACE),
        ValueError,
        "for windows",
    ),
    "datatype null": (pairs(MPI.DATATYPE_NULL, OWN), ValueError, "DATATYPE_NULL"),
    "datatype with a gap": (pairs(gap(), OWN), ValueError, "without gaps"),
    "datatype that begins late": (pairs(shifted(), OWN), ValueError, "without gaps"),
    "datatype of no size": (
        pairs(MPI.DOUBLE.Create_contiguous(0), OWN),
        ValueError,
        "1 byte or more",
    ),
    "datatypes differ": (
        pairs(MPI.DOUBLE.Create_contiguous(2), OWN, MPI.INT.Create_contiguous(2)),
        TypeError,
        "expected datatype a derived one of 16 bytes",
    ),
    "part of an element": (
        dict(sendbuf=[np.zeros(5), MPI.DOUBLE_INT], recvbuf=np.zeros(5), op=MPI.MAXLOC),
        ValueError,
        "whole number",
    ),
    "count of pairs": (
        dict(sendbuf=[np.zeros(4, PAIR), 5, MPI.DOUBLE_INT], recvbuf=np.zeros(4)),
        ValueError,
        "count of 0 to 4",
    ),
    "unknown code": (dict(sendbuf=[GOOD, "no such"]), TypeError, "code of a datatype"),
    "op type": (dict(op="sum"), TypeError, "op"),
    "deliver": (dict(deliver="some"), ValueError, "deliver"),
    "late": (dict(late="later"), ValueError, "late"),
    "carry without sum": (dict(op=MPI.MAX, late="carry"), ValueError, "carry"),
    "missed": (dict(missed="none"), ValueError, "missed"),
    "progress": (dict(progress="magic"), ValueError, "progress"),
    "algorithm": (dict(algorithm="smoke"), ValueError, "algorithm"),
    "domain": (dict(domain="galaxy"), ValueError, '^domain: expected .* got "galaxy"'),
    "domain type": (dict(domain=2), TypeError, "domain"),
    "history": (dict(history=0), ValueError, "history"),
    "history type": (dict(history=2.5), TypeError, "history"),
}


@pytest.mark.parametrize("case", WRONG)
def test_everywhere(comm, case):
    """Wrong on all ranks."""
    arguments, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        pc.Allreduce_init(comm, **{"sendbuf": GOOD, "recvbuf": np.zeros(4), **arguments})


@pytest.mark.parametrize(
    "case",
    (
        "dtype",
        "op not commutative",
        "datatype null",
        "read-only",
        "no memory",
        "quorum",
        "domain",
        "history",
    ),
)
def test_on_one_rank(comm, case):
    """Wrong on the last rank only: the others learn which rank it is and what is wrong."""
    arguments, error, text = WRONG[case]
    last = comm.size - 1
    wrong = comm.rank == last
    told = f"arguments of rank {last} are not valid: .*{text.lstrip('^')}"
    with pytest.raises(error if wrong else pc.MismatchError, match=text if wrong else told):
        pc.Allreduce_init(
            comm, **{"sendbuf": GOOD, "recvbuf": np.zeros(4), **(arguments if wrong else {})}
        )


DIFFERENT = {
    "count": (
        dict(sendbuf=np.ones(4), recvbuf=np.zeros(4)),
        dict(sendbuf=np.ones(5), recvbuf=np.zeros(5)),
    ),
    "dtype": ({}, dict(sendbuf=np.ones(4, np.float32), recvbuf=np.zeros(4, np.float32))),
    "op": (dict(late="drop"), dict(op=MPI.PROD, late="drop")),
    "op of its own": (dict(late="drop"), dict(op=OWN, late="drop")),
    "datatype": (
        pairs(MPI.DOUBLE.Create_contiguous(2).Commit(), OWN),
        dict(
            sendbuf=[np.zeros(4), MPI.INT.Create_contiguous(2).Commit()],
            recvbuf=[np.zeros(4), MPI.INT.Create_contiguous(2).Commit()],
            op=OWN,
        ),
    ),
    "quorum": (dict(quorum="solo"), dict(quorum="full")),
    "deliver": ({}, dict(deliver="all")),
    "late": ({}, dict(late="drop")),
    "history": ({}, dict(history=3)),
    "domain": (dict(domain="node"), dict(domain="rank")),
    "seed": ({}, dict(seed=1)),
    "name": ({}, dict(name="other")),
    "number of buffers": (
        {},
        dict(sendbuf=[np.ones(4), np.ones(4)], recvbuf=[np.zeros(4), np.zeros(4)]),
    ),
}


@pytest.mark.parametrize("argument", DIFFERENT)
def test_mismatch(comm, argument):
    """Different arguments raise on every rank, naming the argument and the ranks."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    ours, theirs = DIFFERENT[argument]
    mine = theirs if comm.rank == 1 else ours
    other = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
    with pytest.raises(pc.MismatchError, match=argument.split(" of its")[0]) as caught:
        pc.Allreduce_init(comm, **{"sendbuf": GOOD, "recvbuf": np.zeros(4), **mine})
    assert "rank 1" in str(caught.value) and "rank 0" in str(caught.value)
    other.Start()
    assert other.Wait(timeout=60).active == comm.size
    other.Free()


def test_progress_may_differ(comm):
    """Ranks may differ in their progress option, and in the owner of their send buffers."""
    h = pc.Allreduce_init(
        comm,
        None if comm.rank % 2 else GOOD,
        np.zeros(4),
        quorum="full",
        progress="manual" if comm.rank % 2 else "agent",
    )
    if comm.rank % 2:
        h.send_buffer[:] = 1
    h.Start()
    h.Wait(timeout=60)
    assert h.recv_buffer[0] == comm.size
    h.Free()


def test_communicators(comm):
    for wrong, error in ((None, TypeError), (3, TypeError), (MPI.COMM_NULL, ValueError)):
        with pytest.raises(error, match="comm"):
            pc.Allreduce_init(wrong, GOOD)
    if comm.size > 1:
        group = comm.Split(comm.rank == 0)
        inter = group.Create_intercomm(0, comm, 1 if comm.rank == 0 else 0, 7)
        with pytest.raises(ValueError, match="inter-communicator"):
            pc.Allreduce_init(inter, GOOD)
        inter.Free()
        group.Free()


def test_start_twice(comm):
    h = pc.Allreduce_init(comm, GOOD, quorum="full")
    with pytest.raises(pc.StateError, match="not started"):
        h.Wait()
    h.Start()
    with pytest.raises(pc.StateError, match="twice"):
        h.Start()
    with pytest.raises(pc.StateError):
        h.leave()
    assert h.Wait(timeout=60).active == comm.size
    with pytest.raises(ValueError, match="timeout"):
        h.Wait(timeout=-1)
    h.Free()


def test_too_large(comm):
    """A size beyond the memory raises a clear error on all ranks, without a hang or a crash."""
    huge = np.lib.stride_tricks.as_strided(np.zeros(1), (2**40,), (8,))
    with pytest.raises((MemoryError, ValueError)):
        pc.Allreduce_init(comm, None, huge, quorum="full")
    h = pc.Allreduce_init(comm, GOOD, quorum="full")
    h.Start()
    assert h.Wait(timeout=60).active == comm.size
    h.Free()


def test_count_zero(comm):
    h = pc.Allreduce_init(comm, np.ones(0), np.zeros(0), quorum="majority")
    for t in range(3):
        h.Start()
        r = h.Wait(timeout=60)
        assert r.index == t and r.active >= 1
    h.Free()


def test_drop_in_reports_like_the_handle(comm):
    with pytest.raises(ValueError, match="contiguous"):
        pc.Allreduce(comm, np.ones(8)[::2], np.zeros(4))
    with pytest.raises(TypeError, match="comm"):
        pc.Allreduce("world", GOOD, np.zeros(4))


@pytest.mark.parametrize("kind", ["", "gossip_", "group_"], ids=["handle", "gossip", "group"])
@pytest.mark.parametrize("null", ["options", "the place of the object"])
def test_null_on_one_rank(comm, kind, null):
    """In C: the rank that gives NULL and all others get an error, and none waits."""
    options = ffi.new(f"pcoll_{kind}options *")
    getattr(lib, f"pcoll_{kind}options_init")(options)
    buffers = ffi.new("pcoll_buffer *", dict(count=4)), 1
    made = ffi.new(f"pcoll_{kind[:-1] or 'handle'} **")
    if comm.rank == 0 and null == "options":
        options = ffi.NULL
    elif comm.rank == 0:
        made = ffi.NULL
    create = getattr(lib, f"pcoll_{kind or 'allreduce_'}create")
    at = ffi.cast("void *", MPI._addressof(comm))
    code = create(at, *([] if kind else buffers), options, made)
    message = ffi.string(lib.pcoll_last_error()).decode()
    assert code == (lib.PCOLL_EINVAL if comm.rank == 0 else lib.PCOLL_EMISMATCH), message
    assert "expected an address, got NULL" in message
