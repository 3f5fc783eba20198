# SPDX-License-Identifier: Apache-2.0
"""An up-to-date rank sends its state to a rank that needs it: complete, of one round, and without
blocking any rank."""

import pickle
import time
from collections import deque

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll.collectives.state_exchange import Question, check_peers

pytestmark = pytest.mark.one_domain


def state_of(rank, round, size=100_000):
    """Return a state in which every array contains its round and rank in each element."""
    value = 1000 * round + rank
    return {
        "x": np.full(size, value, np.float32),
        "small": np.arange(3) + value,
        "steps": value,
        "nested": [np.full((7, 300), value, np.float64), "schedule", None],
        "fortran": np.asfortranarray(np.full((200, 30), value)),
        "strided": np.full(4000, value)[::2],
        "none": np.empty(0),
    }


def check_state(round, state):
    """Check that the state is a complete one of that round. Return its rank."""
    value = state["steps"]
    assert value // 1000 == round
    arrays = [state["x"], *state["nested"][:1], state["fortran"], state["strided"]]
    assert all((array == value).all() for array in arrays)
    assert (state["small"] == np.arange(3) + value).all() and state["none"].size == 0
    assert state["nested"][1:] == ["schedule", None]
    for array in arrays:
        array += 1  # belongs to the rank that asked
    return value % 1000


def serve_until(exchange, request, make, round=0):
    """Serve at step boundaries until `request`, a barrier, is complete. Return the round."""
    while not request.Test():
        exchange.serve(round, lambda r=round: make(r))
        round += 1
        time.sleep(1e-4)
    return round


def end(exchange, comm, make, round=0):
    serve_until(exchange, comm.Ibarrier(), make, round)
    exchange.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("size", (10, 100_000, 3_000_000))
def test_each_asks_in_turn(comm, size):
    """Each rank asks while the others make steps. The arrays change right after `serve`."""
    if comm.size == 1:
        pytest.skip("no other rank to ask")
    exchange = pc.StateExchange(comm, timeout=60)
    own = state_of(comm.rank, 0, size)

    def serve(round):
        own["steps"] = 1000 * round + comm.rank
        for array in (own["x"], own["nested"][0], own["fortran"], own["strided"]):
            array[...] = own["steps"]
        own["small"] = np.arange(3) + own["steps"]
        exchange.serve(round, own)

    round = 0
    for asker in range(comm.size):
        if comm.rank == asker:
            got, state = exchange.ask(least_round=3)
            assert check_state(got, state) != comm.rank and got >= 3
        barrier = comm.Ibarrier()
        while not barrier.Test():
            serve(round)
            round += 1
            time.sleep(1e-4)
    counts = exchange.stats
    assert counts.asked >= 1 and counts.bytes_received > 4 * size
    answered = comm.allreduce(counts.answered)
    assert answered >= comm.size
    exchange.Free()
    exchange.Free()
    with pytest.raises(pc.StateError, match="freed"):
        exchange.serve(0, None)
    with pytest.raises(pc.StateError, match="freed"):
        exchange.ask()


@pytest.mark.mpi
def test_all_but_one_ask_at_once(comm):
    """Each asks its neighbor first, so ranks without a state ask each other and are refused."""
    if comm.size == 1:
        pytest.skip("no other rank to ask")
    exchange = pc.StateExchange(comm, timeout=60)
    giver = comm.size - 1
    for _ in range(5):
        if comm.rank != giver:
            round, state = exchange.ask()
            assert check_state(round, state) != comm.rank  # it may come from an earlier asker
        serve_until(exchange, comm.Ibarrier(), lambda r: state_of(comm.rank, r))
    exchange.Free()


@pytest.mark.mpi
def test_no_rank_has_a_state(comm):
    """All ask: all get a TimeoutError that names the asked ranks. Then the exchange works."""
    if comm.size == 1:
        pytest.skip("no other rank to ask")
    exchange = pc.StateExchange(comm, timeout=0.2)
    with pytest.raises(TimeoutError, match=rf"rank {comm.rank} asked.*asked ranks .*\d"):
        exchange.ask()
    comm.Barrier()
    if comm.rank == 0:
        round, state = exchange.ask(timeout=60)
        check_state(round, state)
    end(exchange, comm, lambda r: state_of(comm.rank, r))
    assert comm.allreduce(exchange.stats.refused) > 0


