# SPDX-License-Identifier: Apache-2.0
"""Hosts that vanish. They are network namespaces of this machine (bench/lib/hosts.py), whose link
goes down: no data arrives from there, and neither MPI nor the launcher reports it for minutes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ulfm import needs_ulfm

BENCH = Path(__file__).resolve().parents[2] / "bench"
TIMEOUT = 2  # the shortest
PATIENCE = 60

can_make_hosts = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
pytestmark = [
    pytest.mark.one_domain,
    # Jobs that start at the same time would use its network, which disappears.
    pytest.mark.skipif("PARTIALCOLL_TEST_PARTS" in os.environ, reason="in test-all, by itself"),
    pytest.mark.skipif(not can_make_hosts, reason="emulated hosts need root and iproute2"),
]

START = """
import faulthandler, os, sys, time
faulthandler.dump_traceback_later(90, exit=True)
from pathlib import Path
import numpy as np
from mpi4py import MPI
import partialcoll as pc

comm = MPI.COMM_WORLD
rank, folder = comm.rank, Path(sys.argv[1])

def say(what):
    with open(folder / f"rank{rank}", "a") as file:
        file.write(f"{what}\\n")

def told(error):
    say(f"told {' '.join(map(str, error.ranks))}: {error}")

say(f"pid {os.getpid()}")
"""

END = """
say("end")
while not (folder / "over").exists():  # MPICH ends the job when the first rank ends
    time.sleep(0.05)
os._exit(0)
"""

RAISES = (
    START
    + """
total = np.zeros(9)
h = pc.Allreduce_init(comm, np.ones(9), total)
aside = comm.Dup()
try:
    while True:
        h.Start()
        say(f"round {h.Wait().index}")
        time.sleep(0.02)
except pc.RankFailedError as error:
    told(error)
for again in (h.Start, h.join, lambda: pc.Allreduce_init(aside, np.ones(9), total)):
    try:
        again()
    except pc.RankFailedError as error:
        told(error)
h.Free()
"""
    + END
)

CONTINUES = (
    START
    + """
seen, total = np.zeros(9), np.zeros(9)
h = pc.Allreduce_init(comm, seen, total, quorum="full", on_failure="continue")
try:
    over = False
    while not over:  # the ranks see it at different rounds, and leave after the same one
        seen[:] = h.failed.any()
        h.Start()
        rnd = h.Wait()
        say(f"round {rnd.index}")
        over = rnd.active < comm.size and total[0] == rnd.active
        time.sleep(0.02)
    seen[:] = 1
    for step in range(20):
        h.Start()
        h.Wait()
    say(f"failed {list(map(int, h.failed.nonzero()[0]))} {total[0]}")
except pc.RankFailedError as error:
    told(error)
"""
    + END
)

MANY = 100_000  # doubles: TCP sends them in parts

IS_KILLED = (
    START
    + f"""
total = np.zeros({MANY})
h = pc.Allreduce_init(comm, np.ones({MANY}), total, quorum="full", on_failure="continue")
while not (folder / "over").exists():
    h.Start()
    rnd = h.Wait()
    assert total[0] == total[-1] == rnd.active
    say(f"round {{int(sum(rnd.failed))}}")
"""
    + END
)


class Job:
    """The program on some hosts, and the files that its ranks have written."""

    def __init__(self, folder, hosts, ranks):
        self.folder, self.hosts, self.ranks = folder, hosts, ranks

    def said(self, rank, word):
        path = self.folder / f"rank{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]

    def wait_for(self, rank, word, count=1):
        until = time.monotonic() + PATIENCE
        while len(self.said(rank, word)) < count:
            assert time.monotonic() < until, f"rank {rank}: {self.said(rank, '')[-5:]}"
            time.sleep(0.02)

    def pid(self, rank):
        self.wait_for(rank, "pid")
        return int(self.said(rank, "pid")[0].split()[1])


def shared_memory(folder):
    """Return MPICH's files for the ranks, which stay behind when it is killed."""
    found = set()
    for said in folder.glob("rank*"):
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{said.read_text().split()[1]}/maps").read_text()
            found.update(re.findall(r"/dev/shm/mpich_shm_\w+", maps))
    return [Path(path) for path in found]


