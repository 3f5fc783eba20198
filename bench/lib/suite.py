# SPDX-License-Identifier: Apache-2.0
"""Test suites of others: what becomes of each test on a side, and the rows of all suites, which
have the same columns.

A suite's module makes a `Suite`; `run` knows nothing of what is in it. A side whose tests need a
job each is `by_pytest`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

from partialcoll.tools import report

COLUMNS = ("suite", "mpi", "ranks", "test", "gloo", "ours", "said")
_SAID = re.compile(r"^E +(\S.*)$", re.MULTILINE)  # pytest's


class Outcome(NamedTuple):
    """what: passed, skipped, failed, crashed or hangs. said: its last word."""

    what: str
    said: str = ""


# A library that tests run on: from tests, number of ranks and seconds of a test to outcomes.
Side = Callable[[Sequence[str], int, int], Iterator[tuple[str, Outcome]]]


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
        there = side(tests, ranks, seconds)
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


# Jobs


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """A job whose processes `end` ends."""
    return subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **options)


def end(job: subprocess.Popen[str]) -> str:
    """Its processes are gone when this returns; what it wrote, if that is kept."""
    job.terminate()  # the launcher ends its ranks in good order
    try:
        said, _ = job.communicate(timeout=10)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        said, _ = job.communicate()
    return said or ""


def by_pytest(words: Callable[[str, int], Sequence[str]], folder: Path, env: Any) -> Side:
    """Each test in a job of its own, so that one that hangs or crashes is one row. words: the whole
    command, given a test and the number of ranks. folder, env: of the jobs."""

    def side(tests: Sequence[str], ranks: int, seconds: int) -> Iterator[tuple[str, Outcome]]:
        for test in tests:
            job = start(
                words(test, ranks),
                env=env,
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                said, _ = job.communicate(timeout=seconds)
                yield test, _outcome(job.returncode, said)
            except subprocess.TimeoutExpired:
                yield test, _outcome(None, end(job))

    return side


def _outcome(status: int | None, said: str) -> Outcome:
    """By pytest's last lines. status: None: it was ended."""
    words = _SAID.findall(said)
    last = words[0] if words else ""
    if status is None:
        return Outcome("hangs", last)
    if status == 0:
        return Outcome("skipped" if " skipped" in said and " passed" not in said else "passed")
    return Outcome("failed" if " failed" in said else "crashed", last)
