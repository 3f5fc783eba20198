# SPDX-License-Identifier: Apache-2.0
"""A program whose process is to take the place of one that has died:

    python -m partialcoll.newcomer (path|module) NAME [argument ...]

It has MPI before it has anything else, so that those who have started it wait for it no longer than
that; what the program loads, it loads while they go on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

_MODULE = "partialcoll.newcomer"
_arguments = sys.argv[1:]  # the program may take some of them away


def command() -> list[str]:
    """Return what starts this process's own program in that way; as it was started itself where it
    cannot be told which file or module it is."""
    words = list(getattr(sys, "orig_argv", [sys.executable, *sys.argv])[1:])
    before = words[: len(words) - len(_arguments)]  # options, and what is run
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if _MODULE in before or "-c" in before or not before:
        return [sys.executable, *words]
    name, options, kind = before.pop(), before, "path"
    if options and options[-1] == "-m" and spec is not None:
        options.pop()
        kind = "module"
    elif not Path(name).exists():
        return [sys.executable, *words]
    return [sys.executable, *options, "-m", _MODULE, kind, name, *_arguments]


def main() -> None:
    from mpi4py import MPI  # noqa: F401

    from . import elastic  # noqa: F401  notifies the ranks that started this process

    kind, name = sys.argv[1:3]
    sys.argv = [name, *sys.argv[3:]]
    if kind == "module":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(name).resolve().parent)
        runpy.run_path(name, run_name="__main__")


if __name__ == "__main__":
    main()
