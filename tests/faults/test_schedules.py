# SPDX-License-Identifier: Apache-2.0
"""User schedules when a rank dies: every participating rank is notified, nothing can be started
again, and all of it can be freed."""

import numpy as np
import pytest
from ulfm import needs_ulfm

import partialcoll as pc

# Each scenario gets a communicator and the victim. All other ranks return when the death is known.
PROGRAM = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(60, exit=True)
    pids = comm.allgather(os.getpid())

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def told(victim, call):
        try:
            call()
        except pc.RankFailedError as error:
            assert error.ranks == (victim,), error.ranks
            return True
        return False

    def until_told(victim, call):
        begin = time.monotonic()
        while not told(victim, call):
            assert time.monotonic() < begin + 30, "no rank was notified"

    def ring(comm):
        # The victim's neighbors notice by its messages, and the others do not.
        s, x = pc.Schedule(comm), np.full(99, float(comm.rank))
        y = np.zeros(99)
        s.send(x, (comm.rank + 1) % comm.size)
        s.recv(y, (comm.rank - 1) % comm.size)
        return s

    def run(s):
        s.Start()
        s.Wait()

    def over(s, victim):
        for again in (s.Start, s.Wait, s.Test):
            assert told(victim, again), again
        assert s.runs >= 0 and str(s)
        s.Free()
        s.Free()

    def before_the_commit(comm, victim):
        s = ring(comm)
        comm.Barrier()
        if comm.rank == victim:
            die()
        until_told(victim, s.commit)
        s.Free()

    def the_moment_after(comm, victim):
        s = ring(comm).commit()
        if comm.rank == victim:
            die()
        until_told(victim, lambda: run(s))
        over(s, victim)

    def after_its_start(comm, victim):
        s = ring(comm).commit()
        for _ in range(5):
            run(s)
        comm.Barrier()
        if comm.rank == victim:
            s.Start()
            die()
        until_told(victim, lambda: run(s))
        over(s, victim)

    def in_a_wait(comm, victim):
        # It waits for a late rank, which kills it there.
        s = ring(comm).commit()
        comm.Barrier()
        late = (victim - 1) % comm.size
        if comm.rank == victim:
            comm.send("here", late)
            run(s)
            s.Wait()
        if comm.rank == late:
            comm.recv(source=victim)
            os.kill(pids[world_rank(comm, victim)], signal.SIGKILL)
        until_told(victim, lambda: run(s))
        over(s, victim)

    def when_it_was_stopped(comm, victim):
        s = ring(comm).commit()
        run(s)
        comm.Barrier()
        if comm.rank == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        of_victim = pids[world_rank(comm, victim)]
        s.Start()
        if comm.rank == (victim + 1) % comm.size:
            while state(of_victim) != "T":
                time.sleep(0.001)
            assert not s.Test()  # it is late, not dead
            os.kill(of_victim, signal.SIGKILL)
        if not told(victim, s.Wait):  # a rank that is no neighbor may complete its run
            until_told(victim, lambda: run(s))
        over(s, victim)

    def who_has_no_message_of_it(comm, victim):
        s, x = pc.Schedule(comm), np.zeros(9)
        wait = s.timer(30)
        if comm.rank == victim:
            s.send(x, 0)
        elif comm.rank == 0:
            s.recv(x, victim)
        s.commit()
        comm.Barrier()
        if comm.rank == victim:
            die()
        s.Start()
        until_told(victim, s.Wait)
        over(s, victim)

    def while_it_is_freed(comm, victim):
        s = ring(comm).commit()
        run(s)
        comm.Barrier()
        if comm.rank == victim:
            die()
        s.Free()

    def in_a_with_statement(comm, victim):
        with ring(comm) as s:
            s.commit()
            comm.Barrier()
            if comm.rank == victim:
                die()
            until_told(victim, lambda: run(s))

    def world_rank(of, rank):
        a, b = of.Get_group(), MPI.COMM_WORLD.Get_group()
        return a.Translate_ranks([rank], b)[0]

    comm = MPI.COMM_WORLD.Dup()
    for scenario in ({names}):
        victim = comm.size // 2
        scenario(comm, victim)
        comm = comm.Shrink()
        with ring(comm) as s:  # the survivors write another one
            s.commit()
            run(s)
    comm.Barrier()
    say("end")
    os._exit(0)  # Open MPI's MPI_Finalize sometimes hangs after a death
"""


@needs_ulfm
@pytest.mark.parametrize(
    "names",
    (
        "before_the_commit, the_moment_after, after_its_start, while_it_is_freed",
        "in_a_wait, when_it_was_stopped, who_has_no_message_of_it, in_a_with_statement",
    ),
    ids=("running", "waiting"),
)
def test_all_ranks_are_notified(run, names):
    done = run(PROGRAM.format(names=names), ranks=6, launcher_options=["--with-ft", "ulfm"])
    assert done.stdout.splitlines().count("end") == 2, f"{done.stdout}\n{done.stderr}"


def test_schedules_do_not_continue(comm):
    with pytest.raises(ValueError, match="write a new schedule for those who are left"):
        pc.Schedule(comm, on_failure="continue")
    with pytest.raises(ValueError, match="on_failure"):
        pc.Schedule(comm, on_failure="go on")
    with pc.Schedule(comm, on_failure="raise") as s:
        s.copy(np.zeros(1), np.ones(1))
        s.commit()
