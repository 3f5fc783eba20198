# SPDX-License-Identifier: Apache-2.0
"""`bench/run.py suites`: results of tests that pass, are skipped, fail, crash or hang, on one rank
or on all."""

import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi, pytest.mark.in_turns]

RANK = f"""
import os, signal, sys, time
sys.path.insert(0, {str(BENCH)!r})
from mpi4py import MPI
from peers.suite_rank import READY, Outcome, leave

rank = MPI.COMM_WORLD.rank
leave(READY, Outcome("passed"))
for test in sys.argv[1:]:
    what, where = test.split("_")
    if where == "1" and rank == 0:
        time.sleep(0.2)  # the other rank would be in the next test
        leave(test, Outcome("passed"))
        continue
    if what == "crashed":
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "hangs":
        time.sleep(1)
    leave(test, Outcome(what, "why"))
"""


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    for name in [name for name in sys.modules if name.split(".")[0] in ("lib", "peers")]:
        monkeypatch.delitem(sys.modules, name)
    import peers.suites

    return peers.suites


def test_outcomes(suite, tmp_path):
    """Each result occurs once and in order. A test that does not pass delays no other."""
    side = suite.TestedSide(lambda tests: ["-c", RANK, *tests], tmp_path, tmp_path, {})

    def rows(seconds, *tests):
        made = suite.Suite("made", tests, "", side, side)
        return [
            (row["test"], row["gloo"], row["ours"], row["said"])
            for row in suite.run(made, 2, "_", seconds)
        ]

    assert rows(120, "passed_all", "skipped_all", "failed_1", "skipped_1", "crashed_1") == [
        ("passed_all", "passed", "passed", "why"),
        ("skipped_all", "skipped", "skipped", "why"),
        ("failed_1", "failed", "failed", "why"),
        ("skipped_1", "passed", "passed", ""),
        ("crashed_1", "crashed", "crashed", ""),
    ]
    assert rows(1, "hangs_1") == [("hangs_1", "hangs", "hangs", "")]
