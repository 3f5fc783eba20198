# SPDX-License-Identifier: Apache-2.0
"""The libraries for C users: where they are, and what a compiler needs to use them."""

from __future__ import annotations

from pathlib import Path

from ..errors import Error
from . import launcher

_PACKAGE = Path(__file__).resolve().parent.parent


def _library(prefix: str) -> Path:
    """The library for the MPI that mpi4py loads."""
    path = _PACKAGE / "lib" / f"{prefix}_{launcher.abi()}.so"
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


def pkg_config_folder() -> str:
    """For PKG_CONFIG_PATH: there is a file for each MPI that the package is built for."""
    return str(_PACKAGE / "lib" / "pkgconfig")


def cmake_folder() -> str:
    """For partialcoll_DIR: the package chooses the library by the MPI that CMake finds."""
    return str(_PACKAGE / "cmake")


def preload() -> str:
    """Path of the interposer, for LD_PRELOAD. Debian has another name for MPICH's library than the
    interposer of a wheel looks for: what has the one and needs the other comes before it there."""
    words = [_library("libpartialcoll_preload")]
    if launcher.library().startswith("libmpich."):
        words = [p for p in [_PACKAGE / "lib/debian/libmpi.so.12"] if p.exists()] + words
    return ":".join(map(str, words))
