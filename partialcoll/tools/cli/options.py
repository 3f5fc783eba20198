# SPDX-License-Identifier: Apache-2.0
"""Commands whose options are described in one text, and options that several commands have."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Sequence
from typing import Any, Callable

import click

from . import values

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("node", "rank")


def command(name: str, about: str, run: Callable[..., Any], *own: Any) -> click.Command:
    """Return a command with these options. The first line of `about` is its short help. The rest is
    its help, up to what describes the options that have no text, as in "--seed: of the draws"."""
    head, *texts = re.split(r"^(--?[\w-]+): ", inspect.cleandoc(about), flags=re.MULTILINE)
    short, _, long = head.partition("\n")
    made = click.command(name, short_help=short, help=long.strip())(together(*own)(run))
    described = dict(zip(texts[::2], texts[1::2]))
    for param in made.params:
        if isinstance(param, click.Option) and param.help is None:
            param.help = " ".join(described[param.opts[0]].split())
    return made


def option(name: str, kind: Any, default: Any, text: str | None = None, **how: Any) -> Any:
    """Return an option. Its default is given as a user would write it, and shown in the help. A
    tuple as `kind` stands for a choice."""
    kind = click.Choice(kind) if isinstance(kind, tuple) else kind
    return click.option(name, type=kind, default=default, help=text, show_default=True, **how)


def flag(name: str, text: str | None = None) -> Any:
    return click.option(name, is_flag=True, help=text)


def together(*options: Any) -> Any:
    return lambda command: functools.reduce(lambda made, each: each(made), options[::-1], command)


def launch(ranks: int | None = 8) -> Any:
    """Return the options that say how a job is started. Without `ranks` the user must give -n."""
    how_many = {"required": True} if ranks is None else {"default": ranks, "show_default": True}
    arguments = "more arguments for the launcher, one string"
    return together(
        click.option("-n", type=values.RANKS, help="ranks of the job to start", **how_many),
        option("--hosts", values.HOSTS, None, "a:2,b:2, or a file with a host in each line"),
        option("--mpiexec-args", values.LAUNCHER_WORDS, None, arguments),
    )


json = option("--json", values.JSON, None, "write the rows as JSON; - is standard output")
outputs = together(json, option("--plot", values.PICTURE, None, "draw them into a picture"))


def iters(default: int, text: str = "samples of each") -> Any:
    return option("--iters", values.POSITIVE_INT, default, text)


def sizes(default: str) -> Any:
    text = "bytes of float32: FROM:TO, doubling, or a list"
    return option("--sizes", values.SIZES, default, text)


def collectives(*default: str) -> Any:
    text = "mpi and policies; quorum:0.5, for instance"
    return option("--collectives", values.COLLECTIVES, ",".join(default), text)


def algorithm(names: Sequence[str]) -> Any:
    return option("--algorithm", tuple(names), names[0], "of the messages")


def domain(allowed: Sequence[str] = DOMAINS) -> Any:
    text = "ranks of a node in shared memory, messages only, or side by side"
    return option("--domain", values.some_of(allowed), ",".join(allowed), text)


def seed(text: str) -> Any:
    return option("--seed", values.SEED, 0, text)


def arrivals(iterations: int) -> Any:
    late = (
        "what becomes of late deposits; with drop, as in the paper, active counts who came in time"
    )
    return together(
        option("--count", values.POSITIVE_INT, 1024, "float32 elements"),
        option("--skew-ms", values.HOUR, 1.0, "between two ranks"),
        iters(iterations, "iterations measured"),
        collectives(*COLLECTIVES),
        option("--late", ("carry", "latest", "drop"), "drop", late),
    )
