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
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from lib.job import Rows, count, experiment

from partialcoll.tools.cli import options, values
from peers.hivemind_peer import begin_at

INTERPRETER = click.Path(exists=True, dir_okay=False, executable=True)


class HivemindPeers:
    """The peers, each a process of hivemind_peer.py in hivemind's interpreter."""

    def __init__(self, python: str, ranks: int, count: int) -> None:
        self.peers: list[subprocess.Popen[str]] = []
        try:
            self._start(python, ranks, count, "")
            first = hear(self.peers[0])
            self.version = first["version"]
            for _ in range(1, ranks):
                self._start(python, ranks, count, first["ready"][0])
            for process in self.peers[1:]:
                hear(process)
        except BaseException:
            self.end()
            raise

    def _start(self, python: str, ranks: int, count: int, initial: str) -> None:
        program = str(Path(__file__).with_name("hivemind_peer.py"))
        words = [python, program, str(len(self.peers)), str(ranks), str(count), initial]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # A session of its own has the daemons that it starts.
        self.peers.append(subprocess.Popen(words, text=True, start_new_session=True, **pipes))

    def round(self) -> dict[str, Any]:
        moment = time.time() + 0.2
        for process in self.peers:
            assert process.stdin is not None
            process.stdin.write(f"{moment!r}\n")
            process.stdin.flush()
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


def hear(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the next message; other output is skipped."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("@"):
            heard: dict[str, Any] = json.loads(line[1:])
            return heard
    raise RuntimeError(f"hivemind: a process has ended, status {process.wait()}")


def run(given: SimpleNamespace, comm: Any) -> Rows:
    """Measure both alternately, without the first round of each; rank 0 has hivemind's peers."""
    import numpy as np
    from mpi4py import MPI

    import partialcoll as pc
    from partialcoll.tools.bench.turns import meet

    count = given.size // 4
    x, mean = np.zeros(count, np.float32), np.zeros(count, np.float32)
    rounds: dict[str, list[dict[str, Any]]] = {"hivemind": [], "partialcoll": []}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(pc.GroupAllreduce_init(comm, x, mean, grid=(comm.size,)))
        if comm.rank == 0:
            swarm = HivemindPeers(given.hivemind, comm.size, count)
            stack.callback(swarm.end)
        for step in range(given.rounds + 1):
            if comm.rank == 0:
                rounds["hivemind"].append(swarm.round())
            meet(comm, 1e-3)  # no core burnt while hivemind has its turn
            x.fill(comm.rank + step)
            begin = begin_at(comm.bcast(time.time() + 0.2))
            group.Start()
            rnd = group.Wait()
            seconds = comm.allreduce(time.time() - begin, MPI.MAX)
            expected = np.float32((comm.size - 1) / 2 + step)
            exact = comm.allreduce(bool(rnd.exact and (mean == expected).all()), MPI.LAND)
            rounds["partialcoll"].append({"step": seconds, "exact": exact})
    if comm.rank:
        return []
    versions = {"hivemind": swarm.version, "partialcoll": pc.__version__}
    ours = statistics.median(each["step"] for each in rounds["partialcoll"][1:])
    rows = []
    for method, (_, *some) in rounds.items():
        for what in (name for name in some[0] if name != "exact"):
            times = [each[what] for each in some]
            rows.append(
                {
                    "method": method,
                    "version": versions[method],
                    "what": what,
                    "ranks": comm.size,
                    "bytes": given.size,
                    "seconds": statistics.median(times),
                    "fastest": min(times),
                    "slowest": max(times),
                    "rounds": len(times),
                    "exact_rounds": sum(each["exact"] for each in some),
                    "times_ours": statistics.median(times) / ours,
                }
            )
    return rows


command = experiment(
    "hivemind",
    run,
    click.option("--hivemind", type=INTERPRETER, required=True, help="that has it"),
    options.option("--size", values.SIZE, "4M", "bytes"),
    count("--rounds", 7, "of each"),
    about=__doc__,
    ranks=8,
    torch=False,
)
