# SPDX-License-Identifier: Apache-2.0
"""partialcoll: MPI collectives for ranks that do not arrive together.

>>> from mpi4py import MPI
>>> import numpy as np, partialcoll as pc
>>> x = np.ones(4); total = np.empty(4)
>>> rnd = pc.Allreduce(MPI.COMM_WORLD, x, total, quorum="majority")
"""

import contextlib
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from . import _command, _moved
from ._core.mpi import NoMpiError
from ._core.version import __version__ as __version__


def __getattr__(name: str) -> Any:
    """A public name, when the command needs the library after all, or where there is no MPI, which
    is said then; a module is none."""
    if name.startswith("_") or importlib.util.find_spec(f"{__name__}.{name}"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("._public", __name__), name)


if TYPE_CHECKING or not _command.only_starts():
    with contextlib.suppress(NoMpiError):
        from ._public import *  # noqa: F403
        from ._public import __all__ as __all__

        if not TYPE_CHECKING:
            __getattr__ = _moved.attribute
