# SPDX-License-Identifier: Apache-2.0
"""Recorded arrivals are replayed: the run is the same, bit for bit, whatever the timing."""

import os

import pytest

RANKS = 3

# Deposits depend only on the step, delays on the seed. Prints each rank's view of each handle.
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
    """Two replays with other delays equal the recorded run. Runs without a record do not."""
    folder = str(tmp_path / "arrivals")
    first = sorted_lines(run(SCRIPT, RANKS, env={"SEED": "1", "PARTIALCOLL_RECORD": folder}))
    assert len(first) == RANKS * 30
    for seed in ("2", "3"):
        again = run(SCRIPT, RANKS, env={"SEED": seed, "PARTIALCOLL_REPLAY": folder})
        assert sorted_lines(again) == first
    assert sorted_lines(run(SCRIPT, RANKS, env={"SEED": "2"})) != first


def test_a_replay_that_is_recorded(run, tmp_path):
    """The record of a replay equals the replayed record."""
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
        ("partialcoll arrivals 1, rank 0 of 1\nend\nround 5\n", ", line 3: expected"),
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


# Each rank's record reaches a limit after some rounds, as on a full disk: a write fails once the
# file is that large. Prints the sum of each round, which tells its ranks.
LIMITED = """
import resource

send, recv = np.zeros(1), np.zeros(1)
h = pc.Allreduce_init(comm, send, recv, quorum="solo")
if "PARTIALCOLL_RECORD" in os.environ:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400 - 90 * comm.rank,) * 2)
for i in range(60):
    time.sleep(np.random.random() * 1e-3)
    send[:] = 100**comm.rank
    h.Start()
    h.Wait()
    if comm.rank == 0:
        say(i, *recv)
h.join()
h.Free()
if comm.rank == 0:
    say("has ended")
"""


def test_a_full_disk(run, tmp_path):
    """A full disk does not disturb the run, whose status is 1. A replay has the recorded rounds and
    ends with a message on all ranks."""
    folder = tmp_path / "arrivals"
    done = run(LIMITED, 2, env={"PARTIALCOLL_RECORD": str(folder)})
    *rounds, last = done.stdout.splitlines() or [done.stderr]
    assert (len(rounds), last) == (60, "has ended") and done.returncode == 1
    for rank in range(2):
        said = f"handle-0-rank-{rank}.txt: File too large. The record is incomplete; the run goes "
        assert done.stderr.count(said) == 1
        assert "end" not in (folder / f"handle-0-rank-{rank}.txt").read_text()
    again = run(LIMITED, 2, env={"PARTIALCOLL_REPLAY": str(folder)})
    replayed = again.stdout.splitlines()
    assert again.returncode != 0 and 5 < len(replayed) < 60
    assert replayed == rounds[: len(replayed)]
    said = f"the record is incomplete and ends before round {len(replayed)}"
    assert said in again.stderr


@pytest.mark.parametrize("deliver", ["one", "all"])
def test_a_run_that_was_killed(run, tmp_path, deliver):
    """An incomplete last line is not read. All ranks stop where the shortest record ends."""
    script = f"""
    h = pc.Allreduce_init(comm, np.ones(1), quorum="majority", deliver="{deliver}")
    rounds = 0
    try:
        while rounds < 20:
            h.Start()
            rounds = h.Wait().index + 1
    except pc.StateError as error:
        say(comm.rank, error)
    h.Free()
    """
    assert run(script, 2, env={"PARTIALCOLL_RECORD": str(tmp_path)}).returncode == 0
    path = tmp_path / "handle-0-rank-1.txt"
    text = path.read_text()
    path.write_text(text[: text.index("round", len(text) // 2) + 3])
    left = path.read_text().count("round ")
    done = run(script, 2, env={"PARTIALCOLL_REPLAY": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    said = f"the record is incomplete and ends before round {left}: "
    assert sorted(line[:1] for line in done.stdout.splitlines() if said in line) == ["0", "1"]


def test_an_earlier_record_is_replaced(run, tmp_path):
    path = tmp_path / "handle-0-rank-0.txt"
    path.write_text("an earlier one")
    assert run(MAKE, env={"PARTIALCOLL_RECORD": str(tmp_path)}).returncode == 0
    assert path.read_text() == "partialcoll arrivals 1, rank 0 of 1\nend\n"


def test_links_are_not_followed(run, tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "arrivals").mkdir()
    (tmp_path / "arrivals/handle-0-rank-0.txt").symlink_to(tmp_path / "precious")
    done = run(MAKE, env={"PARTIALCOLL_RECORD": str(tmp_path / "arrivals")})
    assert done.returncode == 1 and "exists and is not a file of this user" in done.stderr
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_is_made_for_this_user_alone(run, tmp_path):
    folder = tmp_path / "arrivals"
    assert run(MAKE, env={"PARTIALCOLL_RECORD": str(folder)}).returncode == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "handle-0-rank-0.txt").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_of_another_user(run, tmp_path):
    (tmp_path / "arrivals").mkdir()
    os.chown(tmp_path / "arrivals", 65534, 65534)
    done = run(MAKE, env={"PARTIALCOLL_RECORD": str(tmp_path / "arrivals")})
    assert done.returncode == 1 and "arrivals: it belongs to another user" in done.stderr
    assert not list((tmp_path / "arrivals").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_a_link_of_another_user_to_a_folder(run, tmp_path):
    """The link could lead into any folder of this user. The user's own links are followed."""
    (tmp_path / "arrivals").mkdir()
    link, env = tmp_path / "link", {"PARTIALCOLL_RECORD": str(tmp_path / "link")}
    link.symlink_to("arrivals")
    assert run(MAKE, env=env).returncode == 0
    names = {path.name for path in (tmp_path / "arrivals").iterdir()}
    os.chown(link, 65534, 65534, follow_symlinks=False)
    (tmp_path / "arrivals/handle-0-rank-0.txt").write_text("precious")
    done = run(MAKE, env=env)
    assert done.returncode == 1 and "link: it is a link of another user" in done.stderr
    assert names == {"handle-0-rank-0.txt"}
    assert (tmp_path / "arrivals/handle-0-rank-0.txt").read_text() == "precious"
