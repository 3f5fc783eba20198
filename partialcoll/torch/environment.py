# SPDX-License-Identifier: Apache-2.0
"""Who a rank is, in the environment, for torch and for users.

Importing partialcoll.torch sets RANK, WORLD_SIZE and LOCAL_RANK where they are absent, as far as
the launcher's variables or an MPI that has begun tell them. It does not begin MPI. `init` and
`init_process_group` begin it, and set what was still unknown.
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl

from .._core import launch
from .._core.mpi import MPI, RECORD, has_begun, is_child_of_rank

_LOCAL_RANK = (
    *("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    *("PALS_LOCAL_RANKID", "SLURM_LOCALID"),
)


def _record() -> dict[str, str]:
    return dict(parse_qsl(os.environ.get(RECORD, ""), keep_blank_values=True))


def given(name: str) -> str | None:
    """A variable, unless this module, here or in the process that started this one, has set it."""
    value = os.environ.get(name)
    return None if not value or _record().get(name) == value else value


def set_absent(values: dict[str, str]) -> None:
    """Those that are not given."""
    fresh = {name: value for name, value in values.items() if given(name) is None}
    os.environ.update(fresh)
    record = {**_record(), **fresh}
    os.environ[RECORD] = "&".join(f"{name}={value}" for name, value in record.items())


def mpi_is_there() -> bool:
    """Return whether MPI has begun and has not ended. Begins it, unless this process is a child of
    a rank, or mpi4py was told not to. Local."""
    if is_child_of_rank():
        return False
    launch.check_before_mpi()
    return MPI.Is_initialized() and not MPI.Is_finalized()


def set_environment() -> None:
    """Set RANK, WORLD_SIZE and LOCAL_RANK, where they are absent and known. Local; begins no MPI.

    A child of a rank keeps what it has inherited.
    """
    if is_child_of_rank():
        return
    if has_begun():
        rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    else:
        told = launch.launched_rank()
        if told is None:
            return
        rank, size = told
    values = {"RANK": str(rank), "WORLD_SIZE": str(size)}
    local = next((os.environ[name] for name in _LOCAL_RANK if name in os.environ), None)
    if local is None and size == 1:
        local = "0"
    if local is not None:
        values["LOCAL_RANK"] = local
    set_absent(values)
