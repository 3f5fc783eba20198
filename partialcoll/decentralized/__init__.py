# SPDX-License-Identifier: Apache-2.0
"""Decentralized optimization on flat numpy vectors, one class for each algorithm.

They know gradients and updates, no framework, and no MPI: simulated ranks run them as well.
docs/decentralized.md says which is for what.
"""

from . import strategies
from .a2cid2 import A2CiD2Process
from .adpsgd import ADPSGDProcess
from .decoupled import Decoupled, Threaded
from .dpsgd import DPSGDProcess, metropolis
from .localsgd import AllreduceSGD, LocalSGDProcess
from .moshpit import GroupJoin, MoshpitProcess
from .process import (
    Alone,
    Counts,
    Exchange,
    GlobalSum,
    GroupReduction,
    JoinHook,
    NeighborExchange,
    NeighborJoin,
    OnDevice,
    PeerSource,
    PeriodicJoin,
    Process,
    Reduction,
)
from .sgp import ExponentialPeers, SGPProcess
from .slowmo import SlowMoProcess
from .strategies import *  # noqa: F403
from .strategy import GossipStrategy, LocalStrategy, Setup, Strategy
from .swarm import SwarmProcess

__all__ = [
    *strategies.__all__,
    "A2CiD2Process",
    "ADPSGDProcess",
    "AllreduceSGD",
    "Alone",
    "Counts",
    "DPSGDProcess",
    "Decoupled",
    "Exchange",
    "ExponentialPeers",
    "GlobalSum",
    "GossipStrategy",
    "GroupJoin",
    "GroupReduction",
    "JoinHook",
    "LocalSGDProcess",
    "LocalStrategy",
    "MoshpitProcess",
    "NeighborExchange",
    "NeighborJoin",
    "OnDevice",
    "PeerSource",
    "PeriodicJoin",
    "Process",
    "Reduction",
    "SGPProcess",
    "Setup",
    "SlowMoProcess",
    "Strategy",
    "SwarmProcess",
    "Threaded",
    "metropolis",
]