@pytest.mark.mpi
def test_silent_peer(comm):
    """One rank does not call `serve` for a while. The next one is asked, and the silent one later
    finds the request and its withdrawal."""
    if comm.size < 3:
        pytest.skip("needs a third")
    exchange = pc.StateExchange(comm, timeout=60, patience=0.02)
    for _ in range(3):
        comm.Barrier()
        if comm.rank == 0:
            round, state = exchange.ask([1, 2])
            assert check_state(round, state) == 2
        over = comm.Ibarrier()
        if comm.rank == 0:
            over.Wait()
        elif comm.rank == 1:
            over.Wait()  # a long step
        else:
            serve_until(exchange, over, lambda r: state_of(comm.rank, r))
        serve_until(exchange, comm.Ibarrier(), lambda r: state_of(comm.rank, r))
    assert exchange.stats.refused or comm.rank != 1
    exchange.Free()


@pytest.mark.mpi
def test_late_and_duplicate_answers(comm):
    """Two ranks send large answers to one request. The second is discarded, and the next request
    gets its own answer."""
    if comm.size < 3:
        pytest.skip("needs a third")
    exchange = pc.StateExchange(comm, timeout=60, patience=1e-6)
    complete, rounds, told = exchange._complete, 6, 0

    def look(both):
        """Tell both as soon as both have been asked. In every second round, wait for both."""
        nonlocal told
        if exchange.stats.asked == 2 * (told + 1):
            told += 1
            for peer in (1, 2):
                comm.send(None, peer, tag=9)
        wanted = sum(incoming.wanted for *_, incoming in exchange._incoming.values())
        return complete() if not both or wanted == 2 else None

    for t in range(rounds):
        comm.Barrier()
        if comm.rank == 0:
            exchange._complete = lambda t=t: look(t % 2)
            round, state = exchange.ask([1 + t % 2, 2 - t % 2], least_round=1000 * t)
            assert round == 1000 * t and told == t + 1
            check_state(round, state)
        elif comm.rank < 3:
            comm.recv(source=0, tag=9)
            comm.sendrecv(None, 3 - comm.rank, source=3 - comm.rank)
            while exchange.stats.answered + exchange.stats.refused == t:
                exchange.serve(1000 * t, lambda t=t: state_of(comm.rank, 1000 * t, 1 << 22))
        serve_until(exchange, comm.Ibarrier(), None, round=0)
    exchange.Free()
    counts = comm.allgather(exchange.stats)
    given = [c.answered for c in counts]
    # A rank that is late, after the other's answer was received, is no longer asked.
    assert [c.answered + c.refused for c in counts[1:3]] == [rounds, rounds]
    assert sum(given) == given[1] + given[2] >= rounds + rounds // 2
    assert counts[0].asked == 2 * rounds and counts[0].drained == sum(given) - rounds
    assert counts[0].bytes_received == counts[1].bytes_sent + counts[2].bytes_sent


@pytest.mark.mpi
def test_isolation(comm):
    """Two exchanges and the user's messages on one communicator are not mixed up."""
    if comm.size == 1:
        pytest.skip("no other rank to ask")
    first, second = (pc.StateExchange(comm, timeout=60) for _ in range(2))
    request = comm.Irecv(np.empty(3, np.int64), MPI.ANY_SOURCE, MPI.ANY_TAG)
    if comm.rank == 0:
        _, a = first.ask()
        _, b = second.ask()
        assert a["steps"] == b["steps"] + 500
    barrier = comm.Ibarrier()
    while not barrier.Test():
        first.serve(1, lambda: {"steps": 1500})
        second.serve(1, lambda: {"steps": 1000})
        time.sleep(1e-4)
    assert not request.Test()
    request.Cancel()
    request.Wait()
    first.Free()
    second.Free()


