# SPDX-License-Identifier: Apache-2.0
"""How torch makes groups of the backend, and when their memory is freed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .._core import checks
from .._core.mpi import MPI
from . import environment, rendezvous
from .process_group import NAME, ProcessGroup, retired


@dataclass(frozen=True)
class GroupOptions:
    """``pg_options=`` of `torch.distributed.init_process_group` and `new_group`.

    Parameters
    ----------
    on_failure : "raise" or "continue"
        When a rank of the group dies: RankFailedError from every operation; or reductions,
        broadcasts, barriers and all_gather go on among those who live, and others are refused
        (docs/faults.md).
    """

    on_failure: str = "raise"

    def __post_init__(self) -> None:
        checks.one_of("on_failure", self.on_failure, ("raise", "continue"))


def _free_retired(comm: MPI.Intracomm) -> None:
    """Those that all their members have destroyed in good order. Collective over the world."""
    mine = {identity: group.size() for identity, group in retired.items() if group.usable}
    count: dict[str, int] = {}
    for theirs in comm.allgather(mine):
        for identity in theirs:
            count[identity] = count.get(identity, 0) + 1
    for identity in sorted(mine):
        if count[identity] == mine[identity]:
            retired.pop(identity).free()


def create(options: Any, backend_options: Any = None) -> ProcessGroup:
    """What torch calls for a group of this backend; see `torch.distributed.Backend`. Collective."""
    ranks = list(options.global_ranks_in_group)
    timeout: timedelta = options.timeout
    given = GroupOptions() if backend_options is None else backend_options
    checks.instance("pg_options", given, GroupOptions, "GroupOptions() or None")
    identity, comm = rendezvous.gather_members(
        options.store,
        options.group_id,
        options.group_rank,
        options.group_size,
        ranks,
        timeout.total_seconds(),
        repr(given),
    )
    if not ranks:
        _free_retired(comm)
    tells = not ranks or not isinstance(dist.group.WORLD, ProcessGroup)  # else the world does
    return ProcessGroup(options.group_id, identity, comm, timeout, given.on_failure, tells)


def register() -> None:
    """Make the backend known to torch, and the ranks that MPI has started to it. Local."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])
    rendezvous.install()
    environment.set_environment()
