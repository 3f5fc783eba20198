# SPDX-License-Identifier: Apache-2.0
"""Measure the interposer's cost for a program whose ranks arrive together.

Calls of MPI_Allreduce a second, with it and without, in turn, for MPI_SUM and for an op of the
user; medians of the runs, and the best of each. `ratio` is the median over pairs of runs, one after
the other: on a shared machine it varies less than the rates. A rank that waits in MPI burns its
core, so this means something only where nothing else runs: the load at the beginning is noted. The
MPI is the one of this interpreter.
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


@click.command("interposer", help=__doc__, short_help="what the interposer costs a program")
@count("-n", 2, "ranks")
@options.option("--counts", values.POSITIVE_INTS, "1,1024", "doubles")
@count("--runs", 7, "of each")
@click.option("--seconds", type=float, default=0.5, show_default=True, help="of calls in a run")
@options.json
def command(n: int, counts: list[int], runs: int, seconds: float, json: str | None) -> None:
    rows: list[dict[str, object]] = []
    load = os.getloadavg()[0]
    job, environment = launcher.mpiexec(n)
    both = [
        ("mpi", environment),
        ("interposer", {**environment, "LD_PRELOAD": installed.preload()}),
    ]
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "interposer")
        mpicc = Path(job[0]).with_name("mpicc")
        subprocess.run([mpicc, "-O2", "-Wall", SOURCE, "-o", program], check=True)
        for doubles in counts:
            words = [*job, program, str(seconds), str(doubles)]
            rates: dict[str, dict[str, list[float]]] = {}  # calls per second, by op
            for who, env in both * runs:
                said = subprocess.check_output(words, env=env, text=True, timeout=LIMIT_S)
                for op, rate in map(str.split, said.splitlines()):
                    rates.setdefault(op, {}).setdefault(who, []).append(float(rate))
            for op, found in rates.items():
                medians = {who: statistics.median(some) for who, some in found.items()}
                best = {f"{who}_best": max(some) for who, some in found.items()}
                pairs = zip(found["interposer"], found["mpi"])
                ratio = statistics.median(with_it / without for with_it, without in pairs)
                rows.append({"bytes": 8 * doubles, "op": op, "ratio": ratio, **medians, **best})
    document = report.document("bench interposer", n, rows)
    document["env"].update(runs=runs, seconds=seconds, load_before=load)
    report.write(json, document)
