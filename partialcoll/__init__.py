# SPDX-License-Identifier: Apache-2.0
"""partialcoll: MPI collectives for ranks that do not arrive together.

>>> from mpi4py import MPI
>>> import numpy as np, partialcoll as pc
>>> x = np.ones(4); total = np.empty(4)
>>> rnd = pc.Allreduce(MPI.COMM_WORLD, x, total, quorum="majority")
"""

import importlib
from typing import TYPE_CHECKING, Any

from . import _command
from ._core.version import __version__ as __version__

__all__ = [
    "AbiError",
    "Allreduce",
    "AllreduceHandle",
    "Allreduce_init",
    "DecodeError",
    "Error",
    "ExchangeStats",
    "FirstOf",
    "Full",
    "GossipBuffer",
    "GossipStats",
    "Grid",
    "GroupAllreduce",
    "GroupAllreduce_init",
    "GroupRound",
    "GroupStats",
    "LastOf",
    "Lattice",
    "Majority",
    "MismatchError",
    "Operation",
    "Policy",
    "Quorum",
    "RankFailedError",
    "Result",
    "Round",
    "Schedule",
    "ScheduleView",
    "Solo",
    "Startall",
    "StateError",
    "StateExchange",
    "Stats",
    "Topology",
    "Waitall",
    "Waitany",
    "__version__",
    "bandwidth_shares",
    "memory_estimate",
    "pairing",
]


def __getattr__(name: str) -> Any:
    """Return a public name that importing the package did not load.

    The command loads no MPI until it needs the library, and without MPI there is nothing to load:
    a public name then raises NoMpiError, any other name AttributeError.
    """
    if name in __all__:
        return getattr(importlib.import_module("._public", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if TYPE_CHECKING or not _command.only_starts():
    from ._public import *  # noqa: F403
