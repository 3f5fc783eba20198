# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a job write down while ranks are killed, and the judgment of it by the contract
(docs/semantics.md, 10 to 12): surviving ranks get on, see one history, and lose nothing.

Each rank appends records to a file that outlives it, a line each and by one write, so that a kill
leaves whole records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

MOST_RANKS = 64  # of which a word says who they are, a bit each

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
    """DEPOSIT: number is the call. ROUND: number is its index, words are the mask, those who have
    failed, and a hash of the result; values are how many deposits of each rank are in it, and the
    sum of the numbers of their calls. LOST: the first word is how many rounds before that number
    the rank will never be given. OUTAGE: number counts them, words are when it was met here
    and when all went on. GROWN: others have come, or (the first record) this one has; number is the
    round after that, words are when it began, and who has come. END: nothing is left to do."""

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
    recover_one_ms: list[float] = field(default_factory=list)  # where nobody else died
    rejoin_s: list[float] = field(default_factory=list)
    rounds: int = 0
    silent_ns: int = 0  # the longest pause of one that lives

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
