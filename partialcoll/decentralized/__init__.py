# SPDX-License-Identifier: Apache-2.0
"""Decentralized optimization on flat numpy vectors, one class for each algorithm.

They know gradients and updates, no framework, and no MPI: simulated ranks run them as well.
docs/decentralized.md says which is for what.
"""

from .a2cid2 import A2CiD2, A2CiD2Options
from .adpsgd import ADPSGD, ADPSGDOptions
from .allreducesgd import AllreduceSGD
from .alone import Alone
from .base import Counts, Process
from .decoupled import Decoupled, Threaded
from .dpsgd import DPSGD, DPSGDOptions, metropolis
from .exchange import Exchange, GroupReduction, PeerSource, Reduction
from .global_sum import GlobalSum
from .join import JoinHook, NeighborJoin, PeriodicJoin
from .localsgd import LocalSGD, LocalSGDOptions
from .moshpit import GroupJoin, Moshpit, MoshpitOptions
from .neighbors import NeighborExchange
from .neighbors import NeighborExchange as Neighbors
from .on_device import OnDevice
from .options import GossipOptions, Options, Setup
from .sgp import SGP, ExponentialPeers, SGPOptions
from .slowmo import SlowMo, SlowMoOptions
from .swarm import Swarm, SwarmOptions

__all__ = [
    "ADPSGD",
    "DPSGD",
    "SGP",
    "A2CiD2",
    "A2CiD2Options",
    "ADPSGDOptions",
    "AllreduceSGD",
    "Alone",
    "Counts",
    "DPSGDOptions",
    "Decoupled",
    "Exchange",
    "ExponentialPeers",
    "GlobalSum",
    "GossipOptions",
    "GroupJoin",
    "GroupReduction",
    "JoinHook",
    "LocalSGD",
    "LocalSGDOptions",
    "Moshpit",
    "MoshpitOptions",
    "NeighborExchange",
    "NeighborJoin",
    "Neighbors",
    "OnDevice",
    "Options",
    "PeerSource",
    "PeriodicJoin",
    "Process",
    "Reduction",
    "SGPOptions",
    "Setup",
    "SlowMo",
    "SlowMoOptions",
    "Swarm",
    "SwarmOptions",
    "Threaded",
    "metropolis",
]
