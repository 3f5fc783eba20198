# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and the allreduces of the others continue (``on_failure="continue"``)."""

import pytest
import stopped
from dying import DyingJob
from ulfm import needs_ulfm

from partialcoll.tools.bench.faults import killing

pytestmark = needs_ulfm
# These tests set the domain themselves, so one run of the suite is enough.
names_domain = pytest.mark.one_domain


def judged(job):
    verdict = job.run()
    said = (job.folder / "output").read_text(errors="replace")[-3000:]
    faults = [fault for fault in verdict.faults if "was silent" not in fault]  # for how long
    assert not faults, (faults, job.given, said)
    assert "invariant broken" not in said, said
    job.forget()
    return verdict


@names_domain
@pytest.mark.parametrize(
    "quorum, domain", [("solo", "node"), ("majority", "rank"), ("full", "node:2")]
)
def test_all_but_one_are_killed_at_random_moments(quorum, domain):
    job = killing.KilledJob(4, quorum, domain, "7", 3)
    judged(job)
    assert len(job.killed) - job.ended_by_mpi == 3


# Kill points, with domains and policies under which a rank reaches them.
MOMENTS = {
    "deposit written": ("node", "solo"),
    "deposit published": ("node", "full"),
    "result read": ("node", "solo"),
    "closing a round": ("node", "solo"),
    "member frozen": ("node", "majority"),
    "members frozen": ("node", "full"),
    "chunk taken": ("node", "quorum:2"),
    "sum ready": ("node:2", "solo"),
    "publishing": ("node", "solo"),
    "published": ("node", "solo"),
    "frozen": ("rank", "solo"),
    "activating": ("rank", "solo"),
    "sending": ("rank", "full"),
    "reducing": ("node:2", "majority"),
    "reporting": ("rank", "quorum:3"),
    "round over": ("rank", "last_of:2"),
    "round published": ("node:2", "full"),
    "closing begun": ("rank", "solo"),
    "closing entered": ("node", "solo"),
    "closing counted": ("rank", "quorum:2"),
    "drained": ("rank", "solo"),
    "confirmed": ("node", "solo"),
}
# Kill points of a second rank, in the recovery from the first death.
STEPS = (
    "outage begun",
    "revoked",
    "last word",
    "shrunk",
    "inventory taken",
    "rebuilt",
    "all rebuilt",
    "inherited",
    "all inherited",
    "gone on",
)


def dies_at(die, quorum, domain, ranks=4, after=False):
    job = DyingJob(ranks, quorum, domain, die, after)
    judged(job)
    return job


@names_domain
@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_dies_there(moment):
    domain, quorum = MOMENTS[moment]
    closing = moment in ("confirmed", "drained") or moment.startswith("closing ")
    after = closing and moment != "closing a round"
    count = 1 if after else 5
    job = dies_at({0: f"{moment}:{count}", 2: f"{moment}:{3 * count}"}, quorum, domain, after=after)
    assert job.killed, "no rank reached the kill point"


@names_domain
@pytest.mark.in_turns
@pytest.mark.parametrize("step", STEPS)
def test_a_second_rank_dies_while_the_others_recover(step):
    domain = ("rank", "node", "node:2")[STEPS.index(step) % 3]
    job = dies_at({1: "deposit published:20", 0: f"{step}:1"}, "solo", domain)
    assert len(job.killed) - job.ended_by_mpi == 2


@names_domain
def test_a_third_one_dies_in_the_second_recovery():
    die = {3: "deposit published:20", 0: "rebuilt:1", 1: "inherited:2"}
    dies_at(die, "majority", "rank", ranks=5)


