# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, each declared once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import click

from . import values

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("node", "rank")


def option(name: str, kind: Any, default: Any, text: str, **how: Any) -> Any:
    """Return an option. Its default is given as a user would write it, and shown in the help."""
    return click.option(name, type=kind, default=default, help=text, show_default=True, **how)


def flag(name: str, text: str) -> Any:
    return click.option(name, is_flag=True, help=text)


def together(*options: Any) -> Any:
    return lambda command: functools.reduce(lambda made, each: each(made), options[::-1], command)


def launch(ranks: int | None = 8) -> Any:
    """Return the options that say how the job is started; inside a job they mean nothing. Without
    `ranks` the user must give -n."""
    how_many = {"required": True} if ranks is None else {"default": ranks, "show_default": True}
    return together(
        click.option(
            "-n", type=values.RANKS, help="ranks of the job to start", metavar="RANKS", **how_many
        ),
        option("--hosts", values.HOSTS, None, "a:2,b:2, or a file with a host in each line"),
        option(
            "--mpiexec-args",
            values.LAUNCHER_WORDS,
            None,
            "more arguments for the launcher, one string",
            metavar="ARGS",
        ),
    )


json = option(
    "--json", values.JSON, None, "write the rows as JSON; - is standard output", metavar="F"
)
outputs = together(
    json,
    option("--plot", values.PICTURE, None, "draw them into a picture", metavar="F.png"),
)


def iters(default: int, text: str = "samples of each") -> Any:
    return option("--iters", values.POSITIVE_INT, default, text)


def sizes(default: str) -> Any:
    text = "bytes of float32: FROM:TO, doubling, or a list"
    return option("--sizes", values.SIZES, default, text)


def collectives(*default: str) -> Any:
    text = "mpi and policies; quorum:0.5, for instance"
    return option("--collectives", values.COLLECTIVES, ",".join(default), text)


def algorithm(names: Sequence[str]) -> Any:
    return option("--algorithm", click.Choice(names), names[0], "of the messages")


def domain(allowed: Sequence[str] = DOMAINS) -> Any:
    text = "ranks of a node in shared memory, messages only, or side by side"
    return option("--domain", values.some_of(allowed), ",".join(allowed), text)


def seed(text: str) -> Any:
    return option("--seed", values.SEED, 0, text)


def topology(default: str | None, text: str) -> Any:
    return option("--topology", values.TOPOLOGIES, default, text, metavar="T[,T…]")


def arrivals(iterations: int) -> Any:
    """Return the options that measured and simulated skew have in common."""
    return together(
        option("--count", values.POSITIVE_INT, 1024, "float32 elements"),
        option("--skew-ms", values.HOUR, 1.0, "between two ranks"),
        iters(iterations, "iterations measured"),
        collectives(*COLLECTIVES),
        option(
            "--late",
            click.Choice(("carry", "latest", "drop")),
            "drop",
            "what becomes of late deposits; with drop, as in the paper, active counts who came in "
            "time",
        ),
    )
