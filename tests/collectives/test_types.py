# SPDX-License-Identifier: Apache-2.0
"""All dtypes and ops against MPI's own allreduce, or against numpy where MPI lacks the type; user
ops and datatypes."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import partialcoll as pc

pytestmark = pytest.mark.mpi

FLOATS = ("float32", "float64")
HALVES = ("float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
OPS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}
LEGAL = {
    **dict.fromkeys(FLOATS + HALVES, ("SUM", "PROD", "MIN", "MAX")),
    **dict.fromkeys(COMPLEX, ("SUM", "PROD")),
    **dict.fromkeys(INTEGERS, tuple(OPS)),
    "bool": ("LAND", "LOR", "LXOR"),
}
CASES = [(dtype, op) for dtype, ops in LEGAL.items() for op in ops]
PAIR = np.dtype([("value", "f8"), ("index", "i4")], align=True)
together = settings(derandomize=True, database=None, deadline=None, max_examples=40)


def as_dtype(name):
    """Return the dtype. Skip bfloat16 if ml_dtypes is missing."""
    if name == "bfloat16":
        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def values(dtype, count, rank, seed=0):
    """Return numbers whose sums and products over a few ranks are exact."""
    base = (np.arange(count) * 7 + rank * 3 + seed) % 5
    if dtype.kind == "b":
        return base % 2 == 0
    if dtype.kind == "c":
        return (base - 2 + 1j * (np.arange(count) % 3 - 1)).astype(dtype)
    return base.astype(dtype)


def expected(op, rows, dtype):
    """Reduce the numbers of some ranks; half types in float32, rounded once."""
    wide = [row.astype(np.float32) if dtype.name in HALVES else row for row in rows]
    total = wide[0]
    for row in wide[1:]:
        total = OPS[op](total, row)
    with np.errstate(over="ignore"):
        return np.asarray(total).astype(dtype)


def rows_of(comm, dtype, count, seed=0):
    return [values(dtype, count, rank, seed) for rank in range(comm.size)]


@pytest.mark.parametrize(("name", "op"), CASES)
def test_as_mpi(comm, name, op):
    dtype = as_dtype(name)
    for count in (0, 1, 3, 1009):
        send = values(dtype, count, comm.rank)
        recv, place, theirs = np.zeros_like(send), send.copy(), np.zeros_like(send)
        mpi_op = getattr(MPI, op)
        for sendbuf, recvbuf in ((send, recv), (MPI.IN_PLACE, place)):
            with pc.Allreduce_init(comm, sendbuf, recvbuf, op=mpi_op, quorum="full") as h:
                h.Start()
                h.Wait()
        if name in HALVES:
            theirs = expected(op, rows_of(comm, dtype, count), dtype)
        else:
            comm.Allreduce(send, theirs, op=mpi_op)
        np.testing.assert_array_equal(recv, theirs)
        np.testing.assert_array_equal(place, theirs)


@together
@given(
    case=st.sampled_from([case for case in CASES if case[0] != "bfloat16"]),
    count=st.integers(0, 300),
    quorum=st.sampled_from(("solo", "majority", "full")),
    owned=st.booleans(),
)
def test_drawn(case, count, quorum, owned):
    """For any dtype, op and count the result is the reduction over the mask."""
    comm = MPI.COMM_WORLD
    dtype, op = np.dtype(case[0]), case[1]
    rows = rows_of(comm, dtype, count, seed=count)
    send, recv = rows[comm.rank], np.zeros(count, dtype)
    with pc.Allreduce_init(
        comm, None if owned else send, recv, op=getattr(MPI, op), quorum=quorum, late="drop"
    ) as h:
        for _ in range(2):
            if owned:
                h.send_buffer[...] = send
            h.Start()
            r = h.Wait()
            within = [rows[i] for i in np.flatnonzero(r.mask)]
            np.testing.assert_array_equal(recv, expected(op, within, dtype))


def test_different_dtypes_in_one_round(comm):
    """Each buffer has its own dtype and op, also a user op."""
    names = ("float16", "int8", "bool", "complex128", "uint16", "float64")
    ops = ["SUM", "BXOR", "LOR", "PROD", "MAX", None]
    send = [values(np.dtype(n), 7 + i, comm.rank) for i, n in enumerate(names)]
    recv = [np.zeros_like(s) for s in send]
    own = MPI.Op.Create(larger_size, commute=True)
    mpi_ops = [own if op is None else getattr(MPI, op) for op in ops]
    with pc.Allreduce_init(comm, send, recv, op=mpi_ops, quorum="full") as h:
        h.Start()
        h.Wait()
    for i, (name, op) in enumerate(zip(names, ops)):
        rows = rows_of(comm, np.dtype(name), 7 + i)
        np.testing.assert_array_equal(recv[i], expected(op or "MAX", rows, np.dtype(name)))
    own.Free()


# float16 and bfloat16


@pytest.mark.parametrize("name", HALVES)
def test_rounded_once(comm, name):
    """The first rank's number is so large that adding 1 to it in the dtype changes nothing."""
    dtype = as_dtype(name)
    large = 2048.0 if name == "float16" else 256.0
    send = np.array([large if comm.rank == 0 else 1.0], dtype)
    with pc.Allreduce_init(comm, send, quorum="full") as h:
        h.Start()
        h.Wait()
        total = np.float32(large + comm.size - 1)
        assert h.recv_buffer.dtype == dtype
        assert h.recv_buffer[0] == total.astype(dtype)
        assert comm.size < 3 or h.recv_buffer[0] > large


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("owned", (False, True))
def test_conservation_of_halves(comm, name, owned):
    """Late deposits are carried, from a buffer or from a slot: nothing is lost."""
    dtype = as_dtype(name)
    count, rounds = 2600, []
    send = np.zeros(count, dtype)
    h = pc.Allreduce_init(comm, None if owned else send, np.zeros(count, dtype), quorum="solo")
    for t in range(12):
        (h.send_buffer if owned else send)[...] = ((np.arange(count) + t) % 3).astype(dtype)
        h.Start()
        rounds.append(h.Wait().results[0].buffers[0].astype(np.float64))
    h.join(on_round=lambda r: rounds.append(h.recv_buffer.astype(np.float64)))
    np.testing.assert_array_equal(sum(rounds), np.full(count, 12.0 * comm.size))
    h.Free()