PROGRAM = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(60, exit=True)
    comm = MPI.COMM_WORLD
    left = comm.size - 1
    make = lambda comm, *a, **k: pc.Allreduce_init(comm, *a, on_failure="continue", **k)

    def step(handle):
        handle.Start()
        return handle.Wait()

    def dies():
        comm.Barrier()
        if comm.rank == left:
            os.kill(os.getpid(), signal.SIGKILL)

    def what_is_filled_in_place_is_deposited():
        h = make(comm, None, None, like=np.zeros(5), quorum="full")
        for _ in range(3):
            h.send_buffer[:] = 1
            step(h)
        kept = h.result
        view = h.send_buffer
        view[:] = comm.rank + 1
        dies()
        if comm.rank:
            time.sleep(0.3)  # rank 0 knows of the death by now, and the others have continued
        rnd = step(h)
        assert h.result.tolist() == [left * (left + 1) / 2] * 5, h.result
        assert kept.tolist() == [comm.size] * 5
        assert rnd.failed.tolist() == [False] * left + [True]
        assert h.comm.size == left and h.comm.allreduce(1) == left
        h.Free()

    def all_that_came():
        told = []
        def on_membership(handle, failed, joined):
            told.append((failed, joined))
        send, recv = np.ones(3), np.zeros(3)
        h = make(comm, send, recv, quorum="solo", deliver="all", late="latest", missed="latest",
                 on_membership=on_membership)
        for rnd in h.until(5):
            pass
        dies()
        for rnd in h.until(60):
            assert not (rnd.failed & rnd.mask).any()
            assert rnd.failed.sum() <= 1
        h.join()
        assert told == [([left], [])], told
        assert h.failed.tolist() == [False] * left + [True]
        h.Free()

    def one_is_freed_meanwhile():
        one = make(comm, np.ones(3), np.zeros(3), quorum="full")
        recv = np.zeros(3)
        two = make(comm, np.ones(3), recv, quorum="majority", domain="rank")
        step(one)
        step(two)
        dies()
        one.Free()
        rounds = [step(two).index for _ in range(20)]
        assert rounds == list(range(1, 21))
        three = make(comm, np.ones(3), recv, quorum="full")  # on a communicator with a dead rank
        assert step(three).failed.sum() == 1 and recv[0] == left
        three.Free()
        two.Free()

    def ops_of_users():
        op = MPI.Op.Create(lambda a, b, t: np.frombuffer(b, np.float64).__iadd__(
            np.frombuffer(a, np.float64)) is None, commute=True)
        h = make(comm, np.full(2, comm.rank + 1.0), recv := np.zeros(2), op, quorum="full")
        step(h)
        dies()
        step(h)
        assert recv.tolist() == [left * (left + 1) / 2] * 2, recv
        h.Free()

    # Their recoveries begin at once, each in its own thread on each rank.
    def several_communicators():
        recv = np.zeros(3)
        handles = [make(comm.Dup(), np.ones(3), recv, quorum="full") for _ in range(5)]
        for h in handles:
            step(h)
        dies()
        for h in handles:
            rnd = step(h)
            assert recv.tolist() == [left] * 3 and rnd.failed.sum() == 1, (recv, rnd)
        for h in handles:
            h.Free()

    {scenario}()
    say("survived")
    os._exit(0)
"""


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "scenario",
    [
        "what_is_filled_in_place_is_deposited",
        "all_that_came",
        "one_is_freed_meanwhile",
        "ops_of_users",
        "several_communicators",
    ],
)
def test_events_seen_by_a_program(run, scenario):
    program = PROGRAM.replace("{scenario}", scenario)
    done = run(program, ranks=5, launcher_options=["--with-ft", "ulfm"])
    assert done.stdout.splitlines().count("survived") == 4, f"{done.stdout}\n{done.stderr}"


# The last rank dies, and another one is suspended for two seconds while they recover.
STOPS = """
    import faulthandler, signal
    faulthandler.dump_traceback_later(60, exit=True)
    domain, moment = sys.argv[1:]
    left = comm.size - 1
    if comm.rank == 1:
        os.environ["PARTIALCOLL_DIE"] = moment + ":1:stop"
        go_on_later()
    x, y = np.ones(7), np.zeros(7)
    h = pc.Allreduce_init(comm, x, y, quorum="full", domain=domain, on_failure="continue")
    for call in range(20):
        if call == 10 and comm.rank == left:
            os.kill(os.getpid(), signal.SIGKILL)
        h.Start()
        rnd = h.Wait()
        assert rnd.failed.tolist() == [False] * left + [call >= 10], (call, rnd)
        assert (y == comm.size - (call >= 10)).all(), (call, y)
    say("end", comm.rank, os.path.exists("stood still"))
    h.Free()
    os._exit(0)
"""


@names_domain
@pytest.mark.in_turns
@pytest.mark.parametrize("step", STEPS)
def test_a_rank_suspended_meanwhile_is_not_dead(run, step):
    domain = ("rank", "node", "node:2")[STEPS.index(step) % 3]
    program = stopped.GO_ON_LATER + STOPS
    options = ["--with-ft", "ulfm"]
    done = run(program, ranks=4, arguments=(domain, step), launcher_options=options)
    ends = sorted(line for line in done.stdout.splitlines() if line.startswith("end"))
    assert ends == [f"end {rank} True" for rank in range(3)], f"{done.stdout}\n{done.stderr}"


# Rank 3 is suspended during an agreement, in which the others no longer need it. Meanwhile rank 1
# dies. A rank with a handle that others lack can free it, and all can create another one.
LACKS = """
    import faulthandler, signal, threading
    faulthandler.dump_traceback_later(60, exit=True)
    comm = MPI.COMM_WORLD
    agreement, last, others = map(int, sys.argv[1:])
    victim = comm.bcast(os.getpid(), root=1)

    def die():  # rank 3 is suspended while the handle is created, or all have created it
        if agreement <= last:
            hear("stood still")
        if agreement >= last:
            hear(*(f"made {rank}" for rank in range(3 + (agreement > last))))
        os.kill(os.getpid(), signal.SIGKILL)

    if comm.rank == 3:
        os.environ["PARTIALCOLL_DIE"] = f"agreeing:{agreement}:stop"
        go_on_later()
    if comm.rank == 1:
        threading.Thread(target=die).start()
    x, y = np.ones(7), np.zeros(7)

    def make():
        how = {"quorum": "full", "domain": "node", "on_failure": "continue"}
        return pc.Allreduce_init(comm, x, y, **how)

    def step(handle):
        handle.Start()
        handle.Wait()
        assert (y == 3).all(), y

    others = [make() for _ in range(others)]
    try:
        h = make()
        tell(f"made {comm.rank}")
    except pc.RankFailedError:
        h = None
    while os.path.exists(f"/proc/{victim}"):
        time.sleep(0.01)
    if agreement <= last:
        hear("went on")
    worked = False
    if h is not None:
        try:
            step(h)
            worked = True
        except pc.RankFailedError:
            pass
        h.Free()
    for g in others:
        step(g)
        g.Free()
    g = make()
    step(g)
    g.Free()
    say("end", comm.rank, h is not None, worked, os.path.exists("stood still"))
    os._exit(0)
