# SPDX-License-Identifier: Apache-2.0
"""torch's own tests of torch.distributed, as a `Suite`: on gloo and on this library.

Each test has a world of its own. Several worlds follow each other in a job (`suite_torch_rank`), as
long as tests pass; what does not pass there is run again in a job of its own, and that counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib import suite
from lib.suite import Outcome, Side, Suite

from partialcoll.tools import launcher

RANK = Path(__file__).with_name("suite_torch_rank.py")
GRACE = 5.0  # seconds that other ranks have, once one has failed
FINE = ("passed", "skipped")


def make(ranks: int, scratch: Path) -> Suite:
    """The suite of the torch that is installed; scratch: for what the ranks leave."""
    words = [sys.executable, str(RANK), str(ranks)]
    known = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    def on(backend: str) -> Side:
        def side(tests: Sequence[str], ranks: int, seconds: int) -> Iterator[tuple[str, Outcome]]:
            left = list(tests)
            while left:
                for test, outcome in _Job(backend, left, ranks, scratch).outcomes(seconds):
                    if outcome.what not in FINE and test != left[0]:
                        alone = _Job(backend, [test], ranks, scratch)
                        (_, outcome), *_ = alone.outcomes(seconds)
                    yield test, outcome
                    done = test
                left = left[left.index(done) + 1 :]

        return side

    return Suite("torch", known["tests"], known["digest"], on("partialcoll"), on("gloo"))


class _Job:
    """Tests one after the other, until one does not pass."""

    def __init__(self, backend: str, tests: Sequence[str], ranks: int, scratch: Path) -> None:
        self._tests, self._ranks = tests, ranks
        self._folder = scratch / f"{backend}-{time.monotonic_ns()}"
        for test in tests:
            for part in ("barrier", "test_dir", "init_dir"):  # the suite's own
                (self._folder / test / part).mkdir(parents=True)
        vendor = launcher.flavor()
        own = {"OMPI_MCA_btl_sm_backing_directory": str(self._folder)}
        with (self._folder / "log").open("w") as log:
            self._job = suite.start(
                [
                    *launcher.command(launcher.find(vendor), vendor, ranks, None, None),
                    *(sys.executable, str(RANK), backend, str(self._folder), *tests),
                ],
                env={**launcher.environment(vendor), **own},
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def outcomes(self, seconds: float) -> Iterator[tuple[str, Outcome]]:
        """Of the tests that were run; all but the last one are fine."""
        try:
            self._told(self._folder, seconds)  # ready
            for test in self._tests:
                outcome = self._outcome(self._told(self._folder / test, seconds))
                yield test, outcome
                if outcome.what not in FINE:
                    return
        finally:
            suite.end(self._job)

    def _told(self, folder: Path, seconds: float) -> list[Outcome]:
        """What ranks have left there: all of them, or those that had within the time limit."""
        limit = time.monotonic() + seconds
        while True:
            over = self._job.poll() is not None or time.monotonic() > limit
            told = [Outcome(*json.loads(p.read_text())) for p in folder.glob("rank-*")]
            if over or len(told) == self._ranks:
                return told
            if any(one.what == "failed" for one in told):
                limit = min(limit, time.monotonic() + GRACE)
            time.sleep(0.02)

    def _outcome(self, told: list[Outcome]) -> Outcome:
        """Of all ranks: the worst."""
        worst = min(
            told, key=lambda one: ("failed", "passed", "skipped").index(one.what), default=None
        )
        if worst is not None and (worst.what == "failed" or len(told) == self._ranks):
            return worst
        return Outcome("hangs" if self._job.poll() is None else "crashed")
