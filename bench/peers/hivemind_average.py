# SPDX-License-Identifier: Apache-2.0
"""Averaging in one group of 8: hivemind's DecentralizedAverager against GroupAllreduce, by turns.

Both on this machine alone, over float32 vectors, every result checked. hivemind needs torch, so it
has an interpreter of its own:

    python -m venv H && H/bin/pip install torch==2.13.0 hivemind
    python bench/run.py hivemind --hivemind H/bin/python [-n 8] [--size 4M] [--json F]

"step" is what the caller waits for, from the moment that all are told to begin to the moment that
the last one has the average: with hivemind finding the group and averaging; with ours Start and
Wait. "allreduce" is hivemind's averaging alone, its group known; ours forms the group in the
background and says how long Wait was held up for that, so it has no second figure. hivemind is
given times as short as it goes on with, not its defaults of 5 s and 3 s (see hivemind_peer.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where a rank is started as a script
from lib.job import count

from partialcoll.tools import report
from partialcoll.tools.cli import options, values
from peers.hivemind_peer import PEER, begin_at, say

SELF = os.path.abspath(__file__)


class HivemindPeers:
    """The peers, each a process of this script in hivemind's interpreter."""

    def __init__(self, python: str, ranks: int, count: int) -> None:
        self.peers: list[subprocess.Popen[str]] = []
        self._start = lambda i, initial: subprocess.Popen(
            [
                python,
                str(Path(SELF).with_name("hivemind_peer.py")),
                str(i),
                str(ranks),
                str(count),
                initial,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with the daemons that it starts
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            self.peers.append(self._start(0, ""))
            first = hear(self.peers[0])
            self.version = first["version"]
            self.peers += [self._start(i, first["ready"][0]) for i in range(1, ranks)]
            for process in self.peers[1:]:
                hear(process)
        except BaseException:
            self.end()
            raise

    def round(self) -> dict[str, Any]:
        moment = time.time() + 0.2
        for process in self.peers:
            tell(process, repr(moment))
        heard = [hear(process) for process in self.peers]
        spans = [h["span"] for h in heard]
        return {
            "step": max(h["step"] for h in heard),
            "allreduce": max(s[1] for s in spans) - min(s[0] for s in spans),
            "exact": all(h["exact"] for h in heard),
        }

    def end(self) -> None:
        """Ask the peers to end, then kill what is left, their daemons included."""
        for process in self.peers:
            if process.stdin is not None:
                process.stdin.close()
        for process in self.peers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# A rank of ours


def rank(count: int) -> None:
    """Run one rank: rank 0 obeys standard input and tells the others."""
    import numpy as np
    from mpi4py import MPI

    import partialcoll as pc
    from partialcoll.tools.bench.turns import meet

    comm = MPI.COMM_WORLD
    x, mean = np.zeros(count, np.float32), np.zeros(count, np.float32)

    def told() -> str:
        line = sys.stdin.readline() if comm.rank == 0 else ""
        meet(comm, 1e-3)  # no core burnt while hivemind has its turn
        return str(comm.bcast(line))

    with pc.GroupAllreduce_init(comm, x, mean, grid=(comm.size,)) as t:
        if comm.rank == 0:
            say(ready=True, version=pc.__version__)
        step = 0
        while line := told():
            x.fill(comm.rank + step)
            begin = begin_at(line)
            t.Start()
            rnd = t.Wait()
            seconds = time.time() - begin
            expected = np.float32((comm.size - 1) / 2 + step)
            exact = bool(rnd.exact and (mean == expected).all())
            spent = comm.allreduce(seconds, MPI.MAX)
            all_exact = comm.allreduce(exact, MPI.LAND)
            if comm.rank == 0:
                say(step=spent, exact=all_exact)
            step += 1


class Ranks:
    def __init__(self, ranks: int, count: int) -> None:
        from partialcoll.tools import launcher

        words, environment = launcher.mpiexec(ranks)
        self._job = subprocess.Popen(
            [*words, sys.executable, SELF, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.version = hear(self._job)["version"]

    def round(self) -> dict[str, Any]:
        tell(self._job, repr(time.time() + 0.2))
        return hear(self._job)

    def end(self) -> None:
        if self._job.stdin is not None:
            self._job.stdin.close()
        try:
            self._job.wait(30)
        except subprocess.TimeoutExpired:
            self._job.terminate()
            self._job.wait()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next message; other output is skipped."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@"):
            heard: dict[str, Any] = json.loads(line[1:])
            return heard
    raise RuntimeError(f"hivemind: a process has ended, status {process.wait()}")


def rows_of(
    samples: dict[tuple[str, str], list[float]], exact: dict[str, int], ranks: int, size: int
) -> list[dict[str, Any]]:
    """Return the rows: medians, in how many rounds all had the average, and how many times as long
    as our step."""
    ours = statistics.median(samples["partialcoll", "step"])
    return [
        {
            "method": method,
            "what": what,
            "ranks": ranks,
            "bytes": size,
            "seconds": statistics.median(times),
            "fastest": min(times),
            "slowest": max(times),
            "rounds": len(times),
            "exact_rounds": exact[method],
            "times_ours": statistics.median(times) / ours,
        }
        for (method, what), times in samples.items()
    ]


def compare(options: SimpleNamespace) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure both alternately, without the first round of each."""
    count = options.size // 4
    swarm = HivemindPeers(options.hivemind, options.n, count)
    try:
        ours = Ranks(options.n, count)
        try:
            samples: dict[tuple[str, str], list[float]] = {
                ("hivemind", "step"): [],
                ("hivemind", "allreduce"): [],
                ("partialcoll", "step"): [],
            }
            exact = {"hivemind": 0, "partialcoll": 0}
            for step in range(options.rounds + 1):
                for method, side in (("hivemind", swarm), ("partialcoll", ours)):
                    seen = side.round()  # type: ignore[attr-defined]
                    exact[method] += bool(step and seen["exact"])
                    for what in ("step", "allreduce"):
                        if step and what in seen:
                            samples[method, what].append(seen[what])
            rows = rows_of(samples, exact, options.n, options.size)
            return rows, {"hivemind": swarm.version, "partialcoll": ours.version}
        finally:
            ours.end()
    finally:
        swarm.end()


def _interpreter(text: str) -> str:
    if not os.access(text, os.X_OK) or not Path(text).is_file():
        raise ValueError(f"expected a Python interpreter, got {text}")
    return text


@click.command("hivemind", help=__doc__, short_help="averaging in one group of 8 beside hivemind")
@click.option("--hivemind", type=values.Parsed(_interpreter), required=True, help="that has it")
@count("-n", 8, "ranks")
@options.option("--size", values.SIZE, "4M", "bytes")
@count("--rounds", 7, "of each")
@options.json
def command(**given: Any) -> None:
    rows, versions = compare(SimpleNamespace(**given))
    document = report.document("bench hivemind", given["n"], rows)
    document["env"].update(hivemind=versions["hivemind"], times=PEER)
    report.write(given["json"], document)


if __name__ == "__main__":  # a rank of ours
    rank(int(sys.argv[1]))
