# SPDX-License-Identifier: Apache-2.0
"""Collective calls of several objects at the same time, each in a thread of its own.

For calls that wait for other ranks which, in turn, wait for another one of these calls: made one
after the other, all of them would wait for ever.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Callable

from mpi4py import MPI


def run(calls: Sequence[Callable[[], None]]) -> None:
    """Until all have returned. The first exception of any is raised at once: the others may then
    be waiting for ranks that have failed as well. Where MPI does not allow threads, one after the
    other."""
    if len(calls) <= 1 or MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        for call in calls:
            call()
        return
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def carry_out(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            ended.put(error)
        else:
            ended.put(None)

    for call in calls:
        threading.Thread(target=carry_out, args=(call,), daemon=True).start()
    for _ in calls:
        error = ended.get()
        if error is not None:
            raise error
