# SPDX-License-Identifier: Apache-2.0
"""What does the interposer cost a program whose ranks arrive together?

Calls of MPI_Allreduce a second, with it and without, in turn, for MPI_SUM and for an op of the
user; medians of the runs, and the best of each. A rank that waits in MPI burns its core, so this
means something only where nothing else runs: the load at the beginning is noted. The MPI is the
one of this interpreter.

    python bench/interposer.py [--output bench/results/interposer-mpich.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from partialcoll import _clibs, _mpiexec

SOURCE = Path(__file__).resolve().with_suffix(".c")
LIMIT_S = 120


class Program:
    """The compiled program and how to start it on some ranks."""

    def __init__(self, folder: str, ranks: int) -> None:
        self.vendor = _mpiexec.flavour()
        mpiexec = _mpiexec.find(self.vendor)
        self.path = Path(folder) / "interposer"
        mpicc = Path(mpiexec).parent / "mpicc"
        subprocess.run([mpicc, "-O2", "-Wall", SOURCE, "-o", self.path], check=True)
        self.job = _mpiexec.command(mpiexec, self.vendor, ranks, None, None)

    def run(self, calls: int, count: int, preload: bool) -> dict[str, float]:
        """Calls a second, by op."""
        env = _mpiexec.environment(self.vendor)
        if preload:
            env["LD_PRELOAD"] = _clibs.preload()
        words = [*self.job, str(self.path), str(calls), str(count)]
        done = subprocess.run(
            words, env=env, check=True, capture_output=True, text=True, timeout=LIMIT_S
        )
        return {op: float(rate) for op, rate in map(str.split, done.stdout.splitlines())}


def measure(program: Program, calls: int, count: int, runs: int) -> dict[str, dict[str, float]]:
    """Medians over runs that alternate."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("--counts", default="1,1024", help="doubles (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    result = {
        "mpi": _mpiexec.flavour(),
        "ranks": args.ranks,
        "runs": args.runs,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "calls_per_s": rows,
    }
    with tempfile.TemporaryDirectory() as folder:
        program = Program(folder, args.ranks)
        for count in map(int, args.counts.split(",")):
            calls = max(200, 100_000 // (1 + count // 64))
            for op, both in measure(program, calls, count, args.runs).items():
                rows.append({"bytes": 8 * count, "op": op, **both})
                print(
                    f"{8 * count:8} B  {op:4}  MPI {both['mpi']:10.0f}/s  with the interposer "
                    f"{both['interposer']:10.0f}/s  {both['mpi'] / both['interposer']:5.2f} x"
                )
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
