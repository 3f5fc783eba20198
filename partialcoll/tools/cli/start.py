# SPDX-License-Identifier: Apache-2.0
"""Execution of a command after its arguments are parsed. A benchmark runs on the ranks of a job,
which is started if there is none; a simulation runs in this process. ``partialcoll run`` runs any
program on the ranks of a job, with the launcher of the MPI that mpi4py loads, and with the
arguments and variables that this launcher needs."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import traceback
from types import SimpleNamespace
from typing import Any, Callable

import click

from ...errors import Error
from .. import environment, launcher, report
from ..job import last_words
from . import values
from .options import command as new_command
from .options import flag, option
from .options import launch as launch_options

_RANK_BYTES = 32 << 20  # a Python process with MPI, at the very least

Check = Callable[[SimpleNamespace, int], Any]


def check_memory(ranks: int, hosts: str | None) -> None:
    most = max(1, environment.available_memory() // _RANK_BYTES)
    if ranks > most and not hosts:
        here = "what the memory of this machine allows"
        raise click.UsageError(f"-n: expected 1 to {most} ranks ({here}), got {ranks}")


def _start(options: SimpleNamespace) -> int:
    check_memory(options.n, options.hosts)
    words = click.get_current_context().find_root().obj
    return launcher.relaunch(words, options.n, options.hosts, options.mpiexec_args)


def _show(command: str, made: Any, options: SimpleNamespace, ranks: int, rows: Any) -> None:
    """Write the rows of the module `made`: as its `COLUMNS`, `last`, `plot` and `title` say."""
    shown = made.last(rows) if hasattr(made, "last") else None
    document = report.document(command, ranks, rows)
    report.write(options.json, document, shown, getattr(made, "COLUMNS", None))
    if getattr(options, "plot", None):
        made.plot(rows, options.plot, made.title(options, rows) if hasattr(made, "title") else "")


def on_ranks(
    name: str,
    find: Callable[[], Any],
    check: Check = lambda options, ranks: None,
    start: Callable[[SimpleNamespace], int] = _start,
    **fixed: Any,
) -> Callable[..., int]:
    """Return what runs the benchmark that `find` returns: its `main`, or its `run` (options and
    communicator to rows on rank 0; collective), perhaps with `COLUMNS`, `plot` and `title`.

    Outside of a job `start` starts one. `check` raises UsageError for what does not fit the number
    of ranks, in the process that starts the job, or on all ranks of one that is joined. `fixed` are
    options that a user cannot set. If one of several ranks raises, all end, with its sentence: the
    others would wait for it forever.
    """

    def callback(**given: Any) -> int:
        options = SimpleNamespace(**given, **fixed)
        if not launcher.in_job():
            check(options, given.get("n", 0))
            return start(options)
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        if MPI.Comm.Get_parent() == MPI.COMM_NULL:  # not a replacement of a rank of this job
            try:
                check(options, world.size)
            except click.UsageError:
                if world.rank:  # the first rank says it
                    return 2
                raise
        benchmark = find()
        try:
            if hasattr(benchmark, "main"):
                benchmark.main(options)
                return 0
            rows = benchmark.run(options, world)
            if world.rank == 0:
                _show(f"bench {name}", benchmark, options, world.size, rows)
        except Exception as error:
            if world.size == 1:
                raise
            expected = isinstance(error, (Error, ImportError, MemoryError, OSError, ValueError))
            before = "" if expected else traceback.format_exc()
            what = str(error) or type(error).__name__
            last_words(f"{before}partialcoll: rank {world.rank}: {what}\n")
            world.Abort(1)
        return 0

    return callback


def here(module: str) -> Callable[..., None]:
    """Return what runs the simulation ``tools/sim/MODULE``, its `run` with `COLUMNS`, `plot` and
    `title`. Inside a job one rank simulates for all."""

    def callback(**given: Any) -> None:
        if launcher.in_job():
            from mpi4py import MPI

            if MPI.COMM_WORLD.rank:
                return
        options = SimpleNamespace(**given)
        try:
            simulation = importlib.import_module(f"..sim.{module}", __package__)
            rows = simulation.run(options)
            ranks = max(row.get("ranks", row.get("peers")) for row in rows)
            _show(f"sim {module}", simulation, options, ranks, rows)
        except (ValueError, OverflowError) as error:  # an impossible parameter
            # A sentence that begins with the name of an argument is about its option.
            name, colon, rest = str(error).partition(": ")
            command = click.get_current_context().command
            names = {param.name: param.opts[0] for param in command.params}
            raise click.UsageError(f"{names.get(name, name)}{colon}{rest}") from None

    return callback


def _run(program: tuple[str, ...], **given: Any) -> int:
    asked = SimpleNamespace(**given)
    variables = dict(asked.variables)
    if launcher.in_job():
        raise click.UsageError(
            "argument PROGRAM: expected to start a job, but this is a rank of one already: start "
            "the program without partialcoll run"
        )
    if not asked.hosts and not shutil.which(program[0], path=variables.get("PATH")):
        file = f", which cannot be run: python {program[0]}?" if os.path.isfile(program[0]) else ""
        raise click.UsageError(
            f"argument PROGRAM: expected a program that can be run, got {program[0]!r}{file}"
        )
    check_memory(asked.n, asked.hosts)
    launch = launcher.Launch(asked.n, asked.hosts, asked.mpiexec_args, variables)
    if asked.dry_run:
        click.echo(launch.as_text(program))
        return 0
    if asked.verbose:
        print(launch.as_text(program), file=sys.stderr, flush=True)
    return launch.run(program, asked.timeout, foreign=True)


command = new_command(
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
    launch_options(None),
    click.option("-x", "--env", "variables", type=values.VARIABLE, multiple=True),
    option("--timeout", values.POSITIVE, None, "seconds until the job is ended, with status 124"),
    flag("--verbose", "print the launcher's command before it is started"),
    flag("--dry-run", "only print it"),
    click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED),
)
command.context_settings = {"allow_interspersed_args": False}
