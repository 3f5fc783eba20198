# SPDX-License-Identifier: Apache-2.0
"""``partialcoll run``: any program on the ranks of a job, with the launcher that belongs to the MPI
that mpi4py loads, and with what that launcher needs."""

from __future__ import annotations

import os
import shutil
import sys
from types import SimpleNamespace
from typing import Any

import click

from .. import launcher
from . import options, start, values
from .options import flag, option


def _outside_of_jobs(_: SimpleNamespace, __: int) -> None:
    if launcher.in_job():
        raise click.UsageError(
            "argument PROGRAM: expected to start a job, but this is a rank of one already: start "
            "the program without partialcoll run"
        )


def _find(program: str) -> None:
    if shutil.which(program):
        return
    file = os.path.isfile(program)
    what = f"{program!r}, which cannot be run: python {program}?" if file else repr(program)
    raise click.UsageError(f"argument PROGRAM: expected a program that can be run, got {what}")


def _run(program: tuple[str, ...], **given: Any) -> int:
    asked = SimpleNamespace(**given)
    ours = dict(os.environ)
    os.environ.update(asked.variables)
    start.checked(_outside_of_jobs, asked, asked.n)
    if not asked.hosts:
        _find(program[0])
    start.check_memory(asked.n, asked.hosts)
    launch = launcher.Launch(asked.n, asked.hosts, asked.mpiexec_args, dict(asked.variables))
    if asked.dry_run:
        click.echo(launch.as_text(program, ours))
        return 0
    if asked.verbose:
        print(launch.as_text(program, ours), file=sys.stderr, flush=True)
    return launch.run(program, asked.timeout, foreign=True)


command = options.command(
    "run",
    """any program on the ranks of a job

    Starts PROGRAM on the ranks of a job, as in: partialcoll run -n 4 python train.py. What comes
    after PROGRAM is for it. The launcher is that of the MPI that mpi4py uses here, told that there
    may be more ranks than cores, and that root may start them. A rank computes with one thread
    unless OMP_NUM_THREADS is set. Rank 0 reads standard input. The job's exit status is passed on,
    128 + N of a rank that signal N has ended. A signal that ends the command goes to the ranks; 5
    seconds later, or after the next one, what is left of the job is ended.

    -x: NAME=VALUE, or the NAME of one that is set: a variable of the environment of all ranks;
        several times for several
    """,
    _run,
    options.launch(None),
    click.option("-x", "--env", "variables", type=values.VARIABLE, multiple=True),
    option("--timeout", values.POSITIVE, None, "seconds until the job is ended, with status 124"),
    flag("--verbose", "print the launcher's command before it is started"),
    flag("--dry-run", "only print it"),
    click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED),
)
command.context_settings = {"allow_interspersed_args": False}
