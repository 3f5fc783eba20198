# SPDX-License-Identifier: Apache-2.0
"""Run the test suite without a launcher, then under mpiexec for several numbers of ranks.

Each setting of PARTIALCOLL_DOMAIN is tested (how ranks of a node reduce).

    python tests/run.py --commit                                     for each commit
    python tests/run.py --ranks "1 2 3 4 5 8" --domains "node rank"  all of it
    … [pytest arguments]

Markers say what a test depends on (pyproject.toml): `mpi` runs on all numbers of ranks,
`one_domain` in the first setting only, `few_ranks` on FEW_RANKS (for a commit: on 2 with one MPI,
on 3 with the other, alternating). `one_mpi` tests alternate between commits: see `parts`.
CONTRIBUTING.md says what each commit leaves out.
"""

import argparse
import functools
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from launch import launch, own_segments

from partialcoll.tools import launcher

TESTS = Path(__file__).resolve().parent
SELF = str(Path(__file__).resolve())
JOB_LIMIT_S = 3600  # for all tests; a hanging test ends after TEST_LIMIT_S of conftest.py
FEW_RANKS = (2, 4)  # and one without a launcher
FEW_OF_COMMIT = (2, 3)
ALONE = 0  # without a launcher
MANY = 5
PARTS = 16  # of the tests of one MPI

# For each commit: each MPI runs both settings, each number of ranks occurs, and no test runs twice.
# One MPI runs the largest number in this commit and the other one in the next.
COMMIT = {
    "mpich": [(ALONE, "node"), (2, "node"), (3, "rank"), (5, "node")],
    "openmpi": [(ALONE, "rank"), (2, "rank"), (3, "node"), (5, "rank")],
}


def worker(arguments):
    """Run one rank; only rank 0 prints. Each has its own temporary folder, because pytest cleans it
    up, and ranks would interfere in a common one."""
    import pytest
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.TemporaryDirectory(prefix="partialcoll-rank-") as folder:
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        return pytest.main(arguments)


