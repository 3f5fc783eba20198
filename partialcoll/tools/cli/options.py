# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have, each declared once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, TypeVar

import click

from . import values

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("node", "rank")


def option(name: str, kind: Any, default: Any, text: str, **how: Any) -> Any:
    """A default is given as a user would write it, and shown in the help."""
    return click.option(name, type=kind, default=default, help=text, show_default=True, **how)


def flag(name: str, text: str) -> Any:
    """Off unless it is given."""
    return click.option(name, is_flag=True, help=text)


def together(*options: Any) -> Any:
    """Several as one, in the order of the help."""
    return lambda command: functools.reduce(lambda made, each: each(made), options[::-1], command)


def launch(ranks: int | None = 8) -> Any:
    """How the job is started; inside a running job it is joined instead. ranks: None if it has to
    be said."""
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
    """How often each thing is measured."""
    return option("--iters", values.POSITIVE_INT, default, text)


def sizes(default: str) -> Any:
    """Of the messages."""
    text = "bytes of float32: FROM:TO, doubling, or a list"
    return option("--sizes", values.SIZES, default, text)


def collectives(*default: str) -> Any:
    """Which are compared."""
    text = "mpi and policies; quorum:0.5, for instance"
    return option("--collectives", values.COLLECTIVES, ",".join(default), text)


def algorithm(names: Sequence[str]) -> Any:
    """The first name is the default."""
    return option("--algorithm", click.Choice(names), names[0], "of the messages")


def domain(allowed: Sequence[str] = DOMAINS) -> Any:
    """How ranks of a node reduce."""
    text = "ranks of a node in shared memory, messages only, or side by side"
    return option("--domain", values.some_of(allowed), ",".join(allowed), text)


def seed(text: str) -> Any:
    """Of a generator of random numbers."""
    return option("--seed", values.SEED, 0, text)


def topology(default: str | None, text: str) -> Any:
    """One graph or several."""
    return option("--topology", values.TOPOLOGIES, default, text, metavar="T[,T…]")


def arrivals(iterations: int) -> Any:
    """What the measured and the simulated skew have in common."""
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
