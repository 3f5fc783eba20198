# SPDX-License-Identifier: Apache-2.0
"""The algorithms: values for any P and count, the choice of one, tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import partialcoll as pc
from partialcoll.tools import environment
from partialcoll.tools.bench import tune

pytestmark = [pytest.mark.mpi, pytest.mark.messages_only]

ALGORITHMS = ("recdbl", "rabenseifner", "ring", "native")
together = settings(derandomize=True, database=None, deadline=None, max_examples=25)


def run(h, times=1):
    """Make this many rounds. Return the last one."""
    for _ in range(times):
        h.Start()
        rnd = h.Wait()
    return rnd


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("count", (0, 1, 2, 17, 1009, 70000, 600011))
def test_as_mpi(comm, algorithm, count):
    """600011 doubles: several chains of the ring, and messages that MPI does not buffer."""
    send = ((np.arange(count) * 7 + comm.rank * 3) % 5 + 1).astype(float)
    recv, expected = np.zeros_like(send), np.zeros_like(send)
    with pc.Allreduce_init(comm, send, recv, quorum="full", algorithm=algorithm) as h:
        assert h.algorithm == algorithm
        run(h, 3)
    comm.Allreduce(send, expected)
    np.testing.assert_array_equal(recv, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_several_buffers(comm, algorithm):
    """Slices contain several buffers, each with its own dtype and op."""
    kinds = [(100003, np.float32, MPI.SUM), (0, np.int32, MPI.SUM), (77, np.int64, MPI.MAX),
             (1, np.float64, MPI.MIN), (50001, np.int32, MPI.PROD)]  # fmt: skip
    send = [((np.arange(n) + comm.rank) % 3 + 1).astype(t) for n, t, _ in kinds]
    recv = [np.zeros_like(s) for s in send]
    expected = [np.zeros_like(s) for s in send]
    ops = [op for _, _, op in kinds]
    with pc.Allreduce_init(comm, send, recv, op=ops, quorum="full", algorithm=algorithm) as h:
        run(h, 2)
    for s, r, e, op in zip(send, recv, expected, ops):
        comm.Allreduce(s, e, op=op)
        np.testing.assert_array_equal(r, e)


def test_same_bits(comm):
    """Rabenseifner adds in the order of recursive doubling."""
    rng = np.random.default_rng(comm.rank)
    send = rng.standard_normal(5003)
    results = []
    for algorithm in ("recdbl", "rabenseifner"):
        with pc.Allreduce_init(comm, send, quorum="full", algorithm=algorithm) as h:
            run(h)
            results.append(h.recv_buffer.tobytes())
    assert results[0] == results[1]


@together
@given(
    count=st.integers(0, 3000),
    algorithm=st.sampled_from(ALGORITHMS),
    quorum=st.sampled_from(("solo", "majority", "quorum:0.5", "full")),
    seed=st.integers(0, 1000),
)
def test_drawn(count, algorithm, quorum, seed):
    """The result is the sum over the mask, whatever it is. All ranks see the same rounds."""
    comm = MPI.COMM_WORLD
    send, recv = np.zeros(count), np.zeros(count)
    h = pc.Allreduce_init(
        comm, send, recv, quorum=quorum, late="drop", algorithm=algorithm, seed=seed
    )
    for t in range(3):
        send[:] = (np.arange(count) + comm.rank * t) % 11 + 1
        rnd = run(h)
        expected = sum(
            (np.arange(count) + r * t) % 11 + 1.0 for r in range(comm.size) if rnd.mask[r]
        )
        np.testing.assert_array_equal(recv, expected)
    h.Free()


def test_mismatch(comm):
    if comm.size < 2:
        pytest.skip("takes two ranks")
    algorithm = "ring" if comm.rank else "recdbl"
    with pytest.raises(pc.MismatchError, match="algorithm"):
        pc.Allreduce_init(comm, np.ones(3), algorithm=algorithm)


def choice(comm, count):
    with pc.Allreduce_init(comm, np.zeros(count, np.float32), algorithm="auto") as h:
        return h.algorithm


def test_built_in_table(comm, monkeypatch):
    monkeypatch.setenv("PARTIALCOLL_TUNE", "none")
    assert choice(comm, 1) == "recdbl"
    assert choice(comm, 1 << 20) == "rabenseifner"


@pytest.fixture
def table(comm, tmp_path, monkeypatch):
    """Return a function that writes the table that auto reads, the same on all ranks."""

    def write(text):
        path = tmp_path / "tune.txt"
        path.write_text(text)
        monkeypatch.setenv("PARTIALCOLL_TUNE", str(path))

    return write


def test_table(comm, table):
    table(
        "# a comment\n\n"
        f"{comm.size} 4096 ring  # from here on\n"
        f"{comm.size} 0 rabenseifner\n"
        f"{comm.size} 65536 recdbl\n"
        f"{comm.size + 1} 0 recdbl\n"
    )
    assert [choice(comm, n) for n in (0, 1000, 1024, 16000, 16384, 1 << 20)] == [
        "rabenseifner", "rabenseifner", "ring", "ring", "recdbl", "recdbl",
    ]  # fmt: skip


def test_table_for_more_ranks(comm, table):
    """If all lines are for more ranks, those for the fewest ranks apply."""
    table(f"{comm.size + 9} 0 recdbl\n{comm.size + 2} 0 ring\n")
    assert choice(comm, 100) == "ring"


def test_table_for_fewer_ranks(comm, table):
    table("1 0 recdbl\n" + "".join(f"{r} 0 ring\n" for r in range(2, comm.size + 1)))
    assert choice(comm, 100) == ("ring" if comm.size > 1 else "recdbl")


@pytest.mark.parametrize("domain", ("node", "node:2", "rank"))
def test_table_with_mpis_own(comm, table, domain):
    """native needs all ranks. Where one rank drives for several, another algorithm is chosen."""
    table("1 0 native\n")
    x = np.full(1000, comm.rank + 1.0)
    with pc.Allreduce_init(comm, x, algorithm="auto", domain=domain, quorum="full") as h:
        assert h.algorithm == "native" or domain != "rank"
        for _ in range(3):
            h.Start()
            h.Wait(timeout=60)
            assert (h.recv_buffer == comm.size * (comm.size + 1) / 2).all()


def test_table_without_small_sizes(comm, table):
    table("1 4096 ring\n")
    assert choice(comm, 10) == "recdbl" and choice(comm, 1024) == "ring"


@pytest.mark.parametrize(
    "line",
    (
        "2 ring", "2 0", "2 0 ring 7", "x 0 ring", "2 -1 ring", "0 0 ring", "2 0 auto", "2 0 Ring",
        "2 99999999999999999999 ring", "2 0 ri\x00ng", "ring " * 100,
    ),
)  # fmt: skip
def test_corrupt_table(comm, table, line):
    """A corrupt line is refused on every rank. The communicator stays usable."""
    table(f"# fine\n2 0 recdbl\n{line}\n")
    with pytest.raises(ValueError, match=r"tune\.txt, line 3: expected ranks, bytes and an algo"):
        choice(comm, 1)
    table("1 0 ring\n")
    assert choice(comm, 1) == "ring"


def test_missing_table(comm, monkeypatch, tmp_path):
    monkeypatch.setenv("PARTIALCOLL_TUNE", str(tmp_path / "nowhere.txt"))
    with pytest.raises(ValueError, match=r"nowhere\.txt"):
        choice(comm, 1)
    monkeypatch.delenv("PARTIALCOLL_TUNE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert choice(comm, 1) == "recdbl"
    (tmp_path / "partialcoll").mkdir()
    (tmp_path / "partialcoll" / "tune.txt").write_text("1 0 ring\n")
    assert choice(comm, 1) == "ring"
    assert environment.tuning_table() == str(tmp_path / "partialcoll" / "tune.txt")


def test_tuned_lines():
    """The algorithm changes only where it pays, at the next size as well."""

    def row(size, **us):
        return [
            dict(ranks=4, bytes=size, algorithm=name, latency_us_p50=t, collective="full")
            | {"domain": "rank"}
            for name, t in us.items()
        ]

    rows = (
        row(1, recdbl=10, ring=9.9, rabenseifner=20)
        + row(2, recdbl=20, ring=10, rabenseifner=20)
        + row(4, recdbl=40, ring=45, rabenseifner=30)
        + row(8, recdbl=80, ring=70, rabenseifner=60)
    )
    assert tune.table(rows) == [(4, 0, "recdbl"), (4, 4, "rabenseifner")]
    assert "      4           4  rabenseifner\n" in tune.as_text(tune.table(rows))


def test_tuned_thresholds():
    """Ours is used from the size on above which MPI's is never faster."""

    def row(size, full, mpi, ranks=2):
        both = (("full", "node", full), ("mpi", "-", mpi), ("full", "rank", 1))
        return [
            dict(ranks=ranks, bytes=size, collective=name, domain=domain, latency_us_p50=us)
            for name, domain, us in both
        ]

    rows = row(8, 1, 2) + row(64, 2, 2) + row(512, 2, 3) + row(4096, 2, 3) + row(8, 2, 1, ranks=4)
    assert tune.thresholds(rows) == [(2, 512, "ours"), (4, "never", "ours")]
    assert "      4       never  ours\n" in tune.as_text(tune.thresholds(rows))


