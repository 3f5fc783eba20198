# SPDX-License-Identifier: Apache-2.0
"""Run test suites of others on this library: torch's tests of torch.distributed, on the backend and
on gloo; and Horovod's tests of its PyTorch API, if --horovod-tests says where they are.

The suites are read where they are installed, and nothing of them is kept here. torch's tests are in
its wheel; of Horovod's repository the folder `test` is needed, and `horovod.torch` is
`partialcoll.torch` there. Needs torch and expecttest; pytest, mock, cloudpickle and packaging.

    python bench/run.py suites [--horovod-tests DIR] [--suite torch] [-n 2] [--only TEXT]
        [--timeout 60] [--json F]

Tests follow each other in a job, whose ranks leave their outcomes (suite_rank.py), as long as they
pass. A test that does not pass there runs again in a job of its own, and that outcome counts. So a
test that hangs or crashes is one row.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple

import click
from lib.job import count

from partialcoll.errors import Error
from partialcoll.tools import launcher, report
from partialcoll.tools.cli import options
from peers.suite_rank import FOLDER, RANKS, Outcome

GRACE = 5.0  # seconds that other ranks have, once one has failed
FINE = ("passed", "skipped")


class TestedSide(NamedTuple):
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
    ours: TestedSide
    gloo: TestedSide | None = None


def run(suite: Suite, ranks: int, only: str, timeout: float) -> list[dict[str, Any]]:
    """Return the rows of the tests whose names contain `only`, each in `timeout` seconds."""
    tests = [test for test in suite.tests if only in test]

    def outcomes(side: TestedSide, name: str) -> dict[str, Outcome]:
        there = _outcomes(side, tests, ranks, timeout)
        shown = report.progress(range(len(tests)), True, f"{suite.name}, {name}")
        return dict(next(there) for _ in shown)

    theirs = None if suite.gloo is None else outcomes(suite.gloo, "gloo")
    ours = outcomes(suite.ours, "ours")
    rows = []
    for test in tests:
        row = {"suite": suite.name, "mpi": launcher.flavor(), "ranks": ranks, "test": test}
        if theirs is not None:
            row["gloo"] = theirs[test].what
        rows.append({**row, "ours": ours[test].what, "said": ours[test].said})
    return rows


def _outcomes(
    side: TestedSide, tests: Sequence[str], ranks: int, seconds: float
) -> Iterator[tuple[str, Outcome]]:
    done = 0
    while done < len(tests):
        for test, outcome in _job(side, tests[done:], ranks, seconds):
            if outcome.what not in FINE and test != tests[done]:
                ((_, outcome),) = _job(side, [test], ranks, seconds)
            yield test, outcome
            last = test
        done = tests.index(last) + 1


def _job(
    side: TestedSide, tests: Sequence[str], ranks: int, seconds: float
) -> Iterator[tuple[str, Outcome]]:
    """Run tests one after the other; yield their outcomes, up to the first that is not fine."""
    folder = Path(tempfile.mkdtemp(dir=side.scratch))
    for test in tests:
        (folder / test).mkdir()
    start, environment = launcher.mpiexec(ranks, folder=folder)
    own = {FOLDER: str(folder), RANKS: str(ranks)}
    with (folder / "log").open("w") as log:
        job = subprocess.Popen(
            [*start, sys.executable, *side.words(tests)],
            env={**environment, **side.env, **own},
            cwd=side.folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def outcome_in(place: Path) -> Outcome:
        """Return the worst outcome of all ranks, or what became of those that left none in time."""
        limit = time.monotonic() + seconds
        while True:
            over = job.poll() is not None or time.monotonic() > limit
            left = [Outcome(*json.loads(file.read_text())) for file in place.glob("rank-*")]
            worst = min(left, default=Outcome("none"))  # failed, passed, skipped
            if len(left) == ranks or (over and worst.what == "failed"):
                return worst
            if over:
                return Outcome("hangs" if job.poll() is None else "crashed")
            if worst.what == "failed":
                limit = min(limit, time.monotonic() + GRACE)
            time.sleep(0.02)

    try:
        outcome_in(folder)  # ready
        for test in tests:
            outcome = outcome_in(folder / test)
            yield test, outcome
            if outcome.what not in FINE:
                return
    finally:
        job.terminate()  # the launcher ends its ranks in good order
        try:
            job.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()


_RANK = Path(__file__).with_name("suite_rank.py")


def torch_suite(ranks: int, scratch: Path) -> Suite:
    words = [sys.executable, str(_RANK), str(ranks)]
    said = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if said.returncode:
        raise Error("torch's tests cannot be imported: pip install torch expecttest")
    known = json.loads(said.stdout)

    def on(backend: str) -> TestedSide:
        def words(tests: Sequence[str]) -> Sequence[str]:
            return [str(_RANK), backend, *tests]

        return TestedSide(words, scratch, scratch, {})

    return Suite("torch", known["tests"], known["digest"], on("partialcoll"), on("gloo"))


_BENCH = Path(__file__).resolve().parents[1]
# The modules of Horovod that the suite imports, and their text here.
SHIM = {
    "horovod/__init__.py": "",
    # Some tests rely on an earlier one's init().
    "horovod/torch/__init__.py": "from partialcoll.torch import *\n\ninit()\n",
    "horovod/runner/__init__.py": "",
    "horovod/runner/util/__init__.py": "",
    "horovod/runner/util/threads.py": """