@pytest.mark.mpi
def test_a_state_that_cannot_be_sent(comm):
    """The error is raised on the sending rank. The asking rank gets another rank's state."""
    if comm.size < 3:
        pytest.skip("needs a third")
    exchange = pc.StateExchange(comm, timeout=120, patience=100)
    failed = 0
    if comm.rank == 0:
        round, state = exchange.ask([1, 2])
        assert check_state(round, state) == 2
    barrier = comm.Ibarrier()
    while not barrier.Test():
        bad = comm.rank == 1 and not failed
        try:
            exchange.serve(0, (lambda: lambda: None) if bad else state_of(comm.rank, 0))
        except Exception as error:
            assert bad and "pickle" in str(error).lower()
            failed = 1
        time.sleep(1e-4)
    assert comm.allreduce(failed) == 1
    exchange.Free()


@pytest.mark.mpi
def test_free_with_a_question_open(comm):
    """The asking rank has timed out, and the asked rank never served before `Free`."""
    if comm.size == 1:
        pytest.skip("no other rank to ask")
    exchange = pc.StateExchange(comm, timeout=0.05)
    if comm.rank == 0:
        with pytest.raises(TimeoutError, match="asked ranks 1; without an answer"):
            exchange.ask([1])
    exchange.Free()
    assert exchange.stats.answered == 0


@pytest.mark.mpi
def test_bad_input(comm):
    exchange = pc.StateExchange(comm, timeout=5)
    other = (comm.rank + 1) % comm.size
    for peers in ([comm.rank], [comm.size], [-1], []):
        with pytest.raises(ValueError, match="peers: expected"):
            exchange.ask(peers)
    for peers in ([1.5], ["1"], [True]):
        with pytest.raises(TypeError, match="peers: expected ranks"):
            exchange.ask(peers)
    if comm.size > 1:
        for least in (-1, 1 << 63):
            with pytest.raises(ValueError, match="least_round: expected"):
                exchange.ask([other], least_round=least)
        with pytest.raises(ValueError, match="timeout: expected seconds above 0, got 0"):
            exchange.ask([other], timeout=0)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(exchange)
    exchange.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("how", ({"timeout": 0}, {"patience": -1.0}, {"timeout": float("nan")}))
def test_one_rank_has_bad_times(comm, how):
    """The wrong rank's error says what is wrong, the others' errors which rank it is."""
    last = comm.size - 1
    wrong = ValueError if comm.rank == last else pc.MismatchError
    with pytest.raises(wrong, match="expected seconds" if comm.rank == last else f"rank {last}"):
        pc.StateExchange(comm, **(how if comm.rank == last else {}))


def test_order_of_asked_ranks():
    """Ranks are asked in order: one more after `patience`, at once after a refusal, and none twice
    while it owes an answer."""
    q = Question(1, deque([3, 1, 2]), patience=1.0, progress=0.0)
    assert q.next_peer(0.0) == 3 and q.next_peer(0.5) is None
    q.comes(0.6)  # a part of its state arrives
    assert q.next_peer(1.5) is None
    assert q.next_peer(1.6) == 1
    q.answered(1, False, 1.7)
    assert q.next_peer(1.7) == 2 and q.next_peer(1.8) is None
    assert q.next_peer(2.7) == 1  # 3 and 2 still owe an answer
    assert q.next_peer(9.0) is None  # all owe an answer
    q.answered(1, True, 9.0)
    assert q.next_peer(99.0) is None  # its state is being sent
    assert "asked ranks 3, 1, 2" in q.complaint(0, 1) and "answer: 2, 3" in q.complaint(0, 1)
    assert check_peers([2, 2, np.int64(0)], 1, 3) == [2, 0]
    assert check_peers(None, 1, 4) == [2, 3, 0]


