# SPDX-License-Identifier: Apache-2.0
"""The judge of `bench faults` finds the mistakes in artificial logs."""

import pytest

from partialcoll.tools.bench.faults import killing
from partialcoll.tools.bench.faults.killing import (
    DEPOSIT,
    END,
    GROWN,
    OUTAGE,
    ROUND,
    Life,
    Log,
    LogRecord,
)

RANKS = 2
OLD, NEW = Life(1, 0), Life(1, 1)
BEGINS = 3  # the newcomer's first round


def rounds():
    """Yield six rounds, each with rank 0 and whichever process is rank 1."""
    for index in range(6):
        call = index + 1 if index < BEGINS else index - BEGINS + 1
        yield LogRecord(ROUND, 10 * index + 5, index, (0b11, 0, 7), (1.0, 1.0, index + 1.0, call))


def history():
    """Return logs in which rank 0 lives, and rank 1 is killed after two rounds and replaced."""
    logs = {Life(0): [], OLD: [], NEW: [LogRecord(GROWN, 30, BEGINS, (21, 0b10, 0))]}
    logs[NEW].append(list(rounds())[BEGINS - 1])  # the last round before
    for rnd in rounds():
        own = OLD if rnd.number < BEGINS else NEW
        for life in (Life(0), own):
            call = int(rnd.values[RANKS + life.rank])
            logs[life].append(LogRecord(DEPOSIT, rnd.time - 5, call))
            if rnd.number != BEGINS - 1 or life != OLD:  # killed before it receives that one
                logs[life].append(rnd)
    for life in (Life(0), NEW):
        logs[life].append(LogRecord(END, 100, 6))
    return logs


def judged(folder, logs):
    for life, records in logs.items():
        log = Log(str(folder), life)
        for record in records:
            log.write(record)
    return killing.judge(folder, RANKS, {OLD: 20})


def test_nothing_is_wrong(tmp_path):
    verdict = judged(tmp_path, history())
    assert not verdict.faults and verdict.rounds == 6


@pytest.mark.parametrize("kills, alone", [([20], 1), ([20, 25], 0), ([0, 20], 1), ([20, 55], 1)])
def test_recoveries_from_one_death(tmp_path, kills, alone):
    ms = 1_000_000
    outage = LogRecord(OUTAGE, 52 * ms, 1, (51 * ms, 54 * ms, 0))
    for life in (Life(0), OLD):
        Log(str(tmp_path), life).write(outage)
    killed = {Life(1, i): at * ms for i, at in enumerate(kills)}
    verdict = killing.judge(tmp_path, RANKS, killed)
    assert verdict.recover_ms == [3.0] and verdict.recover_one_ms == [3.0] * alone


def replaced(records, number, **words):
    return [
        LogRecord(**{**vars(r), **words}) if (r.kind, r.number) == (ROUND, number) else r
        for r in records
    ]


@pytest.mark.parametrize("number", [BEGINS - 1, BEGINS, 5])
def test_a_newcomer_is_given_something_else(tmp_path, number):
    logs = history()
    logs[NEW] = replaced(logs[NEW], number, words=(0b11, 0, 8))
    verdict = judged(tmp_path, logs)
    assert any(f"round {number}" in fault and "life 1" in fault for fault in verdict.diverged)


@pytest.mark.parametrize("number", [BEGINS - 1, BEGINS])
def test_a_newcomer_is_never_given_a_round(tmp_path, number):
    logs = history()
    logs[NEW] = [r for r in logs[NEW] if (r.kind, r.number) != (ROUND, number)]
    assert f"rank 1, life 1 was never given round {number}" in judged(tmp_path, logs).diverged


def test_a_deposit_of_the_newcomer_is_lost(tmp_path):
    logs = history()
    for life in (Life(0), NEW):
        logs[life] = replaced(logs[life], 5, words=(0b01, 0, 7), values=(1.0, 0.0, 6.0, 0.0))
    assert judged(tmp_path, logs).lost == ["rank 1, life 1 made 3 deposits, 2 were delivered"]


def test_a_deposit_of_the_dead_is_in_a_round_of_the_newcomer(tmp_path):
    logs = history()
    for life in (Life(0), NEW):
        logs[life] = replaced(logs[life], 3, values=(1.0, 2.0, 4.0, 4.0))
    assert judged(tmp_path, logs).lost


def test_a_newcomer_does_not_end(tmp_path):
    logs = history()
    logs[NEW].pop()
    assert judged(tmp_path, logs).hangs == ["rank 1, life 1 did not come to its end"]
