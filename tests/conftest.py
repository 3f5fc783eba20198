# SPDX-License-Identifier: Apache-2.0
"""Tests under mpiexec: all ranks run the same tests in the same order.

A rank that fails prints its failure and ends the whole job, because the others would wait for it. A
test that does not end prints the stack of every thread on every rank and ends the job.
"""

import faulthandler
import functools
import logging
import os
import subprocess
import sys
import textwrap
import zlib

import pytest
from device_fixtures import fake, nothing_left  # noqa: F401
from mpi4py import MPI

from partialcoll.tools import launcher
from partialcoll.tools.bench.faults import killing

TEST_LIMIT_S = 180.0
JOB_LIMIT_S = 120
STARTERS = {"run", "job"}  # fixtures of tests that start jobs

PREAMBLE = """
import os, sys, time, warnings
import numpy as np
{before}
from mpi4py import MPI
import partialcoll as pc
comm = MPI.COMM_WORLD

def say(*words):  # in one piece, also if other ranks print
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

def state(pid):  # a process's state: "T" if it is stopped
    with open(f"/proc/{{pid}}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]

def tell(word):  # notify other and later ranks; outlives this rank
    open(word, "w").close()

def hear(*words):  # wait for all of them without a limit
    while not all(map(os.path.exists, words)):
        time.sleep(0.01)
"""


@functools.cache
def last_words():
    """Return the stream for the reason of an abort: a file that run.py prints, or stderr."""
    folder = os.environ.get("PARTIALCOLL_TEST_WORDS")
    if MPI.COMM_WORLD.size == 1 or not folder:
        return sys.stderr
    handler = logging.FileHandler(f"{folder}/rank {MPI.COMM_WORLD.rank}")
    logging.getLogger("partialcoll").addHandler(handler)
    return handler.stream


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if report.failed and MPI.COMM_WORLD.size > 1:
        rank = MPI.COMM_WORLD.rank
        print(
            f"\n=== rank {rank}: {item.nodeid} failed ===\n{report.longreprtext}",
            file=last_words(),
            flush=True,
        )
        MPI.COMM_WORLD.Abort(1)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    faulthandler.dump_traceback_later(TEST_LIMIT_S, exit=True, file=last_words())
    yield
    faulthandler.cancel_dump_traceback_later()


def starts_jobs(item):
    return not STARTERS.isdisjoint(item.fixturenames)


def is_in_other_parts(item, parts):
    """Return whether another commit or job tests this: of tests that need one MPI only, that start
    jobs, or run on a single rank, only some parts are ours."""
    words, _, count = parts.partition(" of ")
    own = [int(part) for part in words.split(",")]
    drawn = zlib.crc32(item.name.encode()) % int(count)  # the same on all ranks
    if item.get_closest_marker("in_turns"):
        return drawn != own[0]
    one_mpi = starts_jobs(item) or item.get_closest_marker("one_mpi") or MPI.COMM_WORLD.size == 1
    return one_mpi and drawn not in own


def has_to_do_with_no_mpi(item):
    """The full test run tests these with one MPI only."""
    of_mpi = item.get_closest_marker("mpi") or starts_jobs(item)
    return item.get_closest_marker("one_mpi") and not of_mpi


def pytest_collection_modifyitems(config, items):
    """Deselect the tests that run.py and parts.py leave to other commits, and to the other MPI."""
    left = []
    if parts := os.environ.get("PARTIALCOLL_TEST_PARTS"):
        left = [item for item in items if is_in_other_parts(item, parts)]
    elif os.environ.get("PARTIALCOLL_TEST_OTHER_MPI"):
        left = [item for item in items if has_to_do_with_no_mpi(item)]
    config.hook.pytest_deselected(items=left)
    items[:] = [i for i in items if i not in left]


@pytest.fixture
def comm():
    """Return a separate communicator for each test, so that tests cannot interfere."""
    dup = MPI.COMM_WORLD.Dup()
    yield dup
    dup.Barrier()
    dup.Free()


@pytest.fixture(autouse=True)
def every_rank_alone(request, monkeypatch):
    """Tests marked messages_only are skipped if the suite runs in shared memory, because it also
    runs without."""
    if request.node.get_closest_marker("messages_only"):
        if os.environ.get("PARTIALCOLL_DOMAIN", "rank") != "rank":
            pytest.skip("about messages between ranks: runs with PARTIALCOLL_DOMAIN=rank")
        monkeypatch.setenv("PARTIALCOLL_DOMAIN", "rank")


@pytest.fixture
def clean_environment():
    """Return the environment for subprocesses without variables of a launcher or the user. The
    domain stays, because the suite runs once in each."""
    drop = ("PMI", "OMPI", "PMIX", "PRTE", "PARTIALCOLL", "HYDRA", "MPIR", "MPIEXEC", "GFORTRAN")
    drop += ("SLURM", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_")  # partialcoll.torch sets four
    keep = "PARTIALCOLL_DOMAIN"
    return {k: v for k, v in os.environ.items() if k == keep or not k.startswith(drop)}


@pytest.fixture
def job(clean_environment, tmp_path_factory):
    """Return command and environment to start a Python script on some ranks. The job has its own
    files, because a test may kill the launcher."""

    def make(script, ranks, *arguments):
        command, launched = launcher.command(ranks), launcher.environment()
        extra = {k: v for k, v in launched.items() if "ALLOW_RUN_AS_ROOT" in k}
        extra |= launcher.files(tmp_path_factory.mktemp("job"))
        return [*command, sys.executable, str(script), *arguments], {**clean_environment, **extra}

    return make


@pytest.fixture
def run(clean_environment, job, tmp_path):
    """Run a script on some ranks, or without a launcher. Return the finished process."""

    def start(script, ranks=None, before="", env=None, arguments=(), launcher_options=()):
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE.format(before=before) + textwrap.dedent(script))
        words, environment = (
            job(path, ranks) if ranks else ([sys.executable, str(path)], clean_environment)
        )
        words[1:1] = launcher_options
        done = subprocess.run(
            [*words, *arguments],
            env={**environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=JOB_LIMIT_S,
            cwd=tmp_path,
        )
        if killing.ended_by_mpi(done.stdout + done.stderr):
            pytest.skip("Open MPI has ended a rank that was making a communicator (docs/faults.md)")
        return done

    return start
