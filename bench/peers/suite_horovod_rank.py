# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: leaves the outcomes of Horovod's tests on one rank; see suite_horovod.py."""

from __future__ import annotations

from typing import Any

from lib.suite_rank import READY, Outcome, leave
from mpi4py import MPI

_rank = MPI.COMM_WORLD.rank
_outcome = Outcome("passed")


def pytest_collection_finish() -> None:
    leave(READY, _rank, Outcome("passed"))


def pytest_runtest_logreport(report: Any) -> None:
    """Of setup, call and teardown of a test: what is not passed counts."""
    global _outcome
    test = report.nodeid.rpartition("::")[2]
    if report.skipped:
        _outcome = Outcome("skipped", str(report.longrepr[2]))
    elif report.failed:
        said = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
        leave(test, _rank, Outcome("failed", (said.splitlines() or [""])[0]))
    if report.when == "teardown":
        leave(test, _rank, _outcome)
        _outcome = Outcome("passed")
