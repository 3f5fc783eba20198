# SPDX-License-Identifier: Apache-2.0
"""Test allreduces while ranks are killed, many times: `partialcoll bench faults` with ranks that
are killed at chosen kill points.

Each seed has a policy, a domain, a payload and a way of delivery, drawn; its jobs kill all ranks
but one, at drawn kill points of the loop, of a recovery, of the end (csrc/base/check.h, in a core
with checks: PARTIALCOLL_CHECKS=1), or at random, two at once now and then. The judge is that of
`bench faults`; a rank that is silent for longer than a second hangs, unless a job without kills has
such pauses, too. Rows are written seed by seed.
"""

from __future__ import annotations

import contextlib
import mmap
import random
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from partialcoll.tools import launcher, report
from partialcoll.tools.bench.faults import killing
from partialcoll.tools.bench.faults.killing import Life
from partialcoll.tools.cli import options, values

_PAGE, _HEAD, _THREAD, _NAME = 4096, 64, 64, 24
_LEFT, _THREADS, _DIED = 48, 52, 56


def _points(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


# Kill points, by the part of the core: shared memory, messages, a recovery, the end.
SHARED = _points(
    "deposit written, deposit published, result read, closing a round, member frozen, "
    "members frozen, chunk taken, sum ready, publishing, published"
)
ALONE = _points("deposit written, deposit published, result read, publishing")
MESSAGES = _points("frozen, activating, sending, reducing, reporting, round over, round published")
RECOVERY = _points(
    "outage begun, revoked, last word, shrunk, inventory taken, rebuilt, all rebuilt, inherited, "
    "all inherited, gone on"
)
GOSSIP = _points(
    "delta reserved, chunk given, delta given, chunk collected, all collected, slot claimed, "
    "message written, version written"
)
GROUPS = _points("contributed, part reduced, about to vote, voted, decided, group closed")
CLOSING = _points("closing begun, closing entered, closing counted, drained, confirmed")


class Moments:
    """The kill points of one process, which may have ended."""

    def __init__(self, folder: Path, pid: int) -> None:
        with open(folder / f"moments-{pid}", "r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE)

    def aim(self, name: str, passes: int) -> None:
        """Let the process die when one of its threads passes this kill point for the `passes`-th
        time from now on; 0 passes: nowhere."""
        struct.pack_into("=i", self._page, _LEFT, 0)
        self._page[:_LEFT] = name.encode().ljust(_LEFT, b"\0")
        struct.pack_into("=i", self._page, _LEFT, passes)

    @property
    def died_ns(self) -> int:
        return int(struct.unpack_from("=q", self._page, _DIED)[0])

    @property
    def aimed(self) -> str:
        return self._page[:_LEFT].rstrip(b"\0").decode()

    def last(self) -> list[str]:
        (threads,) = struct.unpack_from("=I", self._page, _THREADS)
        found = []
        for number in range(min(threads, (_PAGE - _HEAD) // _THREAD)):
            at = _HEAD + _THREAD * number
            (which,) = struct.unpack_from("=I", self._page, at)
            if which:
                begin = at + 8 + _NAME * (which - 1)
                found.append(self._page[begin : begin + _NAME].split(b"\0")[0].decode())
        return found


QUORUMS = _points(
    "solo, majority, full, quorum:2, quorum:0.75, first_of:2, last_of:3, solo,linger=200us, "
    "full,deadline=2ms, solo,max_staleness=4"
)
DOMAINS = ("node", "rank", "node:2", "node:4")
COUNTS = (1, 64, 1000, 8192, 32768)  # float64: 128 B (16 of them name ranks and calls) to 256 KiB
THINK_SECONDS = (0.0, 0.0002, 0.001, 0.003)

_AIMED = 0.75  # of the kills
_TWINS = 0.3  # of the others: two at once
_PATIENCE_S = 0.4  # for a moment that may not come
_LIMIT_S = 100


def draw(seed: int) -> dict[str, Any]:
    """Return a kind of jobs. deliver="all" has small payloads: a late rank gets every round."""
    r = random.Random(seed)
    kind = {"quorum": r.choice(QUORUMS), "domain": r.choice(DOMAINS)}
    deliver, count = r.choice(("one", "one", "all")), r.choice(COUNTS)
    return {**kind, "deliver": deliver, "count": min(count, 1000 if deliver == "all" else count)}


class LightJob(killing.KilledJob):
    """A `KilledJob` of whose ranks `most` are killed; none in a control job."""

    _closes = 0.3  # the share of jobs in which the last rank dies while the handle closes

    def __init__(
        self, ranks: int, seed: str, most: int, quorum: str = "", domain: str = "", **kind: Any
    ) -> None:
        super().__init__(ranks, quorum, domain, seed, most)
        self._closing: Life | None = None
        self._living: list[Life] = []
        self._moments: dict[Life, Moments] = {}
        self.aimed: Counter[str] = Counter()  # where they died as they were told to
        self.began = self.ended = 0.0
        self.given.update(
            **kind,
            think=self.random.choice(THINK_SECONDS),
            algorithm=self.random.choice(killing.ALGORITHMS[1:-1]),
            at_once=True,
            limit=_LIMIT_S,
        )

    def start(self) -> tuple[list[str], dict[str, str] | None]:
        """Start the ranks without a command that starts the launcher."""
        job, env = launcher.mpiexec(self.ranks, "--with-ft ulfm", self.folder)
        env["PARTIALCOLL_MOMENTS"] = str(self.folder)
        return [*job, *self.worker()], env

    def kill(self, job: subprocess.Popen[bytes], living: list[Life]) -> None:
        self.began = time.monotonic()
        self._living = living
        for life in living:
            with contextlib.suppress(FileNotFoundError):  # a core without checks
                self._moments[life] = Moments(self.folder, self.pid(life))
        gap = self.random.choice((0.002, 0.01, 0.05))
        last = self.kills - (self.random.random() < self._closes)
        while len(self.killed) < last:
            time.sleep(self.random.expovariate(1) * gap)
            self._kill_some(last - len(self.killed))
        if len(self.killed) < self.kills:
            self._closing = self._victim()
            self._aim(self._closing, CLOSING, 1)

    def _kill_some(self, most: int) -> None:
        """Kill one rank, or two at once; or one at a kill point in its loop, and perhaps another
        one in the recovery that follows."""
        if self.random.random() >= _AIMED or not self._moments:
            for _ in range(1 + (most > 1 and self.random.random() < _TWINS)):
                self.strike(self._victim())
            return
        aims: list[Life] = []
        if most > 1 and self.random.random() < 0.6:
            second = self._victim()
            self._aim(second, RECOVERY, self.random.choice((1, 1, 1, 2)))
            aims.append(second)
        first = min(self._left(*aims)) if self.random.random() < 0.5 else self._victim(*aims)
        self._aim(first, self.names(), self.random.randint(1, 12))
        for victim in (first, *aims):
            self._await(victim)

    def names(self) -> tuple[str, ...]:
        domain = str(self.given["domain"])
        if domain == "rank":
            return ALONE + MESSAGES
        return SHARED + MESSAGES if ":" in domain else (*SHARED, "frozen", "round over")

    def _aim(self, victim: Life, names: tuple[str, ...], passes: int) -> None:
        if victim in self._moments:
            self._moments[victim].aim(self.random.choice(names), passes)

    def _await(self, victim: Life) -> None:
        """Wait until the rank dies at its kill point, or kill it wherever it is."""
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
            self._died(victim)

    def _died(self, victim: Life) -> None:
        page = self._moments[victim]
        self.killed[victim] = page.died_ns
        self.aimed[page.aimed] += 1

    def _left(self, *but: Life) -> list[Life]:
        return [life for life in self._living if life not in self.killed and life not in but]

    def _victim(self, *but: Life) -> Life:
        return self.random.choice(self._left(*but))

    def await_end(self, job: subprocess.Popen[bytes]) -> None:
        """Wait for the end. A rank that is to die while the handle closes dies now, or ends."""
        super().await_end(job)
        self.ended = time.monotonic()
        self.given["status"] = job.poll()
        if job.poll() is None:
            self._describe_hang()
        page = self._moments.get(self._closing) if self._closing else None
        if self._closing and page and page.died_ns:
            self._died(self._closing)

    def _describe_hang(self) -> None:
        for life in self._left():
            pid = self.pid(life)
            last = self._moments[life].last() if life in self._moments else []
            print(f"{life}: {last}", file=sys.stderr)
            for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
                with contextlib.suppress(OSError):
                    where = (task / "wchan").read_text(), (task / "comm").read_text().strip()
                    print(f"  thread {task.name}: {where}", file=sys.stderr)

    def calm(self, verdict: killing.Verdict) -> killing.Verdict:
        """Judge the job again if ranks were silent for long and nothing else is wrong: on a busy
        machine the ranks of a job without kills are silent, too."""
        if not verdict.hangs or not all("was silent" in text for text in verdict.hangs):
            return verdict
        kind = {name: self.given[name] for name in ("quorum", "domain", "deliver", "count")}
        control = LightJob(self.ranks, str(self.given["seed"]), 0, **kind)
        seconds = max(2.0, self.ended - self.began)
        control.kill = lambda job, living: time.sleep(seconds)  # type: ignore[method-assign]
        silent = control.run().silent_ns
        control.forget()
        return killing.judge(self.folder, self.ranks, self.killed, killing.PATIENCE_NS + silent)


@click.command("faults", help=__doc__, short_help="allreduces whose ranks are killed, many times")
@options.option("-n", values.RANKS, 8, "ranks of each job", metavar="RANKS")
@options.option("--kills", values.POSITIVE_INT, 70, "for each seed")
@click.option("--seeds", type=(int, int), default=(1, 10), help="the first and the last")
@options.json
def command(n: int, kills: int, seeds: tuple[int, int], json: str | None) -> int:
    killing.check_launcher("bench faults")
    rows: list[dict[str, Any]] = []
    every = killing.Tally()
    for seed in range(seeds[0], seeds[1] + 1):
        kind, tally, aimed = draw(seed), killing.Tally(), Counter[str]()
        while tally.kills < kills:
            most = min(n - 1, kills - tally.kills)
            job = LightJob(n, f"{seed}-{len(tally.verdicts)}", most, **kind)
            tally.run(job)
            aimed += job.aimed
        row = {"seed": seed, **tally.row(kind["quorum"], kind["domain"], n)}
        rows.append({**row, **kind, "aimed": dict(aimed)})
        every.verdicts += tally.verdicts
        total = {"seed": "all", **every.row("all", "all", n)}
        document = killing.document("bench faults", n, [total, *rows])
        killing.keep(json, document)
    report.write(json, document, [*rows, total], ("seed", *killing.COLUMNS[:-1]))
    return int(killing.went_wrong(rows))