"""


EACH = 2  # agreements for a handle


@names_domain
@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("others", "agreement"), [*((0, n) for n in range(2, EACH + 2)), (8, 9 * EACH)]
)
def test_some_have_it_and_others_have_not(run, others, agreement):
    last = (others + 1) * EACH
    done = run(
        stopped.GO_ON_LATER + LACKS,
        ranks=4,
        arguments=(str(agreement), str(last), str(others)),
        launcher_options=["--with-ft", "ulfm"],
    )
    ends = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("end"))
    assert [int(end[1]) for end in ends] == [0, 2, 3], f"{done.stdout}\n{done.stderr}"
    has, worked, stood_still = zip(*([word == "True" for word in end[2:]] for end in ends))
    assert all(stood_still) and worked == (all(has),) * 3
    assert has[:2] == (agreement >= last,) * 2
    # In the last agreement, rank 3 learns of the death or of the outcome first.
    assert has[2] == (agreement > last) or agreement == last


# Rank 2 dies in the recovery from rank 3's death, while the others wait for it there.
IDLE = """
    import faulthandler, pathlib, signal
    faulthandler.dump_traceback_later(60, exit=True)
    comm = MPI.COMM_WORLD
    if comm.rank == 2:
        os.environ["PARTIALCOLL_DIE"] = "inventory taken:1"
    x, y = np.ones(7), np.zeros(7)
    h = pc.Allreduce_init(comm, x, y, quorum="full", domain=sys.argv[1], on_failure="continue")
    for call in range(20):
        if call == 10 and comm.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        h.Start()
        rnd = h.Wait()
    assert rnd.failed.tolist() == [False, False, True, True]

    def switches():
        files = pathlib.Path("/proc/self/task").glob("*/status")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))

    time.sleep(0.5)
    before = switches()
    time.sleep(1)
    say("end", comm.rank, switches() - before)
    os._exit(0)
"""


@names_domain
@pytest.mark.parametrize("domain", ("node", "rank"))
def test_no_rank_is_busy_afterwards(run, domain):
    done = run(IDLE, ranks=4, arguments=(domain,), launcher_options=["--with-ft", "ulfm"])
    ends = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("end"))
    assert [end[1] for end in ends] == ["0", "1"], f"{done.stdout}\n{done.stderr}"
    assert all(int(end[2]) < 300 for end in ends), ends  # polling each ms would give 1000


FREED_COMMUNICATORS = """
pairs = [
    (c, pc.Allreduce_init(c, np.ones(3), quorum="full", on_failure="continue"))
    for c in (comm.Dup(), comm.Dup(), comm.Dup())
]
if sys.argv[2] == "communicators":
    for c, _ in pairs:
        c.Free()
freed = int(sys.argv[1])
if sys.argv[2] == "handles" or comm.rank == 0:
    pairs[freed][1].Free()
if sys.argv[2] == "handles" and comm.rank == 0:
    pairs[freed][0].Free()
    pairs[2 - freed][1].Free()
if comm.rank == 0:
    say("freed")
"""


@pytest.mark.parametrize("freed", ("0", "2"))
@pytest.mark.parametrize("first", ("communicators", "handles"))
def test_no_wait_for_objects_left_to_finalize(run, freed, first):
    """One rank frees a handle or a communicator. The other leaves all the rest to MPI_Finalize."""
    options = ["--with-ft", "ulfm"]
    done = run(FREED_COMMUNICATORS, 2, arguments=(freed, first), launcher_options=options)
    assert (done.returncode, done.stdout.strip()) == (0, "freed"), done.stdout + done.stderr
