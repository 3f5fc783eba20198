# SPDX-License-Identifier: Apache-2.0
"""The only module that touches the compiled core: finds the build that fits the MPI in use,
checks it, and turns result codes into exceptions."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any, Callable, NoReturn, TypeVar

import numpy as np
from mpi4py import MPI

from ..errors import AbiError, Error, MismatchError, StateError

T = TypeVar("T")
_MEND = (
    "Rebuild partialcoll with the mpicc of the MPI that mpi4py uses: "
    "MPICC=/path/to/mpicc pip install --no-cache-dir --force-reinstall --no-deps partialcoll"
)


def flavor() -> str:
    """The family of ABIs that the loaded MPI belongs to: "openmpi" or "mpich"."""
    return "openmpi" if MPI.get_vendor()[0] == "Open MPI" else "mpich"


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
    wanted = flavor()
    name = f"partialcoll._core_{wanted}"
    if importlib.util.find_spec(name) is None:
        built = [
            f for f in ("mpich", "openmpi") if importlib.util.find_spec(f"partialcoll._core_{f}")
        ]
        have = f"built for {' and '.join(built)}" if built else "not compiled"
        where = os.path.dirname(os.path.dirname(__file__))
        raise AbiError(
            f"mpi4py uses {MPI.get_vendor()[0]}, but partialcoll in {where} is {have}. {_MEND}. "
            "If that folder is a checkout and another one is installed, start elsewhere"
        )
    core = importlib.import_module(name)
    _check(core.lib, core.ffi)
    return core


_core = _load()
ffi: Any = _core.ffi
lib: Any = _core.lib

_EXCEPTIONS: dict[int, type[Exception]] = {
    lib.PCOLL_EINVAL: ValueError,
    lib.PCOLL_ESTATE: StateError,
    lib.PCOLL_EMISMATCH: MismatchError,
    lib.PCOLL_ENOMEM: MemoryError,
    lib.PCOLL_EPROTOCOL: Error,
    lib.PCOLL_ETHREAD: StateError,
    lib.PCOLL_EEMPTY: StateError,
}


def raise_error(code: int) -> NoReturn:
    """Raise what a negative result code stands for, with the core's own message."""
    message = ffi.string(lib.pcoll_last_error()).decode(errors="replace")
    if code == lib.PCOLL_EMPI:
        raise MPI.Exception(lib.pcoll_last_mpi_error())
    raise _EXCEPTIONS.get(code, Error)(message)


def check(code: int) -> None:
    """Return if the core succeeded, raise otherwise."""
    if code != 0:
        raise_error(code)


def _plain(argument: Any) -> Any:
    """As C takes it: an array as its address, which lives as long as the array; None as NULL."""
    if isinstance(argument, np.ndarray):
        return ffi.cast("void *", argument.ctypes.data)
    return ffi.NULL if argument is None else argument


def call(function: Any, *arguments: Any) -> None:
    """Call a function of the core, arrays given as they are; raise if it failed."""
    check(function(*map(_plain, arguments)))


def answer(ctype: str, function: Any, *arguments: Any, check: Callable[[int], None] = check) -> Any:
    """What a function of the core leaves where its last argument points to."""
    found = ffi.new(f"{ctype} *")
    check(function(*map(_plain, arguments), found))
    return found[0]


def answer_text(function: Any, *arguments: Any) -> str:
    """The text that a function of the core leaves in a ``char **``; frees it."""
    text = answer("char *", function, *arguments)
    try:
        return str(ffi.string(text).decode(errors="replace"))
    finally:
        lib.pcoll_text_free(text)


def answer_record(kind: type[T], ctype: str, function: Any, *arguments: Any) -> T:
    """A dataclass with the fields of the struct that a function of the core fills in."""
    struct = ffi.new(f"{ctype} *")
    call(function, *arguments, struct)
    return kind(**{name: getattr(struct, name) for name in kind.__annotations__})
