# SPDX-License-Identifier: Apache-2.0
"""Kill ranks of gossip and group strategies, many times, and check what the other ranks do. Each
job trains with on_failure="continue", and its ranks are killed until at most one is left.

The experiment runs every strategy that takes on_failure, one after the other; `--strategies`
chooses some. The seed of a job determines its options, its size and its kill points. Ranks die
between two steps, at random times, or at drawn kill points of the core (csrc/base/check.h; only a
core with checks has them: PARTIALCOLL_CHECKS=1).

A job must end by itself, with status 0. Each surviving rank must go on communicating after the last
death, and must reach its end. Members of a group must have the same result of a round, bit for bit,
and all surviving ranks the same average. The sum over the ranks must be what docs/faults.md says.
It must be exact if all ranks died between two steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click

from core.faults import GOSSIP, GROUPS, LightJob
from partialcoll import decentralized
from partialcoll.errors import Error
from partialcoll.tools import report
from partialcoll.tools.bench.faults import killing
from partialcoll.tools.cli import options, values

COUNTS = (64, 1000, 70_000)  # the last one is more than a chunk
COLUMNS = ("strategy", "ranks", "jobs", "kills", "survived", "hangs", "lost", "diverged")
_LIMIT_S = 150
_SLOTS = 4  # of a queue: the default of GossipBuffer


def strategies() -> dict[str, type[Any]]:
    known = {name: getattr(decentralized, name) for name in decentralized.strategies.__all__}
    return {
        name: one
        for name, one in known.items()
        if "on_failure" in {field.name for field in dataclasses.fields(one)}
    }


def draw(name: str, r: random.Random) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(strategies()[name])}
    drawn = {
        "topology": r.choice(("complete", "ring", "star")),
        "on_disconnect": "bridge",
        "pairing": r.choice(("random", "available")),
        "local_steps": r.choice((1, 2, 4)),
        "variant": r.choice(("queue", "registers")),
        "overlap": r.random() < 0.5,
        "timeout": 100.0,  # longer than a wait for a dead rank may take
        "seed": r.randrange(1000),
    }
    known.discard("pairing" if name == "Swarm" else "variant")
    return {key: value for key, value in drawn.items() if key in known}


class GossipJob(LightJob):
    """One job of `ranks` ranks with the strategy `name`, of which at most `most` are killed."""

    _closes = 0.0

    def __init__(self, ranks: int, name: str, seed: str, most: int) -> None:
        super().__init__(ranks, seed, most)
        r = self.random
        self.name, self.status = name, -1
        self.between = r.random() < 0.3
        options = strategies()[name]
        self.given.update(
            options=options.__name__,
            how=draw(name, r),
            threaded=options.threaded and not self.between and r.random() < 0.6,
            think=r.choice((0.0, 0.001, 0.003)),
            count=r.choice(COUNTS),
            limit=_LIMIT_S,
        )

    def worker(self) -> list[str]:
        file = Path(__file__).with_name("faults_gossip_rank.py")
        return [sys.executable, str(file), json.dumps(self.given)]

    def names(self) -> tuple[str, ...]:
        gossip = issubclass(strategies()[self.name], decentralized.GossipStrategy)
        return GOSSIP if gossip else GROUPS

    def _kill_some(self, most: int) -> None:
        if not self.between:
            super()._kill_some(most)
            return
        victim = self._victim()
        (self.folder / f"die-{victim.rank}").touch()
        limit = time.monotonic() + 20
        while killing.is_there(self.pid(victim)) and time.monotonic() < limit:
            time.sleep(0.001)
        if killing.is_there(self.pid(victim)):
            raise Error(f"{victim} makes no steps any more; logs: {self.folder}")
        self.killed[victim] = time.monotonic_ns()

    def say_stop(self) -> None:
        new = self.folder / "stop.new"
        new.write_text(json.dumps(sorted(life.rank for life in self.killed)))
        new.rename(self.folder / "stop")

    def await_end(self, job: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_LIMIT_S + 60)  # the ranks give up earlier
        self.status = -1 if job.poll() is None else job.returncode

    def judge(self) -> killing.Verdict:
        verdict = killing.Verdict()
        notes: dict[int, list[dict[str, Any]]] = {}
        for rank in range(self.ranks):
            path = self.folder / f"notes-{rank}"
            text = path.read_text() if path.exists() else ""
            notes[rank] = [json.loads(line) for line in text.splitlines()]
        dead = {life.rank for life in self.killed}
        ends = {rank: lines[-1] for rank, lines in notes.items() if lines and "end" in lines[-1]}
        for rank in set(range(self.ranks)) - dead - set(ends):
            verdict.hangs.append(f"rank {rank} did not come to its end")
        if self.status:
            verdict.hangs.append(f"the job ended with status {self.status}")
        for rank, end in ends.items():
            if set(end["failed"]) != dead:
                verdict.diverged.append(f"rank {rank} ended with {end['failed']} dead, not {dead}")
        if len({end["digest"] for end in ends.values()}) > 1:
            verdict.diverged.append("the average is not the same on all")
        # Members of a group must have the same result of a round. The last round of a dead rank
        # does not count, since no other rank may know of it.
        first: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
        for rank, lines in notes.items():
            rounds = [line for line in lines if "round" in line]
            for line in rounds[: len(rounds) - (rank in dead)]:
                for member in line["group"]:
                    other, seen = first.setdefault((line["round"], member), (rank, line))
                    if seen != line:
                        who = f"ranks {rank} and {other}"
                        verdict.diverged.append(f"round {line['round']}: {who} differ")
        verdict.rounds = len({index for index, _ in first})
        if not verdict.faults:
            self._judge_mass(notes, dead, ends, verdict)
        return verdict

    def _judge_mass(
        self,
        notes: dict[int, list[dict[str, Any]]],
        dead: set[int],
        ends: dict[int, dict[str, Any]],
        verdict: killing.Verdict,
    ) -> None:
        """Check the sum over the ranks, which must be exact if all deaths were between two steps.

        A rank that died within a step takes along at most one delta, or the deltas that it was
        collecting. Each of them is at most half the distance between two models. The deltas in the
        queue of a dead rank are always lost. A rank that was stopped for long takes the model of
        another rank, which changes the sum; then it is not checked."""
        count, how = self.given["count"], self.given["how"]
        if not ends or how.get("variant") == "registers" or self.given["threaded"]:
            # MPI has ended all ranks, or the variant does not conserve the sum, or the last
            # model of a dead rank is unknown.
            return
        if any(line.get("resyncs") for lines in notes.values() for line in lines):
            return
        expected = count * 100.0 * sum(range(self.ranks))
        most = max(line["most"] for lines in notes.values() for line in lines if "most" in line)
        found, allowed = next(iter(ends.values()))["mass"], 1e-9 * count * 100.0 * self.ranks
        for rank in dead:
            lines = [line for line in notes[rank] if "in" in line or "out" in line]
            before = (line["mass"] for line in reversed(lines) if "out" in line)
            found += next(before, count * 100.0 * rank)
            if not lines or "in" in lines[-1]:
                allowed += 2 * count * most
            if "variant" in how:
                allowed += _SLOTS * count * most
        if abs(found - expected) > allowed:
            verdict.lost.append(f"the sum is {found}, expected {expected} up to {allowed:g}")


@click.command("faults_gossip", help=__doc__, short_help="gossip and groups whose ranks are killed")
@options.option("-n", values.RANKS, 6, "ranks of each job", metavar="RANKS")
@options.option("--kills", values.POSITIVE_INT, 250, "for each strategy")
@options.option("--seed", values.POSITIVE_INT, 1, "of all that is drawn")
@options.option("--strategies", values.some_of(tuple(strategies())), ",".join(strategies()))
@options.json
def command(n: int, kills: int, seed: int, strategies: list[str], json: str | None) -> int:
    killing.check_launcher("bench faults_gossip")
    rows: dict[str, dict[str, Any]] = {}
    kept = (*COLUMNS[2:], "ended_by_mpi", "rounds")
    for name in strategies:
        tally, aimed, exact = killing.Tally(), Counter[str](), 0
        while tally.kills < kills:
            most = min(n - 1, kills - tally.kills)
            job = GossipJob(n, name, f"{seed}-{name}-{len(tally.verdicts)}", most)
            tally.run(job)
            aimed += job.aimed
            exact += job.between
            whole = tally.row("", "", n)
            row = {"strategy": name, "seed": seed, "ranks": n, "exact_jobs": exact}
            row.update({key: whole[key] for key in kept}, aimed=dict(sorted(aimed.items())))
            rows[name] = row
            document = killing.document("bench faults_gossip", n, list(rows.values()))
            killing.keep(json, document)
    report.write(json, document, list(rows.values()), COLUMNS)
    return int(killing.went_wrong(rows.values()))
