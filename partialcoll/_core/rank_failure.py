# SPDX-License-Identifier: Apache-2.0
"""MPI's own errors about ranks that have died, and who has. The library's core tells by itself;
this is for what is called on communicators from Python."""

from __future__ import annotations

from .mpi import MPI

# Open MPI's classes since 5.0 (ULFM); mpi4py has them as MPI.ERR_PROC_FAILED and so on, or not.
_NAMES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


def is_rank_failure(error: BaseException | None) -> bool:
    """Is it MPI's, of a call that could not end because a rank has died?"""
    if not isinstance(error, MPI.Exception):
        return False
    classes = {getattr(MPI, name, MPI.UNDEFINED) for name in _NAMES} - {MPI.UNDEFINED}
    return error.Get_error_class() in classes


def failed_ranks(comm: MPI.Intracomm) -> list[int]:
    """Who has died, as far as MPI knows now, by their numbers in the communicator. Local."""
    try:
        failed = comm.Get_failed()
    except (MPI.Exception, AttributeError, NotImplementedError):
        return []
    ranks: list[int] = []
    if failed.size:
        everybody = comm.Get_group()
        ranks = sorted(map(int, failed.Translate_ranks(None, everybody)))
        everybody.Free()
    failed.Free()
    return ranks
