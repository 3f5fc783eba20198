# SPDX-License-Identifier: Apache-2.0
"""``partialcoll run``: any program on the ranks of a job, with the launcher that belongs to the MPI
that mpi4py loads, and with what that launcher needs."""

from __future__ import annotations

import os
import shutil

import click

from .. import launcher
from . import options, start


def _find(program: str) -> None:
    """It is here, and can be run."""
    if shutil.which(program):
        return
    file = os.path.isfile(program)
    what = f"{program!r}, which cannot be run: python {program}?" if file else repr(program)
    raise click.UsageError(f"argument PROGRAM: expected a program that can be run, got {what}")


def _run(n: int, hosts: str | None, mpiexec_args: str | None, program: tuple[str, ...]) -> int:
    if launcher.in_job():
        raise click.UsageError(
            "argument PROGRAM: expected to start a job, but this is a rank of one already: start "
            "the program without partialcoll run"
        )
    if not hosts:
        _find(program[0])
    start.check_memory(n, hosts)
    return launcher.start(list(program), n, hosts, mpiexec_args)


commands = click.command(
    "run",
    short_help="any program on the ranks of a job",
    help="Starts PROGRAM on the ranks of a job, as in: partialcoll run -n 4 python train.py. What "
    "comes after PROGRAM is for it. The launcher is that of the MPI that mpi4py uses here, told "
    "that there may be more ranks than cores, and that root may start them. A rank computes with "
    "one thread unless OMP_NUM_THREADS is set, and has no standard input. The job's exit "
    "status is passed on; a signal that ends the command ends the job.",
    context_settings={"allow_interspersed_args": False},
)(
    options.together(
        options.launch(),
        click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED),
    )(_run)
)
