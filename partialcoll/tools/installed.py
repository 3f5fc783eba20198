# SPDX-License-Identifier: Apache-2.0
"""The installed versions, for `partialcoll info`, and the libraries and flags for C users."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ..errors import Error
from . import launcher

_FAILURES = {True: "the others are told", False: "the job ends (docs/faults.md)"}


def collect() -> dict[str, Any]:
    import mpi4py
    import numpy

    mpi4py.rc.initialize = True

    from .._core.ffi import core, ffi, lib
    from .._core.mpi import MPI, loaded
    from .._core.version import __version__

    ulfm = False
    with contextlib.suppress(AttributeError, NotImplementedError, MPI.Exception):
        MPI.COMM_SELF.Is_revoked()  # MPICH has the functions, but ends the job
        ulfm = MPI.get_vendor()[0] == "Open MPI"
    found = ffi.new("int32_t[2]")
    failed = lib.pcoll_device_count(found, found + 1)
    driver = f"{found[1] // 1000}.{found[1] % 1000 // 10}"
    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    return {
        "partialcoll": __version__,
        "core built with": ffi.string(lib.pcoll_built_with()).decode(),
        "mpi": ".".join(map(str, MPI.get_vendor()[1])),
        "mpi vendor": MPI.get_vendor()[0],
        "mpi library": MPI.Get_library_version().rstrip("\x00").splitlines()[0],
        "mpi thread level": {getattr(MPI, f"THREAD_{n}"): n for n in levels}[MPI.Query_thread()],
        "mpi files": [str(path) for path in loaded()],
        "ulfm": ulfm,
        "abi match": True,
        "ranks that die": _FAILURES[bool(lib.pcoll_tells_of_failures())],
        "domains": ["node", "rank"],
        "cuda devices": 0 if failed else found[0],
        "cuda driver": core.last_error() if failed else driver,
        "mpi4py": mpi4py.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


_PACKAGE = Path(__file__).resolve().parent.parent
# Folders for PKG_CONFIG_PATH, with a file for each MPI that the package is built for, and for
# partialcoll_DIR, where the CMake package chooses the library by the MPI that CMake finds.
PKG_CONFIG, CMAKE = _PACKAGE / "lib" / "pkgconfig", _PACKAGE / "cmake"


def _library(prefix: str) -> Path:
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
    return f"-I{_PACKAGE / 'include'}"


def libs() -> str:
    """Return what the linker needs, with the folder of the library for the program's start."""
    library = _library("libpartialcoll")
    name = library.stem[len("lib") :]
    return f"-L{library.parent} -Wl,-rpath,{library.parent} -l{name}"


def preload() -> str:
    """Return the path of the interposer, for LD_PRELOAD.

    Debian has another name for MPICH's library than the one that the interposer of a wheel looks
    for. There, a library that has the one name and needs the other comes first.
    """
    words = [_library("libpartialcoll_preload")]
    if launcher.library().startswith("libmpich."):
        words = [p for p in [_PACKAGE / "lib/debian/libmpi.so.12"] if p.exists()] + words
    return ":".join(map(str, words))
