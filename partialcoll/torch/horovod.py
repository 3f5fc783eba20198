# SPDX-License-Identifier: Apache-2.0
"""What Horovod has beside collectives on tensors: what is under way, barriers, the end of an epoch;
the timeline."""

from __future__ import annotations

import time
from typing import Any

from .._core import checks, timeline
from ._loop import Loop
from .ops.call import Call, result_of
from .process_sets import OptionalSet
from .world import calls_of, forget_dropped, world


def _check_call(handle: Any) -> Call:
    return checks.instance("handle", handle, Call, "what an asynchronous call has returned")


def poll(handle: Call) -> bool:
    """Is the call over that has returned `handle`, so that `synchronize` returns at once? Local;
    drives communication."""
    return _check_call(handle).poll()


def synchronize(handle: Call) -> Any:
    """Wait for the asynchronous call that has returned `handle`; its result: a tensor, or a list of
    a grouped one's.

    Raises what the call itself would: MismatchError, if the ranks have made different ones.
    """
    return result_of(_check_call(handle))


def barrier(process_set: OptionalSet = None) -> None:
    """Wait for all ranks, or for those of `process_set`. Collective; burns no core, and says who is
    missing if it takes long."""
    calls_of(process_set).agree("barrier")


# The end of an epoch


def join(device: int = -1) -> int:
    """No more data on this rank: wait until all ranks have come here. Collective.

    Every `DistributedOptimizer` that is open and in use joins: this rank contributes nothing to the
    others' steps and applies their updates. When it returns, all ranks have the same parameters and
    training can go on. In the others' `allreduce` and its like, if they average or sum, it takes
    part with zeros, which they divide by `size` all the same; so it does with a quorum, but for the
    first call of a name. Of other calls they are told by MismatchError, and this rank waits on.

    Several optimizers join at the same time, each in a thread, since the others go on with steps
    of all of them: their schedulers and ``on_round=`` may run side by side here. (Where MPI gives
    less than THREAD_MULTIPLE they join in the order they were made, and with uneven data only
    strategies whose steps wait for nobody do: `ADPSGD` and its like.)

    Parameters
    ----------
    device : int
        Horovod's; nothing has to be made on it.

    Returns the rank that came last, by the machines' clocks.
    """
    here = world()
    if isinstance(device, bool) or not isinstance(device, int) or device < -1:
        here.calls.refuse(ValueError(f"device: expected a number from -1 on, got {device!r}"))
    came, last = time.time(), []
    forget_dropped()  # they are not joined, on any rank
    loops = [optimizer._loop for optimizer in here.optimizers]
    joins = here.calls.join_partial()
    Loop.join(loops, *joins, lambda: last.append(here.calls.join(came)))
    return last[0]


# The timeline


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """From now on write down when calls and optimizers' rounds wait and move, in Chrome's trace
    format, until `stop_timeline` or the next `start_timeline`. Local; ranks other than 0 write
    nothing.

    Parameters
    ----------
    file_path : str
        Written anew. OSError if that cannot be.
    mark_cycles : bool
        Marks as well where data begins to move; Horovod's cycles are not there.
    """
    checks.flag("mark_cycles", mark_cycles)
    if world().comm.rank == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline, if there is one. Local."""
    timeline.stop()
