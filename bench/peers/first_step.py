# SPDX-License-Identifier: Apache-2.0
"""The first training step of a program: partialcoll's optimizer beside torch's
DistributedDataParallel over gloo.

Each run is a job of its own, since a process has only one first step; the two methods take turns.
A step is zero_grad, forward, backward and the update; its time is that of the slowest rank. A row
has the median of the runs, the fastest and the slowest one, and the median of a later step. Needs
torch (exit status 2 without it).

    python bench/run.py first_step [-n 4] [--layers 10] [--width 1024] [--runs 5] [--json F]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment, gloo_group, words
from lib.training import Ours, network

from partialcoll.tools import launcher, report
from partialcoll.tools.bench.turns import meet
from partialcoll.tools.cli import options, values
from peers.ddp import DDP

METHODS = {"ddp-gloo": DDP, "allreduce": Ours}
LATER = 10  # steps after the first one
COLUMNS = (
    "method",
    "ranks",
    "parameters",
    "runs",
    "first_ms",
    "fastest_ms",
    "slowest_ms",
    "later_ms",
)


def step_ms(method: Any, x: Any) -> float:
    """Milliseconds of a step on the slowest rank. Collective."""
    from mpi4py import MPI

    meet(method.comm)
    begin = time.perf_counter()
    method.step(x, x)
    seconds: float = method.comm.allreduce(time.perf_counter() - begin, MPI.MAX)
    return seconds * 1e3


def one_run(given: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """The first step and later ones of a method, as a row. Collective."""
    import torch

    import partialcoll.torch as pct

    with gloo_group(comm):
        pct.init()
        model = network(given.layers, given.width)
        method = METHODS[given.method](model, comm)
        x = torch.randn(4, given.width)
        first, *later = [step_ms(method, x) for _ in range(1 + LATER)]
        method.close()
        pct.shutdown()
    parameters = sum(p.numel() for p in model.parameters())
    common = {"method": given.method, "ranks": comm.size, "parameters": parameters, "runs": 1}
    times = dict.fromkeys(("first_ms", "fastest_ms", "slowest_ms"), first)
    return [{**common, **times, "later_ms": statistics.median(later)}]


def start(given: SimpleNamespace) -> int:
    """Jobs of both methods in turn; write the medians. Return the exit status."""
    vendor = launcher.flavor()
    job = launcher.command(launcher.find(vendor), vendor, given.n, None, None)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    with tempfile.TemporaryDirectory(prefix="partialcoll-first-step-") as folder:
        file = Path(folder, "rows.json")
        for _ in range(given.runs):
            for name, rows in runs.items():
                own = ["--method", name, "--json", str(file)]
                done = subprocess.run(
                    [*job, *words(), *own],
                    env=launcher.environment(vendor),
                    stdout=subprocess.DEVNULL,
                )
                if done.returncode:
                    return done.returncode
                document = json.loads(file.read_text())
                rows += document["rows"]
    medians = []
    for rows in runs.values():
        first = [row["first_ms"] for row in rows]
        later = statistics.median(row["later_ms"] for row in rows)
        found = {"runs": len(rows), "first_ms": statistics.median(first), "later_ms": later}
        medians.append({**rows[0], **found, "fastest_ms": min(first), "slowest_ms": max(first)})
    report.write(given.json, {**document, "rows": medians}, medians, COLUMNS)
    return 0


command = experiment(
    "first_step",
    COLUMNS,
    one_run,
    count("--layers", 10, "of the perceptron"),
    count("--width", 1024, "of each layer"),
    count("--runs", 5, "jobs of each method"),
    options.option("--method", values.one_of(METHODS), "allreduce", "of a run"),
    about=__doc__,
    ranks=4,
    start=start,
)
