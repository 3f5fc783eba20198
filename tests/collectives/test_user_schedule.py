# SPDX-License-Identifier: Apache-2.0
"""User schedules: matching of messages, begin and end of operations, refusals by commit."""

import logging
import pickle
import time

import goal
import numpy as np
import pytest
from mpi4py import MPI
from word import await_word, sending_word

import partialcoll as pc

pytestmark = pytest.mark.mpi

LIMIT = 60.0
DTYPES = [np.float32, np.float64, np.int32, np.int64, np.float16, np.int8]
needs_two = pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="needs two ranks")
needs_three = pytest.mark.skipif(MPI.COMM_WORLD.size < 3, reason="needs three ranks")


def run(schedule):
    schedule.Start()
    schedule.Wait(LIMIT)


# Messages


@pytest.mark.parametrize("progress", ["agent", "manual"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 1000, 70001, 300000])
def test_ring(comm, progress, dtype, count):
    """Every size, also without complete blocks of 64 bytes; several runs."""
    mine, other = np.empty(count, dtype), np.full(count, -1, dtype)
    with pc.Schedule(comm, progress=progress) as s:
        s.recv(other, (comm.rank - 1) % comm.size)
        s.send(mine, (comm.rank + 1) % comm.size)
        s.commit()
        for i in range(3):
            mine[:] = np.arange(count) % 100 + comm.rank + i
            run(s)
            expected = np.arange(count) % 100 + (comm.rank - 1) % comm.size + i
            assert np.array_equal(other, expected.astype(dtype))
        assert s.runs == 3


def test_order_of_writing(comm):
    """The n-th send is matched with the n-th receive of the same tag, in whatever order they are
    executed."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    out = np.arange(6.0) + 10 * comm.rank
    into = np.full(6, -1.0)
    with pc.Schedule(comm) as s:
        sends = [s.send(out[i : i + 1], right, tag=i // 3) for i in range(6)]
        for earlier, later in zip(sends, sends[1:]):
            s.after(earlier, later)  # the last one is sent first
        for i in (3, 4, 5, 0, 1, 2):
            s.recv(into[i : i + 1], left, tag=i // 3)
        s.commit()
        run(s)
    assert np.array_equal(into, np.arange(6.0) + 10 * left)


def test_many_messages_of_one_pair(comm):
    """More messages than a handle has tags: the schedule takes several slots."""
    n = 150
    total = np.zeros(1)
    handle = pc.Allreduce_init(comm, np.ones(1), total, quorum="full")
    out, into = np.arange(n) + 1000.0 * comm.rank, np.zeros(n)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with pc.Schedule(comm) as s:
        for i in range(n):
            s.recv(into[i : i + 1], left)
        for i in range(n):
            s.send(out[i : i + 1], right)
        s.commit()
        with pc.Allreduce_init(comm, np.ones(1), total, quorum="full") as second:
            for each in (handle, s, second):
                each.Start()
            for each in (second, s, handle):
                each.Wait(LIMIT)
    handle.Free()
    assert np.array_equal(into, np.arange(n) + 1000.0 * left)
    assert total[0] == comm.size


def test_messages_to_self_and_proc_null(comm):
    mine, other, untouched = np.full(3, 7.0), np.zeros(3), np.full(2, 5.0)
    with pc.Schedule(comm) as s:
        into = s.recv(other, comm.rank)
        sent = s.send(mine, comm.rank)
        s.after(sent, [s.recv(untouched, MPI.PROC_NULL), s.send(mine, MPI.PROC_NULL)])
        s.commit()
        run(s)
        assert np.array_equal(other, mine) and np.array_equal(untouched, [5.0, 5.0])
        mine[:] = 8
        run(s)
        assert np.array_equal(other, mine)
    assert into.index == 0 and into.kind == "recv"

    with pc.Schedule(comm) as s:  # the receive after its own send
        s.after(s.recv(other, comm.rank), s.send(mine, comm.rank))
        mine[:] = 9
        s.commit()
        run(s)
    assert np.array_equal(other, mine)


def test_isolation(comm):
    """Messages of a schedule, of a handle and of the user have the same peers and tags on the same
    communicator."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    a, b, c = np.full(64, 1.0 + comm.rank), np.zeros(64), np.zeros(64)
    total, theirs = np.zeros(64), np.zeros(64)
    s, t = pc.Schedule(comm), pc.Schedule(comm)
    handle = pc.Allreduce_init(comm, a, total, quorum="solo")
    for schedule, into in ((s, b), (t, c)):
        schedule.send(a, right)
        schedule.recv(into, left)
        schedule.commit()
    for _ in range(20):
        request = comm.Irecv(theirs, left, 0)
        for each in (s, handle, t) if comm.rank % 2 else (t, s, handle):
            each.Start()
        comm.Send(np.full(64, 100.0 + comm.rank), right, 0)
        for each in (handle, t, s):
            each.Wait(LIMIT)
        request.Wait()
        assert np.all(b == 1.0 + left) and np.all(c == b) and np.all(theirs == 100.0 + left)
    for each in (t, handle, s):
        each.Free()


