# SPDX-License-Identifier: Apache-2.0
"""partialcoll for PyTorch: Horovod's names, and collectives that do not wait for the slowest rank.

>>> import partialcoll.torch as pct
>>> pct.init()
>>> pct.rank(), pct.size()
"""

from inspect import ismodule as _ismodule

# First, since torch takes seconds to load: where MPI has begun, those who have started this process
# in place of one that has died are told that it has come.
from .. import elastic as _greeting  # noqa: F401
from ..decentralized import LocalStrategy as LocalStrategy, Strategy as Strategy
from ..decentralized.strategies import *  # noqa: F403
from ..errors import CollectiveError as _CollectiveError
from . import elastic as elastic
from .arguments import (
    Adasum as Adasum,
    Average as Average,
    Compression as Compression,
    Compressor as Compressor,
    Max as Max,
    Min as Min,
    Product as Product,
    Sum as Sum,
)
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
from .world import (
    ProcessSet as ProcessSet,
    add_process_set as add_process_set,
    ccl_built as ccl_built,
    check_extension as check_extension,
    comm as comm,
    cross_rank as cross_rank,
    cross_size as cross_size,
    cuda_built as cuda_built,
    ddl_built as ddl_built,
    global_process_set as global_process_set,
    gloo_built as gloo_built,
    gloo_enabled as gloo_enabled,
    init as init,
    is_homogeneous as is_homogeneous,
    is_initialized as is_initialized,
    local_rank as local_rank,
    local_size as local_size,
    mpi_built as mpi_built,
    mpi_enabled as mpi_enabled,
    mpi_threads_supported as mpi_threads_supported,
    nccl_built as nccl_built,
    rank as rank,
    remove_process_set as remove_process_set,
    rocm_built as rocm_built,
    shutdown as shutdown,
    size as size,
)

HorovodInternalError = _CollectiveError

_register()

__all__ = [name for name, one in globals().items() if name[0] != "_" and not _ismodule(one)]
__all__.append("elastic")
