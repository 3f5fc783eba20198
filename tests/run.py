# SPDX-License-Identifier: Apache-2.0
"""Runs the test suite: what needs no launcher without one, then under mpiexec for several numbers
of ranks, for each setting of PARTIALCOLL_DOMAIN, which is how ranks of a node reduce.

    python tests/run.py --commit                                     what each commit has to pass
    python tests/run.py --ranks "1 2 3 4 5 8" --domains "node rank"  all of it
    … [pytest arguments]

What a test depends on, it says by its markers (pyproject.toml): `mpi` runs on all numbers of ranks,
`one_domain` in the first setting only, `few_ranks` on FEW_RANKS (a commit: on 2 with one MPI and on
3 with the other, the next the other way round). What is `one_mpi` takes turns: see `parts`.
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
JOB_LIMIT_S = 3600  # of all tests; a test that hangs ends after TEST_LIMIT_S of conftest.py
FEW_RANKS = (2, 5)  # and one without a launcher
FEW_OF_COMMIT = (2, 3)
ALONE = 0  # without a launcher
MANY = 5
PARTS = 16  # of the tests of one MPI

# For each commit: both MPIs have both settings, so has each number of ranks, and none of it is
# there twice. The largest one MPI has in one commit and the other in the next.
COMMIT = {
    "mpich": [(ALONE, "node"), (2, "node"), (3, "rank"), (5, "node")],
    "openmpi": [(ALONE, "rank"), (2, "rank"), (3, "node"), (5, "rank")],
}


def worker(arguments):
    """One rank: only rank 0 talks. Each has its own folder for what is temporary: pytest tidies
    up in it, and ranks that do so in one folder at the same time trip over each other."""
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
    # From elsewhere than the checkout, so that the installed package is tested.
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
    """Some ranks in one setting, and which tests they run: expressions over markers."""

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
    numbers = [int(word) for word in options.ranks.split() if word != str(ALONE)]  # is there anyway
    # What a job of one rank runs as well is left to that.
    alone = ["not mpi or few_ranks"] if 1 in numbers else []
    each = [(ALONE, alone), *((ranks, []) for ranks in numbers if ranks != ALONE)]
    return [
        Job(ranks, domain, [*markers, *(["not one_domain"] if i else [])])
        for i, domain in enumerate(options.domains.split())
        for ranks, markers in each
    ]


@functools.cache
def turn():
    """The number of this commit, which says what it leaves to others."""
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], capture_output=True, text=True)
    return int(count.stdout) if count.returncode == 0 else 0


def has_many(mpi):
    """Is it this MPI's turn to run the largest number of ranks?"""
    return (turn() + sorted(COMMIT).index(mpi)) % 2 == 0


def few_ranks(options):
    """Where PyTorch is tested, beside the job without a launcher."""
    if not options.commit:
        return FEW_RANKS
    return (FEW_OF_COMMIT[has_many(launcher.flavor())],)


def parts(job):
    """Which parts of the tests of one MPI are this job's, the first of which has the tests in
    turns as well. Under a launcher each MPI has an eighth: four commits in a row have all, eight
    commits all with both. Without one each has one part: eight commits have all, sixteen commits
    all with both."""
    commit, mpi = turn(), sorted(COMMIT).index(launcher.flavor())
    if job.ranks == ALONE:
        return [(2 * commit + (commit // (PARTS // 2) + mpi) % 2) % PARTS]
    first = commit + 4 * mpi + commit // PARTS
    return [part % PARTS for part in (first, first + 8)]


def run_job(job, arguments, begin, few):
    """Its exit status. few: the numbers of ranks on which PyTorch is tested."""
    os.environ["PARTIALCOLL_DOMAIN"] = job.domain
    what = f"{job.ranks} ranks" if job.ranks else "without a launcher"
    seconds = time.monotonic() - begin
    print(f"== domain {job.domain}: {what} ({seconds:.0f} s so far)", flush=True)
    markers = list(job.markers)
    words = ["--with-mpi", "-q", "--no-header", "--durations=20", *arguments]
    if job.ranks:
        markers.append("mpi")
    if job.ranks and job.ranks not in few:  # nor shall ranks load PyTorch to leave it out
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
    """Its exit status. Prints what ranks wrote before they ended a job that failed: into files,
    because a launcher drops what it has not passed on yet."""
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
    """The failed test, or where the main thread was when the time was over: down to its test."""
    if failed := re.search("=== rank [0-9]+: (.* failed) ===", said):
        return failed[1]
    main_thread = said.rpartition("(most recent call first)")[2]
    frames = re.findall('File ".*?([^/]*)", line ([0-9]+) in (.*)', main_thread)
    test = [i for i, (file, _, _) in enumerate(frames) if file.startswith("test_")]
    to_test = frames[: test[0] + 1] if test else frames[:4]
    return " < ".join(f"{file}:{line} {function}" for file, line, function in to_test[-6:])


if __name__ == "__main__":
    main()
