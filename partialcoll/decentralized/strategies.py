# SPDX-License-Identifier: Apache-2.0
"""The registry of the decentralized strategies. `partialcoll.decentralized` and `partialcoll.torch`
take their names from here; tools/bench/train/strategies.py gives each its names on the command
line, and tests check that none is missing there."""

from .a2cid2 import A2CiD2
from .adpsgd import ADPSGD
from .dpsgd import DPSGD
from .localsgd import LocalSGD
from .moshpit import Moshpit
from .sgp import SGP
from .slowmo import SlowMo
from .swarm import Swarm

__all__ = ["ADPSGD", "DPSGD", "SGP", "A2CiD2", "LocalSGD", "Moshpit", "SlowMo", "Swarm"]
