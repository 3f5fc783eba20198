# SPDX-License-Identifier: Apache-2.0
"""partialcoll for PyTorch: Horovod's names, and collectives that do not wait for the slowest rank.

>>> import partialcoll.torch as pct
>>> pct.init()
>>> pct.rank(), pct.size()
"""

from . import process_group
from .compression import Compression, Compressor
from .ddp import PartialState, partial_allreduce_hook
from .decentralized import (
    ADPSGD,
    DPSGD,
    SGP,
    A2CiD2,
    LocalSGD,
    LocalStrategy,
    Moshpit,
    SlowMo,
    Swarm,
)
from .horovod import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    join,
    poll,
    start_timeline,
    stop_timeline,
    synchronize,
)
from .metrics import Metrics, show_in_tqdm, write_to_tensorboard
from .objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .ops.call import Call
from .optimizer import DistributedOptimizer
from .reductions import Average, Max, Min, Product, Sum
from .strategies import Allreduce, Eager, RoundStrategy, Strategy
from .world import (
    comm,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)

process_group.register()

__all__ = [
    "ADPSGD",
    "DPSGD",
    "SGP",
    "A2CiD2",
    "Allreduce",
    "Average",
    "Call",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Eager",
    "LocalSGD",
    "LocalStrategy",
    "Max",
    "Metrics",
    "Min",
    "Moshpit",
    "PartialState",
    "Product",
    "RoundStrategy",
    "SlowMo",
    "Strategy",
    "Sum",
    "Swarm",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "comm",
    "cross_rank",
    "cross_size",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "partial_allreduce_hook",
    "poll",
    "rank",
    "show_in_tqdm",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "write_to_tensorboard",
]
