# SPDX-License-Identifier: Apache-2.0
"""The names of ``partialcoll.__all__``.

Importing this initializes no MPI. If mpi4py has loaded MPI, the import checks that the core fits
it; otherwise the first use does.
"""

import sys as _sys

from ._core.ffi import core as _core
from .codec import Lattice as Lattice
from .collectives.allreduce import Allreduce as Allreduce, Allreduce_init as Allreduce_init
from .collectives.allreduce import Startall as Startall, Waitall as Waitall, Waitany as Waitany
from .collectives.allreduce import memory_estimate as memory_estimate
from .collectives.gossip import GossipBuffer as GossipBuffer, GossipStats as GossipStats
from .collectives.group import GroupAllreduce as GroupAllreduce
from .collectives.group import GroupAllreduce_init as GroupAllreduce_init
from .collectives.group import GroupRound as GroupRound, GroupStats as GroupStats
from .collectives.handle import AllreduceHandle as AllreduceHandle
from .collectives.handle import ScheduleView as ScheduleView, Stats as Stats
from .collectives.schedule import Operation as Operation, Schedule as Schedule
from .collectives.state_exchange import ExchangeStats as ExchangeStats
from .collectives.state_exchange import StateExchange as StateExchange
from .errors import AbiError as AbiError, DecodeError as DecodeError, Error as Error
from .errors import MismatchError as MismatchError, RankFailedError as RankFailedError
from .errors import StateError as StateError
from .grid import Grid as Grid, bandwidth_shares as bandwidth_shares
from .policy import FirstOf as FirstOf, Full as Full, LastOf as LastOf, Majority as Majority
from .policy import Policy as Policy, Quorum as Quorum, Solo as Solo
from .round import Result as Result, Round as Round
from .topology import Topology as Topology, pairing as pairing

if "mpi4py.MPI" in _sys.modules:
    _core.lib  # noqa: B018 - a core that does not fit this MPI is refused here, at the import
