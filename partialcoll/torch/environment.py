# SPDX-License-Identifier: Apache-2.0
"""Who a rank is, in the environment, for torch and for users.

Importing partialcoll.torch sets RANK, WORLD_SIZE and, where the launcher tells it, LOCAL_RANK,
where they are absent; that needs no communication.
"""

from __future__ import annotations

import os
from urllib.parse import parse_qsl

from mpi4py import MPI

# What this module has set, so that a job that this process starts does not take it for its own.
_RECORD = "PARTIALCOLL_ENVIRONMENT"
_LOCAL_RANK = (
    *("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
    *("PALS_LOCAL_RANKID", "SLURM_LOCALID"),
)


def _record() -> dict[str, str]:
    return dict(parse_qsl(os.environ.get(_RECORD, ""), keep_blank_values=True))


def given(name: str) -> str | None:
    """A variable, unless this module, here or in the process that started this one, has set it."""
    value = os.environ.get(name)
    return None if not value or _record().get(name) == value else value


def set_absent(values: dict[str, str]) -> None:
    """Those that are not given."""
    fresh = {name: value for name, value in values.items() if given(name) is None}
    os.environ.update(fresh)
    record = {**_record(), **fresh}
    os.environ[_RECORD] = "&".join(f"{name}={value}" for name, value in record.items())


def mpi_is_there() -> bool:
    """Between MPI's beginning and its end?"""
    return MPI.Is_initialized() and not MPI.Is_finalized()


def set_environment() -> None:
    """RANK, WORLD_SIZE and LOCAL_RANK, where absent. Local; nothing before MPI's beginning."""
    if not mpi_is_there():
        return
    world = MPI.COMM_WORLD
    values = {"RANK": str(world.rank), "WORLD_SIZE": str(world.size)}
    local = next((os.environ[name] for name in _LOCAL_RANK if name in os.environ), None)
    if local is None and world.size == 1:
        local = "0"
    if local is not None:
        values["LOCAL_RANK"] = local
    set_absent(values)
