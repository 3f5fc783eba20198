# SPDX-License-Identifier: Apache-2.0
"""An experiment as a command: outside of a job it starts one that runs the same words, in a job
(mpiexec, srun) its ranks measure and rank 0 writes the rows."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable

import click

from partialcoll.tools import launcher
from partialcoll.tools.cli import options, values
from partialcoll.tools.cli.start import on_ranks

RUN = Path(__file__).resolve().parent.parent / "run.py"

Rows = list[dict[str, Any]]


def count(name: str, default: int, text: str) -> Any:
    return options.option(name, values.POSITIVE_INT, default, text)


def words() -> list[str]:
    """Return the words that run this experiment with these options again, in another process."""
    return [sys.executable, str(RUN), *click.get_current_context().find_root().obj]


def new_job(given: SimpleNamespace) -> int:
    job, environment = launcher.mpiexec(given.n, getattr(given, "mpiexec_args", None))
    return subprocess.call([*job, *words()], env=environment)


def experiment(
    name: str,
    run: Callable[[SimpleNamespace, Any], Rows],
    *own: Any,
    columns: Sequence[str] | None = None,
    plot: Callable[[Rows, str, str], None] | None = None,
    about: str | None = None,
    ranks: int | None = None,
    start: Callable[[SimpleNamespace], int] = new_job,
    **fixed: Any,
) -> click.Command:
    """Return a command that measures with `run`, from options and communicator to rows; `start` and
    `fixed` as for `on_ranks`. `about` is the help, by default the docstring of `run`; `ranks` the
    number of ranks to start by default, without which `start` knows how many."""
    benchmark = SimpleNamespace(run=run, COLUMNS=columns, plot=plot)
    callback = on_ranks(name, lambda: benchmark, start=start, **fixed)
    every = own if ranks is None else (count("-n", ranks, "ranks"), *own)
    outputs = options.outputs if plot else options.json
    return options.command(name, about or inspect.getdoc(run) or "", callback, *every, outputs)


@contextlib.contextmanager
def gloo_group(comm: Any, interface: str = "lo") -> Iterator[None]:
    """Make torch's process group of these ranks over gloo, by a file. Collective."""
    import torch
    import torch.distributed

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    with tempfile.TemporaryDirectory(prefix="partialcoll-gloo-") as folder:
        meet = f"file://{comm.bcast(folder)}/meet"
        torch.distributed.init_process_group(
            "gloo", init_method=meet, rank=comm.rank, world_size=comm.size
        )
        comm.Barrier()
    yield
    torch.distributed.destroy_process_group()
