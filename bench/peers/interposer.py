# SPDX-License-Identifier: Apache-2.0
"""What does the interposer cost a program whose ranks arrive together?

Calls of MPI_Allreduce a second, with it and without, in turn, for MPI_SUM and for an op of the
user; medians of the runs, and the best of each. A rank that waits in MPI burns its core, so this
means something only where nothing else runs: the load at the beginning is noted. The MPI is the
one of this interpreter.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

import click
from lib.job import count

from partialcoll.tools import installed, launcher, report
from partialcoll.tools.cli import options, values

SOURCE = Path(__file__).resolve().with_suffix(".c")
LIMIT_S = 120


class CallProgram:
    def __init__(self, folder: str, ranks: int) -> None:
        self.job, self.environment = launcher.mpiexec(ranks)
        self.path = Path(folder) / "interposer"
        mpicc = Path(self.job[0]).with_name("mpicc")
        subprocess.run([mpicc, "-O2", "-Wall", SOURCE, "-o", self.path], check=True)

    def run(self, calls: int, count: int, preload: bool) -> dict[str, float]:
        """Return calls per second, by op."""
        env = {**self.environment, **({"LD_PRELOAD": installed.preload()} if preload else {})}
        words = [*self.job, str(self.path), str(calls), str(count)]
        done = subprocess.run(
            words, env=env, check=True, capture_output=True, text=True, timeout=LIMIT_S
        )
        return {op: float(rate) for op, rate in map(str.split, done.stdout.splitlines())}


def measure(program: CallProgram, calls: int, count: int, runs: int) -> dict[str, dict[str, float]]:
    rates: dict[str, dict[str, list[float]]] = {}
    for _ in range(runs):
        for who in ("mpi", "interposer"):
            for op, rate in program.run(calls, count, who == "interposer").items():
                rates.setdefault(op, {}).setdefault(who, []).append(rate)
    return {
        op: {
            **{who: statistics.median(values) for who, values in both.items()},
            **{f"{who}_best": max(values) for who, values in both.items()},
        }
        for op, both in rates.items()
    }


@click.command("interposer", help=__doc__, short_help="what the interposer costs a program")
@count("-n", 2, "ranks")
@options.option("--counts", values.POSITIVE_INTS, "1,1024", "doubles")
@count("--runs", 7, "of each")
@options.json
def command(n: int, counts: list[int], runs: int, json: str | None) -> None:
    rows: list[dict[str, object]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        program = CallProgram(folder, n)
        for doubles in counts:
            calls = max(200, 100_000 // (1 + doubles // 64))
            for op, both in measure(program, calls, doubles, runs).items():
                rows.append({"bytes": 8 * doubles, "op": op, **both})
    document = report.document("bench interposer", n, rows)
    document["env"].update(runs=runs, load_before=load)
    report.write(json, document)
