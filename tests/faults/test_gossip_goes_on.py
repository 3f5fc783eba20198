# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and the gossip of the others continues (``on_failure="continue"``, docs/faults.md).
Each rank writes its model before and after each call into a file that outlives it. The oracle adds
up the final models of the live ranks and the last models of the dead. Outside of calls this is the
initial sum, up to rounding. The data in flight of a call in which a rank dies is lost with it.
"""

import json

import numpy as np
import pytest
from ulfm import needs_ulfm

import partialcoll as pc

pytestmark = pytest.mark.one_domain

RANKS, COUNT = 5, 200_000  # two chunks

PROGRAM = """
    import faulthandler, json, os, random, signal, threading
    faulthandler.dump_traceback_later(60, exit=True)
    given = json.loads(sys.argv[1])
    rng = random.Random(f"{given['seed']}-{comm.rank}")
    world = MPI.COMM_WORLD.Dup()
    dies = given["dies"].get(str(comm.rank))
    if dies and ":" in dies:
        os.environ["PARTIALCOLL_DIE"] = dies
    log = os.open(f"{given['folder']}/log-{comm.rank}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(where):
        words = {"in": where, "sum": float(x.sum()), "most": float(abs(x).max())}
        os.write(log, (json.dumps(words) + chr(10)).encode())

    x = np.full(given["count"], 100.0 * comm.rank)
    g = pc.GossipBuffer(comm, like=x, topology="complete", on_failure="continue",
                        queue_slots=2, max_uncollected=2)
    g.publish(x)
    note(None)
    comm.Barrier()
    victims = sorted(map(int, given["dies"]))
    if dies == "killed":
        threading.Timer(rng.random() * 0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    met = set()

    def call(name, peer, *arguments):
        note(name)
        try:
            getattr(g, name)(*arguments)
        except pc.RankFailedError as error:  # of this call only
            assert error.ranks == (peer,) and peer in victims, (error.ranks, peer)
            assert g.failed[peer]
            met.add(peer)
        note(None)

    def step():
        peer = (comm.rank + rng.randrange(1, comm.size)) % comm.size
        call("average", peer, x, peer)
        if rng.random() < 0.5:
            call("collect", None, x)
            call("publish", None, x)
        call("read", peer, peer)
        call("push", peer, peer, x)
        call("drain", None)

    steps, begin = 0, time.monotonic()
    while met != set(victims) and time.monotonic() < begin + 30:
        step()
        steps += 1
        if dies == "between" and steps == 20:
            os.kill(os.getpid(), signal.SIGKILL)
    assert met == set(victims), (met, steps)
    assert sorted(np.flatnonzero(g.failed)) == victims
    left = world.Shrink()
    left.Barrier()
    for _ in range(30):  # the survivors continue
        peer = rng.choice([r for r in range(comm.size) if r != comm.rank and r not in victims])
        averaged = g.average(x, peer)
        g.collect(x)
        g.publish(x)
        theirs, version = g.read(peer)
        g.push(peer, x)
        g.drain()
    left.Barrier()
    g.collect(x)
    g.drain()
    left.Barrier()
    peer = next(r for r in range(comm.size) if r != comm.rank and r not in victims)
    assert g.push(peer, x), "slots of its queue are lost"
    left.Barrier()
    assert all(source not in victims for source, _ in g.drain())
    total = float((x + g.pending()).sum())
    orphaned = left.allreduce(g.stats.orphaned)
    g.Free()
    # New objects know the dead ranks.
    with pc.GossipBuffer(comm, like=x, topology="complete", on_failure="continue") as again:
        assert sorted(np.flatnonzero(again.failed)) == victims
        again.publish(x)
        left.Barrier()
        again.average(x, peer)
        left.Barrier()
    say(json.dumps({"total": total, "orphaned": orphaned}))
    left.Barrier()
    os._exit(0)
"""


def last_words(folder, rank):
    return [json.loads(line) for line in (folder / f"log-{rank}").read_text().splitlines()]


def judged(run, tmp_path, dies, seed=1, count=COUNT):
    given = {"folder": str(tmp_path), "seed": seed, "count": count, "dies": dies}
    done = run(
        PROGRAM, ranks=RANKS, arguments=[json.dumps(given)], launcher_options=["--with-ft", "ulfm"]
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(said) == RANKS - len(dies), f"{done.stdout}\n{done.stderr}"
    expected = count * 100.0 * sum(range(RANKS))
    found = sum(words["total"] for words in said)
    allowed = 1e-9 * expected
    for rank in map(int, dies):
        words = last_words(tmp_path, rank)
        found += words[-1]["sum"]
        if words[-1]["in"] in ("average", "collect"):
            # At most its own delta, or the uncollected ones; each at most half of a distance.
            most = max(line["most"] for r in range(RANKS) for line in last_words(tmp_path, r))
            allowed += count * most * 2
    assert abs(found - expected) <= allowed, (found - expected, allowed)
    return said[0]["orphaned"]


@needs_ulfm
def test_outside_of_calls_nothing_is_lost(run, tmp_path):
    judged(run, tmp_path, {"4": "between", "0": "between"})


@needs_ulfm
@pytest.mark.parametrize("seed", (1, 2))
def test_killed_at_random_moments(run, tmp_path, seed):
    judged(run, tmp_path, {"1": "killed", "2": "killed", "4": "killed"}, seed)


MOMENTS = (
    "delta reserved",
    "chunk given",
    "delta given",
    "chunk collected",
    "all collected",
    "slot claimed",
    "message written",
    "version written",
)


@needs_ulfm
@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_dies_there(run, tmp_path, moment):
    judged(run, tmp_path, {"3": f"{moment}:5", "0": f"{moment}:9"})


STEPS = ("outage begun", "shrunk", "inventory taken", "chunk adopted", "rebuilt", "all inherited")


@needs_ulfm
@pytest.mark.in_turns
@pytest.mark.parametrize("step", STEPS)
def test_a_second_one_dies_while_the_others_recover(run, tmp_path, step):
    judged(run, tmp_path, {"3": "delta given:5", "0": f"{step}:1"}, count=1000)


TOLD = """
    import faulthandler, os
    faulthandler.dump_traceback_later(60, exit=True)
    moment, victim = sys.argv[1], comm.size // 2
    if comm.rank == victim:
        os.environ["PARTIALCOLL_DIE"] = f"{moment}:9"
    x = np.full(200_000, 1.0 * comm.rank, np.float32)
    g = pc.GossipBuffer(comm, like=x, topology="complete")
    g.publish(x)
    comm.Barrier()
    step = 0
    try:
        while True:
            peer = (comm.rank + 1 + step % (comm.size - 1)) % comm.size
            step += 1
            g.average(x, peer)
            g.push(peer, x)
            g.collect(x)
            g.publish(x)
            g.drain()
    except pc.RankFailedError as error:
        assert error.ranks == (victim,), error.ranks
    for again in (lambda: g.publish(x), lambda: g.collect(x), lambda: g.read(0), g.drain):
        try:
            again()
            raise AssertionError(again)
        except pc.RankFailedError:
            pass
    g.Free()
    g.Free()
    comm.Shrink().Barrier()
    say("end")
    os._exit(0)
"""


@needs_ulfm
@pytest.mark.in_turns
@pytest.mark.parametrize("moment", ("chunk given", "chunk collected", "slot claimed"))
def test_a_raising_rank_waits_for_no_lock_of_the_dead(run, moment):
    done = run(TOLD, ranks=4, arguments=[moment], launcher_options=["--with-ft", "ulfm"])
    assert done.stdout.splitlines().count("end") == 3, f"{done.stdout}\n{done.stderr}"


STOPPED = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(60, exit=True)
    world, pids = MPI.COMM_WORLD.Dup(), comm.allgather(os.getpid())
    x = np.full(1000, 1.0 * comm.rank)
    g = pc.GossipBuffer(comm, like=x, topology="complete", on_failure="continue")
    t = pc.GroupAllreduce_init(comm, x, np.zeros(1000), timeout=100, on_failure="continue")
    g.publish(x)
    comm.Barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if comm.rank == 3:
        while state(pids[1]) != "T":
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 0:  # no rank continues without the suspended one, which is not dead
        while os.path.exists(f"/proc/{pids[3]}/exe"):
            time.sleep(0.001)
        os.kill(pids[1], signal.SIGCONT)
    while not g.failed.any():
        g.collect(x)
    assert np.flatnonzero(g.failed).tolist() == [3]
    assert g.average(x, (comm.rank + 1) % 3) in (True, False)
    for _ in range(5):
        t.Start()
        assert not set(t.Wait().group) & {3}
    assert not t.suspects and t.live == (0, 1, 2)
    world.Shrink().Barrier()
    say("end")
    os._exit(0)
"""


@needs_ulfm
def test_a_suspended_rank_is_not_dead(run):
    done = run(STOPPED, ranks=4, launcher_options=["--with-ft", "ulfm"])
    assert done.stdout.splitlines().count("end") == 3, f"{done.stdout}\n{done.stderr}"


# The center of a star dies, then a rank that the bridge made a neighbor.
BRIDGED = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(60, exit=True)
    x = np.zeros(8)
    how = {"topology": "star", "on_failure": "continue", "on_disconnect": "bridge"}
    g = pc.GossipBuffer(comm, like=x, **how)
    g.publish(x)
    comm.Barrier()

    def await_death(rank):
        while not g.failed[rank]:
            g.publish(x)
            time.sleep(0.001)

    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(0)
    g.read(2 if comm.rank != 2 else 1)
    tell(f"read {comm.rank}")
    hear("read 1", "read 2", "read 3")
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await_death(2)
    for dead in (0, 2):
        try:
            g.read(dead)
        except pc.RankFailedError as error:
            assert error.ranks == (dead,)
        else:
            raise AssertionError(dead)
    g.read(4 - comm.rank)
    say("end")
    tell(f"end {comm.rank}")
    hear("end 1", "end 3")
    os._exit(0)
"""


@needs_ulfm
def test_a_neighbor_that_a_bridge_made_dies(run):
    done = run(BRIDGED, ranks=4, launcher_options=["--with-ft", "ulfm"])
    assert done.stdout.count("end") == 2, f"{done.stdout}\n{done.stderr}"


def test_it_is_refused_where_it_cannot_be(comm):
    with pytest.raises(ValueError, match="on_failure"):
        pc.GossipBuffer(comm, like=np.ones(3), on_failure="perhaps")
    with pytest.raises(ValueError, match=r"on_failure: \"continue\" needs (the agent|an MPI)"):
        pc.GossipBuffer(comm, like=np.ones(3), on_failure="continue", progress="manual")
