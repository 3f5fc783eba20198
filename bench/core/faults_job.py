# SPDX-License-Identifier: Apache-2.0
"""One job of light ranks (faults_rank.c) that are killed: most of them where they are told to die,
the others at random moments, also two at once and while the others recover."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from lib import moments

from partialcoll.tools import launcher
from partialcoll.tools.bench.faults import killing, oracle, records
from partialcoll.tools.bench.faults.records import Life

QUORUMS = (
    "solo",
    "majority",
    "full",
    "quorum:2",
    "quorum:0.75",
    "first_of:2",
    "last_of:3",
    "solo,linger=200us",
    "full,deadline=2ms",
    "solo,max_staleness=4",
)
DOMAINS = ("node", "rank", "node:2", "node:4")
COUNTS = (1, 64, 1000, 8192, 32768)  # float64: 128 B (16 of them name ranks and calls) to 256 KiB
THINK_US = (0, 200, 1000, 3000)  # of the fastest rank, about; some take five times as long
ALGORITHMS = ("recdbl", "rabenseifner", "ring")

_AIMED = 0.75  # of the kills
_TWINS = 0.3  # of the others: two at once
_PATIENCE_S = 0.4  # for a moment that may not come
_LIMIT_S = 100


class Kind(NamedTuple):
    """What the jobs of a seed have in common."""

    quorum: str
    domain: str
    deliver: str
    count: int


def draw(seed: int) -> Kind:
    """deliver="all" with small payloads: a late rank has to be given every round."""
    r = random.Random(seed)
    quorum, domain = r.choice(QUORUMS), r.choice(DOMAINS)
    return Kind(quorum, domain, r.choice(("one", "one", "all")), r.choice(COUNTS))


class LightJob(killing.KilledJob):
    """As `KilledJob`; `most` of its ranks are killed, none in a control job."""

    _closes = 0.3  # the share of jobs in which the last rank dies while the handle closes

    def __init__(self, program: Path, ranks: int, kind: Kind, seed: str, most: int) -> None:
        super().__init__(ranks, kind.quorum, kind.domain, seed, most)
        self._closing: Life | None = None
        self._program = program
        self._left: list[Life] = []
        self._moments: dict[Life, moments.Moments] = {}
        self.aimed: Counter[str] = Counter()  # where they died as they were told to
        self.struck: Counter[str] = Counter()  # what threads of those killed at random came to last
        self.began = self.ended = 0.0
        self.given.update(
            deliver=kind.deliver,
            count=min(kind.count, 1000) if kind.deliver == "all" else kind.count,
            think_us=self.random.choice(THINK_US),
            algorithm=self.random.choice(ALGORITHMS),
        )

    def start(self) -> tuple[list[str], dict[str, str] | None]:
        """Without an interpreter for each rank, or a command that starts the launcher."""
        names = ("folder", "quorum", "domain", "deliver", "algorithm", "count", "think_us")
        number = random.Random(str(self.given["seed"])).randrange(1 << 30)
        words = [*(str(self.given[name]) for name in names), str(number), str(_LIMIT_S)]
        vendor = launcher.flavor()
        job = launcher.command(launcher.find(vendor), vendor, self.ranks, None, "--with-ft ulfm")
        env = {**launcher.environment(vendor), **launcher.files(vendor, self.folder)}
        env["PARTIALCOLL_MOMENTS"] = str(self.folder)
        return [*job, str(self._program), *words], env

    def kill(self, job: subprocess.Popen[bytes], living: list[Life]) -> None:
        """One after the other, as the seed says."""
        self.began = time.monotonic()
        self._left = list(living)
        for life in living:
            with contextlib.suppress(FileNotFoundError):  # a core without checks
                self._moments[life] = moments.Moments(self.folder, self.pid(life))
        gap = self.random.choice((0.002, 0.01, 0.05))
        last = self.kills - (self.random.random() < self._closes)
        while len(self.killed) < last:
            time.sleep(self.random.expovariate(1) * gap)
            self._kill_some(last - len(self.killed))
        if len(self.killed) < self.kills:
            self._closing = self._victim()
            self._aim(self._closing, moments.CLOSING, 1)

    def _kill_some(self, most: int) -> None:
        if self.random.random() < _AIMED and self._moments:
            self._kill_at_moments(most)
            return
        twins = most > 1 and self.random.random() < _TWINS
        for _ in range(1 + twins):
            victim = self._victim()
            self.strike(victim)
            self._forget(victim)
        for victim in list(self.killed)[-1 - twins :]:
            self._note(victim)

    def _kill_at_moments(self, most: int) -> None:
        """One in its loop, and perhaps another one in the recovery from that."""
        aims: list[Life] = []
        if most > 1 and self.random.random() < 0.6:
            second = self._victim()
            self._aim(second, moments.RECOVERY, self.random.choice((1, 1, 1, 2)))
            self._left.remove(second)
            aims.append(second)
        first = min(self._left) if self.random.random() < 0.5 else self._victim()
        self._aim(first, self.names(), self.random.randint(1, 12))
        for victim in (first, *aims):
            self._await(victim)
            self._forget(victim)

    def names(self) -> tuple[str, ...]:
        """The kill points that its ranks come to in their loop."""
        return moments.of_domain(str(self.given["domain"]))

    def _aim(self, victim: Life, names: tuple[str, ...], passes: int) -> None:
        if victim in self._moments:
            self._moments[victim].aim(self.random.choice(names), passes)

    def _await(self, victim: Life) -> None:
        """Who does not come to its moment is killed wherever it is."""
        limit = time.monotonic() + _PATIENCE_S
        pid, page = self.pid(victim), self._moments[victim]
        while killing.is_there(pid) and time.monotonic() < limit:
            time.sleep(0.0005)
        if page.died_ns:
            self._died(victim)
            return
        page.aim("", 0)
        self.strike(victim)
        while killing.is_there(pid):
            time.sleep(0.0005)
        if page.died_ns:  # in the last moment
            self.states.pop()
            self._died(victim)
        else:
            self._note(victim)

    def _died(self, victim: Life) -> None:
        page = self._moments[victim]
        self.killed[victim] = page.died_ns
        self.states.append(records.state_of(self.folder, victim))
        self.aimed[page.aimed] += 1

    def _note(self, victim: Life) -> None:
        if victim in self._moments:
            self.struck.update(self._moments[victim].last())

    def _victim(self) -> Life:
        return self.random.choice(self._left)

    def _forget(self, victim: Life) -> None:
        if victim in self._left:
            self._left.remove(victim)

    def await_end(self, job: subprocess.Popen[bytes]) -> None:
        """Who is to die while the handle closes does so now, or comes to its end."""
        super().await_end(job)
        self.ended = time.monotonic()
        self.given["status"] = job.poll()
        if job.poll() is None:
            self._describe_hang()
        page = self._moments.get(self._closing) if self._closing else None
        if self._closing and page and page.died_ns:
            self._died(self._closing)

    def _describe_hang(self) -> None:
        """What each thread of those that live waits for."""
        for life in self._left:
            pid = self.pid(life)
            last = self._moments[life].last() if life in self._moments else []
            print(f"{life} ({records.state_of(self.folder, life)}): {last}", file=sys.stderr)
            for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
                with contextlib.suppress(OSError):
                    where = (task / "wchan").read_text(), (task / "comm").read_text().strip()
                    print(f"  thread {task.name}: {where}", file=sys.stderr)

    def calm(self, verdict: oracle.Verdict) -> oracle.Verdict:
        """Judged anew if ranks were silent for long, and nothing else is wrong: a machine that is
        busy with other things has the ranks of a job without kills be silent, too."""
        if not verdict.hangs or not all("was silent" in text for text in verdict.hangs):
            return verdict
        seed = str(self.given["seed"])
        kind = Kind(*(self.given[name] for name in Kind._fields))
        control = LightJob(self._program, self.ranks, kind, seed, 0)
        control.lasts(max(2.0, self.ended - self.began))
        silent = control.run().silent_ns
        control.forget()
        return oracle.judge(self.folder, self.ranks, self.killed, oracle.PATIENCE_NS + silent)

    def lasts(self, seconds: float) -> None:
        """Its loop, without kills."""
        self.kill = lambda job, living: time.sleep(seconds)  # type: ignore[method-assign]


def compile_ranks(to: Path) -> Path:
    """The program of a rank, by the wrapper of the MPI in use."""
    from partialcoll.tools import c_libraries

    program = to / "faults_rank"
    mpicc = Path(launcher.find(launcher.flavor())).parent / "mpicc"
    source = Path(__file__).with_name("faults_rank.c")
    flags = [*c_libraries.cflags().split(), *c_libraries.libs().split()]
    words = [str(mpicc), "-O2", "-Wall", "-Wextra", str(source), *flags, "-o", str(program)]
    subprocess.run(words, check=True, env=dict(os.environ))
    return program
