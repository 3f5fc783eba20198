# SPDX-License-Identifier: Apache-2.0
"""Calls of MPI from Python that cannot end because a rank has died: who it was."""

from __future__ import annotations

import time

from . import waiting
from .alone import alone
from .mpi import MPI
from .rank_failure import failed_ranks, is_rank_failure, rank_failure

_LIMIT_S = 3.0


def _make_progress() -> None:
    alone(MPI.COMM_SELF.Iprobe)


class told_by:
    """Within this MPI's errors about dead ranks of the communicator are RankFailedError. Another
    rank may have been told before this one, and what that one has revoked is heard of first: so MPI
    is given some time to know."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or not is_rank_failure(error):
            return
        end = time.monotonic() + _LIMIT_S

        def known() -> bool:
            return bool(failed_ranks(self._comm)) or time.monotonic() > end

        waiting.until(known, _make_progress)
        raise rank_failure(error, self._comm) from error
