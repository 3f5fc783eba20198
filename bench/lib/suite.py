# SPDX-License-Identifier: Apache-2.0
"""Test suites of others: each test runs in a job of its own, so that one that hangs or crashes is
one row. The rows of all suites have the same columns.

A suite's module makes a `Suite`; `run` knows nothing of what is in it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from partialcoll.tools import report

COLUMNS = ("suite", "mpi", "ranks", "test", "gloo", "ours", "said")
_SAID = re.compile(r"^E +(\S.*)$", re.MULTILINE)  # pytest's


class Side(NamedTuple):
    """A library that the tests run on. words: the whole command of a job, given a test and the
    number of ranks. env: of the job."""

    words: Callable[[str, int], Sequence[str]]
    env: dict[str, str]


class Suite(NamedTuple):
    """name: in the tables. tests: their names. folder: where jobs run. digest: of its source. gloo:
    what ours is compared with; None: with nothing."""

    name: str
    tests: Sequence[str]
    folder: Path
    digest: str
    ours: Side
    gloo: Side | None = None


def run(suite: Suite, mpi: str, ranks: int, only: str, seconds: int) -> list[dict[str, Any]]:
    """The rows of the tests whose names contain `only`, so many seconds for each at most."""
    rows = []
    tests = [test for test in suite.tests if only in test]
    for test in report.progress(tests, True, suite.name):
        row = {"suite": suite.name, "mpi": mpi, "ranks": ranks, "test": test}
        if suite.gloo is not None:
            row["gloo"], _ = _job(suite.gloo, test, ranks, suite.folder, seconds)
        row["ours"], row["said"] = _job(suite.ours, test, ranks, suite.folder, seconds)
        rows.append(row)
    return rows


def _job(side: Side, test: str, ranks: int, folder: Path, seconds: int) -> tuple[str, str]:
    """What became of it, and its last word; its processes are gone when this returns."""
    job = subprocess.Popen(
        side.words(test, ranks),
        env=side.env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=seconds)
        return _outcome(job.returncode, said)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            said, _ = job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            said, _ = job.communicate()
        return _outcome(None, said)


def _outcome(status: int | None, said: str) -> tuple[str, str]:
    """By pytest's last lines. status: None: it was ended."""
    words = _SAID.findall(said)
    last = words[0] if words else ""
    if status is None:
        return "hangs", last
    if status == 0:
        return ("skipped" if " skipped" in said and " passed" not in said else "passed"), ""
    return ("failed" if " failed" in said else "crashed"), last
