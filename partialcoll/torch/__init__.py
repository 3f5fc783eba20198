# SPDX-License-Identifier: Apache-2.0
"""partialcoll for PyTorch: Horovod's names, and collectives that do not wait for the slowest rank.

>>> import partialcoll.torch as pct
>>> pct.init()
>>> pct.rank(), pct.size()
"""

# First, since torch takes seconds to load: where MPI has begun, those who have started this process
# in place of one that has died are told that it has come.
from .. import elastic as _greeting  # noqa: F401
from ..errors import Error as HorovodInternalError
from . import backend, elastic
from .allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from .backend import GroupOptions
from .broadcast import broadcast, broadcast_, broadcast_async, broadcast_async_
from .built import (
    ccl_built,
    check_extension,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
)
from .by_rows import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
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
from .elastic import HostsUpdatedInterrupt
from .horovod import barrier, join, poll, start_timeline, stop_timeline, synchronize
from .metrics import Metrics, show_in_tqdm, write_to_tensorboard
from .objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .ops.call import Call
from .optimizer import DistributedOptimizer
from .process_sets import ProcessSet, global_process_set
from .reductions import Adasum, Average, Max, Min, Product, Sum
from .strategies import Allreduce, Eager, RoundStrategy, Strategy
from .sync_batchnorm import SyncBatchNorm
from .world import (
    add_process_set,
    comm,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
)

backend.register()

__all__ = [
    "ADPSGD",
    "DPSGD",
    "SGP",
    "A2CiD2",
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
    "LocalSGD",
    "LocalStrategy",
    "Max",
    "Metrics",
    "Min",
    "Moshpit",
    "PartialState",
    "ProcessSet",
    "Product",
    "RoundStrategy",
    "SlowMo",
    "Strategy",
    "Sum",
    "Swarm",
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
