# SPDX-License-Identifier: Apache-2.0
"""partialcoll for PyTorch: Horovod's names, and collectives that do not wait for the slowest rank.

>>> import partialcoll.torch as pct
>>> pct.init()
>>> pct.rank(), pct.size()
"""

# First, since torch takes seconds to load: where MPI has begun, those who have started this process
# in place of one that has died are told that it has come.
from .. import elastic as _greeting  # noqa: F401
from ..decentralized import LocalStrategy, Strategy
from ..decentralized import strategies as local_strategies
from ..decentralized.strategies import *  # noqa: F403
from ..errors import CollectiveError as HorovodInternalError
from . import backend, elastic
from .arguments import Adasum, Average, Compression, Compressor, Max, Min, Product, Sum
from .backend import GroupOptions
from .ddp import PartialState, partial_allreduce_hook
from .elastic import HostsUpdatedInterrupt
from .metrics import Metrics, show_in_tqdm, write_to_tensorboard
from .objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .ops.call import Call
from .optimizer import DistributedOptimizer
from .strategies import Allreduce, Eager, RoundStrategy
from .sync_batchnorm import SyncBatchNorm
from .verbs import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from .world import (
    ProcessSet,
    add_process_set,
    ccl_built,
    check_extension,
    comm,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    remove_process_set,
    rocm_built,
    shutdown,
    size,
)

backend.register()

__all__ = [
    *local_strategies.__all__,
    "Adasum",
    "Allreduce",
    "Average",
    "Call",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Eager",
    "GroupOptions",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "LocalStrategy",
    "Max",
    "Metrics",
    "Min",
    "PartialState",
    "ProcessSet",
    "Product",
    "RoundStrategy",
    "Strategy",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "check_extension",
    "comm",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "partial_allreduce_hook",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "show_in_tqdm",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
    "write_to_tensorboard",
]
