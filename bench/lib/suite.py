# SPDX-License-Identifier: Apache-2.0
"""Test suites of others: what becomes of each test on a side, and the rows of all suites, which
have the same columns.

A suite's module makes a `Suite`; `run` knows nothing of what is in it. Tests follow each other in a
job, whose ranks leave their outcomes (suite_rank.py), as long as they pass; what does not pass
there is run again in a job of its own, and that counts. So one that hangs or crashes is one row.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from lib.suite_rank import FOLDER, RANKS, Outcome
from partialcoll.tools import launcher, report

COLUMNS = ("suite", "mpi", "ranks", "test", "gloo", "ours", "said")
GRACE = 5.0  # seconds that other ranks have, once one has failed
FINE = ("passed", "skipped")


class Side(NamedTuple):
    """A library that tests run on. words: what runs them, on each rank. scratch: for what the ranks
    leave. folder, env: of the jobs."""

    words: Callable[[Sequence[str]], Sequence[str]]
    scratch: Path
    folder: Path
    env: dict[str, str]


class Suite(NamedTuple):
    """name: in the tables. tests: their names. digest: of its source. gloo: what ours is compared
    with; None: with nothing."""

    name: str
    tests: Sequence[str]
    digest: str
    ours: Side
    gloo: Side | None = None


def run(suite: Suite, mpi: str, ranks: int, only: str, seconds: int) -> list[dict[str, Any]]:
    """The rows of the tests whose names contain `only`, so many seconds for each at most."""
    tests = [test for test in suite.tests if only in test]

    def outcomes(side: Side, name: str) -> dict[str, Outcome]:
        there = _outcomes(side, tests, ranks, seconds)
        shown = report.progress(range(len(tests)), True, f"{suite.name}, {name}")
        return dict(next(there) for _ in shown)

    theirs = None if suite.gloo is None else outcomes(suite.gloo, "gloo")
    ours = outcomes(suite.ours, "ours")
    rows = []
    for test in tests:
        row = {"suite": suite.name, "mpi": mpi, "ranks": ranks, "test": test}
        if theirs is not None:
            row["gloo"] = theirs[test].what
        rows.append({**row, "ours": ours[test].what, "said": ours[test].said})
    return rows


def _outcomes(
    side: Side, tests: Sequence[str], ranks: int, seconds: float
) -> Iterator[tuple[str, Outcome]]:
    done = 0
    while done < len(tests):
        for test, outcome in _Job(side, tests[done:], ranks).outcomes(seconds):
            if outcome.what not in FINE and test != tests[done]:
                ((_, outcome),) = _Job(side, [test], ranks).outcomes(seconds)
            yield test, outcome
            last = test
        done = tests.index(last) + 1


class _Job:
    """Tests one after the other, until one does not pass."""

    _numbers = itertools.count()

    def __init__(self, side: Side, tests: Sequence[str], ranks: int) -> None:
        self._tests, self._ranks = tests, ranks
        self._folder = side.scratch / f"job-{next(self._numbers)}"
        for test in tests:
            (self._folder / test).mkdir(parents=True)
        vendor = launcher.flavor()
        own = {FOLDER: str(self._folder), RANKS: str(ranks), **launcher.files(vendor, self._folder)}
        start = launcher.command(launcher.find(vendor), vendor, ranks, None, None)
        with (self._folder / "log").open("w") as log:
            self._job = subprocess.Popen(
                [*start, sys.executable, *side.words(tests)],
                env={**launcher.environment(vendor), **side.env, **own},
                cwd=side.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def outcomes(self, seconds: float) -> Iterator[tuple[str, Outcome]]:
        """Of the tests that were run; all but the last one are fine."""
        try:
            self._left(self._folder, seconds)  # ready
            for test in self._tests:
                outcome = self._outcome(self._left(self._folder / test, seconds))
                yield test, outcome
                if outcome.what not in FINE:
                    return
        finally:
            self._end()

    def _left(self, folder: Path, seconds: float) -> list[Outcome]:
        """What all ranks have left there, or those that had within the time limit."""
        limit = time.monotonic() + seconds
        while True:
            over = self._job.poll() is not None or time.monotonic() > limit
            left = [Outcome(*json.loads(file.read_text())) for file in folder.glob("rank-*")]
            if over or len(left) == self._ranks:
                return left
            if any(one.what == "failed" for one in left):
                limit = min(limit, time.monotonic() + GRACE)
            time.sleep(0.02)

    def _outcome(self, left: list[Outcome]) -> Outcome:
        """Of all ranks: the worst."""
        order = ("failed", "passed", "skipped")
        worst = min(left, key=lambda one: order.index(one.what), default=None)
        if worst is not None and (worst.what == "failed" or len(left) == self._ranks):
            return worst
        return Outcome("hangs" if self._job.poll() is None else "crashed")

    def _end(self) -> None:
        """Its processes are gone when this returns."""
        self._job.terminate()  # the launcher ends its ranks in good order
        try:
            self._job.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._job.pid, signal.SIGKILL)
            self._job.wait()