def main():
    if "--worker" in sys.argv:
        sys.exit(worker([a for a in sys.argv[1:] if a != "--worker"]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", action="store_true", help="what each commit has to pass")
    parser.add_argument("--ranks", default="1 2 3 4 5 8", help="0: without a launcher")
    parser.add_argument("--domains", default="node rank")
    parser.add_argument("--only", metavar="JOB", help="one of these jobs, as node-3 or rank-alone")
    options, arguments = parser.parse_known_args()
    if options.only and options.only not in [job.name for job in jobs(options)]:
        parser.error(
            f"--only: expected one of {[j.name for j in jobs(options)]}, got {options.only}"
        )
    # Not in the checkout, so that the installed package is tested.
    os.chdir(TESTS)
    begin = time.monotonic()
    code = 0
    with own_segments():
        for job in [j for j in jobs(options) if options.only in (None, j.name)]:
            if options.commit:
                own = ",".join(map(str, parts(job)))
                os.environ["PARTIALCOLL_TEST_PARTS"] = f"{own} of {PARTS}"
            code = code or run_job(job, arguments or [str(TESTS)], begin, few_ranks(options))
    sys.exit(code)


class Job(NamedTuple):
    """Some ranks in one setting, and their tests: expressions over markers."""

    ranks: int
    domain: str
    markers: tuple[str, ...] = ()

    @property
    def name(self):
        return f"{self.domain}-{self.ranks or 'alone'}"


def jobs(options):
    if options.commit:
        mpi = launcher.flavor()
        return [Job(*job) for job in COMMIT[mpi] if job[0] != MANY or has_many(mpi)]
    numbers = [int(word) for word in options.ranks.split() if word != str(ALONE)]  # always included
    # Leave tests to the job of one rank if it runs them as well.
    alone = ["not mpi or few_ranks"] if 1 in numbers else []
    each = [(ALONE, alone), *((ranks, []) for ranks in numbers if ranks != ALONE)]
    return [
        Job(ranks, domain, [*markers, *(["not one_domain"] if i else [])])
        for i, domain in enumerate(options.domains.split())
        for ranks, markers in each
    ]


@functools.cache
def turn():
    """Return the number of this commit, which determines its part of the tests."""
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True)
    return int(count.stdout) if count.returncode == 0 else 0


def has_many(mpi):
    """Return whether this MPI runs the largest number of ranks now."""
    return (turn() + sorted(COMMIT).index(mpi)) % 2 == 0


def few_ranks(options):
    """Return the numbers of ranks for PyTorch, beside the job without a launcher."""
    if not options.commit:
        return FEW_RANKS
    return (FEW_OF_COMMIT[has_many(launcher.flavor())],)


def parts(job):
    """Return this job's parts of the tests of one MPI. The first part includes the tests in turns.
    Under a launcher each MPI runs an eighth: four consecutive commits run all, eight commits all
    with both. Without one each runs one part: eight commits run all, sixteen all with both."""
    commit, mpi = turn(), sorted(COMMIT).index(launcher.flavor())
    if job.ranks == ALONE:
        return [(2 * commit + (commit // (PARTS // 2) + mpi) % 2) % PARTS]
    first = commit + 4 * mpi + commit // PARTS
    return [part % PARTS for part in (first, first + 8)]


def run_job(job, arguments, begin, few):
    """Run a job and return its exit status. few: the numbers of ranks for PyTorch."""
    os.environ["PARTIALCOLL_DOMAIN"] = job.domain
    what = f"{job.ranks} ranks" if job.ranks else "without a launcher"
    seconds = time.monotonic() - begin
    print(f"== domain {job.domain}: {what} ({seconds:.0f} s so far)", flush=True)
    markers = list(job.markers)
    words = ["--with-mpi", "-q", "--no-header", "--durations=20", *arguments]
    if job.ranks:
        markers.append("mpi")
    if job.ranks and job.ranks not in few:  # avoids loading PyTorch
        markers.append("not few_ranks")
        words.append(f"--ignore={TESTS}/pytorch")
    if markers:
        words += ["-m", " and ".join(f"({text})" for text in markers)]
    if job.ranks:
        return launch_and_hear(job.ranks, [SELF, "--worker", *words])
    with tempfile.TemporaryDirectory(prefix="partialcoll-alone-") as folder:
        environment = {**os.environ, "PYTEST_DEBUG_TEMPROOT": folder}  # as for ranks, see worker
        return subprocess.call([sys.executable, "-m", "pytest", *words], env=environment)


def launch_and_hear(ranks, words):
    """Launch and return the exit status. Print the reports of ranks that ended a failed job. These
    are files, because a launcher drops output that it has not forwarded yet."""
    code = 1
    with tempfile.TemporaryDirectory(prefix="partialcoll-words-") as folder:
        os.environ["PARTIALCOLL_TEST_WORDS"] = folder
        try:
            code = launch(ranks, words, JOB_LIMIT_S)
        finally:
            files = sorted(Path(folder).iterdir()) if code else []
            said = [(f.name, f.read_text(errors="replace")) for f in files if f.stat().st_size]
            for name, text in said:
                print(f"\n== {name}:\n{text}", flush=True)
            for name, text in said:  # last, where a reader of a long log looks first
                print(f"== {name}: {in_short(text)}", flush=True)
    return code


def in_short(said):
    """Return the failed test, or the main thread's stack at the timeout, down to its test."""
    if failed := re.search("=== rank [0-9]+: (.* failed) ===", said):
        return failed[1]
    main_thread = said.rpartition("(most recent call first)")[2]
    frames = re.findall('File ".*?([^/]*)", line ([0-9]+) in (.*)', main_thread)
    test = [i for i, (file, _, _) in enumerate(frames) if file.startswith("test_")]
    to_test = frames[: test[0] + 1] if test else frames[:4]
    return " < ".join(f"{file}:{line} {function}" for file, line, function in to_test[-6:])


if __name__ == "__main__":
    main()
