# SPDX-License-Identifier: Apache-2.0
"""Calls of MPI from Python that cannot end because a rank has died: who it was."""

from __future__ import annotations

import time

from ..errors import RankFailedError
from . import waiting
from .alone import alone
from .mpi import MPI
from .rank_failure import failed_ranks, is_rank_failure

_LIMIT_S = 3.0


def _make_progress() -> None:
    alone(MPI.COMM_SELF.Iprobe)


def told(error: BaseException, comm: MPI.Intracomm) -> RankFailedError:
    """MPI's error about dead ranks of the communicator as the library's. Another rank may have been
    told before this one, and what that one has revoked is heard of first: so MPI is given some time
    to know who has died."""
    end = time.monotonic() + _LIMIT_S

    def known() -> bool:
        return bool(failed_ranks(comm)) or time.monotonic() > end

    waiting.until(known, _make_progress)
    return RankFailedError(failed_ranks(comm), str(error))


class told_by:
    """Within this MPI's errors about dead ranks of the communicator are RankFailedError."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and is_rank_failure(error):
            raise told(error, self._comm) from error
