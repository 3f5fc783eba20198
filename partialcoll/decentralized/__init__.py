# SPDX-License-Identifier: Apache-2.0
"""Decentralized optimization on flat numpy vectors, one class for each algorithm.

They know gradients and updates, no framework, and no MPI: simulated ranks run them as well.
docs/decentralized.md says which is for what.
"""

from inspect import ismodule as _ismodule

from . import strategies as strategies
from .a2cid2 import A2CiD2Process as A2CiD2Process
from .adpsgd import ADPSGDProcess as ADPSGDProcess
from .decoupled import Decoupled as Decoupled, Threaded as Threaded
from .dpsgd import DPSGDProcess as DPSGDProcess, metropolis as metropolis
from .localsgd import AllreduceSGD as AllreduceSGD, LocalSGDProcess as LocalSGDProcess
from .moshpit import GroupJoin as GroupJoin, MoshpitProcess as MoshpitProcess
from .process import Alone as Alone, Counts as Counts, Exchange as Exchange, GlobalSum as GlobalSum
from .process import GroupReduction as GroupReduction, JoinHook as JoinHook, OnDevice as OnDevice
from .process import NeighborExchange as NeighborExchange, NeighborJoin as NeighborJoin
from .process import PeerSource as PeerSource, PeriodicJoin as PeriodicJoin, Process as Process
from .process import Reduction as Reduction
from .sgp import ExponentialPeers as ExponentialPeers, SGPProcess as SGPProcess
from .slowmo import SlowMoProcess as SlowMoProcess
from .strategies import *  # noqa: F403
from .strategy import GossipStrategy as GossipStrategy, LocalStrategy as LocalStrategy
from .strategy import Setup as Setup, Strategy as Strategy
from .swarm import SwarmProcess as SwarmProcess

__all__ = [name for name, one in globals().items() if name[0] != "_" and not _ismodule(one)]
