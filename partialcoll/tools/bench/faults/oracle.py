# SPDX-License-Identifier: Apache-2.0
"""Judges what the ranks of a job have written down by the contract (docs/semantics.md, 10 to 12):
those who live get on, see one history, and lose nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .records import DEPOSIT, END, OUTAGE, ROUND, Record, read

_PATIENCE_NS = 1_000_000_000


@dataclass
class Verdict:
    """Of one job; each text is a fault."""

    hangs: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    diverged: list[str] = field(default_factory=list)
    detect_ms: list[float] = field(default_factory=list)
    recover_ms: list[float] = field(default_factory=list)
    rounds: int = 0

    @property
    def faults(self) -> list[str]:
        """All of them."""
        return self.hangs + self.lost + self.diverged


def _rounds(records: list[Record]) -> dict[int, Record]:
    return {record.number: record for record in records if record.kind == ROUND}


def _histories(logs: dict[int, list[Record]], alive: set[int]) -> dict[int, dict[int, Record]]:
    """The rounds that each rank was given. The last one of a rank that has died may be known to
    nobody else, who then have another one of that number."""
    found = {rank: _rounds(records) for rank, records in logs.items()}
    for rank in set(logs) - alive:
        if found[rank]:
            del found[rank][max(found[rank])]
    return found


def _one_history(
    found: dict[int, dict[int, Record]], alive: set[int], verdict: Verdict
) -> dict[int, Record]:
    first: dict[int, tuple[int, Record]] = {}
    for rank, rounds in found.items():
        for index, record in rounds.items():
            other, seen = first.setdefault(index, (rank, record))
            if (record.words, record.values) != (seen.words, seen.values):
                verdict.diverged.append(f"round {index}: rank {rank} and rank {other} differ")
    for rank in alive:
        missing = sorted(set(first) - set(found[rank]))
        if missing:
            verdict.diverged.append(f"rank {rank} was never given round {missing[0]}")
    verdict.rounds = len(first)
    return {index: first[index][1] for index in sorted(first)}


def _nothing_lost(
    logs: dict[int, list[Record]],
    history: dict[int, Record],
    alive: set[int],
    verdict: Verdict,
) -> None:
    """Each round has the next deposits of each rank, none twice, none left out; at the end all of
    those who live are in one."""
    ranks = len(logs)
    taken = dict.fromkeys(logs, 0)
    for record in history.values():
        for rank in logs:
            count, numbers = int(record.values[rank]), record.values[ranks + rank]
            before = taken[rank]
            taken[rank] = before + count
            expected = sum(range(before + 1, before + count + 1))
            if numbers != expected:
                verdict.lost.append(
                    f"round {record.number} has {count} deposits of rank {rank} whose calls add up "
                    f"to {numbers:.0f}, expected {expected}"
                )
            if bool(record.words[0] >> rank & 1) != bool(count):
                verdict.lost.append(f"round {record.number}: the mask is wrong for rank {rank}")
    for rank in logs:
        made = sum(record.kind == DEPOSIT for record in logs[rank])
        if taken[rank] > made or (rank in alive and taken[rank] != made):
            verdict.lost.append(f"rank {rank} made {made} deposits, {taken[rank]} were delivered")


def _all_got_on(logs: dict[int, list[Record]], alive: set[int], verdict: Verdict) -> None:
    for rank in alive:
        times = [record.time for record in logs[rank]]
        if not logs[rank] or logs[rank][-1].kind != END:
            verdict.hangs.append(f"rank {rank} did not come to its end")
        silent = max((b - a for a, b in zip(times, times[1:])), default=0)
        if silent > _PATIENCE_NS:
            verdict.hangs.append(f"rank {rank} was silent for {silent / 1e9:.1f} s")


def _times(
    logs: dict[int, list[Record]], alive: set[int], kills: list[int], verdict: Verdict
) -> None:
    for rank in alive:
        for record in logs[rank]:
            if record.kind != OUTAGE:
                continue
            began, ended, _ = record.words
            before = [kill for kill in kills if kill <= began]
            if before:
                verdict.detect_ms.append((began - before[-1]) / 1e6)
            verdict.recover_ms.append((ended - began) / 1e6)


def came_to_end(folder: Path, rank: int) -> bool:
    """Has it written down that nothing was left to do?"""
    path = folder / f"log-{rank}"
    return path.exists() and any(record.kind == END for record in read(path))


def judge(folder: Path, ranks: int, kills: dict[int, int]) -> Verdict:
    """The logs of a job of so many ranks, of which these were killed, each at its time."""
    verdict = Verdict()
    logs = {rank: list(read(folder / f"log-{rank}")) for rank in range(ranks)}
    alive = set(logs) - set(kills)
    _all_got_on(logs, alive, verdict)
    history = _one_history(_histories(logs, alive), alive, verdict)
    if not verdict.hangs:
        _nothing_lost(logs, history, alive, verdict)
    _times(logs, alive, sorted(kills.values()), verdict)
    return verdict
