# SPDX-License-Identifier: Apache-2.0
"""Arrivals recorded and replayed: the same run, bit for bit, whatever the timing."""

import pytest

RANKS = 3

# Deposits depend on the step alone, delays on the seed. Prints what each rank saw of each handle.
SCRIPT = """
import hashlib, itertools

seed = int(os.environ["SEED"])
POLICIES = ("solo", "majority", "quorum:0.5", "last_of:1,linger=200us,max_staleness=2", "full")

def loop(case, comm, quorum, deliver, late):
    delays = np.random.default_rng([seed, case, comm.rank])
    values = np.random.default_rng(comm.rank)
    send, recv, seen = np.zeros(33), np.zeros(33), []

    def delay():
        if delays.random() < 0.5:
            time.sleep(delays.random() * 2e-3)

    def note(rnd):
        for r in rnd.results:
            seen.append((r.index, r.active, r.stored, r.mask.tobytes(), r.stored_mask.tobytes()))
            seen.append(r.buffers[0].tobytes())
        seen.append((rnd.included, rnd.lost, recv.tobytes()))

    h = pc.Allreduce_init(
        comm, send, recv, quorum=quorum, deliver=deliver, late=late, history=3, seed=1
    )
    for _ in range(15 if deliver == "one" else 10 + 3 * comm.rank):
        send[:] = values.standard_normal(33)
        delay()
        h.Start()
        delay()
        note(h.Wait())
    h.join(on_round=note)
    for _ in range(3):
        h.Start()
        note(h.Wait())
    if comm.rank == 0:
        h.leave()
    else:
        h.join(on_round=note)
    h.Free()
    return hashlib.sha256(repr(seen).encode()).hexdigest()

half = comm.Split(comm.rank % 2)  # two communicators have a rank 0 each
cases = itertools.product(POLICIES, ("one", "all"), ("carry", "latest", "drop"))
for i, (quorum, deliver, late) in enumerate(cases):
    on = half if i % 5 == 4 else comm
    say(comm.rank, quorum, deliver, late, loop(i, on, quorum, deliver, late))
"""


def sorted_lines(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(done.stdout.splitlines())


def test_replay(run, tmp_path):
    """Two replays with other delays see what the recorded run saw; without one, they do not."""
    folder = str(tmp_path / "arrivals")
    first = sorted_lines(run(SCRIPT, RANKS, env={"SEED": "1", "PARTIALCOLL_RECORD": folder}))
    assert len(first) == RANKS * 30
    for seed in ("2", "3"):
        again = run(SCRIPT, RANKS, env={"SEED": seed, "PARTIALCOLL_REPLAY": folder})
        assert sorted_lines(again) == first
    assert sorted_lines(run(SCRIPT, RANKS, env={"SEED": "2"})) != first


def test_a_replay_that_is_recorded(run, tmp_path):
    """The record of a replay is the record."""
    script = """
    h = pc.Allreduce_init(comm, np.ones(1), quorum="solo")
    for _ in range(20):
        time.sleep(np.random.random() * 1e-3)
        h.Start()
        h.Wait()
    h.Free()
    """
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(script, 2, env={"PARTIALCOLL_RECORD": str(one)}).returncode == 0
    both = {"PARTIALCOLL_RECORD": str(two), "PARTIALCOLL_REPLAY": str(one)}
    assert run(script, 2, env=both).returncode == 0
    names = sorted(path.name for path in one.iterdir())
    assert names == ["handle-0-rank-0.txt", "handle-0-rank-1.txt"]
    for name in names:
        recorded = (one / name).read_text().splitlines()
        replayed = (two / name).read_text().splitlines()
        for kind in ("round", "call"):
            assert [s for s in recorded if kind in s] == [s for s in replayed if kind in s]


MAKE = 'pc.Allreduce_init(comm, np.ones(1), quorum="solo").Free()'


@pytest.mark.parametrize(
    ("text", "complaint"),
    (
        (None, ": No such file"),
        ("", ", line 1: expected"),
        ("partialcoll arrivals 1, rank 0 of 2\n", ", line 1: expected"),
        ("partialcoll arrivals 1, rank 0 of 1\nround 1\nrond 2\n", ", line 3: expected"),
        ("partialcoll arrivals 1, rank 0 of 1\nround x\n", ", line 2: expected"),
        ("partialcoll arrivals 1, rank 0 of 1\nround 5\nround 4\n", ", line 3: expected"),
        ("partialcoll arrivals 1, rank 0 of 1\nround 5 6\n", ", line 2: expected"),
        ("partialcoll arrivals 1, rank 0 of 1\n" + "round 1" * 100, ", line 2: expected"),
    ),
)
def test_corrupt_record(run, tmp_path, text, complaint):
    if text is not None:
        (tmp_path / "handle-0-rank-0.txt").write_text(text)
    done = run(MAKE, env={"PARTIALCOLL_REPLAY": str(tmp_path)})
    assert done.returncode == 1
    assert f"handle-0-rank-0.txt{complaint}" in done.stderr


def test_record_that_cannot_be_written(run, tmp_path):
    done = run(MAKE, env={"PARTIALCOLL_RECORD": str(tmp_path / "no" / "such")})
    assert done.returncode == 1 and "PARTIALCOLL_RECORD: " in done.stderr
