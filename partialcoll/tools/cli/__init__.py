# SPDX-License-Identifier: Apache-2.0
"""The console script ``partialcoll``: info, what C users need, programs on the ranks of a job, the
benchmarks, for which it starts MPI itself, and the simulations, which need none.

Nothing here imports MPI or the library before a command needs it: help and version are for login
nodes as well, where MPI may not start.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ... import _command, _signals

if _command.is_command():
    _signals.end_quietly()

import click

from ..._core.version import __version__
from ...errors import Error

_LONGEST = 1000  # characters of a sentence


class Modules(click.Group):
    """A group some of whose commands are in modules, loaded when they are asked for: each is the
    `command` of its module, or what a colon names."""

    def __init__(self, *words: Any, modules: Mapping[str, str], **how: Any) -> None:
        super().__init__(*words, **how)
        self.modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.modules})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.modules:
            return super().get_command(ctx, name)
        module, _, attribute = self.modules[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute or "command")
        return command


_MODULES = {
    "bench": f"{__name__}.bench:commands",
    "run": f"{__name__}.start",
    "sim": f"{__name__}.sim:commands",
}


@click.group(cls=Modules, modules=_MODULES, no_args_is_help=False)
@click.version_option(__version__, message="partialcoll %(version)s")
def commands() -> None:
    """MPI collectives for ranks that do not arrive together."""


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def info(as_json: bool) -> None:
    """Versions, MPI library, thread level, build."""
    from ..installed import collect

    facts = collect()
    lines = [f"{name:18} {value}" for name, value in facts.items()]
    click.echo(json.dumps(facts, indent=2) if as_json else "\n".join(lines))


@commands.command()
@click.option("--json", "as_json", is_flag=True, help="as JSON")
@click.option("--remove-stale", is_flag=True, help="remove what this user's ended jobs have left")
def doctor(as_json: bool, remove_stale: bool) -> int:
    """Faults of installing and launching, each with its fix.

    Exits with 1 if something does not work at all. Inside a job all ranks look:
    mpiexec -n 4 partialcoll doctor
    """
    from .. import doctor

    return doctor.main(as_json, remove_stale)


@commands.command()
@click.option("--cflags", is_flag=True, help="for the compiler")
@click.option("--libs", is_flag=True, help="for the linker")
@click.option("--pkgconfigdir", is_flag=True, help="the folder for PKG_CONFIG_PATH")
@click.option("--cmakedir", is_flag=True, help="the folder for partialcoll_DIR")
def config(**wanted: bool) -> None:
    """Flags to compile and link a C program with.

    mpicc prog.c $(partialcoll config --cflags --libs)
    """
    from .. import installed

    words = [installed.cflags()] if wanted["cflags"] else []
    words += [installed.libs()] if wanted["libs"] else []
    folders = {"pkgconfigdir": installed.PKG_CONFIG, "cmakedir": installed.CMAKE}
    words += [str(folder) for name, folder in folders.items() if wanted[name]]
    if not words:
        raise click.UsageError("expected --cflags, --libs or a folder, got none of them")
    click.echo(" ".join(words))


@commands.command()
def preload() -> None:
    """Path of the interposer for programs as they are.

    LD_PRELOAD=$(partialcoll preload) PARTIALCOLL_ALL=1 PARTIALCOLL_QUORUM=... mpiexec ...
    """
    from .. import installed

    click.echo(installed.preload())


def _one_line(text: str) -> str:
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]} ..."


def _refuse(error: click.UsageError, name: str) -> None:
    """Print how to get help, and one sentence that names the option."""
    path = error.ctx.command_path if error.ctx else name
    param = getattr(error, "param", None)
    option = f"{' or '.join(param.opts)}: " if param is not None else ""
    print(f"usage: {path} [OPTIONS]; {path} --help lists them", file=sys.stderr)
    sentence = f"{path}: {option}{error.message or error.format_message()}"
    print(_one_line(sentence), file=sys.stderr)


def run(group: click.Group, name: str, words: Sequence[str]) -> int:
    """Run what the words ask of a group of commands; return the exit status. Exit with 2 if they
    make no sense. Raise OSError if output cannot be written."""
    try:
        with group.make_context(name, list(words), obj=list(words)) as context:
            return int(group.invoke(context) or 0)
    except click.exceptions.Exit as done:  # help, version
        return int(done.exit_code)
    except click.UsageError as error:
        _refuse(error, name)
        raise SystemExit(2) from None
    except (click.Abort, KeyboardInterrupt):
        return _signals.status(signal.SIGINT)
    except (Error, ImportError) as error:
        print(_one_line(f"{name}: {error}"), file=sys.stderr)
    except MemoryError as error:
        print(_one_line(f"{name}: out of memory: {error}"), file=sys.stderr)
    return 1


def _unheard(error: OSError) -> int:
    """Return the status if output cannot be written: of SIGPIPE, without a message, if the reader
    has closed the pipe, else 1, with one sentence. Nothing may be flushed afterwards."""
    if error.errno == errno.EPIPE:
        return _signals.status(signal.SIGPIPE)
    with contextlib.suppress(OSError):
        what = error.filename or "standard output"
        os.write(2, f"partialcoll: {what}: {error.strerror}\n".encode())
    return 1


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        status = run(commands, "partialcoll", sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except OSError as error:
        status = _unheard(error)
        sys.stdout = None  # or it would be flushed again at exit
    _signals.let_end()
    return status
