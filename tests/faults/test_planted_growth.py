# SPDX-License-Identifier: Apache-2.0
"""Check that real ranks detect mistakes of handle growth: the core is built with one of them
(tests/mistakes/growth.py), and a job that should succeed may fail."""

import os

import planted
import pytest
from mistakes.growth import GROWTH
from test_growth import in_turn
from ulfm import needs_ulfm

pytestmark = [
    needs_ulfm,
    pytest.mark.one_domain,
    pytest.mark.skipif("PARTIALCOLL_TEST_PARTS" in os.environ, reason="in test-all: takes long"),
]

# Ranks 2 and 0 die one after the other, and are replaced. The first joining rank begins with a call
# that does not match. A second handle exists only on the original ranks.
JOB = """
    faulthandler.dump_traceback_later(20, exit=True)
    y = np.zeros(7)
    first = 0
    if new:
        if sys.argv[1:]:
            differs = lambda: make(world, None, np.zeros(8), join=True)
            refused(pc.MismatchError, differs, "count")
        h = make(world, None, y, join=True)
        first = h.last_round.index + 1
        assert first in (5, 10) and (y == 6).all(), (first, y)
    else:
        h = make(world, None, y)
        behind = make(world, np.ones(3), np.zeros(3))
    staying = {0, 1, 2}
    for call in range(first, 15):
        if call in (5, 10) and call != first:
            victim = 2 if call == 5 else 0
            h.comm.Barrier()
            if h.rank == victim:
                die()
            until(lambda: h.failed[victim])
            h.send_buffer[:] = h.rank + 1
            words = ["differs"] if call == 5 else []
            comm = elastic.respawn(h.comm, [sys.executable, sys.argv[0], *words], to=3)
            if words:
                refused(pc.MismatchError, lambda: h.grow(comm), "count")
            staying -= {victim}
            if not new:
                assert step(behind).active == len(staying)
            h.grow(comm)
            assert (h.send_buffer == h.rank + 1).all(), h.send_buffer
        else:
            h.send_buffer[:] = h.rank + 1
        round = step(h)
        assert (round.index, round.active) == (call, 3) and (y == 6).all(), (round, y)
        if not new:
            assert step(behind).active == len(staying)
    assert h.comm.allreduce(1) == 3
    say("end", h.rank)
    tell(f"end {h.rank}")
    hear("end 0", "end 1", "end 2")  # data that others wait for is lost when a rank ends
    os._exit(0)
"""
AS_IT_SHOULD = ["end 0", "end 1", "end 2"]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    return planted.Libraries(tmp_path_factory.mktemp("planted") / "core")


def ends(run, package):
    """Return the ends that the job reports, and everything that it writes."""
    done, said = in_turn(run, JOB, 3, "rank", env={"PYTHONPATH": str(package)})
    return sorted(line for line in said if line.startswith("end")), done


def test_it_ends_well_without_a_mistake(run, libraries):
    said, done = ends(run, libraries.package())
    assert said == AS_IT_SHOULD, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("mistake", [mutant.name for mutant in GROWTH])
def test_it_is_noticed(run, libraries, mistake):
    said, done = ends(run, libraries.package(mistake))
    assert said != AS_IT_SHOULD, f"{done.stdout}\n{done.stderr}"