def test_memory_of_halves(comm):
    """Half types are stored as float32, and the estimate includes that."""
    half, single = np.zeros(1000, np.float16), np.zeros(1000, np.float32)
    assert pc.memory_estimate(comm, half, half.copy()) == pc.memory_estimate(
        comm, single, single.copy()
    )
    with pc.Allreduce_init(comm, half, half.copy(), quorum="full") as h:
        assert h.memory == pc.memory_estimate(comm, half, half.copy(), quorum="full")


@pytest.mark.parametrize("name", HALVES)
def test_missed_rounds_of_halves(comm, name):
    """deliver="all": the sum of several rounds is rounded once as well."""
    dtype = as_dtype(name)
    one = MPI.COMM_SELF
    large = 2048.0 if name == "float16" else 256.0
    h = pc.Allreduce_init(one, np.zeros(1, dtype), deliver="all", quorum="solo")
    buffer = h._side.buffers[0]
    pc._core.buffers.add_up(buffer, [np.array([v], dtype) for v in (large, 1.0, 1.0)])
    assert h.recv_buffer[0] == np.float32(large + 2).astype(dtype)
    h.Free()


class Tensor:
    """Has the used attributes of a torch CPU tensor of bfloat16, which cannot convert to numpy."""

    class Device:
        type = "cpu"

        def __str__(self):
            return self.type

    dtype, requires_grad, device, contiguous = "torch.bfloat16", False, Device(), True

    def __init__(self, numbers, shape=None):
        bits = np.asarray(numbers, np.float32).view(np.uint32) >> 16
        self.bits = bits.astype(np.uint16).reshape(shape if shape is not None else bits.shape)
        self.shape = self.bits.shape

    def data_ptr(self):
        return self.bits.ctypes.data

    def is_contiguous(self):
        return self.contiguous

    def stride(self):
        return tuple(step // 2 for step in self.bits.strides)

    def element_size(self):
        return 2

    def numbers(self):
        return (self.bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("package", (True, False))
def test_bfloat16_tensors(comm, package, monkeypatch):
    """With ml_dtypes arrays have its bfloat16, without it they have the bits."""
    if package:
        of = np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    else:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        of = np.dtype(np.uint16)
    send, recv = Tensor([1, 2.5, 3, -4], (2, 2)), Tensor([0] * 4, (2, 2))
    with pc.Allreduce_init(comm, send, recv, quorum="full") as h:
        h.Start()
        h.Wait()
        assert h.recv_buffer.dtype == of and h.recv_buffer.shape == (2, 2)
    assert list(recv.numbers().reshape(-1)) == [comm.size * v for v in (1, 2.5, 3, -4)]
    with pc.Allreduce_init(comm, send, quorum="full", op=MPI.MAX) as h:
        h.Start()
        h.Wait()
        assert h.recv_buffer.dtype == of
        np.testing.assert_array_equal(h.recv_buffer.view(np.uint16), send.bits)
        results = [np.array(x.bits) for x in (Tensor([256.0]), Tensor([1.0]), Tensor([1.0]))]
        if not package:
            out = Tensor([0.0])
            buffer = pc._core.buffers.as_buffer("out", out, True)
            pc._core.buffers.add_up(buffer, results)
            assert out.numbers()[0] == 258
    for empty in (Tensor([]), Tensor([7.0], ())):
        with pc.Allreduce_init(comm, empty, quorum="full") as h:
            h.Start()
            h.Wait()
            assert h.recv_buffer.shape == empty.shape


def test_results_in_bfloat16_tensors_outlive_them(comm):
    torch = pytest.importorskip("torch")

    def step(value):
        send = torch.full((1 << 20,), float(value), dtype=torch.bfloat16)
        recv = torch.empty_like(send)
        return pc.Allreduce(comm, send, recv, quorum="full", name="bfloat16")

    rounds = [step(1), step(2), step(3)]
    for value, rnd in zip((1, 2, 3), rounds):
        found = np.asarray(rnd.results[0].buffers[0]).view(np.uint16)
        assert (found == found[0]).all()
        assert (int(found[0]) << 16) == int(np.float32(value * comm.size).view(np.uint32))
    h = pc.Allreduce_init(comm, torch.ones(1 << 20, dtype=torch.bfloat16), quorum="full")
    h.Start()
    h.Wait()
    found = h.recv_buffer
    h.Free()
    del h
    assert (found.view(np.uint16) == found.view(np.uint16)[0]).all()


def test_bfloat16_tensors_refused(comm):
    strided, elsewhere, learning = Tensor([1.0]), Tensor([1.0]), Tensor([1.0])
    strided.contiguous = False
    elsewhere.device = Tensor.Device()
    elsewhere.device.type = "cuda"
    learning.requires_grad = True
    no_driver = "there is no CUDA driver here"  # or one that a device test has opened
    for tensor, error, text in (
        (strided, ValueError, "sendbuf.*contiguous"),
        (elsewhere, (pc.StateError, ValueError), f"on cuda at .* does not know|{no_driver}"),
        (learning, TypeError, "sendbuf.*grad"),
    ):
        with pytest.raises(error, match=text):
            pc.Allreduce_init(comm, tensor)


def test_torch(comm):
    torch = pytest.importorskip("torch")
    for dtype in (torch.float16, torch.bfloat16, torch.complex64, torch.uint8):
        send, recv = torch.ones(5, dtype=dtype), torch.zeros(5, dtype=dtype)
        with pc.Allreduce_init(comm, send, recv, quorum="full") as h:
            h.Start()
            h.Wait()
        assert recv.tolist() == [comm.size] * 5


# Shapes


@pytest.mark.parametrize("name", ("float16", "complex64", "int16", "bool", "bfloat16"))
def test_no_dimensions(comm, name):
    dtype = as_dtype(name)
    op = MPI.LOR if name == "bool" else MPI.SUM
    send = np.array(comm.rank == 0, dtype)
    with pc.Allreduce_init(comm, send, op=op, quorum="full") as h:
        h.Start()
        h.Wait()
        assert h.recv_buffer.shape == () and h.recv_buffer == 1
    with pc.Allreduce_init(comm, None, np.zeros((), dtype), op=op, quorum="full") as h:
        h.send_buffer[...] = send
        h.Start()
        h.Wait()
        assert h.recv_buffer == 1


def test_drop_in_tells_dtypes_apart(comm):
    """One place in the program with two dtypes of one size uses a handle for each."""
    for name in ("float16", "uint16", "int16", "float16"):
        recv = np.zeros(3, name)
        pc.Allreduce(comm, np.full(3, 2, name), recv, quorum="full")
        assert list(recv) == [2 * comm.size] * 3


# MPI's and the user's ops and datatypes


def larger_size(a, b, datatype):
    """b = the one with the larger absolute value, or the left one if equal."""
    x, y = np.frombuffer(a, np.float64), np.frombuffer(b, np.float64)
    y[:] = np.where(np.abs(x) >= np.abs(y), x, y)


def weighted(a, b, datatype):
    """Elements of (weight, mean, mean): the mean of both."""
    x, y = (np.frombuffer(v, np.float64).reshape(-1, 3) for v in (a, b))
    weight = x[:, :1] + y[:, :1]
    y[:, 1:] = (x[:, :1] * x[:, 1:] + y[:, :1] * y[:, 1:]) / weight
    y[:, :1] = weight


def test_maxloc(comm):
    send, recv = np.zeros(5, PAIR), np.zeros(5, PAIR)
    send["value"] = [(comm.rank * 3 + i) % comm.size for i in range(5)]
    send["index"] = comm.rank
    for op in (MPI.MAXLOC, MPI.MINLOC):
        theirs = np.zeros(5, PAIR)
        with pc.Allreduce_init(
            comm, [send, 5, MPI.DOUBLE_INT], [recv, 5, MPI.DOUBLE_INT], op=op, quorum="full"
        ) as h:
            for _ in range(2):
                h.Start()
                h.Wait()
        comm.Allreduce([send, 5, MPI.DOUBLE_INT], [theirs, 5, MPI.DOUBLE_INT], op=op)
        for field in PAIR.names:
            np.testing.assert_array_equal(recv[field], theirs[field])


@pytest.mark.parametrize("name", ("longdouble", "clongdouble"))
def test_long_double(comm, name):
    """MPI has a kernel and the library has none. It is summed and carried as usual."""
    send = np.full(6, comm.rank + 1, name)
    rounds = []
    h = pc.Allreduce_init(comm, send, quorum="solo")
    for _ in range(10):
        h.Start()
        rounds.append(h.Wait().results[0].buffers[0].copy())
    h.join(on_round=lambda r: rounds.append(h.recv_buffer.copy()) if r.active else None)
    assert (sum(rounds) == 10 * comm.size * (comm.size + 1) // 2).all()
    h.Free()
    recv = np.zeros(6, name)
    with pc.Allreduce_init(
        comm,
        [send, 4, MPI._typedict[send.dtype.char]],
        [recv, 4, MPI._typedict[send.dtype.char]],
        quorum="full",
    ) as h:
        h.Start()
        h.Wait()
    assert list(recv) == [comm.size * (comm.size + 1) // 2] * 4 + [0, 0]


@pytest.mark.parametrize("form", ("send", "in place", "owned"))
def test_own_op(comm, form):
    """Equal absolute values of different sign: all ranks must agree on the left operand."""
    send = np.where(np.arange(9) % 2, comm.rank, 1.0) * (-1) ** comm.rank
    recv = send.copy() if form == "in place" else np.zeros(9)
    op = MPI.Op.Create(larger_size, commute=True)
    sendbuf = {"send": send, "in place": MPI.IN_PLACE, "owned": None}[form]
    with pc.Allreduce_init(comm, sendbuf, recv, op=op, quorum="full") as h:
        if form == "owned":
            h.send_buffer[:] = send
        h.Start()
        h.Wait()
    op.Free()
    assert len(set(comm.allgather(recv.tobytes()))) == 1
    assert list(np.abs(recv)) == [comm.size - 1 if i % 2 else 1 for i in range(9)]


@pytest.mark.parametrize("count", (0, 1, 5, 9000))
def test_derived_datatype(comm, count):
    """24 bytes, which cuts at multiples of 64 bytes would split; freed while the handle lives."""
    op = MPI.Op.Create(weighted, commute=True)
    triple = MPI.DOUBLE.Create_contiguous(3)  # the library commits its copy
    send = np.tile([1.0 + comm.rank, comm.rank, 1.0], count)
    recv = np.zeros_like(send)
    h = pc.Allreduce_init(comm, [send, count, triple], [recv, count, triple], op=op, quorum="full")
    triple.Free()
    other = MPI.INT.Create_contiguous(5).Commit()  # may get the handle number of the freed one
    for _ in range(3):
        h.Start()
        h.Wait()
    h.Free()
    op.Free()
    ranks = np.arange(comm.size)
    weight = (1.0 + ranks).sum()
    mean = ((1.0 + ranks) * ranks).sum() / weight
    other.Free()
    np.testing.assert_allclose(recv, np.tile([weight, mean, 1.0], count))
    assert len(set(comm.allgather(recv.tobytes()))) == 1


def test_structured_with_datatype(comm):
    """A structured array with a datatype of its size, counted in its elements."""
    dtype = np.dtype([("weight", "f8"), ("mean", "f8", 2)])
    op = MPI.Op.Create(weighted, commute=True)
    triple = MPI.BYTE.Create_contiguous(24).Commit()
    send = np.zeros(4, dtype)
    send["weight"], send["mean"] = 1, comm.rank
    recv = np.zeros(4, dtype)
    with pc.Allreduce_init(comm, [send, triple], [recv, triple], op=op, quorum="full") as h:
        h.Start()
        h.Wait()
    assert (recv["weight"] == comm.size).all()
    np.testing.assert_allclose(recv["mean"], (comm.size - 1) / 2)
    triple.Free()
    op.Free()


@pytest.mark.parametrize("progress", ("agent", "manual"))
def test_own_op_in_the_background(comm, progress):
    """The agent runs Python while the application computes, waits and deposits: there is no
    deadlock, and a round contains the deposits of its mask."""
    op = MPI.Op.Create(larger_size, commute=True)
    send, recv = np.zeros(300), np.zeros(300)
    with pc.Allreduce_init(comm, send, recv, op=op, quorum="solo", progress=progress) as h:
        for t in range(60):
            send[:] = (-1) ** t * (comm.rank + 1)
            h.Start()
            sum(i * i for i in range(300 * (comm.rank + 1)))
            r = h.Wait(timeout=120)
            assert abs(recv[0]) == np.flatnonzero(r.mask).max() + 1 and (recv == recv[0]).all()
        h.join()
    op.Free()


def test_empty_round_leaves_the_buffer(comm):
    """Without an identity, a round without contributions leaves the buffer unchanged."""
    op = MPI.Op.Create(larger_size, commute=True)
    recv, whole = np.full(3, 42.0), np.full(2, 7)
    with pc.Allreduce_init(
        comm, [np.ones(3), np.ones(2, int)], [recv, whole], op=[op, MPI.MAX], quorum="full"
    ) as h:
        r = h.join()
        assert r.active == 0 and list(recv) == [42.0] * 3
        assert list(whole) == [np.iinfo(int).min] * 2
    op.Free()


def test_late_of_own_ops(comm):
    """A late deposit is replaced, not added: a later round contains one deposit of each rank."""
    op = MPI.Op.Create(larger_size, commute=True)
    h = pc.Allreduce_init(comm, np.zeros(1), op=op, quorum="solo")
    assert h.send_buffer.shape == (1,)
    for t in range(20):
        h.send_buffer[0] = t
        h.Start()
        h.Wait(timeout=60)
    seen = []
    h.join(on_round=lambda r: seen.append(h.recv_buffer[0]) if r.active else None)
    assert all(value in range(20) for value in seen)
    h.Free()
    op.Free()


def test_drop_in_with_own_ops(comm):
    """A cached handle belongs to its op."""
    first = MPI.Op.Create(larger_size, commute=True)
    second = MPI.Op.Create(lambda a, b, t: np.copyto(np.frombuffer(b), 5.0), commute=True)
    for op, value in ((first, comm.size), (second, 5.0 if comm.size > 1 else 1.0)) * 2:
        recv = np.zeros(2)
        pc.Allreduce(comm, np.full(2, comm.rank + 1.0), recv, op=op, quorum="full")
        assert list(recv) == [value] * 2
