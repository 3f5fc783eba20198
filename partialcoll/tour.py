# SPDX-License-Identifier: Apache-2.0
"""``python -m partialcoll.tour``, a guided demo of five minutes: for each kind of user one of the
library's own commands, with what it is about to show and how to read it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path

from . import _signals

if __name__ == "__main__":
    _signals.end_quietly()

import click

from .tools import launcher
from .tools.cli import commands, run

FOLDER = "partialcoll-tour"  # of the pictures


@dataclass(frozen=True)
class Stop:
    title: str
    before: str
    words: str
    after: str
    needs: str | None = None


STOPS = {
    "skew": Stop(
        "For whoever measures: what skewed arrival costs here",
        "Eight ranks call an allreduce, each one millisecond after the one before it. MPI's waits "
        "for the last. solo waits for nobody, majority for one rank drawn anew in each round, "
        "quorum:0.5 for exactly half of them.",
        "bench skew -n 8 --iters 20 --collectives mpi,solo,majority,quorum:0.5",
        "latency_us_avg is how long a rank was in the call, active_mean how many ranks were in the "
        "sum in time. What came late rides in the next one; it is not lost.",
    ),
    "drop-in": Stop(
        "For a program with MPI_Allreduce in a loop: what it costs to change the call",
        "Four ranks, nobody late: partialcoll's full is an ordinary allreduce. Every element of "
        "every result is checked.",
        "bench balanced -n 4 --sizes 4K,64K,512K --collectives mpi,full,solo",
        "wrong is 0 in each row. One line is changed for this: comm.Allreduce(x, y) becomes "
        'partialcoll.Allreduce(comm, x, y, quorum="majority"); or none, with the interposer.',
    ),
    "training": Stop(
        "For who trains with PyTorch: one rank at random is late in each step",
        "Four ranks train a linear model; one of them, another in each step, is 60 ms late. "
        "allreduce waits for it, eager-solo and eager-majority do not.",
        "bench train -n 4 --size 512 --steps 60 --seeds 1 --compute-ms 40 --pattern one-random "
        "--delay-ms 60",
        "speedup_vs_allreduce beside limit, what arithmetic allows; final_loss is of samples that "
        "nobody trained with; replicas_identical: to the bit.",
        needs="torch",
    ),
    "gossip": Stop(
        "For research in decentralized training: 64 simulated ranks on a ring",
        "The library's own code in virtual time: A2CiD2, and the same without its momentum.",
        "sim gossip --ranks 64 --topology ring --time 100 --methods a2cid2,baseline",
        "consensus is how far the ranks' models are from their mean: on a ring, momentum brings "
        "them closer for the same number of communications.",
    ),
}


def _show(text: str) -> None:
    click.echo(click.wrap_text(text, 88))


def _visit(name: str, stop: Stop) -> int:
    click.echo()
    click.secho(stop.title, bold=True)
    _show(stop.before)
    if stop.needs and importlib.util.find_spec(stop.needs) is None:
        _show(f"Left out: {stop.needs} is not installed.")
        return 0
    words = stop.words.split()
    with contextlib.suppress(OSError):  # here nothing can be written
        if importlib.util.find_spec("matplotlib") is not None:
            Path(FOLDER).mkdir(mode=0o700, exist_ok=True)
            words += ["--plot", str(Path(FOLDER) / f"{name}.png")]
    click.echo(f"\n$ partialcoll {' '.join(words)}\n")
    sys.stdout.flush()
    status = run(commands, "partialcoll", words)
    _signals.let_end()
    _show(stop.after if status == 0 else f"It ended with status {status}.")
    return status


@click.command()
@click.argument("stops", nargs=-1, type=click.Choice(list(STOPS)))
@click.option("--no-input", is_flag=True, help="go on without being asked to")
def main(stops: tuple[str, ...], no_input: bool) -> None:
    """Five minutes with partialcoll on this machine: all stops, or those that are named.

    Pictures go to the folder partialcoll-tour, where matplotlib is installed.
    """
    if launcher.in_job():
        raise click.UsageError("expected to start jobs, but this is a rank of one: without mpiexec")
    asks = not no_input and sys.stdin.isatty()
    worst = 0
    for number, name in enumerate(stops or STOPS):
        if asks and number:
            click.pause("\nAny key goes on, Ctrl-C ends.")
        worst = max(worst, _visit(name, STOPS[name]))
    click.echo("\nRead on: the tutorials in docs/, and partialcoll --help.")
    sys.exit(worst)


if __name__ == "__main__":
    main()
