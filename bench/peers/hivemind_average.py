# SPDX-License-Identifier: Apache-2.0
"""Compare averaging in one group of 8: hivemind's DecentralizedAverager and GroupAllreduce.

Both alternate, on this machine alone, over float32 vectors; every result is checked. hivemind needs
torch, so it has its own interpreter:

    python -m venv H && H/bin/pip install torch==2.13.0 hivemind
    python bench/run.py hivemind --hivemind H/bin/python [-n 8] [--size 4M] [--json F]

"step" is the caller's waiting time, from the signal to begin until the last peer has the average:
for hivemind finding the group and averaging; for partialcoll Start and Wait. "allreduce" is
hivemind's averaging alone, with a known group; partialcoll forms the group in the background and
reports how long Wait was delayed by that, so it has no second figure. hivemind gets the shortest
timeouts that it works with, not its defaults of 5 s and 3 s (see hivemind_peer.py).
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

from partialcoll.errors import Error
from partialcoll.tools.cli import options, values
from peers.hivemind_peer import begin_at

INTERPRETER = click.Path(exists=True, dir_okay=False, executable=True)


def end(process: subprocess.Popen[str]) -> None:
    """Ask a peer to end, then kill what is left, its daemons included."""
    assert process.stdin is not None
    process.stdin.close()
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
    raise Error(f"hivemind: a peer has ended with status {process.wait()}: is hivemind installed?")


def run(given: SimpleNamespace, comm: Any) -> Rows:
    """Measure both alternately, without the first round of each. Each rank has a peer of
    hivemind's swarm, a process of hivemind_peer.py in hivemind's interpreter."""
    import numpy as np
    from mpi4py import MPI

    import partialcoll as pc
    from partialcoll.tools.bench.turns import meet

    count, first = given.size // 4, {"ready": [""]}
    x, mean = np.zeros(count, np.float32), np.zeros(count, np.float32)
    rounds: dict[str, list[dict[str, Any]]] = {"hivemind": [], "partialcoll": []}
    program = str(Path(__file__).with_name("hivemind_peer.py"))
    words = [given.hivemind, program, *map(str, (comm.rank, comm.size, count))]
    # A session of its own has the daemons that a peer starts.
    how: dict[str, Any] = {"text": True, "start_new_session": True}
    how.update(stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(pc.GroupAllreduce_init(comm, x, mean, grid=(comm.size,)))
        for turn in (True, False):  # the first peer says where the others find it
            if turn == (comm.rank == 0):
                peer = subprocess.Popen([*words, first["ready"][0]], **how)
                stack.callback(end, peer)
                first = hear(peer)
            first = comm.bcast(first)
        for step in range(given.rounds + 1):
            print(comm.bcast(time.time() + 0.2), file=peer.stdin, flush=True)
            mine = hear(peer)
            meet(comm, 1e-3)  # no core burnt while hivemind has its turn
            heard = comm.allgather(mine)
            begins, ends = zip(*(each["span"] for each in heard))
            rounds["hivemind"].append(
                {
                    "step": max(each["step"] for each in heard),
                    "allreduce": max(ends) - min(begins),
                    "exact": all(each["exact"] for each in heard),
                }
            )
            x.fill(comm.rank + step)
            begin = begin_at(comm.bcast(time.time() + 0.2))
            group.Start()
            rnd = group.Wait()
            seconds = comm.allreduce(time.time() - begin, MPI.MAX)
            expected = np.float32((comm.size - 1) / 2 + step)
            exact = comm.allreduce(bool(rnd.exact and (mean == expected).all()), MPI.LAND)
            rounds["partialcoll"].append({"step": seconds, "exact": exact})
    versions = {"hivemind": first["version"], "partialcoll": pc.__version__}
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
)
