# SPDX-License-Identifier: Apache-2.0
"""Options that several commands have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import arguments

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("node", "rank")
ALGORITHMS = ("auto", "recdbl", "rabenseifner", "ring", "native")


def add_launch(parser: argparse.ArgumentParser, ranks: int = 8) -> None:
    group = parser.add_argument_group(
        "starting the job (inside a running job it is joined instead)"
    )
    group.add_argument(
        "-n",
        type=arguments.positive_int,
        default=ranks,
        metavar="RANKS",
        help=f"ranks (default {ranks})",
    )
    group.add_argument("--hosts", help="hosts, as the launcher takes them")
    group.add_argument(
        "--mpiexec-args", metavar="ARGS", help="more arguments for the launcher, one string"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="F", help="write the rows as JSON to a file; - for standard output"
    )
    parser.add_argument("--plot", metavar="F.png", help="draw them into a picture")


def add_algorithm(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """The first name is the default."""
    parser.add_argument(
        "--algorithm",
        type=arguments.one_of(names),
        default=names[0],
        help=f"{', '.join(names)} (default {names[0]})",
    )


def add_domain(parser: argparse.ArgumentParser, allowed: Sequence[str] = DOMAINS) -> None:
    parser.add_argument(
        "--domain",
        type=arguments.words(allowed),
        default=list(allowed),
        help="ranks of a node in shared memory, messages only, or side by side (default "
        + ",".join(allowed)
        + ")",
    )


def add_arrivals(skew: argparse.ArgumentParser, iters: int) -> None:
    """What the measured and the simulated skew have in common."""
    skew.add_argument(
        "--count", type=arguments.positive_int, default=1024, help="float32 elements (default 1024)"
    )
    skew.add_argument(
        "--skew-ms", type=arguments.not_negative, default=1.0, help="between two ranks (default 1)"
    )
    skew.add_argument(
        "--iters",
        type=arguments.positive_int,
        default=iters,
        help=f"iterations measured (default {iters})",
    )
    skew.add_argument(
        "--collectives",
        type=arguments.collectives,
        default=list(COLLECTIVES),
        help="mpi and policies (default " + ",".join(COLLECTIVES) + "); quorum:0.5, for instance",
    )
    skew.add_argument(
        "--late",
        choices=("carry", "latest", "drop"),
        default="drop",
        help="what becomes of late deposits; with drop, as in the paper, active counts who came "
        "in time",
    )