# Gates, reductions, timers


@needs_three
def test_gate_opens_early(comm):
    """1 of 2: the second predecessor waits for an operation behind the gate."""
    x, y, z = np.zeros(1), np.zeros(1), np.full(1, comm.rank + 1.0)
    with pc.Schedule(comm) as s:
        if comm.rank == 0:
            near, far = s.recv(x, 1, label="near"), s.recv(y, 2, label="far")
            s.after(s.send(z, 2), [near, far], k=1)
        elif comm.rank == 1:
            s.send(z, 0)
        elif comm.rank == 2:
            s.after(s.send(z, 0), s.recv(x, 0))
        s.commit()
        for _ in range(5):
            run(s)
        assert comm.rank or (x[0], y[0]) == (2.0, 3.0)


@pytest.mark.parametrize(
    "op, function",
    [(MPI.SUM, np.add), (MPI.PROD, np.multiply), (MPI.MIN, np.minimum), (MPI.MAX, np.maximum)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce(comm, op, function, dtype):
    """All ranks send to rank 0, which reduces in the order of ranks."""
    mine = (np.arange(50) % 7 + comm.rank + 1).astype(dtype)
    total = mine.copy()
    with pc.Schedule(comm) as s:
        if comm.rank:
            s.send(mine, 0)
        else:
            last = []
            for source in range(1, comm.size):
                into = np.zeros_like(mine)
                r = s.reduce(into, total, op=op)
                last = [s.after(r, [s.recv(into, source), *last])]
        s.commit()
        run(s)
    expected = (np.arange(50) % 7 + 1).astype(dtype)
    for rank in range(1, comm.size):
        expected = function((np.arange(50) % 7 + rank + 1).astype(dtype), expected)
    assert comm.rank or np.array_equal(total, expected)


def test_operands(comm):
    """buf is on the left: a NaN there wins MAX, one in `into` loses."""
    one, nan = np.ones(1), np.full(1, np.nan)
    a, b = one.copy(), nan.copy()
    with pc.Schedule(comm) as s:
        s.reduce(nan, a, op=MPI.MAX)
        s.reduce(one, b, op=MPI.MAX)
        s.commit()
        run(s)
    assert np.isnan(a[0]) and b[0] == 1


@pytest.mark.parametrize("progress", ["agent", "manual"])
def test_timer(comm, progress):
    """A timer does not fire early, and copies that depend on it come after it."""
    x, y = np.ones(4), np.zeros(4)
    with pc.Schedule(comm, progress=progress) as s:
        first = s.timer(0.02)
        second = s.after(s.timer(0.03, label="more"), first)
        s.after(s.copy(x, y), second)
        s.timer(0)
        s.commit()
        for _ in range(2):
            y[:] = 0
            begin = time.monotonic()
            run(s)
            assert time.monotonic() - begin >= 0.05
            assert np.array_equal(x, y)


def test_runs_in_the_background(comm):
    """The agent completes a run, timer included, while no thread is in the library."""
    x, y = np.full(5, comm.rank + 1.0), np.zeros(5)
    s = pc.Schedule(comm, progress="agent")
    wait = s.timer(0.01)
    s.after(s.send(x, (comm.rank + 1) % comm.size), wait)
    s.recv(y, (comm.rank - 1) % comm.size)
    s.commit()
    s.Start()
    begin = time.monotonic()
    while s.runs < 1:  # reads a counter, communicates nothing
        assert time.monotonic() - begin < LIMIT
        time.sleep(1e-3)
    assert np.all(y == (comm.rank - 1) % comm.size + 1.0)
    assert s.Test()
    s.Free()


def test_empty(comm):
    """A schedule without operations runs. Consecutive runs are counted."""
    with pc.Schedule(comm) as s:
        s.commit()
        for i in range(4):
            s.Start()
            while not s.Test():
                pass
            assert s.runs == i + 1


# Against a sequential evaluation


def random_program(rng, ranks):
    """Yield steps of all ranks, in a valid sequential order."""
    for _ in range(int(rng.integers(1, 40))):
        kind = rng.choice(["message", "message", "reduce", "copy", "timer", "nop"])
        a, b = rng.choice(3, 2, replace=False)
        count = int(rng.integers(0, 9))
        yield kind, int(rng.integers(ranks)), int(rng.integers(ranks)), int(a), int(b), count


class Writer:
    """Adds one rank's part of a random program to its schedule."""

    def __init__(self, schedule, rng, buffers):
        self.schedule, self.rng, self.buffers = schedule, rng, buffers
        self.done = []  # operations with their reads and writes

    def add(self, make, reads, writes):
        """All ranks draw the same numbers. `make` is None for an operation of another rank."""
        draws = self.rng.random(4)
        if make is None:
            return
        op = make()
        before = [
            o
            for o, r, w in self.done
            if w & (reads | writes) or r & writes or hash((o.index, draws[0])) % 8 == 0
        ]
        self.schedule.after(op, before)
        if self.done and draws[1] < 0.4:
            some = [o for o, _, _ in self.done[:: 1 + int(draws[2] * 4)]]
            gate = self.schedule.nop(label="gate")
            self.schedule.after(gate, some, k=1 + int(draws[3] * len(some)))
            self.schedule.after(op, gate)
            self.done.append((gate, frozenset(), frozenset()))
        self.done.append((op, reads, writes))

    def step(self, rank, kind, a_rank, b_rank, a, b, count):
        s, buffers = self.schedule, self.buffers
        none, at_a, at_b = frozenset(), frozenset([a]), frozenset([b])
        mine = rank == a_rank
        if kind == "message":
            tag = int(self.rng.integers(2))
            send = (lambda: s.send(buffers[a][:count], b_rank, tag=tag)) if mine else None
            self.add(send, at_a, none)
            into = (lambda: s.recv(buffers[b][:count], a_rank, tag=tag)) if rank == b_rank else None
            self.add(into, none, at_b)
            return
        make = {
            "reduce": lambda: s.reduce(buffers[a][:count], buffers[b][:count]),
            "copy": lambda: s.copy(buffers[a][:count], buffers[b][:count]),
            "timer": lambda: s.timer(1e-4),
            "nop": s.nop,
        }[kind]
        reads, writes = (at_a, at_b) if kind in ("reduce", "copy") else (none, none)
        self.add(make if mine else None, reads, writes)


def evaluate(program, memory):
    for kind, a_rank, b_rank, a, b, count in program:
        source = memory[a_rank][a][:count]
        if kind == "message":
            memory[b_rank][b][:count] = source
        elif kind == "copy":
            memory[a_rank][b][:count] = source
        elif kind == "reduce":
            memory[a_rank][b][:count] = source + memory[a_rank][b][:count]


@pytest.mark.parametrize("seed", range(25))
def test_random(comm, seed):
    """Several runs of a random DAG equal the same steps made one after the other."""
    rng = np.random.default_rng(seed)
    program = list(random_program(rng, comm.size))
    memory = rng.integers(-9, 9, (comm.size, 3, 8)).astype(np.float64)
    own = memory[comm.rank].copy()
    with pc.Schedule(comm, progress="manual" if seed % 3 == 0 else "agent") as s:
        writer = Writer(s, rng, own)
        for kind, a_rank, b_rank, a, b, count in program:
            writer.step(comm.rank, kind, a_rank, b_rank, a, b, count)
        s.commit()
        for _ in range(1 + seed % 4):
            run(s)
            evaluate(program, memory)
        assert np.array_equal(own, memory[comm.rank]), str(s)


# Refusals of a commit


def mismatch(comm, schedule, *parts):
    """The same error is raised on every rank and names both sides. Nothing hangs afterwards."""
    with pytest.raises(pc.MismatchError) as caught:
        schedule.commit()
    for part in parts:
        assert part in str(caught.value)
    schedule.Free()
    assert len(set(comm.allgather(str(caught.value)))) == 1


@needs_two
def test_number_differs(comm):
    x = np.zeros(4)
    s = pc.Schedule(comm)
    if comm.rank == 0:
        s.send(x, 1, tag=3)
        s.send(x, 1, tag=3)
    elif comm.rank == 1:
        s.recv(x, 0, tag=3)
    mismatch(comm, s, "tag 3", "rank 0 sends 2 messages to rank 1", "rank 1 receives 1 from rank 0")


@needs_two
@pytest.mark.parametrize("other", [np.zeros(5), np.zeros(4, np.float32), np.zeros(4, np.int64)])
def test_shape_differs(comm, other):
    s = pc.Schedule(comm)
    if comm.rank == 0:
        s.send(np.zeros(4), 1)
    elif comm.rank == 1:
        s.recv(other, 0)
    there = f"{other.size} {other.dtype.name} where rank 1 receives it"
    mismatch(comm, s, "message 0 with tag 0", "4 float64 where rank 0 sends it", there)


@needs_two
def test_wrong_on_one_rank(comm):
    """A cycle on rank 0 is reported to the others. After a correction the commit succeeds."""
    x, y = np.full(1, 4.0), np.zeros(1)
    s = pc.Schedule(comm)
    if comm.rank == 0:
        a, b = s.nop(label="hen"), s.nop(label="egg")
        s.after(s.nop(label="behind"), a)
        s.after(a, b)
        s.after(b, a)
        with pytest.raises(ValueError, match=r"depends on itself") as caught:
            s.commit()
        assert "hen" in str(caught.value) and "behind" not in str(caught.value)
    else:
        with pytest.raises(pc.MismatchError, match=r"rank 0 is not valid: .*depends on"):
            s.commit()
    s.Free()
    with pc.Schedule(comm) as s:
        if comm.rank == 0:
            s.send(x, 1)
        with pytest.raises(pc.MismatchError):
            s.commit()
        if comm.rank == 1:
            s.recv(y, 0)
        s.commit()
        run(s)
        assert comm.rank != 1 or y[0] == 4


def cycle(s, x):
    a, b = s.nop(), s.nop()
    s.after(a, b)
    s.after(b, a)


def own_message_cycle(s, x):
    rank = MPI.COMM_WORLD.rank
    s.after(s.send(x[:2], rank), s.recv(x[2:4], rank))


def too_many(s, x):
    a, b = s.nop(), s.nop()
    s.after(a, [b, b], k=2)


def two_writes(s, x):
    s.copy(x[:2], x[4:6])
    s.copy(x[2:4], x[5:7])


def write_while_read(s, x):
    rank = MPI.COMM_WORLD.rank
    s.send(x[:4], rank)
    s.recv(x[3:7], rank)


@pytest.mark.parametrize("at", (3, 4, 5))
def test_nothing_shares_memory_with_no_elements(comm, at):
    """A part without elements conflicts with nothing, wherever it is."""
    x = np.arange(8.0)
    with pc.Schedule(comm) as s:
        s.recv(x[at:at], comm.rank)
        s.send(x[at:at], comm.rank)
        s.copy(x[:4], x[4:])
        s.commit()
        s.Start()
        s.Wait()
        assert (x[4:] == np.arange(4)).all()


def gate_too_weak(s, x):
    s.after(s.copy(x[:2], x[2:4]), [s.copy(x[4:6], x[:2]), s.nop()], k=1)


def different_ops(s, x):
    s.reduce(x[:2], x[4:6], op=MPI.SUM)
    s.reduce(x[2:4], x[4:6], op=MPI.PROD)


@pytest.mark.parametrize(
    "write, part",
    [
        (cycle, "depends on itself"),
        (own_message_cycle, "depends on itself"),
        (too_many, "needs 2 of 1"),
        (two_writes, "operations 0 .* and 1 .* use the same memory"),
        (write_while_read, "use the same memory"),
        (gate_too_weak, "use the same memory"),
        (different_ops, "use the same memory"),
    ],
)
def test_refused(comm, write, part):
    s = pc.Schedule(comm)
    write(s, np.zeros(8))
    with pytest.raises(ValueError, match=part):
        s.commit()
    s.Free()


def test_sums_in_any_order(comm):
    """Reductions with one op into one place need no order."""
    x, total = np.arange(6.0), np.zeros(2)
    with pc.Schedule(comm) as s:
        for i in range(3):
            s.reduce(x[2 * i : 2 * i + 2], total)
        s.commit()
        run(s)
    assert np.array_equal(total, [6.0, 9.0])


@needs_two
def test_giving_up(comm):
    """A rank that leaves the with statement by an exception notifies the others."""
    with pytest.raises((ZeroDivisionError, pc.MismatchError)) as caught, pc.Schedule(comm) as s:
        if comm.rank == 1:
            raise ZeroDivisionError
        s.commit()
    if comm.rank == 1:
        assert caught.type is ZeroDivisionError
    else:
        assert "rank 1" in str(caught.value)


# Wrong calls

READ_ONLY = np.zeros(4)
READ_ONLY.flags.writeable = False
X = np.zeros(8)
WRONG = {
    "rank": (lambda s: s.send(X, 99), ValueError, "dest: expected a rank from 0 to"),
    "negative": (lambda s: s.recv(X, -7), ValueError, "source: expected a rank"),
    "any source": (lambda s: s.recv(X, MPI.ANY_SOURCE), ValueError, "source"),
    "rank type": (lambda s: s.send(X, 1.5), TypeError, "dest"),
    "bool": (lambda s: s.send(X, True), TypeError, "dest"),
    "tag": (lambda s: s.send(X, 0, tag=-1), ValueError, "tag"),
    "tag type": (lambda s: s.send(X, 0, tag="a"), TypeError, "tag"),
    "dtype": (lambda s: s.send(np.zeros(2, "M8[s]"), 0), TypeError, "datetime64"),
    "datatype": (lambda s: s.send([X, 1, MPI.DOUBLE_INT], 0), TypeError, "buf"),
    "op of a user": (
        lambda s: s.reduce(X[:4], X[4:], op=MPI.Op.Create(lambda *_: None, commute=True)),
        TypeError,
        "predefined",
    ),
    "no buffer": (lambda s: s.recv(None, 0), TypeError, "buf"),
    "read-only": (lambda s: s.recv(READ_ONLY, 0), ValueError, "read-only"),
    "strided": (lambda s: s.send(X[::2], 0), ValueError, "contiguous"),
    "sizes": (lambda s: s.reduce(X[:3], X[4:]), ValueError, "into: expected 3 elements"),
    "dtypes": (lambda s: s.copy(X, np.zeros(8, int)), TypeError, "into: expected dtype float64"),
    "into": (lambda s: s.reduce(X[4:], READ_ONLY), ValueError, "into"),
    "overlap": (lambda s: s.reduce(X[:4], X[2:6]), ValueError, "into"),
    "op": (lambda s: s.reduce(X[:4], X[4:], op=MPI.BXOR), TypeError, "op"),
    "time": (lambda s: s.timer(-1), ValueError, "seconds"),
    "nan": (lambda s: s.timer(float("nan")), ValueError, "seconds"),
    "time type": (lambda s: s.timer("soon"), TypeError, "seconds"),
    "label": (lambda s: s.nop(label=3), TypeError, "label"),
    "op number": (lambda s: s.after(0, s.nop()), TypeError, "op"),
    "predecessor": (lambda s: s.after(s.nop(), [3]), TypeError, r"predecessors\[0\]"),
    "predecessors": (lambda s: s.after(s.nop(), 3), TypeError, "predecessors"),
    "k": (lambda s: s.after(s.nop(), s.nop(), k=0), ValueError, "k:"),
    "k type": (lambda s: s.after(s.nop(), s.nop(), k=1.0), TypeError, "k:"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(comm, case):
    """A wrong call is refused at once. The schedule stays unchanged."""
    call, error, text = WRONG[case]
    with pc.Schedule(comm) as s:
        with pytest.raises(error, match=text):
            call(s)
        s.commit()
        run(s)


def test_foreign_operations(comm):
    with pc.Schedule(comm) as s, pc.Schedule(comm) as t:
        mine, theirs = s.nop(), t.nop()
        with pytest.raises(ValueError, match="of another"):
            s.after(mine, theirs)
        with pytest.raises(ValueError, match=r"op: .*of another"):
            s.after(theirs, mine)


def test_wrong_moments(comm):
    s = pc.Schedule(comm)
    first = s.nop()
    for call in (s.Start, s.Wait, s.Test):
        with pytest.raises(pc.StateError, match="not committed"):
            call()
    assert s.runs == 0
    s.commit()
    for call in (s.commit, s.nop, lambda: s.after(first, first)):
        with pytest.raises(pc.StateError, match="committed"):
            call()
    with pytest.raises(pc.StateError, match="not started"):
        s.Wait()
    s.Start()
    with pytest.raises(pc.StateError, match="started already"):
        s.Start()
    with pytest.raises(ValueError, match="timeout"):
        s.Wait(-1)
    s.Wait(LIMIT)
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(s)
    assert "1 operations" in repr(s)
    s.Free()
    s.Free()
    for call in (s.Start, s.Wait, s.nop, s.commit, s.to_dot, s.to_goal, lambda: s.runs):
        with pytest.raises(pc.StateError, match="freed"):
            call()


@pytest.mark.parametrize("wrong", [None, 3, MPI.COMM_NULL])
def test_wrong_communicator(wrong):
    with pytest.raises((TypeError, ValueError), match="comm"):
        pc.Schedule(wrong)


def test_wrong_progress(comm):
    with pytest.raises(ValueError, match="progress"):
        pc.Schedule(comm, progress="magic")


# Waiting and freeing


@needs_two
def test_timeout_and_warning(comm, monkeypatch, caplog):
    """A long wait reports which operations wait for which ranks, and continues."""
    x = np.full(3, 5.0)
    s = pc.Schedule(comm)
    if comm.rank == 0:
        s.recv(x, 1, label="the answer")
        s.after(s.nop(), s.timer(1e-3))
    elif comm.rank == 1:
        s.send(x, 0)
    s.commit()
    monkeypatch.setenv("PARTIALCOLL_STALL_WARN", "0.1")
    if comm.rank == 0:
        x[:] = 0
        s.Start()
        with caplog.at_level(logging.WARNING, "partialcoll"):
            while not caplog.records or "TIMER" in caplog.records[-1].getMessage():
                with pytest.raises(TimeoutError):
                    s.Wait(0.3)
        last = caplog.records[-1].getMessage()
        assert "operation 0 (RECV the answer) waits for rank 1" in last and "run 0" in last
        assert not s.Test()
    comm.Barrier()
    if comm.rank:
        s.Start()
    s.Wait(LIMIT)
    assert comm.rank > 1 or np.all(x == 5)
    s.Free()


@needs_two
def test_free_reports_the_missing_rank(comm, monkeypatch, caplog):
    """Rank 1 has not called Free yet."""
    monkeypatch.setenv("PARTIALCOLL_STALL_WARN", "0.1")
    s = pc.Schedule(comm).commit()
    said = "Schedule.Free: rank 1 has not called it"
    if comm.rank == 1:
        await_word(comm, 0)
    with sending_word(comm, [1] if comm.rank == 0 else [], said):
        s.Free()


@needs_two
def test_freed_without_a_wait(comm):
    """Rank 0 has started a run that the others have not: all end, and no data is written on ranks
    that started no run."""
    x, y = np.full(10000, 1.0 + comm.rank), np.full(10000, -1.0)
    s = pc.Schedule(comm)
    into = s.recv(y, (comm.rank - 1) % comm.size)
    s.after(s.send(x, (comm.rank + 1) % comm.size), into if comm.rank else [])
    s.commit()
    run(s)
    y[:] = -1
    comm.Barrier()
    if comm.rank == 0:
        s.Start()
    s.Free()
    assert comm.rank == 0 or np.all(y == -1)
    total = np.zeros(1)  # the slot can be used again
    with pc.Allreduce_init(comm, np.ones(1), total, quorum="full") as handle:
        run(handle)
    assert total[0] == comm.size


def test_freed_in_the_middle(comm):
    """All have started and none waits: the run is completed."""
    x, y = np.full(10000, 1.0 + comm.rank), np.zeros(10000)
    s = pc.Schedule(comm)
    s.recv(y, (comm.rank - 1) % comm.size)
    s.after(s.send(x, (comm.rank + 1) % comm.size), s.timer(0.01))
    s.commit()
    s.Start()
    s.Free()
    assert np.all(y == 1.0 + (comm.rank - 1) % comm.size)


def test_communicator_goes_first():
    dup = MPI.COMM_WORLD.Dup()
    x, y = np.full(2, 3.0), np.zeros(2)
    s = pc.Schedule(dup)
    s.send(x, (dup.rank + 1) % dup.size)
    s.recv(y, (dup.rank - 1) % dup.size)
    s.commit()
    dup.Free()
    run(s)
    s.Free()
    assert np.array_equal(x, y)


# Pictures


def test_dot(comm):
    with pc.Schedule(comm) as s:
        a, b = s.nop(label='say "a"\n'), s.timer(2)
        s.after(s.nop(label="c"), [a, b], k=1)
        before = s.to_dot()
        s.commit()
        dot = s.to_dot()
        assert dot == before
        assert dot.startswith("digraph schedule {") and dot.count("->") == 3
        assert r"say \"a\" " in dot and r"1 of 2" in dot and "TIMER 2 s" in dot
        assert "after 1 of {0, 1}" in str(s)


def test_goal(comm):
    """The file of all ranks can be read and run. Every message has a send and a receive."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    x, y, z = np.zeros(16), np.zeros(16), np.zeros(4)
    with pc.Schedule(comm) as s:
        into = s.recv(y, left)
        out = s.send(x, right)
        s.after(s.reduce(y, x), [into, out])
        s.after(s.nop(), [into, s.timer(1e-6)], k=1)
        s.after(s.send(z, right, tag=1), into)
        s.recv(z[:0], left, tag=2)
        s.send(z[:0], right, tag=2)
        second = s.recv(np.zeros(4), left, tag=1)
        s.commit()
        block, text = s.to_goal(), s.to_goal(all_ranks=True, ns_per_byte=0.5)
    assert block.startswith(f"rank {comm.rank} {{\n") and block.endswith("}\n")
    ranks = goal.parse(text)
    assert len(ranks) == comm.size and goal.runs(ranks)
    mine = ranks[comm.rank]
    assert mine.ops["l1"].bytes == 128 and mine.ops["l1"].peer == left
    assert sorted(op.time for op in mine.ops.values() if op.kind == "calc") == [0, 0, 64, 1000]
    assert mine.requires["l3"] == {"l1", "l2"}
    assert f"l{second.index + 1}: recv 32b from {left} tag 1" in text
    assert "needs 1 of 2" in text


@pytest.mark.parametrize("quorum", ["solo", "full", "quorum:0.5,deadline=1s"])
def test_goal_of_an_allreduce(comm, quorum):
    x, y = np.ones(8), np.zeros(8)
    with pc.Allreduce_init(comm, x, y, quorum=quorum, domain="rank") as handle:
        blocks = comm.allgather(handle.schedule.to_goal(ns_per_byte=1.0))
        run(handle)
        with pytest.raises(ValueError, match="ns_per_byte"):
            handle.schedule.to_goal(ns_per_byte=-1)
    ranks = goal.parse(f"num_ranks {comm.size}\n" + "".join(blocks))
    assert len(ranks) == comm.size and goal.runs(ranks)


def test_exit_before_the_commit(comm):
    """However one rank exits, the others' commits fail, and none waits."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    expected = SystemExit if comm.rank == 0 else pc.MismatchError
    with pytest.raises(expected), pc.Schedule(comm) as s:
        s.nop()
        if comm.rank == 0:
            raise SystemExit(1)
        s.commit()


@pytest.mark.parametrize("dtype", ["float16", "uint8", "complex64", "bool"])
def test_mismatch_names_the_dtype(comm, dtype):
    if comm.size < 2:
        pytest.skip("takes two ranks")
    buffer = np.zeros(3 + comm.rank, dtype)
    s = pc.Schedule(comm)
    if comm.rank == 0:
        s.send(buffer, 1)
    elif comm.rank == 1:
        s.recv(buffer, 0)
    with pytest.raises(pc.MismatchError, match=f"3 {dtype} where"):
        s.commit()
    s.Free()
