# SPDX-License-Identifier: Apache-2.0
"""partialcoll: MPI collectives for ranks that do not arrive together.

>>> from mpi4py import MPI
>>> import numpy as np, partialcoll as pc
>>> x = np.ones(4); total = np.empty(4)
>>> rnd = pc.Allreduce(MPI.COMM_WORLD, x, total, quorum="majority")
"""

from ._drop_in import Allreduce
from ._errors import AbiError, DecodeError, Error, MismatchError, StateError
from ._handle import AllreduceHandle, ScheduleView, Stats
from ._round import Result, Round
from ._version import __version__
from .allreduce import Allreduce_init, Startall, Waitall, Waitany, memory_estimate
from .gossip import GossipBuffer, GossipStats
from .grid import Grid, bandwidth_shares
from .group import GroupAllreduce, GroupAllreduce_init, GroupRound, GroupStats
from .policy import FirstOf, Full, LastOf, Majority, Policy, Quorum, Solo
from .quantize import Lattice
from .resync import ExchangeStats, StateExchange
from .schedule import Operation, Schedule
from .topology import Topology

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
]
