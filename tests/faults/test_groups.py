# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and the groups of the others continue (``on_failure="continue"``, docs/faults.md).
Each rank writes its inputs and results into a file that outlives it. The oracle compares them:
members of one group have the same result, which is the mean of their inputs; a round counts for all
or for none; and nothing is lost except the data of a dead rank.
"""

import json
import math

import numpy as np
import pytest
from ulfm import needs_ulfm

import partialcoll as pc

pytestmark = pytest.mark.one_domain

PROGRAM = """
    import faulthandler, json, os, random, signal, threading
    faulthandler.dump_traceback_later(50, exit=True)
    given = json.loads(sys.argv[1])
    rng = random.Random(f"{given['seed']}-{comm.rank}")
    world = MPI.COMM_WORLD.Dup()
    dies = given["dies"].get(str(comm.rank))
    if dies and ":" in dies:
        os.environ["PARTIALCOLL_DIE"] = dies
    log = os.open(f"{given['folder']}/log-{comm.rank}", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def note(**words):
        os.write(log, (json.dumps(words) + chr(10)).encode())

    x = np.full(given["count"], 7.0 ** comm.rank)
    # No rank is silent for this long, so a void round means that a rank has died.
    t = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, x, grid=given["grid"], keys=given["keys"],
                               timeout=200, on_failure="continue")
    victims = sorted(map(int, given["dies"]))
    comm.Barrier()
    if dies == "killed":
        threading.Timer(rng.random() * 0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def step():
        x[:] += 1 + comm.rank  # so that every round has something to do
        note(put=x[0])
        t.Start()
        rnd = t.Wait()
        assert (x == x[0]).all(), "torn"
        note(got=x[0], index=rnd.index, group=rnd.group, active=rnd.active, void=rnd.void)
        return rnd

    begin, steps = time.monotonic(), 0
    while sorted(np.flatnonzero(t.failed)) != victims and time.monotonic() < begin + 30:
        if dies == "between" and steps == 10:
            os.kill(os.getpid(), signal.SIGKILL)
        step()
        steps += 1
    assert sorted(np.flatnonzero(t.failed)) == victims, t.failed
    for _ in range(20):
        rnd = step()
        assert not rnd.void and not set(rnd.group) & set(victims), rnd
    assert not set(t.live) & set(victims) and not t.suspects
    t.leave()
    t.rejoin()
    step()
    t.leave()
    t.Free()
    note(end=x[0])
    left = world.Shrink()
    y = np.full(3, 1.0 * comm.rank)  # a new one knows the dead ranks
    with pc.GroupAllreduce_init(comm, MPI.IN_PLACE, y, grid=given["grid"], keys=given["keys"],
                                timeout=200, on_failure="continue") as again:
        assert sorted(np.flatnonzero(again.failed)) == victims
        for _ in range(4):
            again.Start()
            assert not again.Wait().void
    total = left.allreduce(y[0])
    assert abs(total - sum(set(range(comm.size)) - set(victims))) < 1e-9, total
    say("end")
    left.Barrier()
    os._exit(0)
"""


def calls(path):
    """Return the inputs and results of a rank, None for a missing result, and its end."""
    found, end = [], None
    for line in path.read_text().splitlines():
        words = json.loads(line)
        if "put" in words:
            found.append((words["put"], None))
        elif "got" in words:
            found[-1] = (found[-1][0], words)
        else:
            end = words["end"]
    return found, end


def judge(folder, ranks, dead):
    logs = {rank: calls(folder / f"log-{rank}") for rank in range(ranks)}
    told = {rank: [came for _, came in found if came] for rank, (found, _) in logs.items()}
    rounds = {}  # by index and group: input and result of each member
    for rank, (found, _) in logs.items():
        for put, came in found:
            if came is None:
                assert rank in dead, f"rank {rank} did not come back from a call"
            elif came["void"]:
                assert came["got"] == put, "a void round has changed something"
            else:
                key = came["index"], tuple(came["group"])
                rounds.setdefault(key, {})[rank] = put, came["got"]
    for key, members in rounds.items():
        assert len({got for _, got in members.values()}) == 1, f"round {key}: {members}"
        puts = [put for put, _ in members.values()]
        # Ranks that contributed and died before they received the result.
        lost = [r for r in key[1] if r in dead and r not in members]
        puts += [logs[r][0][-1][0] for r in lost if logs[r][0][-1][1] is None]
        said = [came for r in members for came in told[r] if came["index"] == key[0]]
        actives = {came["active"] for came in said}
        # A rank that left is not active.
        assert actives in ({len(puts)}, {len(members)}), (key, actives, puts)
        got = next(iter(members.values()))[1]
        mean = sum(puts[: max(actives)]) / max(actives)
        assert math.isclose(got, mean, rel_tol=1e-12), (key, puts, got)
    for rank in set(range(ranks)) - dead:
        assert logs[rank][1] is not None, f"rank {rank} did not come to its end"
    return len(rounds)


def judged(run, tmp_path, dies, *, ranks=6, grid=(2, 3), keys="static", seed=1, count=40_000):
    given = {"folder": str(tmp_path), "seed": seed, "count": count, "dies": dies}
    given.update(grid=grid, keys=keys)
    done = run(
        PROGRAM, ranks=ranks, arguments=[json.dumps(given)], launcher_options=["--with-ft", "ulfm"]
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines().count("end") == ranks - len(dies), said
    judge(tmp_path, ranks, set(map(int, dies)))


@needs_ulfm
@pytest.mark.parametrize("keys", ("static", "dynamic"))
def test_between_calls(run, tmp_path, keys):
    judged(run, tmp_path, {"5": "between", "0": "between"}, keys=keys)


@needs_ulfm
@pytest.mark.parametrize("seed, keys", ((1, "static"), (2, "dynamic")))
def test_killed_at_random_moments(run, tmp_path, seed, keys):
    judged(run, tmp_path, {"1": "killed", "2": "killed", "4": "killed"}, seed=seed, keys=keys)


MOMENTS = ("contributed", "part reduced", "about to vote", "voted", "decided", "group closed")


@needs_ulfm
@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_dies_there(run, tmp_path, moment):
    keys = "dynamic" if MOMENTS.index(moment) % 2 else "static"
    judged(run, tmp_path, {"3": f"{moment}:9", "0": f"{moment}:5"}, keys=keys)


STEPS = ("outage begun", "shrunk", "inventory taken", "rebuilt", "inherited", "all inherited")


@needs_ulfm
@pytest.mark.in_turns
@pytest.mark.parametrize("step", STEPS)
def test_a_second_one_dies_while_the_others_recover(run, tmp_path, step):
    judged(run, tmp_path, {"3": "contributed:9", "0": f"{step}:1"}, count=100)


@needs_ulfm
def test_all_but_one(run, tmp_path):
    judged(run, tmp_path, {"0": "killed", "1": "killed", "2": "killed"}, ranks=4, grid=(2, 2))


def test_it_is_refused_where_it_cannot_be(comm):
    x = np.ones(3)
    with pytest.raises(ValueError, match="on_failure"):
        pc.GroupAllreduce_init(comm, x, x.copy(), on_failure="perhaps")
    with pytest.raises(ValueError, match=r"on_failure: \"continue\" needs (the agent|an MPI)"):
        pc.GroupAllreduce_init(comm, x, x.copy(), on_failure="continue", progress="manual")
