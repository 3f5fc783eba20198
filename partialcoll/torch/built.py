# SPDX-License-Identifier: Apache-2.0
"""Horovod's questions about how it was built: here everything goes by MPI, and by the host."""

from __future__ import annotations

from .._core.mpi import MPI
from . import world


def mpi_built() -> bool:
    """True. Local."""
    return True


def mpi_enabled() -> bool:
    """True. Local."""
    return True


def mpi_threads_supported() -> bool:
    """May several threads call MPI? Local."""
    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def is_homogeneous() -> bool:
    """Have all nodes as many ranks? Collective, unlike Horovod's."""
    sizes = world.comm().allgather(world.local_size())
    return len(set(sizes)) == 1


def _never() -> bool:
    """False: it is not what carries the data. Local."""
    return False


gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = cuda_built = rocm_built = _never


def check_extension(*ignored: object) -> None:
    """Horovod's question whether its core was compiled: who has imported this has it. Horovod's
    arguments are `ignored`. Local."""
