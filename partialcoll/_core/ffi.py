# SPDX-License-Identifier: Apache-2.0
"""The only module that touches the compiled core: finds the build that fits the MPI in use,
and checks it, when something of it is first used."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

from ..errors import AbiError
from . import finalize
from .mpi import MPI, Lazy
from .pure import Library

_ABIS = ("mpich", "openmpi", "mpiabi")
_OLDEST = (3, 0)  # version of MPI
_MEND = (
    "Rebuild partialcoll with the mpicc of the MPI that mpi4py uses: "
    "MPICC=/path/to/mpicc pip install --no-cache-dir --force-reinstall --no-deps . in its source"
)


def abi() -> str:
    """The ABI through which mpi4py uses its MPI: "mpich", "openmpi", or "mpiabi", that of the MPI
    standard, which several MPIs have besides their own. Handles of MPICH's have 4 bytes."""
    version = getattr(MPI, "Get_abi_version", None)  # not in mpi4py 4.0
    if version is not None and version()[0] > 0:
        return "mpiabi"
    return "mpich" if MPI._sizeof(MPI.Comm) == 4 else "openmpi"


def built() -> list[str]:
    """The ABIs that this package has a core for. Loads none."""
    return [name for name in _ABIS if importlib.util.find_spec(f"partialcoll._core_{name}")]


def _check(lib: Any, ffi: Any) -> None:
    """Nothing here calls MPI, except MPI_Get_library_version, which is always legal."""
    if lib.pcoll_sizeof_comm() != MPI._sizeof(MPI.Comm):
        raise AbiError(
            f"partialcoll's core was compiled with communicators of {lib.pcoll_sizeof_comm()} "
            f"bytes, mpi4py's have {MPI._sizeof(MPI.Comm)}. {_MEND}"
        )
    text = ffi.new("char[]", 8192)
    lib.pcoll_library_version(text, 8192)
    ours = ffi.string(text).decode(errors="replace").rstrip()
    theirs = MPI.Get_library_version().rstrip("\x00").rstrip()
    if ours != theirs:
        raise AbiError(
            f"partialcoll's core has loaded {ours.splitlines()[0]!r}, "
            f"mpi4py uses {theirs.splitlines()[0]!r}. {_MEND}"
        )


def _load() -> Any:
    wanted, there = abi(), built()
    if MPI.Get_version() < _OLDEST:
        raise AbiError(
            f"expected an MPI of version {_OLDEST[0]}.{_OLDEST[1]} at least, mpi4py uses "
            f"{MPI.get_vendor()[0]}, which has {'.'.join(map(str, MPI.Get_version()))}"
        )
    if wanted not in there:
        have = f"built for {' and '.join(there)}" if there else "not compiled"
        where = os.path.dirname(os.path.dirname(__file__))
        raise AbiError(
            f"mpi4py uses {MPI.get_vendor()[0]} (ABI: {wanted}), but partialcoll in {where} is "
            f"{have}. {_MEND}. "
            "If that folder is a checkout and another one is installed, start elsewhere"
        )
    core = importlib.import_module(f"partialcoll._core_{wanted}")
    _check(core.lib, core.ffi)
    loaded_mpi = importlib.import_module("mpi4py.MPI")
    finalize.watch(loaded_mpi, core.lib.pcoll_quiet, core.lib.pcoll_record_status)
    return core


def _raise_mpi_error() -> None:
    if code := core.lib.pcoll_last_mpi_error():
        raise MPI.Exception(code)


core = Library(_load, _raise_mpi_error)
ffi: Any = Lazy(lambda: core.ffi)
lib: Any = Lazy(lambda: core.lib)
raise_error = core.raise_error
check = core.check
call = core.call
answer = core.answer
answer_text = core.answer_text
answer_record = core.answer_record
