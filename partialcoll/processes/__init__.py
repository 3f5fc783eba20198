# SPDX-License-Identifier: Apache-2.0
"""Decentralised optimisation on flat numpy vectors, one class for each algorithm.

They know gradients and updates, no framework. docs/decentralised.md says which is for what.
"""

from ._alone import Alone
from ._decoupled import Threaded
from ._exchange import Exchange, GroupReduction, Neighbours, PeerSource, Reduction
from ._neighbours import NeighbourExchange
from ._process import Counts, Process
from ._total import Total
from .a2cid2 import A2CiD2
from .adpsgd import ADPSGD
from .allreducesgd import AllreduceSGD
from .dpsgd import DPSGD, metropolis
from .localsgd import LocalSGD
from .moshpit import Moshpit
from .sgp import SGP, ExponentialPeers
from .slowmo import SlowMo
from .swarm import Swarm

__all__ = [
    "ADPSGD",
    "DPSGD",
    "SGP",
    "A2CiD2",
    "AllreduceSGD",
    "Alone",
    "Counts",
    "Exchange",
    "ExponentialPeers",
    "GroupReduction",
    "LocalSGD",
    "Moshpit",
    "NeighbourExchange",
    "Neighbours",
    "PeerSource",
    "Process",
    "Reduction",
    "SlowMo",
    "Swarm",
    "Threaded",
    "Total",
    "metropolis",
]