STOPPED = """
import os, signal
exchange = pc.StateExchange(comm, timeout=60, patience=0.2)
pids = comm.allgather(os.getpid())
x = np.full(4 << 20, comm.rank, np.float64)
served = 0
if comm.rank == 0:
    while not comm.Iprobe(2, 7):  # one step after the other, until it is stopped
        exchange.serve(served, {"x": x, "served": served})
        served += 1
        time.sleep(1e-4)
    comm.recv(source=2, tag=7)
    exchange.serve(served, {"x": x, "served": served})
elif comm.rank == 1:
    while not comm.Iprobe(2, 7):
        exchange.serve(served, {"x": x, "served": served})
        time.sleep(1e-4)
    comm.recv(source=2, tag=7)
else:
    for trial in range(3):
        os.kill(pids[0], signal.SIGSTOP)
        round, state = exchange.ask([0, 1])
        assert (state["x"] == state["x"][0]).all() and state["x"][0] in (0, 1)
        if trial == 0:
            say("got it from", int(state["x"][0]))
        os.kill(pids[0], signal.SIGCONT)
    for peer in (0, 1):
        comm.send(None, peer, 7)
exchange.Free()
say("rank", comm.rank, "is free")
"""


def test_stopped_peer(run):
    """The asked rank is stopped by SIGSTOP: another one sends the state. The stopped rank later
    continues."""
    done = run(STOPPED, 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is free") == 3


STOPPED_WHILE_SENDING = """
import os, signal
exchange = pc.StateExchange(comm, timeout=60, patience=0.3)
pids = comm.allgather(os.getpid())
x = np.full(8 << 20, comm.rank, np.float64)
if comm.rank == 0:
    while not exchange.stats.answered:
        exchange.serve(5, {"x": x})
    os.kill(os.getpid(), signal.SIGSTOP)
elif comm.rank == 1:
    stopped = False  # before that only rank 0 may serve rank 2
    while not comm.Iprobe(2, 7):
        stopped = stopped or state(pids[0]) == "T"
        if stopped:
            exchange.serve(6, {"x": x})
        time.sleep(1e-4)
    comm.recv(source=2, tag=7)
else:
    round, got = exchange.ask([0, 1])
    assert (got["x"] == round - 5).all() and round in (5, 6)
    comm.send(None, 1, 7)
    time.sleep(0.1)
    os.kill(pids[0], signal.SIGCONT)
# Free needs rank 0, which may have stopped only now.
if comm.rank == 2:
    request = comm.Ibarrier()
    while not request.Test():
        os.kill(pids[0], signal.SIGCONT)
        time.sleep(0.01)
else:
    comm.Ibarrier().Wait()
exchange.Free()
say("rank", comm.rank, "is free")
"""


def test_stopped_while_sending(run):
    """The sending rank is stopped halfway: the asking rank takes a complete state."""
    done = run(STOPPED_WHILE_SENDING, 3)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is free") == 3


def test_interrupt(run):
    """Ctrl-C ends an ask, which uses no core while it waits. The exchange keeps working."""
    script = """
import signal, threading, os
exchange = pc.StateExchange(comm, timeout=100)
if comm.rank == 0:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begin, busy = time.monotonic(), time.process_time()
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        exchange.ask()
    except KeyboardInterrupt:
        passed, busy = time.monotonic() - begin, time.process_time() - busy
        say("interrupted", busy < 0.5 * passed)
comm.Barrier()
if comm.rank == 0:
    say("state", exchange.ask())
barrier = comm.Ibarrier()
while not barrier.Test():
    exchange.serve(4, "here")
    time.sleep(1e-3)
exchange.Free()
"""
    done = run(script, 2)
    assert done.returncode == 0, done.stderr
    assert "interrupted True" in done.stdout and "state (4, 'here')" in done.stdout


def test_leaked(run):
    """Garbage collection does not communicate; it warns."""
    script = """
import gc
warnings.simplefilter("always")
exchange = pc.StateExchange(comm)
del exchange
gc.collect()
say("over")
"""
    done = run(script, 2)
    assert done.returncode == 0 and "over" in done.stdout
    assert "a state exchange was not freed" in done.stderr


def test_alone(run):
    """In a single process there is no rank to ask."""
    script = """
with pc.StateExchange(comm) as exchange:
    exchange.serve(0, None)
    try:
        exchange.ask()
    except ValueError as error:
        say(error)
"""
    done = run(script)
    assert "peers: expected at least one rank" in done.stdout, done.stderr
