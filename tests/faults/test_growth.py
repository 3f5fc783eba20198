# SPDX-License-Identifier: Apache-2.0
"""Others take the numbers of ranks that have died (`AllreduceHandle.grow`, ``join=True``,
`partialcoll.elastic`)."""

import pytest
from mpi4py import MPI

from partialcoll.tools import launcher

goes_on = launcher.flavor() == "openmpi" and MPI.Get_library_version().split()[2] >= "v5"
pytestmark = pytest.mark.skipif(not goes_on, reason="this MPI ends the job when a rank dies")

PREPARE = """
    import faulthandler, signal
    from partialcoll import elastic
    faulthandler.dump_traceback_later(60, exit=True)
    joined = elastic.joined()
    world = MPI.COMM_WORLD if joined is None else joined
    new = joined is not None

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    def step(handle):
        handle.Start()
        return handle.Wait()

    def until(ready):
        while not ready():
            time.sleep(0.005)

    def refused(kind, call, *words):
        try:
            call()
        except kind as error:
            assert all(word in str(error) for word in words), error
            return error
        raise AssertionError(f"{kind} was not raised")

    def make(comm, *arguments, join=False, **options):
        options = {"quorum": "full", "domain": domain, **options}
        return pc.Allreduce_init(comm, *arguments, on_failure="continue", join=join, **options)
"""


def in_turn(run, program, ranks, domain="node"):
    done = run(
        f"    domain = {domain!r}\n{PREPARE}{program}",
        ranks=ranks,
        launcher_options=["--with-ft", "ulfm"],
    )
    return done, done.stdout.splitlines()


# Each of them dies once, whoever has its number, and is replaced; without a pause.
REPLACED = """
    order = []
    x, y = np.zeros(7), np.zeros(7)
    h = make(world, x, y, join=new, on_membership=lambda h, *who: order.append(who))
    total = h.size * (h.size + 1) / 2
    if new:
        assert h.last_round.index % 10 == 9 and (y == total).all(), (h.last_round, y)
        say("joined", h.rank, h.last_round.index)
    first = h.last_round.index + 1 if new else 0
    for call in range(first, 10 * (h.size + 1)):
        if call % 10 == 0 and call and call != first:
            victim = call // 10 - 1
            h.comm.Barrier()
            if victim == h.rank:
                die()
            until(lambda: h.failed[victim])
            h.grow(elastic.respawn(h.comm, [sys.executable, *sys.argv], to=h.size))
            assert not h.failed.any() and order == [([victim], [victim])], order
            order.clear()
        x[:] = h.rank + 1
        rnd = step(h)
        assert rnd.index == call and rnd.active == h.size and not rnd.failed.any(), rnd
        assert (y == total).all(), y
    assert h.comm.allreduce(1) == h.size
    h.Free()
    say("end", h.rank)
    os._exit(0)
"""


@pytest.mark.parametrize("domain", ["node", "rank", "node:2"])
def test_each_is_replaced(run, domain):
    done, said = in_turn(run, REPLACED, 3, domain)
    for rank in range(3):
        assert said.count(f"joined {rank} {10 * rank + 9}") == 1, f"{done.stdout}\n{done.stderr}"
        assert said.count(f"end {rank}") == 1, f"{done.stdout}\n{done.stderr}"
