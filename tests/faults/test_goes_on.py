# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and the allreduces of the others go on (``on_failure="continue"``, docs/faults.md)."""

import pytest
from mpi4py import MPI

from partialcoll.tools import launcher

goes_on = launcher.flavor() == "openmpi" and MPI.Get_library_version().split()[2] >= "v5"
pytestmark = pytest.mark.skipif(not goes_on, reason="this MPI ends the job when a rank dies")

killing = pytest.importorskip("partialcoll.tools.bench.faults.killing")


def judged(job):
    verdict = job.run()
    said = (job.folder / "output").read_text(errors="replace")[-3000:]
    assert not verdict.faults, (verdict.faults, job.given, said)
    assert "invariant broken" not in said, said
    job.forget()
    return verdict


@pytest.mark.parametrize(
    "quorum, domain", [("solo", "node"), ("majority", "rank"), ("full", "node:2")]
)
def test_all_but_one_are_killed_at_random_moments(quorum, domain):
    job = killing.KilledJob(4, quorum, domain, "7", 3)
    judged(job)
    assert len(job.killed) == 3


# Where a rank dies, and in which domains and under which policies it comes there.
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
# Of a second one, in the recovery from the first death.
STEPS = (
    "outage begun",
    "revoked",
    "last word",
    "shrunk",
    "census taken",
    "rebuilt",
    "all rebuilt",
    "inherited",
    "all inherited",
    "gone on",
)


def dies_at(die, quorum, domain, ranks=4):
    job = killing.KilledJob(ranks, quorum, domain, str(die), 0, die)
    judged(job)
    return job


@pytest.mark.in_turns
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_dies_there(moment):
    domain, quorum = MOMENTS[moment]
    closing = moment in ("confirmed", "drained") or moment.startswith("closing ")
    count = 1 if closing and moment != "closing a round" else 20
    job = dies_at({0: f"{moment}:{count}", 2: f"{moment}:{3 * count}"}, quorum, domain)
    assert job.killed, "nobody came there"


@pytest.mark.in_turns
@pytest.mark.parametrize("step", STEPS)
def test_a_second_rank_dies_while_the_others_recover(step):
    domain = ("rank", "node", "node:2")[STEPS.index(step) % 3]
    job = dies_at({1: "deposit published:20", 0: f"{step}:1"}, "solo", domain)
    assert len(job.killed) == 2


def test_a_third_one_dies_in_the_second_recovery():
    die = {3: "deposit published:20", 0: "rebuilt:1", 1: "inherited:2"}
    dies_at(die, "majority", "rank", ranks=5)
