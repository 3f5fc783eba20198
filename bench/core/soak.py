# SPDX-License-Identifier: Apache-2.0
"""Simulated schedules of the protocol under sanitizers, by the million: how many, what failed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import click

from partialcoll.tools import report
from partialcoll.tools.cli import options, values

ROOT = Path(__file__).resolve().parents[2]
TOTAL = re.compile(
    r"(?P<schedules>\d+) schedules, (?P<handles>\d+) handles, (?P<rounds>\d+) rounds, "
    r"(?P<rounds_lost_to_slow_ranks>\d+) rounds lost to slow ranks: (?P<found>.*)"
)
DEATHS = re.compile(
    r"ranks died: (?P<when>[^;]+); (?P<recoveries>\d+) recoveries in (?P<attempts>\d+) attempts, "
    r"(?P<redone>\d+) times a rank began a round anew; (?P<newcomers>\d+) others have come, "
    r"together (?P<grown>\d+) times, called off (?P<called_off>\d+) times"
)
WHEN = re.compile(r"(\d+) (\D+?)(?: one)?(?: (?=\d)|$)")  # after another one
SPEED = re.compile(
    r"(?P<seconds>[\d.]+) s in (?P<processes>\d+) processes: (?P<rounds_per_s>\d+) rounds a second"
)


def parse(text: str) -> list[dict[str, Any]]:
    """Return a row for each policy and algorithm, with the handles of each number of ranks, and one
    for all together."""
    rows: list[dict[str, Any]] = []
    ranks: list[str] = []
    total: dict[str, Any] = {"row": "total"}
    for line in text.splitlines():
        if re.fullmatch(r"[\s\d]+", line):
            ranks = line.split()
        elif found := re.fullmatch(r"(\S+) x (\S+)\s+([\d\s]+)(?:\|[\d\s]*)?", line):
            handles = dict(zip(ranks, map(int, found[3].split())))
            rows.append(
                {"row": "policy", "policy": found[1], "algorithm": found[2], "handles": handles}
            )
        elif found := TOTAL.match(line) or DEATHS.match(line) or SPEED.match(line):
            for name, value in found.groupdict().items():
                if name == "when":
                    for count, moment in WHEN.findall(value):
                        total[moment.replace(" ", "_")] = float(count)
                else:
                    total[name] = value if name == "found" else float(value)
    return [*rows, total]


@click.command("soak", help=__doc__, short_help="simulated schedules by the million")
@options.option("--schedules", values.POSITIVE_INT, 1_000_000, "of them")
@options.option("--ranks", values.POSITIVE_INT, None, "always so many, instead of all numbers")
@click.option("--first", type=values.POSITIVE_INT, default=1, help="seed")
@click.option("--crashes", is_flag=True, help="in which ranks die; without sanitizers, with CHECKs")
@options.json
def command(schedules: int, ranks: int | None, first: int, crashes: bool, json: str | None) -> None:
    program = "build/c/fast/crashes" if crashes else "build/c/soak/invariants"
    subprocess.run(["make", "-s", program], cwd=ROOT, check=True)
    env = {**os.environ, "PARTIALCOLL_SCHEDULES": str(schedules)}
    env["PARTIALCOLL_FIRST"] = str(first)
    env["ASAN_OPTIONS"] = "malloc_context_size=2:quarantine_size_mb=8"
    env.update({"PARTIALCOLL_RANKS": str(ranks)} if ranks else {})
    words = [str(ROOT / program)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    click.echo(done.stderr, err=True, nl=False)
    rows = parse(done.stdout)
    document = report.document("bench soak", ranks or 0, rows)
    how = "CHECKs" if crashes else "address and undefined-behavior sanitizers"
    document["env"]["note"] = f"{how}, -O2; seeds from {first} on"
    report.write(json, document, rows[-1:])
    if done.returncode:
        raise RuntimeError(f"the soak ended with status {done.returncode}")