def test_native_has_its_limits(comm):
    """native takes no user ops, which have no identity. Half types are sent as float32."""
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    with pytest.raises(ValueError, match="native takes no ops"):
        pc.Allreduce_init(comm, np.zeros(3), op=op, algorithm="native")
    op.Free()
    send = np.full(7, 0.5, np.float16)
    with pc.Allreduce_init(comm, send, quorum="full", algorithm="native") as h:
        run(h, 2)
        assert list(h.recv_buffer) == [comm.size / 2] * 7


def test_rabenseifner_has_its_limits(comm):
    """Elements that do not divide 64 bytes leave no room for headers between slices."""
    triple = MPI.DOUBLE.Create_contiguous(3).Commit()
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    send = [np.zeros(9), 3, triple]
    recv = [np.zeros(9), 3, triple]
    with pytest.raises(ValueError, match="rabenseifner needs elements"):
        pc.Allreduce_init(comm, send, recv, op=op, algorithm="rabenseifner")
    op.Free()
    triple.Free()


def test_two_native_handles(comm):
    """Two handles are activated in different orders by rank. Each has its own communicator."""
    sends = [np.full(3, 1.0), np.full(5, 10.0)]
    handles = [
        pc.Allreduce_init(comm, s, quorum="solo", late="carry", algorithm="native") for s in sends
    ]
    order = handles if comm.rank % 2 else handles[::-1]
    totals = np.zeros(2)
    for _ in range(20):
        pc.Startall(order)
        pc.Waitall(order)
        totals += [h.recv_buffer[0] for h in handles]
    for h in handles:
        h.join(
            on_round=lambda rnd, h=h: totals.__setitem__(
                handles.index(h), totals[handles.index(h)] + rnd.results[0].buffers[0][0]
            )
        )
    assert list(totals) == [20.0 * comm.size, 200.0 * comm.size]
    for h in handles:
        h.Free()