import threading


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
""",
}
_TEST = re.compile(r"^    def (test_\w+)\(self", re.MULTILINE)


def horovod_suite(folder: Path, scratch: Path) -> Suite:
    """Return the suite in Horovod's folder `test`. `scratch` is for the stand-in of Horovod."""
    source = folder / "parallel" / "test_torch.py"
    text = source.read_text()
    for name, content in SHIM.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "peers.suite_rank"]

    def words(tests: Sequence[str]) -> Sequence[str]:
        return [*pytest, *(f"{source.name}::TorchTests::{test}" for test in tests)]

    paths = (str(scratch), str(_BENCH), os.environ.get("PYTHONPATH"))
    ours = TestedSide(
        words, scratch, source.parent, {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Suite("horovod", _TEST.findall(text), digest, ours)


@click.command("suites", help=__doc__, short_help="test suites of others against this library")
@click.option(
    "--horovod-tests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="the folder `test` of its repository",
)
@click.option("--suite", "chosen", type=click.Choice(["torch", "horovod"]), help="this one alone")
@count("-n", 2, "ranks")
@options.option("--only", str, "", "tests whose names contain this")
@count("--timeout", 60, "seconds of a test")
@options.json
def command(
    horovod_tests: Path | None, chosen: str | None, n: int, json: str | None, **how: Any
) -> None:
    if chosen == "horovod" and horovod_tests is None:
        raise click.UsageError("--suite horovod: expected --horovod-tests as well")
    rows: list[dict[str, Any]] = []
    digests = {}
    with tempfile.TemporaryDirectory(prefix="partialcoll-suites-") as scratch:
        suites = []
        if chosen != "horovod":
            suites.append(torch_suite(n, Path(scratch)))
        if horovod_tests is not None and chosen != "torch":
            suites.append(horovod_suite(horovod_tests, Path(scratch)))
        for one in suites:
            rows += run(one, n, **how)
            digests[one.name] = one.digest
    document = report.document("bench suites", n, rows)
    document["env"]["suites"] = digests
    shown = [row for row in rows if row["ours"] not in FINE] or rows
    report.write(json, document, shown)
    for side in ("gloo", "ours"):
        counted = Counter(row[side] for row in rows if side in row)
        click.echo(f"{side}: " + ", ".join(f"{n} {what}" for what, n in counted.items()))
