# SPDX-License-Identifier: Apache-2.0
"""The libraries for C users: where they are, and what a compiler needs to use them."""

from __future__ import annotations

from pathlib import Path

from ..errors import Error
from . import launcher

_PACKAGE = Path(__file__).resolve().parent.parent


def _library(prefix: str) -> Path:
    """The library for the MPI that mpi4py loads."""
    path = _PACKAGE / "lib" / f"{prefix}_{launcher.flavor()}.so"
    if not path.exists():
        built = sorted(p.name for p in path.parent.glob(f"{prefix}_*.so"))
        raise Error(
            f"{path} does not exist ({', '.join(built) or 'none'} built): install partialcoll with "
            "the mpicc of the MPI that mpi4py uses; in a checkout, `python setup.py build_ext "
            "--inplace` makes it"
        )
    return path


def cflags() -> str:
    """What the compiler needs to find partialcoll.h."""
    return f"-I{_PACKAGE / 'include'}"


def libs() -> str:
    """What the linker needs, the place for the program's start included."""
    library = _library("libpartialcoll")
    name = library.stem[len("lib") :]
    return f"-L{library.parent} -Wl,-rpath,{library.parent} -l{name}"


def preload() -> str:
    """Path of the interposer, for LD_PRELOAD."""
    return str(_library("libpartialcoll_preload"))
