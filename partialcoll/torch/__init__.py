# SPDX-License-Identifier: Apache-2.0
"""partialcoll for PyTorch: Horovod's names, and collectives that do not wait for the slowest rank.

>>> import partialcoll.torch as pct
>>> pct.init()
>>> pct.rank(), pct.size()
"""

from inspect import ismodule as _ismodule

# Import this first, since torch takes seconds to load: if MPI has begun, it notifies the ranks that
# have started this process in place of a dead one.
from .. import elastic as _greeting  # noqa: F401
from ..decentralized import LocalStrategy as LocalStrategy, Strategy as Strategy
from ..decentralized.strategies import *  # noqa: F403
from ..errors import CollectiveError as _CollectiveError
from . import elastic as elastic
from .arguments import *  # noqa: F403
from .ddp import PartialState as PartialState, partial_allreduce_hook as partial_allreduce_hook
from .elastic import HostsUpdatedInterrupt as HostsUpdatedInterrupt
from .metrics import (
    Metrics as Metrics,
    show_in_tqdm as show_in_tqdm,
    write_to_tensorboard as write_to_tensorboard,
)
from .ops.call import Call as Call
from .optimizer import DistributedOptimizer as DistributedOptimizer
from .process_group import GroupOptions as GroupOptions, register as _register
from .strategies import Allreduce as Allreduce, Eager as Eager, RoundStrategy as RoundStrategy
from .sync_batchnorm import SyncBatchNorm as SyncBatchNorm
from .verbs import *  # noqa: F403
from .world import *  # noqa: F403

HorovodInternalError = _CollectiveError

_register()

__all__ = [name for name, one in globals().items() if name[0] != "_" and not _ismodule(one)]
__all__.append("elastic")
