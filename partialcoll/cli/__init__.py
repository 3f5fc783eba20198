# SPDX-License-Identifier: Apache-2.0
"""The console script ``partialcoll``: info, what C users need, the benchmarks, for which it starts
MPI itself, and the simulations, which need none."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

from .. import _clibs, _mpiexec
from .._errors import Error
from . import bench, sim, train


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="partialcoll", description="MPI collectives for ranks that do not arrive together."
    )
    commands = top.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, MPI library, thread level, build")
    info.add_argument("--json", action="store_true", help="as JSON")
    config = commands.add_parser(
        "config",
        help="flags to compile and link a C program with",
        description="mpicc prog.c $(partialcoll config --cflags --libs)",
    )
    config.add_argument("--cflags", action="store_true", help="for the compiler")
    config.add_argument("--libs", action="store_true", help="for the linker")
    commands.add_parser(
        "preload",
        help="path of the interposer for programs as they are",
        description="LD_PRELOAD=$(partialcoll preload) PARTIALCOLL_QUORUM=... mpiexec ...",
    )
    benchmarks = commands.add_parser("bench", help="benchmarks").add_subparsers(
        dest="bench", required=True
    )
    bench.add(benchmarks)
    train.add(benchmarks)
    sim.add(
        commands.add_parser("sim", help="the same code in virtual time").add_subparsers(
            dest="sim", required=True
        )
    )
    return top


def _check_installed(options: argparse.Namespace) -> None:
    """Say what a benchmark lacks before a job is started for it."""
    for module, package in options.needs(options).items():
        if importlib.util.find_spec(module) is None:
            raise Error(
                f"bench {options.bench} needs {package}: pip install 'partialcoll[train]', or "
                f"pip install {package}"
            )


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.command == "info":
        from .._info import show

        show(as_json=options.json)
        return 0
    if options.command == "config":
        if not (options.cflags or options.libs):
            parser().error("config: expected --cflags, --libs or both")
        words = [_clibs.cflags()] if options.cflags else []
        print(*words, *([_clibs.libs()] if options.libs else []))
        return 0
    if options.command == "preload":
        print(_clibs.preload())
        return 0
    if hasattr(options, "needs"):
        _check_installed(options)
    if options.command == "bench" and not _mpiexec.in_job():
        return _mpiexec.relaunch(arguments, options.n, options.hosts, options.mpiexec_args)
    # Each benchmark and each simulation is the module of its name: loaded when it is asked for.
    name = getattr(options, options.command)
    importlib.import_module(f"partialcoll.{options.command}.{name}").main(options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    try:
        return _run(options, words)
    except (Error, ImportError) as error:
        print(f"partialcoll: {error}", file=sys.stderr)
    except MemoryError as error:
        print(f"partialcoll: out of memory: {error}", file=sys.stderr)
    return 1
