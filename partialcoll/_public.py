# SPDX-License-Identifier: Apache-2.0
"""What ``import partialcoll`` gives. Loading it loads MPI and checks that the core fits it."""

from ._core.ffi import core
from ._core.version import __version__
from .codec import Lattice
from .collectives.allreduce import Allreduce_init, Startall, Waitall, Waitany, memory_estimate
from .collectives.dropin import Allreduce
from .collectives.gossip import GossipBuffer
from .collectives.gossip_view import GossipStats
from .collectives.group import GroupAllreduce, GroupAllreduce_init
from .collectives.group_view import GroupRound, GroupStats
from .collectives.handle import AllreduceHandle
from .collectives.handle_view import ScheduleView, Stats
from .collectives.schedule import Operation, Schedule
from .collectives.state_exchange import ExchangeStats, StateExchange
from .errors import AbiError, DecodeError, Error, MismatchError, RankFailedError, StateError
from .grid import Grid, bandwidth_shares
from .policy import FirstOf, Full, LastOf, Majority, Policy, Quorum, Solo
from .round import Result, Round
from .topology import Topology, pairing

core.lib  # noqa: B018 - is loaded and checked here, not at the first call

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
