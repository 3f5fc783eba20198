# SPDX-License-Identifier: Apache-2.0
"""The console script ``partialcoll``: info, and the benchmarks, for which it starts MPI itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, Callable

from . import _mpiexec
from ._errors import Error

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("rank",)


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return value


def _not_negative(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text}")
    return value


def _words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated list of some of the words."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"expected {', '.join(allowed)}; got {word!r}")
        return words

    return parse


def _add_launch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "starting the job (inside a running job it is joined instead)"
    )
    group.add_argument(
        "-n", type=_positive_int, default=8, metavar="RANKS", help="ranks (default 8)"
    )
    group.add_argument("--hosts", help="hosts, as the launcher takes them")
    group.add_argument(
        "--mpiexec-args", metavar="ARGS", help="more arguments for the launcher, one string"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="F", help="write the rows as JSON to a file; - for standard output"
    )
    parser.add_argument("--plot", metavar="F.png", help="draw them into a picture")


def _add_skew(commands: Any) -> None:
    skew = commands.add_parser(
        "skew",
        help="what skewed arrival costs, and what a quorum saves",
        description="Rank i arrives i times the skew late. Latency is from entering Start to "
        "leaving Wait, the mean over ranks and rounds, each collective in turn in every iteration.",
    )
    skew.add_argument(
        "--count", type=_positive_int, default=1024, help="float32 elements (default 1024)"
    )
    skew.add_argument(
        "--skew-ms", type=_not_negative, default=1.0, help="between two ranks (default 1)"
    )
    skew.add_argument(
        "--iters", type=_positive_int, default=30, help="iterations measured (default 30)"
    )
    skew.add_argument("--warmup", type=int, default=3, help="iterations before that (default 3)")
    skew.add_argument(
        "--collectives",
        type=_words(COLLECTIVES),
        default=list(COLLECTIVES),
        help=",".join(COLLECTIVES),
    )
    skew.add_argument("--domain", type=_words(DOMAINS), default=["rank"], help=",".join(DOMAINS))
    skew.add_argument(
        "--late",
        choices=("carry", "latest", "drop"),
        default="drop",
        help="what becomes of late deposits; with drop, as in the paper, active counts who came "
        "in time",
    )
    _add_output(skew)
    _add_launch(skew)


def _add_idle(commands: Any) -> None:
    idle = commands.add_parser(
        "idle",
        help="CPU used while nothing happens, and while somebody waits",
        description="CPU time of each process over wall time, with a handle that nobody uses, and "
        "with all ranks but the last waiting for it.",
    )
    idle.add_argument(
        "--seconds", type=_not_negative, default=5.0, help="of each state (default 5)"
    )
    _add_output(idle)
    _add_launch(idle)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="partialcoll", description="MPI collectives for ranks that do not arrive together."
    )
    commands = top.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, MPI library, thread level, build")
    info.add_argument("--json", action="store_true", help="as JSON")
    bench = commands.add_parser("bench", help="benchmarks").add_subparsers(
        dest="bench", required=True
    )
    _add_skew(bench)
    _add_idle(bench)
    return top


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.command == "info":
        from ._info import show

        show(as_json=options.json)
        return 0
    if not _mpiexec.in_job():
        return _mpiexec.relaunch(arguments, options.n, options.hosts, options.mpiexec_args)
    if options.bench == "skew":
        from .bench.skew import main
    else:
        from .bench.idle import main
    main(options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    try:
        return _run(options, words)
    except (Error, ImportError) as error:
        print(f"partialcoll: {error}", file=sys.stderr)
        return 1
