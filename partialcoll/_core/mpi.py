# SPDX-License-Identifier: Apache-2.0
"""mpi4py's ``MPI``, which is loaded, and starts MPI, when something of it is first used.

All of the package takes it from here, so that what needs no MPI can be imported where there is
none: simulations, policies, grids and codecs, the command that only starts a job.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .lazy import Lazy

if TYPE_CHECKING:
    from mpi4py import MPI as MPI
else:
    MPI = Lazy(lambda: importlib.import_module("mpi4py.MPI"))
