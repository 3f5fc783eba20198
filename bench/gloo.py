# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's gloo against partialcoll's full allreduce, with copies and without.

float32 sums of large messages on one machine, by turns in one run, every element checked. gloo
reduces in place; the full handle copies a send buffer in and a result out, "full (zero copy)"
works in the library's own memory. Outside of a job it starts one; in a job (mpiexec, srun) it
joins it. Needs torch, which partialcoll does not (exit status 2 without it).

    python bench/gloo.py [-n 8] [--sizes 4M,16M,64M] [--domain node] [--json F]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Callable

from partialcoll import _mpiexec
from partialcoll.cli import arguments
from partialcoll.cli.options import DOMAINS

TORCH = "torch==2.13.0"


def _name(script: str) -> str:
    return os.path.splitext(os.path.basename(script))[0]


def elsewhere(options: argparse.Namespace, script: str) -> int | None:
    """None in a job; else the script's exit status on the ranks of a new one (2 without torch)."""
    if importlib.util.find_spec("torch") is None:
        where = f"bench/{_name(script)}.py"
        print(f"{where}: torch is not installed: pip install {TORCH}", file=sys.stderr)
        return 2
    return in_new_job(options, script)


def in_new_job(options: argparse.Namespace, script: str) -> int | None:
    """None in a job; else the script's exit status on the ranks of a new one."""
    if _mpiexec.in_job():
        return None
    vendor = _mpiexec.flavour()
    words = _mpiexec.command(_mpiexec.find(vendor), vendor, options.n, None, None)
    return subprocess.call(
        [*words, sys.executable, os.path.abspath(script), *sys.argv[1:]],
        env=_mpiexec.environment(vendor),
    )


def report(
    options: argparse.Namespace,
    script: str,
    columns: Sequence[str],
    run: Callable[[argparse.Namespace, Any], list[dict[str, Any]]],
) -> int:
    """The rows of run() as table and JSON; exit status 0. Collective."""
    from partialcoll import _report

    options.plot = None
    _report.on_job(options, f"bench {_name(script)}", columns, run, lambda rows, path: None)
    return 0


def join_gloo(comm: Any, folder: str) -> None:
    """Make torch's process group of the ranks of this machine; they meet in a file."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=comm.rank, world_size=comm.size
    )


def gloo(count: int) -> Any:
    """As a contender of bench balanced."""
    import torch
    import torch.distributed

    from partialcoll.bench.balanced import Contender

    tensor = torch.ones(count, dtype=torch.float32)
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


def measure(options: argparse.Namespace, comm: Any, size: int) -> list[dict[str, Any]]:
    """All of them on messages of so many bytes; rows on rank 0. Collective."""
    import numpy as np

    from partialcoll.bench.balanced import Kind, by_turns, of_kind

    count = max(1, size // 4)
    send, recv = np.ones(count, np.float32), np.empty(count, np.float32)
    kind = Kind("full", options.domain, "auto")
    contenders = [gloo(count)]
    for zero_copy in (False, True):
        contenders += of_kind(kind, zero_copy, comm, send, recv)
    rows = by_turns(contenders, comm, count, options.iters)
    for row in rows:
        row["speedup_vs_gloo"] = rows[0]["latency_us_p50"] / row["latency_us_p50"]
    return rows


def run(options: argparse.Namespace, comm: Any) -> list[dict[str, Any]]:
    """Every size; rows on rank 0. Collective."""
    import torch.distributed

    if len(set(comm.allgather(os.uname().nodename))) > 1:
        raise SystemExit("bench/gloo.py: expected the ranks of one machine")
    with tempfile.TemporaryDirectory(prefix="partialcoll-gloo-") as folder:
        join_gloo(comm, comm.bcast(folder))
        comm.Barrier()
    rows = [row for size in options.sizes for row in measure(options, comm, size)]
    torch.distributed.destroy_process_group()
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-n", type=arguments.positive_int, default=8, help="ranks (default %(default)s)"
    )
    parser.add_argument("--sizes", type=arguments.sizes, default=arguments.sizes("4M,16M,64M"))
    parser.add_argument("--domain", type=arguments.words(DOMAINS), default=["node"])
    parser.add_argument("--iters", type=arguments.positive_int, default=9)
    parser.add_argument("--json", metavar="F", help="the rows as JSON; - for standard output")
    options = parser.parse_args()
    status = elsewhere(options, __file__)
    if status is not None:
        return status
    from partialcoll.bench.balanced import COLUMNS

    columns = [c for c in COLUMNS if "mpi" not in c and "limit" not in c]
    return report(options, __file__, [*columns, "speedup_vs_gloo"], run)


if __name__ == "__main__":
    sys.exit(main())
