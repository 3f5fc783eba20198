# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's gloo against partialcoll's full allreduce, with copies and without.

float32 sums of large messages on one machine, by turns in one run, every element checked. gloo
reduces in place; the full handle copies a send buffer in and a result out, "full (zero copy)"
works in the library's own memory. Outside of a job it starts one; in a job (mpiexec, srun) it
joins it. Needs torch, which partialcoll does not (exit status 2 without it).

    python bench/run.py gloo [-n 8] [--sizes 4M,16M,64M] [--domain node] [--json F]
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

from lib.job import count, experiment, gloo_group

import partialcoll as pc
from partialcoll.tools.bench.micro.balanced import COLUMNS, Contender, Kind, by_turns, of_kind
from partialcoll.tools.cli import options, values


def gloo(elements: int) -> Any:
    """As a contender of bench balanced."""
    import torch
    import torch.distributed

    tensor = torch.ones(elements, dtype=torch.float32)
    array = tensor.numpy()
    return Contender(
        "gloo",
        "-",
        "gloo",
        lambda: torch.distributed.all_reduce(tensor),
        send=lambda: array,
        result=lambda: array,
        received=array,
    )


def measure(options: SimpleNamespace, comm: Any, size: int) -> list[dict[str, Any]]:
    """All of them on messages of so many bytes; rows on rank 0. Collective."""
    import numpy as np

    elements = max(1, size // 4)
    send, recv = np.ones(elements, np.float32), np.empty(elements, np.float32)
    kind = Kind("full", options.domain, "auto")
    contenders = [gloo(elements)]
    for zero_copy in (False, True):
        contenders += of_kind(kind, zero_copy, comm, send, recv)
    rows = by_turns(contenders, comm, elements, options.iters)
    for row in rows:
        row["speedup_vs_gloo"] = rows[0]["latency_us_p50"] / row["latency_us_p50"]
    return rows


def run(options: SimpleNamespace, comm: Any) -> list[dict[str, Any]]:
    """Every size; rows on rank 0. Collective."""
    if len(set(comm.allgather(os.uname().nodename))) > 1:
        raise pc.Error("gloo: expected the ranks of one machine")
    with gloo_group(comm):
        return [row for size in options.sizes for row in measure(options, comm, size)]


command = experiment(
    "gloo",
    [*(c for c in COLUMNS if "mpi" not in c and "limit" not in c), "speedup_vs_gloo"],
    run,
    options.sizes("4M,16M,64M"),
    options.option("--domain", values.some_of(options.DOMAINS), "node", "of the full handles"),
    count("--iters", 9, "batches of each"),
    about=__doc__,
    ranks=8,
)