@pytest.fixture
def job_on_hosts(clean_environment, tmp_path):
    @contextlib.contextmanager
    def start(script, hosts, per_host):
        sys.path.insert(0, str(BENCH))
        try:
            from lib.hosts import Hosts, started
        finally:
            sys.path.remove(str(BENCH))
        (tmp_path / "script.py").write_text(script)
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
        env = {"PARTIALCOLL_HOST_TIMEOUT": str(TIMEOUT)}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        with (
            Hosts(hosts, ["1gbit"]) as made,
            started(made, per_host, command, env=env, start_new_session=True, **quiet) as job,
        ):
            try:
                yield Job(tmp_path, made, hosts * per_host)
            finally:
                left_behind = shared_memory(tmp_path)
                (tmp_path / "over").touch()
                os.killpg(job.pid, signal.SIGKILL)
                for path in left_behind:
                    path.unlink(missing_ok=True)

    return start


def test_one_that_vanishes_is_an_error_with_names_and_one_that_stops_is_not(job_on_hosts):
    with job_on_hosts(RAISES, hosts=2, per_host=1) as job:
        job.wait_for(0, "round", 20)
        os.kill(job.pid(1), signal.SIGSTOP)  # the only rank on its host
        time.sleep(2 * TIMEOUT)
        assert not job.said(0, "told") + job.said(1, "told")
        os.kill(job.pid(1), signal.SIGCONT)
        job.wait_for(0, "round", len(job.said(0, "round")) + 20)
        job.hosts.drop(2)
        for rank in (0, 1):
            job.wait_for(rank, "end")
            lines = job.said(rank, "told")
            host = f"{job.hosts.net}.{2 - rank}"
            assert len(lines) == 4, lines
            assert all(
                line.startswith(f"told {1 - rank}: rank {1 - rank} has died") for line in lines
            )
            assert all(f"({host})" in line for line in lines), lines


def test_all_ranks_of_a_host_are_notified(job_on_hosts):
    with job_on_hosts(RAISES, hosts=2, per_host=3) as job:
        for rank in range(6):
            job.wait_for(rank, "round", 5)
        job.hosts.drop(1)
        for rank in range(6):
            job.wait_for(rank, "end")
            gone = (3, 4, 5) if rank < 3 else (0, 1, 2)
            for line in job.said(rank, "told"):
                assert line.startswith(f"told {' '.join(map(str, gone))}: "), line


@needs_ulfm
def test_ranks_are_killed_on_either_host_in_the_middle_of_large_rounds(job_on_hosts):
    with job_on_hosts(IS_KILLED, hosts=2, per_host=2) as job:
        left = [0, 1, 2, 3]
        for rank in left:
            job.wait_for(rank, "round", 5)
        for victim in (1, 3, 0):
            os.kill(job.pid(victim), signal.SIGKILL)
            left.remove(victim)
            for rank in left:
                job.wait_for(rank, f"round {4 - len(left)}", 3)


@needs_ulfm
@pytest.mark.parametrize("dropped", (1, 2, 3))
def test_the_majority_continues_without_the_host(job_on_hosts, dropped):
    gone = dropped - 1
    with job_on_hosts(CONTINUES, hosts=3, per_host=1) as job:
        for rank in range(3):
            job.wait_for(rank, "round", 10)
        job.hosts.drop(dropped)
        for rank in range(3):
            job.wait_for(rank, "end")
            if rank == gone:
                assert job.said(rank, "told") and not job.said(rank, "failed")
            else:
                assert job.said(rank, "failed") == [f"failed [{gone}] 2.0"]


@needs_ulfm
def test_the_half_with_the_lowest_rank_continues(job_on_hosts):
    with job_on_hosts(CONTINUES, hosts=2, per_host=2) as job:
        for rank in range(4):
            job.wait_for(rank, "round", 10)
        job.hosts.drop(1)
        for rank in range(4):
            job.wait_for(rank, "end")
        for rank in (0, 1):
            assert job.said(rank, "failed") == ["failed [2, 3] 2.0"]
        for rank in (2, 3):
            assert job.said(rank, "told")[0].startswith("told 0 1: ranks 0, 1 have died")
